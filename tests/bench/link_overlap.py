#!/usr/bin/env python3
"""The gain from overlap on a slow network: ResNet-18 on 4 ranks over an emulated link, `ddp` and `torch-0.4.1` alternate.

    python3 link_overlap.py [--build build] [--results FOLDER] [--rounds 3] [--steps 10] [--data DATA] [--trace FOLDER]

Prints exposed communication (the median over rounds of each run's median step), how much less ddp exposes, and a bound
for any overlap: the time of the last bucket on the link, and any communication that takes longer than the backward
pass, cannot be hidden. In every round ddp must expose at least 40% less. Writes FOLDER/link-overlap.json with its
provenance, and with the name of the data in the file name if they are not the default; every figure is emulated. Exits
with 1 if less was saved.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

SMALL = "synthetic:3x32x32:10"
CASES = [("1GB/s,50us", 32), ("200MB/s,50us", 128)]
POLICIES = ["torch-0.4.1", "ddp"]
LEAST = 0.40


def run(a, link, batch, policy, number):
    words = [os.path.join(a.build, "bin", "harness"), "--mode", "ring", "--gpus", "4", "--model", "resnet18", "--data",
             a.data, "--batch", str(batch), "--threads", "1", "--steps", str(a.steps), "--warmup", "3", "--link",
             link, "--policy", policy, "--algorithm", a.algorithm, "--json", "-", "--quiet", "--eval-every", "-1"]
    if a.trace and number == 0:
        os.makedirs(a.trace, exist_ok=True)
        words += ["--trace", os.path.join(a.trace, f"{policy}-{batch}.json"), "--trace-steps", "4:7"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    result = json.loads(done.stdout)
    job = result["jobs"][0]
    median = {key: job["phases"][key]["median_s"] for key in
              ("exposed_communication_s", "communication_s", "hidden_communication_s", "first_to_backward_end_s",
               "backward_s")}
    median["step_s"] = job["step_time"]["median_s"]
    median["last_bucket_bound_s"] = job["ranks"][0]["last_bucket_bound_s"]
    assert result["emulated"]
    return median, result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--algorithm", default="ring")
    parser.add_argument("--data", default=SMALL, help="synthetic: the model's own images of 3x224x224; a run takes minutes")
    parser.add_argument("--trace", help="a folder for traces of three steps")
    a = parser.parse_args()
    rows, spreads, result = [], [], {}
    print("EMULATED links; ms, medians")
    print(f"{'link':>14} {'batch':>5} {'policy':>12} {'step':>8} {'backward':>8} {'total':>8} {'hidden':>8} {'exposed':>8} {'bound':>8}")
    for link, batch in CASES:
        found = {policy: [] for policy in POLICIES}
        for number in range(a.rounds):
            for policy in POLICIES:
                median, result = run(a, link, batch, policy, number)
                found[policy].append(median)
        middle = {policy: {key: statistics.median(r[key] for r in runs) for key in runs[0]} for policy, runs in found.items()}
        for policy in POLICIES:
            m = {key: value * 1e3 for key, value in middle[policy].items()}
            print(f"{link:>14} {batch:5} {policy:>12} {m['step_s']:8.1f} {m['backward_s']:8.1f} {m['communication_s']:8.1f}"
                  f" {m['hidden_communication_s']:8.1f} {m['exposed_communication_s']:8.1f} {m['last_bucket_bound_s']:8.1f}",
                  flush=True)
        saved = 1 - middle["ddp"]["exposed_communication_s"] / middle["torch-0.4.1"]["exposed_communication_s"]
        ddp = middle["ddp"]
        least = max(ddp["last_bucket_bound_s"], ddp["communication_s"] - ddp["backward_s"])
        best = 1 - least / middle["torch-0.4.1"]["exposed_communication_s"]
        each = [1 - ddp["exposed_communication_s"] / late["exposed_communication_s"]
                for ddp, late in zip(found["ddp"], found["torch-0.4.1"])]
        outcome = provenance.verdict(each, LEAST, at_least=True)
        print(f"{'':>14} ddp exposes {100 * saved:.1f}% less ({100 * min(each):.1f} to {100 * max(each):.1f}); at least 40%: {outcome};"
              f" at most {100 * best:.1f}% possible")
        spreads.append(each)
        rows.append({"link": link, "batch": batch, "medians": middle, "rounds": found, "saved": saved, "least_saved": LEAST,
                     "verdict": outcome})
    largest = provenance.largest_spread(spreads)
    print(provenance.closing_line(a.rounds, largest))
    if a.results:
        of = "" if a.data == SMALL else "-" + a.data.replace(":", "-")
        where = {**provenance.of_run(result, a.rounds, largest), "command": " ".join(["python3", *sys.argv])}
        provenance.write(os.path.join(a.results, f"link-overlap{of}.json"),
                         {"provenance": where, "emulated": True, "data": a.data, "rows": rows})
    return 0 if all(provenance.is_met(row["verdict"]) for row in rows) else 1


sys.exit(main())
