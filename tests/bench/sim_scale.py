#!/usr/bin/env python3
"""What it costs to simulate: the sizes that virtual time is to handle, their limits, and the cost a rank and
step. usage: sim_scale.py [HARNESS]"""
import os
import resource
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

HARNESS = sys.argv[1] if len(sys.argv) > 1 else "build/bin/harness"
MODEL = ["--model", "resnet50", "--batch", "32", "--steps", "10", "--warmup", "0", "--json", "-"]
RING = ["run", "--device", "sim:dgx1-v100-4xib100", "--mode", "ring", *MODEL]
PS = ["run", "--device", "sim:dgx1-v100-4xib100", "--mode", "ps", "--policy", "sync", *MODEL]

# what, words, ranks that are simulated, limit in s, limit in GiB
CASES = [
    ("ring, 1,024 ranks one by one", [*RING, "--gpus", "1024"], 1024, 20, 4),
    ("ring, 4,096 ranks by symmetry", [*RING, "--gpus", "4096"], 8, 60, 4),
    ("ps sync, 64 workers, 8 shards", [*PS, "--gpus", "64", "--servers", "8"], 64, 20, 4),
    ("ps sync, 64 workers, 16 shards", [*PS, "--gpus", "64", "--servers", "16"], 64, 20, 4),
    ("ps sync, 64 workers, 64 shards", [*PS, "--gpus", "64", "--servers", "64"], 64, 20, 4),
    ("torch-vs-apex, whole table", ["reproduce", "torch-vs-apex", "--json", "-"], None, 30, 4),
]

print("%-34s %9s %9s %9s %9s %16s" % ("", "seconds", "of CPU", "limit", "GiB", "us a rank, step"))
over = 0
for what, words, ranks, seconds, gib in CASES:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.monotonic()
    subprocess.run([HARNESS, *words], check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2 ** 20  # of the largest so far
    each = "%16.1f" % (used / ranks / 10 * 1e6) if ranks else ""
    late = took > seconds or peak > gib
    over += late
    print("%-34s %9.2f %9.2f %9d %9.2f %s%s" % (what, took, used, seconds, peak, each, "   OVER" if late else ""), flush=True)
print(provenance.closing_line(1, None))
sys.exit(over > 0)
