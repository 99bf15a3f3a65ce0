#!/usr/bin/env python3
"""What recording a trace costs, found in two ways: the events of a step times what recording one costs (bench_trace), and
the same run with and without --trace over all its steps, by turns.

    python3 trace_cost.py [--build build] [--rounds 15] [--steps 40]

The first way gives the cost even if it is too small for the second way, whose noise the quartiles show. The
cost must be under 1%, by the first way and in every round of the second.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

RANKS = 2
LIMIT = 0.01


def step_ns(a, words):
    command = [os.path.join(a.build, "bin", "harness"), "--mode", "ring", "--gpus", str(RANKS), "--threads", "1",
               "--model", "resnet18", "--data", "synthetic:3x32x32:10", "--batch", "8", "--steps", str(a.steps),
               "--json", "-", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return 1e9 * json.loads(done.stdout)["jobs"][0]["step_time"]["median_s"]


def events_of_a_step(a, path):
    """A slice in flight is recorded once and written as two events, its begin and its end."""
    with open(path) as file:
        kinds = [event["ph"] for event in json.load(file)["traceEvents"]]
    return sum(kind not in "Me" for kind in kinds) / RANKS / a.steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    a = parser.parse_args()
    subprocess.run(["cmake", "--build", a.build, "--target", "bench_trace"], stdout=subprocess.DEVNULL, check=True)
    event_ns = float(subprocess.run([os.path.join(a.build, "bin", "bench_trace")], capture_output=True, text=True,
                                    check=True).stdout)
    plain, traced = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        for _ in range(a.rounds):
            plain.append(step_ns(a, []))
            traced.append(step_ns(a, ["--trace", path, "--trace-steps", "0:1000000"]))
        events = events_of_a_step(a, path)
    step = statistics.median(plain)
    counted = events * event_ns / step
    ratios = [t / p for t, p in zip(traced, plain)]
    outcome = provenance.verdict(ratios, 1 + LIMIT)
    low, measured, high = (x - 1 for x in statistics.quantiles(ratios, n=4)) if a.rounds > 1 else [ratios[0] - 1] * 3
    print(f"{events:.0f} events a step of {step * 1e-6:.2f} ms, {event_ns:.0f} ns each: {100 * counted:.3f}%, at most 1%")
    print(f"by turns, {a.rounds} rounds: {100 * measured:+.2f}% (quartiles {100 * low:+.2f}% and {100 * high:+.2f}%), at most 1%: {outcome}")
    print(provenance.closing_line(a.rounds, provenance.spread(ratios)))
    return 0 if counted < LIMIT and provenance.is_met(outcome) else 1


sys.exit(main())
