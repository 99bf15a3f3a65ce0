#!/usr/bin/env python3
"""What recording a trace costs: the same run with and without --trace over all its steps, by turns.

    python3 trace_cost.py [--build build] [--rounds 5] [--steps 40]

Prints median step times and their ratio; under 1% is asked for.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def step_ns(a, words):
    command = [os.path.join(a.build, "bin", "harness"), "--mode", "ring", "--gpus", "2", "--threads", "1", "--model", "resnet18",
               "--data", "synthetic:3x32x32:10", "--batch", "8", "--steps", str(a.steps), "--json", "-", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["jobs"][0]["step_time"]["median_ns"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    a = parser.parse_args()
    plain, traced = [], []
    with tempfile.TemporaryDirectory() as folder:
        words = ["--trace", os.path.join(folder, "trace.json"), "--trace-steps", "0:1000000"]
        for _ in range(a.rounds):
            plain.append(step_ns(a, []))
            traced.append(step_ns(a, words))
    cost = statistics.median(t / p for t, p in zip(traced, plain)) - 1
    print(f"step without trace {statistics.median(plain) * 1e-6:.2f} ms, with {statistics.median(traced) * 1e-6:.2f} ms:"
          f" {100 * cost:+.2f}%")
    return 0 if cost < 0.01 else 1


sys.exit(main())
