#!/usr/bin/env python3
"""Training steps of this program on one GPU compared with PyTorch's on the same one, alternating.

    speed.py --out FILE [--quick] [--eager] [--precision PRECISION]... [--seconds N] [--keep FILE] [--python PYTHON]
             [--harness build/bin/harness] [--emulated]

    --seconds N   begin nothing that could end later than that
    --keep FILE   what was measured: a command that is in it is not run again, so that a second call goes on
    --quick       bfloat16 alone, in the settings that are the fastest as a rule
    --eager       without compiled peers
    --precision   one of those to measure: bf16, tf32, float32
    --emulated    a rehearsal where there is no GPU: tiny models, the peer on the processor

A step's time is the wall time of all measured steps divided by their number. The ratio of a case is ours / PyTorch's
best of the settings of the same precision, eager and compiled apart. Targets: at most 0.9 of the best eager and 1.0 of
the best compiled setting. PyTorch's batch is on the GPU before the steps begin. Our program makes and copies a new
batch in every step; the time that it waits for this is shown (`load_ms`), but not subtracted. In addition PyTorch's
best setting is measured with batches that are copied one step ahead. If a peer is not installed, the program says so,
and only our steps are measured. Compiled peers, which take minutes, come last. Writes what was measured, with commands,
versions and the commit, to FILE.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SGD = ["--optimizer", "sgd", "--lr", "0.01", "--momentum", "0.9", "--loader-threads", "4"]
ADAM = ["--optimizer", "adam", "--lr", "0.0001"]
# model, batch, our options, the peer's, whether it takes images
CASES = [("resnet50", 128, SGD, [], True), ("bert_large", 16, ADAM + ["--head", "cls", "--sequence", "128"], [], False),
         ("gpt2", 8, ADAM + ["--sequence", "1024"], ["--sequence", "1024"], False)]
EMULATED_CASES = [("wine_mlp", 4, SGD, [], False)]
PRECISIONS = ["bf16", "tf32", "float32"]
EAGER, COMPILED = 0.9, 1.0
OURS_LIMIT, EAGER_LIMIT, COMPILED_LIMIT = 60, 60, 150
COMPILED_MODES = ["default", "reduce-overhead"]  # the second records CUDA graphs


def run(command, limit, log=None):
    """(parsed JSON, None) or (None, why not). What the program reports on stderr is appended to `log`."""
    try:
        out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit,
                             universal_newlines=True, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(" ".join(command) + "\n" + out.stderr + "\n")
    if out.returncode != 0:
        return None, (out.stderr.strip().splitlines() or ["exit code %d" % out.returncode])[-1]
    try:
        return json.loads(out.stdout), None
    except ValueError as error:
        return None, "no JSON on stdout (%s): %s" % (error, out.stdout[:200])


def ours_once(command, log=None):
    """Measures our program once. The log has the algorithms that were chosen, fused and refused, which are not
    written during steps."""
    result, why = run([*command, "--log-level", "debug"], OURS_LIMIT, log)
    if why:
        return {"command": command, "error": why}
    job = result["jobs"][0]
    load = job["ranks"][0]["data_s"]
    return {"command": command, "step_ms": job["throughput"]["wall_s"] / job["step_time"]["count"] * 1e3,
            "median_ms": job["step_time"]["median_s"] * 1e3, "load_ms": sum(load) / len(load) * 1e3, "commit": result.get("program", {}).get("commit"), "device": job["ranks"][0]["device"]}


def peer_once(command):
    result, why = run(command, COMPILED_LIMIT if "--compile" in command else EAGER_LIMIT)
    return {"command": command, "compiled": "--compile" in command, **({"error": why} if why else result)}


def our_commands(args, case, precision, steps):
    """Our commands. Algorithms are timed, as the peer's are."""
    model, batch, options, _, _ = case
    command = [args.harness, "run", "--device", "cuda", "--mode", "none", "--model", model, "--batch", str(batch), "--steps",
               str(steps), "--warmup", "10", "--eval-every", "-1", "--json", "-", "--quiet", *options]
    command += [] if precision == "float32" else ["--" + precision]
    command += ["--benchmark"]
    return [command + more for more in ([["--cuda-graph"]] if args.quick else [[], ["--cuda-graph"]])]


def peer_commands(args, case, precision, steps, compiled):
    model, batch, _, options, images = case
    command = [args.python, os.path.join(HERE, "pytorch_step.py"), model, str(batch), str(steps), "--precision", precision]
    command += options
    command += ["--device", "cpu"] if args.emulated else []
    layouts = [[], ["--channels-last"]][args.quick:] if images else [[]]
    modes = [["--compile", mode] for mode in COMPILED_MODES] if compiled else [[]]
    return [command + mode + layout for layout in layouts for mode in modes]


class Measured:
    """Results by command. Each result is written to disk when it is measured."""

    def __init__(self, path, seconds):
        self.path, self.until, self.found, self.left = path, time.monotonic() + seconds, {}, 0
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.found = json.load(file)

    def take(self, commands, once, limit):
        for command in commands:
            key = " ".join(command)
            if "step_ms" in self.found.get(key, {}):
                continue
            if time.monotonic() + limit > self.until:
                self.left += 1
                continue
            self.found[key] = once(command)
            if self.path:
                with open(self.path, "w", encoding="utf-8") as file:
                    json.dump(self.found, file)

    def of(self, commands):
        return [self.found[" ".join(c)] for c in commands if " ".join(c) in self.found]


def fastest(found):
    """The fastest of the results that ran; otherwise the first that did not run, or nothing."""
    return min(found, key=lambda f: f.get("step_ms", float("inf")), default={"error": "not run"})


def copying_command(peers):
    """PyTorch's best setting once more, with batches that are copied one step ahead; none if nothing was measured."""
    best = fastest(peers)
    return [best["command"] + ["--prefetch"]] if "step_ms" in best else []


def row_of(case, precision, ours, eager, compiled, copying):
    model, batch = case[:2]
    mine, missed = fastest(ours), 0
    row = {"model": model, "batch": batch, "precision": precision, "ours": {**mine, "settings": ours}, "peers": eager + compiled}
    words = [f"{model} {precision}: {mine.get('step_ms', float('nan')):.2f} ms ({mine.get('error', 'ours')})"]
    for name, peers, target in (("eager", eager, EAGER), ("compiled", compiled, COMPILED)):
        theirs = fastest(peers)
        if "step_ms" not in theirs or "step_ms" not in mine:
            words.append(f"{name}: {theirs.get('error', 'not compared')}")
            continue
        row[name + "_ratio"] = mine["step_ms"] / theirs["step_ms"]
        missed += row[name + "_ratio"] > target
        words.append(f"{name} {theirs['step_ms']:.2f} ms: {row[name + '_ratio']:.2f} (target {target})")
    row["peer_copying"] = copying
    if "step_ms" in copying and "step_ms" in mine:
        words.append(f"with batches that are copied: {copying['step_ms']:.2f} ms")
    print("; ".join(words), flush=True)
    return row, missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--keep")
    parser.add_argument("--log")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--harness", default="build/bin/harness")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    steps = 10 if args.emulated else 30
    cases = [(case, precision) for case in (EMULATED_CASES if args.emulated else CASES)
             for precision in (args.precision or PRECISIONS[:1 if args.quick else None])]
    measured, rows, missed = Measured(args.keep, args.seconds), [], 0
    for case, precision in cases:
        measured.take(our_commands(args, case, precision, steps), lambda command: ours_once(command, args.log), OURS_LIMIT)
        measured.take(peer_commands(args, case, precision, steps, False), peer_once, EAGER_LIMIT)
    compiled = [] if args.eager else [peer_commands(args, case, precision, steps, True) for case, precision in
                                      sorted(cases, key=lambda pair: PRECISIONS.index(pair[1]))]
    measured.take([commands[-1] for commands in compiled], peer_once, COMPILED_LIMIT)
    measured.take([command for commands in compiled for command in commands[:-1]], peer_once, COMPILED_LIMIT)
    for case, precision in cases:
        eager, compiled = (measured.of(peer_commands(args, case, precision, steps, way)) for way in (False, True))
        copying = copying_command(eager + compiled) if not args.quick and not args.emulated else []
        measured.take(copying, peer_once, COMPILED_LIMIT)
        row, misses = row_of(case, precision, measured.of(our_commands(args, case, precision, steps)), eager, compiled,
                             fastest(measured.of(copying)))
        rows.append(row)
        missed += misses
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cases": rows}, file,
                  indent=1)
    print(f"single measurements, {missed} of the ratios beyond their targets; all of it: {args.out}")
    if measured.left:
        print(f"{measured.left} commands did not fit into the time: call again with the same --keep")
    return 0 if all("step_ms" in row["ours"] for row in rows) or measured.left else 1


if __name__ == "__main__":
    sys.exit(main())
