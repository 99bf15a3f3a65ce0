#!/usr/bin/env python3
"""Steps of sharded policies compared with ddp's and with PyTorch's fully_shard and DDP over Gloo, interleaved.

    sharded.py [--rounds 20] [--models resnet18,bert] [--harness build/bin/harness] [--python PYTHON] [--keep FILE | --show FILE]

Two ranks, one thread each. In every round each scheme runs once, in turn; a round's ratio is the median step of the
scheme / that of the scheme it is compared with. PyTorch runs
in the environment of peer_settings.py in which one run was the fastest. Reported are the median of the ratios with a bootstrap interval of 95 %.
Promised: zero1 at most 1.03 of ddp. A goal to report against: zero3 at most 1.10 of ddp. Both faster than fully_shard.
The ranks share this machine's cores, so it needs a quiet machine.
"""
import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import peer_settings  # noqa: E402
import provenance  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
MODELS = {
    "resnet18": (16, ["--data", "synthetic:3x32x32:10", "--optimizer", "sgd", "--lr", "0.01", "--momentum", "0.9"], 15),
    "bert": (8, ["--head", "cls", "--optimizer", "adam", "--lr", "0.0001"], 10),
}
OURS = ["ddp", "ddp --bucket-view", "zero1", "zero2", "zero3"]
THEIRS = ["torch ddp", "torch fully_shard"]
COMPARED = [("zero1", "ddp"), ("zero2", "ddp"), ("zero3", "ddp"), ("zero1", "ddp --bucket-view"),
            ("zero3", "ddp --bucket-view"), ("zero1", "torch fully_shard"), ("zero3", "torch fully_shard"),
            ("ddp", "torch ddp")]


def ours(harness, policy, model):
    batch, options, steps = MODELS[model]
    out = subprocess.run([harness, "run", "--mode", "ring", "--policy", *policy.split(), "--gpus", "2", "--threads", "1", "--model", model,
                          "--batch", str(batch), "--steps", str(steps), "--warmup", "3", "--eval-every", "-1", "--json", "-",
                          "--quiet", *options], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    return json.loads(out)["jobs"][0]["step_time"]["median_s"] * 1e3


def theirs(python, mode, model, environment):
    batch, _, steps = MODELS[model]
    words = ["--fused"] if model == "bert" else []
    out = subprocess.run([python, os.path.join(HERE, "pytorch_train.py"), model, str(batch), str(steps), "1", mode, "2", *words],
                         check=True, stdout=subprocess.PIPE, universal_newlines=True, env=dict(os.environ, **environment)).stdout
    return json.loads(out.strip().splitlines()[-1])["step_ms"]


def fastest(python, version, mode, model):
    """The environment of one run each."""
    found = peer_settings.environments(version)
    return min(found, key=lambda one: theirs(python, mode, model, one[1]))


def interval(ratios):
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[-51]


def ratios_of(row):
    """{(scheme, the one that it is compared with): the ratio of each round}"""
    times = row["step_ms"]
    return {(one, other): [a / b for a, b in zip(times[one], times[other])] for one, other in COMPARED
            if times.get(one) and times.get(other)}


def show(results):
    for row in results["rows"]:
        print("%s, batch %d, %d rounds:" % (row["model"], row["batch"], row["rounds"]))
        print("  median ms: " + ", ".join("%s %.2f" % (name, statistics.median(times)) for name, times in row["step_ms"].items()))
        for (one, other), ratios in ratios_of(row).items():
            print("  %s / %s: %.3f [%.3f, %.3f]" % (one, other, *interval(ratios)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--harness", default=os.path.join(ROOT, "build", "bin", "harness"))
    parser.add_argument("--python", help="with a PyTorch that has fully_shard; without, ours alone")
    parser.add_argument("--keep")
    parser.add_argument("--show")
    args = parser.parse_args()
    if args.show:
        with open(args.show, encoding="utf-8") as stream:
            show(json.load(stream))
        return 0
    rows = []
    version = args.python and provenance.first_line(args.python, "-c", "import torch; print(torch.__version__)")
    for model in args.models.split(","):
        best = {name: fastest(args.python, version, name.split()[1], model) for name in (THEIRS if args.python else [])}
        times = {name: [] for name in OURS + (THEIRS if args.python else [])}
        for round_ in range(args.rounds):
            for name, values in times.items():
                values.append(theirs(args.python, name.split()[1], model, best[name][1]) if name in best else
                              ours(args.harness, name, model))
            print("%s, round %d of %d: %s" % (model, round_ + 1, args.rounds, ", ".join(
                "%s %.1f" % (k, v[-1]) for k, v in times.items())), file=sys.stderr, flush=True)
        rows.append({"model": model, "batch": MODELS[model][0], "rounds": args.rounds, "ranks": 2, "step_ms": times,
                     "settings": {name: one[0] for name, one in best.items()}})
    versions = provenance.versions_of(args.harness)
    if args.python:
        versions["torch"] = version
    ratios = [values for row in rows for values in ratios_of(row).values()]
    results = {"rows": rows, "provenance": provenance.here(shlex.join(["python3", *sys.argv]), versions, args.rounds,
                                                           provenance.largest_spread(ratios))}
    show(results)
    if args.keep:
        provenance.write(args.keep, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
