#!/usr/bin/env python3
"""Calibrates this machine with one rank and sets predicted step times of two ranks beside measured ones: ResNet-18
and a small BERT under ps and ring, to within 15 %. Measured are several runs of each, by turns; the median of their
medians counts. Needs a quiet machine. usage: predict_cpu.py [HARNESS]"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

HARNESS = sys.argv[1] if len(sys.argv) > 1 else "build/bin/harness"
LIMIT = 0.15
ROUNDS, STEPS = 5, "12"
MODELS = [("resnet18", ["--model", "resnet18", "--image", "32", "--classes", "10", "--batch", "32"]),
          ("bert 4x256", ["--model", "bert", "--head", "cls", "--batch", "8"])]
ENGINES = [("none", ["--mode", "none"]), ("ps (sync)", ["--mode", "ps", "--policy", "sync", "--gpus", "2"]),
           ("ring (ddp)", ["--mode", "ring", "--policy", "ddp", "--gpus", "2"])]

with tempfile.TemporaryDirectory() as folder:
    environment = dict(os.environ, XDG_DATA_HOME=folder)

    def run(*words):
        return subprocess.run([HARNESS, *words], check=True, capture_output=True, text=True, env=environment).stdout

    print(run("calibrate", "--threads", "1"))
    def run_all():
        found = {}
        for model, words in MODELS:
            for engine, mode in ENGINES:
                text = run("run", *mode, *words, "--threads", "1", "--steps", STEPS, "--eval-every", "-1", "--quiet",
                           "--json", "-")
                job = json.loads(text)["jobs"][0]
                found[model, engine] = job["step_time"]["median_ns"], job["prediction"]["step_median_ns"]
        return found

    rounds = [run_all() for _ in range(ROUNDS)]
    print("%-12s %-12s %14s %21s %14s %9s" % ("model", "engine", "measured, ms", "least to most", "predicted, ms", "error"))
    misses = 0
    for key in rounds[0]:
        measured = [r[key][0] * 1e-6 for r in rounds]
        median, predicted = statistics.median(measured), rounds[0][key][1] * 1e-6
        error = predicted / median - 1
        miss = key[1] != "none" and abs(error) > LIMIT
        misses += miss
        print("%-12s %-12s %14.2f %10.2f %10.2f %14.2f %8.1f %%%s" % (*key, median, min(measured), max(measured), predicted,
                                                                      100 * error, "   MISS" if miss else ""))
sys.exit(misses > 0)
