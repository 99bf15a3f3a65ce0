#!/usr/bin/env python3
"""Training steps of this program beside PyTorch's, interleaved: ratios of step times.

    train.py [--harness build/bin/harness] [--rounds N] [--cases a,b] [--json FILE] [--markdown FILE]
             [--python PYTHON ...]

Peers are every Python given (default: python3, /usr/bin/python3, and $PSRING_PYTHON) that has torch, each in the
settings that make it fast: Debian's torch takes its matrix products from OpenBLAS, which needs
OPENBLAS_CORETYPE to use AVX-512 on processors that it does not know, and transformers want OpenMP threads that
sleep; convolutional networks also run with channels_last. In every round ours and each peer setting run once,
in turn; the ratio of a round is ours / the best peer setting over all rounds, and the median ratio is reported
with its smallest and largest value.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DDP, SINGLE = "ddp", "single"
# name, model, batch, mode, ranks, threads, steps, ours (extra options), target ratio
CASES = [
    ("mlp", "wine_mlp", 32, SINGLE, 1, 1, 2000, ["--data", "synthetic"], 0.15),
    ("resnet18", "resnet18", 32, SINGLE, 1, 1, 20, ["--data", "synthetic:3x32x32:10"], 0.70),
    ("resnet50", "resnet50", 4, SINGLE, 1, 1, 4, ["--data", "synthetic"], 0.72),
    ("bert_base", "bert_base", 4, SINGLE, 1, 1, 3, ["--data", "synthetic", "--head", "cls"], 0.88),
    ("bert_small", "bert", 8, SINGLE, 1, 1, 12, ["--data", "synthetic", "--head", "cls"], 0.85),
    ("gpt2", "gpt2", 4, SINGLE, 1, 1, 2, ["--data", "synthetic"], 0.88),
    ("resnet18_2t", "resnet18", 32, SINGLE, 1, 2, 20, ["--data", "synthetic:3x32x32:10"], None),
    ("resnet50_2t", "resnet50", 4, SINGLE, 1, 2, 4, ["--data", "synthetic"], None),
    ("bert_base_2t", "bert_base", 4, SINGLE, 1, 2, 3, ["--data", "synthetic", "--head", "cls"], None),
    ("resnet18_ddp2", "resnet18", 32, DDP, 2, 1, 15, ["--data", "synthetic:3x32x32:10"], 0.45),
    ("resnet50_ddp2", "resnet50", 4, DDP, 2, 1, 3, ["--data", "synthetic"], 0.62),
    ("bert_base_ddp2", "bert_base", 4, DDP, 2, 1, 2, ["--data", "synthetic", "--head", "cls"], 0.62),
]
CONVOLUTIONAL = ("resnet18", "resnet50")


def ours(harness, case):
    name, model, batch, mode, ranks, threads, steps, extra, _ = case
    optimizer = ["--optimizer", "sgd", "--lr", "0.01", "--momentum", "0.9"]
    if model not in CONVOLUTIONAL and model != "wine_mlp":
        optimizer = ["--optimizer", "adam", "--lr", "0.0001"]
    command = [harness, "--mode", "none" if ranks == 1 else "ring", "--model", model, "--batch", str(batch), "--threads",
               str(threads), "--steps", str(steps), "--warmup", "3", "--json", "-", "--quiet"] + extra + optimizer
    if ranks > 1:
        command += ["--gpus", str(ranks)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    job = json.loads(out)["jobs"][0]
    rank = max(job["ranks"], key=lambda r: r["process"]["proportional_bytes"])
    load = statistics.median(job["ranks"][0]["load_ns"])
    return {"step_ms": (job["step_time"]["median_ns"] - load) / 1e6,
            "proportional_mib": rank["process"]["proportional_bytes"] / 2**20}


def settings(python, version, case):
    """Environments and options in which a peer is fast; all are tried."""
    model = case[1]
    options = [[]] + ([["--channels-last"]] if model in CONVOLUTIONAL else [])
    environments = [{}]
    if version.startswith("1."):
        environments = [{"OPENBLAS_CORETYPE": "SkylakeX"},
                        {"OPENBLAS_CORETYPE": "SkylakeX", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}]
    return [(python, version, e, o) for e in environments for o in options]


def peer(setting, case):
    python, _, environment, options = setting
    name, model, batch, mode, ranks, threads, steps, _, _ = case
    command = [python, os.path.join(HERE, "pytorch_train.py"), model, str(batch), str(steps), str(threads), mode,
               str(max(ranks, 1))] + options
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True,
                         env=dict(os.environ, **environment), timeout=600)
    if out.returncode:
        return None
    return json.loads(out.stdout.strip().splitlines()[-1])


def torch_version(python):
    try:
        out = subprocess.run([python, "-c", "import torch, torchvision; print(torch.__version__)"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, universal_newlines=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() if out.returncode == 0 else None


def label(setting):
    _, version, environment, options = setting
    words = ["torch " + version] + ["%s=%s" % item for item in sorted(environment.items())] + options
    return " ".join(words)


def measure(args, case, peers):
    name = case[0]
    all_settings = [s for python, version in peers for s in settings(python, version, case)]
    mine, theirs = [], {label(s): [] for s in all_settings}
    for round_ in range(args.rounds):
        mine.append(ours(args.harness, case))
        for s in all_settings:
            result = peer(s, case)
            if result:
                theirs[label(s)].append(result["step_ms"])
        print("  %s round %d: ours %.3f ms" % (name, round_ + 1, mine[-1]["step_ms"]), file=sys.stderr, flush=True)
    medians = {k: statistics.median(v) for k, v in theirs.items() if len(v) == args.rounds}
    if not medians:
        return None
    best = min(medians, key=medians.get)
    ratios = [m["step_ms"] / t for m, t in zip(mine, theirs[best])]
    return {"case": name, "model": case[1], "batch": case[2], "ranks": case[4], "threads": case[5],
            "ours_ms": statistics.median(m["step_ms"] for m in mine), "peer_ms": medians[best], "peer": best,
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios), "target": case[8],
            "proportional_mib": max(m["proportional_mib"] for m in mine), "settings_ms": medians}


def table(rows):
    yield "| case | ranks x threads | ours, ms | PyTorch's best, ms | ratio (smallest to largest) | target | PSS a rank, MiB | PyTorch's best setting |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for r in rows:
        target = "-" if r["target"] is None else "%.2f %s" % (r["target"], "met" if r["ratio"] <= r["target"] else "missed")
        yield "| %s, batch %d | %d x %d | %.3f | %.3f | %.3f (%.3f to %.3f) | %s | %.0f | %s |" % (
            r["case"], r["batch"], r["ranks"], r["threads"], r["ours_ms"], r["peer_ms"], r["ratio"], r["ratio_min"],
            r["ratio_max"], target, r["proportional_mib"], r["peer"])


def processor():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
        for line in stream:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--harness", default=os.path.join(HERE, "..", "..", "build", "bin", "harness"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(c[0] for c in CASES))
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    args = parser.parse_args()
    candidates = args.python or ["python3", "/usr/bin/python3"] + ([os.environ["PSRING_PYTHON"]] if os.environ.get("PSRING_PYTHON") else [])
    peers, seen = [], set()
    for python in candidates:
        version = torch_version(python)
        if version and version not in seen:
            seen.add(version)
            peers.append((python, version))
    if not peers:
        print("no Python with torch and torchvision found: python3-torch and python3-torchvision are Debian's packages")
        return 0
    wanted = args.cases.split(",")
    rows = [r for r in (measure(args, c, peers) for c in CASES if c[0] in wanted) if r]
    head = "%s, %d processors, %s; %d rounds, interleaved; ratio = ours / PyTorch's best setting" % (
        processor(), os.cpu_count(), time.strftime("%Y-%m-%d"), args.rounds)
    lines = [head, ""] + list(table(rows))
    print("\n".join(lines))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as stream:
            json.dump({"host": head, "rows": rows}, stream, indent=1)
    if args.markdown:
        with open(args.markdown, "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
