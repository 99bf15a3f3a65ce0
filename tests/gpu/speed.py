#!/usr/bin/env python3
"""Training steps of this program on one GPU beside PyTorch's on the same one, one after the other.

    speed.py [--quick] [--python PYTHON] [--harness build/bin/harness] [--out FILE]

The ratio of a case is ours / PyTorch's best of the settings of the same precision, eager and compiled apart. Targets:
at most 0.9 of the best eager and 1.0 of the compiled. There PyTorch has its batch on the GPU before; ours comes anew in every
step, copied beside the one before, and what the step waited for it (`load`: mostly the loader, which makes it) is taken off.
Beside that stand whole steps, in which both copy their batches one step ahead. A peer that is not there is said, and ours is measured alone.
Writes what was measured, with commands, versions and the commit, to FILE.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SGD = ["--optimizer", "sgd", "--lr", "0.01", "--momentum", "0.9"]
ADAM = ["--optimizer", "adam", "--lr", "0.0001"]
# model: batch, our options, precisions that we have for it, precisions of the peer to compare each with
CASES = [("resnet50", 128, SGD, {"float32": ["float32"], "tf32": ["tf32"], "bf16": ["bf16"]}, True),
         ("bert_large", 16, ADAM + ["--head", "cls", "--sequence", "128"],
          {"float32": ["float32"], "tf32": ["tf32"], "bf16": ["bf16"]}, False)]
EAGER, COMPILED = 0.9, 1.0


def run(command, limit):
    """(parsed JSON, None) or (None, why not)."""
    try:
        out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit,
                             universal_newlines=True, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if out.returncode != 0:
        return None, (out.stderr.strip().splitlines() or ["exit code %d" % out.returncode])[-1]
    return json.loads(out.stdout), None


def ours_once(command):
    result, why = run(command, 180)
    if why:
        return {"command": command, "error": why}
    job = result["jobs"][0]
    load = sorted(job["ranks"][0]["load_ns"])
    whole = job["step_time"]["median_ns"]
    return {"command": command, "step_ms": (whole - load[len(load) // 2]) / 1e6, "step_with_load_ms": whole / 1e6,
            "commit": result.get("program", {}).get("commit"), "device": job["ranks"][0]["device"]}


def ours(harness, model, batch, options, precision, images, steps, quick):
    """The best of our settings, with all of them; algorithms are timed, as the peer's are."""
    command = [harness, "run", "--device", "cuda", "--mode", "none", "--model", model, "--batch", str(batch), "--steps",
               str(steps), "--warmup", "10", "--eval-every", "-1", "--json", "-", "--quiet", *options]
    command += [] if precision == "float32" else ["--" + precision]
    command += ["--cudnn-benchmark"] if images else []
    found = [ours_once(command + more) for more in ([[]] if quick else [[], ["--cuda-graph"]])]
    measured = [f for f in found if "step_ms" in f]
    return {**(min(measured, key=lambda f: f["step_ms"]) if measured else found[0]), "settings": found}


def peers(python, model, batch, precision, images, steps, quick):
    found = []
    for compiled in ([False] if quick else [False, True]):
        for channels_last in ([False, True] if images else [False]):
            command = [python, os.path.join(HERE, "pytorch_step.py"), model, str(batch), str(steps), "--precision", precision]
            command += ["--compile"] if compiled else []
            command += ["--channels-last"] if channels_last else []
            result, why = run(command, 150)
            found.append({"command": command, "compiled": compiled, **({"error": why} if why else result)})
    return found


def copying(found):
    """PyTorch's best setting once more, with batches that are copied one step ahead."""
    measured = [p for p in found if "step_ms" in p]
    if not measured:
        return {"error": "the peer was not measured"}
    command = min(measured, key=lambda p: p["step_ms"])["command"] + ["--prefetch"]
    result, why = run(command, 150)
    return {"command": command, **({"error": why} if why else result)}


def best(found, compiled):
    times = [p["step_ms"] for p in found if p["compiled"] == compiled and "step_ms" in p]
    return min(times) if times else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--harness", default="build/bin/harness")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    steps, rows, missed = 10 if args.quick else 30, [], 0
    for model, batch, options, precisions, images in CASES:
        for precision, against in precisions.items():
            mine = ours(args.harness, model, batch, options, precision, images, steps, args.quick)
            for other in against:
                found = peers(args.python, model, batch, other, images, steps, args.quick)
                row = {"model": model, "batch": batch, "precision": precision, "peer_precision": other, "ours": mine,
                       "peers": found}
                words = [f"{model} {precision}: {mine.get('step_ms', float('nan')):.2f} ms ({mine.get('error', 'ours')})"]
                for name, compiled, target in (("eager", False, EAGER), ("compiled", True, COMPILED)):
                    theirs = best(found, compiled)
                    if theirs is None or "step_ms" not in mine:
                        words.append(f"{name} {other}: not measured")
                        continue
                    row[name + "_ratio"] = mine["step_ms"] / theirs
                    missed += row[name + "_ratio"] > target
                    words.append(f"{name} {other} {theirs:.2f} ms: {row[name + '_ratio']:.2f} (target {target})")
                row["peer_copying"] = {} if args.quick else copying(found)
                if "step_ms" in row["peer_copying"] and "step_ms" in mine:
                    words.append(f"whole steps, both copying: {mine['step_with_load_ms']:.2f} and {row['peer_copying']['step_ms']:.2f} ms")
                print("; ".join(words), flush=True)
                rows.append(row)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cases": rows}, file,
                  indent=1)
    print(f"{missed} of the ratios miss their targets; all of it: {args.out}")


if __name__ == "__main__":
    sys.exit(main())
