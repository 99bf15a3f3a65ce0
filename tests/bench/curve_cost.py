#!/usr/bin/env python3
"""What CURVE costs in a step whose tensors travel in ZeroMQ messages. Runs without CURVE over ipc and runs with CURVE
over tcp alternate. With --curve-program PATH the runs with CURVE are another build of the program, over ipc, such as
one whose server draws a key for ipc addresses, too (find_key in common/net/transport_zmq.c).

    python3 curve_cost.py [--build build] [--rounds 15] [--steps 12] [--curve-program PATH]

Prints the median of the ratios of the steps' medians, and their quartiles.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

POLICIES = ("sync", "dp")


def step_s(a, program, policy, transport):
    command = [program, "--mode", "ps", "--gpus", "2", "--policy", policy, "--payload", "zmq", "--transport", transport,
               "--threads", "1", "--model", "resnet18", "--data", "synthetic:3x32x32:10", "--batch", "8",
               "--steps", str(a.steps), "--json", "-", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["jobs"][0]["step_time"]["median_s"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--curve-program")
    a = parser.parse_args()
    program = os.path.join(a.build, "bin", "harness")
    found_of = []
    for policy in POLICIES:
        ratios, plain = [], []
        found_of.append(ratios)
        for turn in range(a.rounds):
            runs = [("plain", program, "ipc"), ("curve", a.curve_program or program, "ipc" if a.curve_program else "tcp")]
            found = {name: step_s(a, path, policy, transport)
                     for name, path, transport in (runs if turn % 2 else reversed(runs))}
            ratios.append(found["curve"] / found["plain"])
            plain.append(found["plain"])
        low, median, high = statistics.quantiles(ratios, n=4)
        print(f"resnet18, ps={policy}, 2 ranks: step {statistics.median(plain) * 1e3:.1f} ms without CURVE; with it "
              f"{median:.3f} times as long (quartiles {low:.3f} to {high:.3f}, {a.rounds} rounds)", flush=True)
    print(provenance.closing_line(a.rounds, provenance.largest_spread(found_of)))


main()
