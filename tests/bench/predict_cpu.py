#!/usr/bin/env python3
"""Calibrates this machine with one rank and sets predicted step times of two ranks beside measured ones: ResNet-18
and a small BERT under ps and ring, to within 15 %. Needs a quiet machine. usage: predict_cpu.py [HARNESS]"""
import json
import os
import subprocess
import sys
import tempfile

HARNESS = sys.argv[1] if len(sys.argv) > 1 else "build/bin/harness"
LIMIT = 0.15
MODELS = [("resnet18", ["--model", "resnet18", "--image", "32", "--classes", "10", "--batch", "32"]),
          ("bert 4x256", ["--model", "bert", "--head", "cls", "--batch", "8"])]
ENGINES = [("none", ["--mode", "none"]), ("ps (sync)", ["--mode", "ps", "--policy", "sync", "--gpus", "2"]),
           ("ring (ddp)", ["--mode", "ring", "--policy", "ddp", "--gpus", "2"])]

with tempfile.TemporaryDirectory() as folder:
    environment = dict(os.environ, XDG_DATA_HOME=folder)

    def run(*words):
        return subprocess.run([HARNESS, *words], check=True, capture_output=True, text=True, env=environment).stdout

    print(run("calibrate", "--threads", "1"))
    print("%-12s %-12s %14s %14s %9s" % ("model", "engine", "measured, ms", "predicted, ms", "error"))
    misses = 0
    for model, words in MODELS:
        for engine, mode in ENGINES:
            job = json.loads(run("run", *mode, *words, "--threads", "1", "--steps", "40", "--quiet", "--json", "-"))["jobs"][0]
            error = job["prediction"]["error"]
            miss = engine != "none" and abs(error) > LIMIT
            misses += miss
            print("%-12s %-12s %14.2f %14.2f %8.1f %%%s" % (model, engine, job["step_time"]["median_ns"] * 1e-6,
                                                            job["prediction"]["step_median_ns"] * 1e-6, 100 * error,
                                                            "   MISS" if miss else ""))
sys.exit(misses > 0)
