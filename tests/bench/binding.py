#!/usr/bin/env python3
"""The effect of binding ranks to cores: --bind none and core alternate, on a quiet machine and next to a process
that keeps one core busy. usage: binding.py [--harness FILE] [--rounds N] [--cases PART;...]"""
import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

# model, data, batch, steps
MODELS = [("lenet", "synthetic:1x28x28:10", 16, 120), ("resnet18", "synthetic:3x32x32:10", 16, 12)]
ENGINES = [("ring", "ddp"), ("ps", "sync")]
RANKS = [2, 4]


def step_ms(a, words, bind):
    """The median of the steps, and how long ranks waited for others."""
    command = [a.harness, "run", *words, "--bind", bind, "--warmup", "4", "--eval-every", "-1", "--quiet", "--json", "-"]
    job = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["jobs"][0]
    return job["step_time"]["median_s"] * 1e3, (job["phases"]["waiting_s"]["median_s"] or 0) * 1e3


def compare(a, name, words):
    found = {"none": [], "core": []}
    for turn in range(a.rounds):
        for bind in sorted(found, reverse=turn % 2 == 0):
            found[bind].append(step_ms(a, words, bind))
    steps = {bind: [step for step, _ in rows] for bind, rows in found.items()}
    waits = {bind: statistics.median(wait for _, wait in rows) for bind, rows in found.items()}
    median, best = ({bind: of(steps[bind]) for bind in steps} for of in (statistics.median, min))
    print("%-40s %9.2f %9.2f %7.2f %7.2f %9.2f %9.2f" % (name, median["none"], median["core"], median["core"] / median["none"],
                                                      best["core"] / best["none"], waits["none"], waits["core"]), flush=True)
    return [core / none for core, none in zip(steps["core"], steps["none"])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--harness", default="build/bin/harness")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="parts of names, with ; between: cases that hold one of them")
    a = parser.parse_args()
    ratios = []
    wanted = [word for word in a.cases.split(";") if word]
    print("%-40s %9s %9s %7s %7s %9s %9s" % ("step, ms", "none", "core", "ratio", "of best", "waits", "waits"))
    for loaded in (False, True):
        load = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if loaded else None
        try:
            for model, data, batch, steps in MODELS:
                for engine, policy in ENGINES:
                    for ranks in RANKS:
                        name = f"{model}, {engine} {policy}, {ranks} ranks{', next to a load' if loaded else ''}"
                        words = ["--mode", engine, "--policy", policy, "--gpus", str(ranks), "--model", model, "--data", data,
                                 "--batch", str(batch), "--steps", str(steps)]
                        if not wanted or any(word in name for word in wanted):
                            ratios.append(compare(a, name, words))
        finally:
            if load:
                load.kill()
                load.wait()
    print(provenance.closing_line(a.rounds, provenance.largest_spread(ratios)))


main()
