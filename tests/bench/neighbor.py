#!/usr/bin/env python3
"""A step alone and next to a niced endless loop, ours and PyTorch's: one rank of two threads, ResNet-18 on small images.

    neighbor.py [--harness FILE] [--python PYTHON] [--rounds N]

In every round each of the four configurations runs once. A ratio is the time of a step next to the loop, divided by the
time of a step alone in the same round. Promised: ours takes at most 1.5 times as long.
"""
import argparse
import contextlib
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import peer_settings  # noqa: E402
import provenance  # noqa: E402
import train  # noqa: E402

LIMIT = 1.5


@contextlib.contextmanager
def niced_loop():
    loop = subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--harness", default="build/bin/harness")
    parser.add_argument("--python", help="with torch and torchvision; without, ours alone")
    parser.add_argument("--rounds", type=int, default=6)
    a = parser.parse_args()
    case = next(c for c in train.list_cases() if c["name"] == "resnet18_2threads")
    runs = {"ours": lambda: train.ours(a.harness, case, case["steps"])["step_ms"]}
    if a.python:
        version = provenance.first_line(a.python, "-c", "import torch; print(torch.__version__)")
        keeps_memory = dict(peer_settings.environments(version))["keeps memory"]
        setting = {"python": a.python, "environment": keeps_memory, "options": [], "label": "torch " + version}
        runs[setting["label"]] = lambda: train.peer(setting, case, case["steps"])["step_ms"]
    times = {(name, beside): [] for name in runs for beside in (False, True)}
    for _ in range(a.rounds):
        for (name, beside), found in times.items():
            with niced_loop() if beside else contextlib.nullcontext():
                found.append(runs[name]())
    ratios = {name: [beside / alone for alone, beside in zip(times[name, False], times[name, True])] for name in runs}
    print("%-24s %10s %14s %7s %9s %9s" % ("step, ms", "alone", "next to a loop", "ratio", "smallest", "largest"))
    for name, found in ratios.items():
        alone, beside = (statistics.median(times[name, b]) for b in (False, True))
        print("%-24s %10.2f %14.2f %7.2f %9.2f %9.2f" % (name, alone, beside, statistics.median(found), min(found), max(found)))
    print("ours: at most %.1f times as long: %s" % (LIMIT, provenance.verdict(ratios["ours"], LIMIT)))
    print(provenance.closing_line(a.rounds, provenance.largest_spread(ratios.values())))


main()
