#!/usr/bin/env python3
"""Calibrates this machine and compares predicted step times with measured ones, of models that the calibration does
not run: ResNet-34, ResNet-50, VGG-16, another BERT and GPT on one rank and on two, under ps and ring. The measured
step time is that of the job: from the last rank's end of a step to the last rank's end of the next step. Its median
is used. A processor's clock and its neighbors change within seconds: a round measures everything three times, in a
drawn order, calibrates before, between and after, and compares the median of the three with the median of the four
predictions. A model under an engine meets the limit of 15 % if four rounds of five are within it. The program ends
with 1 if a model misses it. The error against the median of a rank's own steps is shown too. Rounds may be spread
over time: --keep FILE adds a round to those that are there, --rounds 0 shows them. Needs a quiet machine; a round
takes four minutes.
usage: predict_cpu.py [--harness FILE] [--rounds N] [--keep FILE]"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

LIMIT, NEEDED = 0.15, 0.8  # of the step; of the rounds
PASSES = 3
MODELS = [("resnet34", ["--model", "resnet34", "--image", "32", "--classes", "10", "--batch", "32"], "20"),
          ("bert 2x512", ["--model", "bert", "--head", "cls", "--layers", "2", "--hidden", "512", "--heads", "8", "--batch", "8"], "15"),
          ("resnet50", ["--model", "resnet50", "--image", "32", "--classes", "10", "--batch", "16"], "20"),
          ("vgg16", ["--model", "vgg16", "--image", "32", "--classes", "10", "--batch", "16"], "15"),
          ("gpt 4x256", ["--model", "gpt", "--batch", "4"], "15")]
ENGINES = [("none", ["--mode", "none"]), ("ps (sync)", ["--mode", "ps", "--policy", "sync", "--gpus", "2"]),
           ("ring (ddp)", ["--mode", "ring", "--policy", "ddp", "--gpus", "2"])]


def harness(program, folder, *words):
    environment = dict(os.environ, XDG_DATA_HOME=folder)
    return subprocess.run([program, *words], check=True, capture_output=True, text=True, env=environment).stdout


def job_of(program, folder, *words):
    return json.loads(harness(program, folder, "run", *words, "--eval-every", "-1", "--quiet", "--json", "-"))["jobs"][0]


def run_round(program):
    """Results of the first calibration; and measured and predicted ms of every model and engine."""
    runs = [{"model": model, "engine": engine, "measured": [], "own": [], "words": [*mode, *words], "steps": steps}
            for model, words, steps in MODELS for engine, mode in ENGINES]
    with tempfile.TemporaryDirectory() as folder:
        profiles = [os.path.join(folder, f"{number}.json") for number in range(PASSES + 1)]
        calibration = harness(program, folder, "calibrate", "--threads", "1", "--out", profiles[0])
        for profile in profiles[1:]:
            for run in random.sample(runs, len(runs)):
                job = job_of(program, folder, *run["words"], "--device", "cpu", "--threads", "1", "--steps", run["steps"])
                run["measured"].append(job["step_time"]["median_s"] * 1e3)
                run["own"].append(statistics.mean(statistics.median(rank["step_s"]) for rank in job["ranks"]) * 1e3)
            harness(program, folder, "calibrate", "--threads", "1", "--out", profile)
        for run in runs:
            words = run.pop("words")
            jobs = [job_of(program, folder, *words, "--device", "sim:" + p, "--steps", "3") for p in profiles]
            run["predictions_ms"] = [job["step_time"]["median_s"] * 1e3 for job in jobs]
            run["predicted_ms"] = statistics.median(run["predictions_ms"])
            run["measured_ms"], run["own_ms"] = statistics.median(run["measured"]), statistics.median(run["own"])
    return {"calibration": calibration, "runs": runs}


def show(rounds):
    """Shows the table; returns how many predictions are not within the limit in enough rounds."""
    misses, ratios = 0, []
    print("%-12s %-12s %12s %13s %8s   %s" % ("model", "engine", "job's step", "predicted, ms", "error",
                                              "of each round, %; against a rank's own steps"))
    for i, first in enumerate(rounds[0]["runs"]):
        runs = [r["runs"][i] for r in rounds]
        errors = [r["predicted_ms"] / r["measured_ms"] - 1 for r in runs]
        own = [r["predicted_ms"] / r["own_ms"] - 1 for r in runs]
        within = sum(abs(e) <= LIMIT for e in errors)
        met = within >= NEEDED * len(rounds)
        scored = first["engine"] != "none"
        misses += scored and not met
        ratios.append([1 + e for e in errors])
        print("%-12s %-12s %12.2f %13.2f %6.1f %%   %s; %s%s" % (
            first["model"], first["engine"], statistics.median(r["measured_ms"] for r in runs),
            statistics.median(r["predicted_ms"] for r in runs), 100 * statistics.median(errors),
            " ".join("%+.0f" % (100 * e) for e in errors), " ".join("%+.0f" % (100 * e) for e in own),
            "   %d of %d within %.0f %%: %s" % (within, len(rounds), 100 * LIMIT, "met" if met else "missed") if scored else ""))
    print("two ranks within %.0f %% of the job's step in four rounds of five: %s" % (
        100 * LIMIT, "%d missed" % misses if misses else "met" if len(rounds) >= 5 else "met so far, of %d" % len(rounds)))
    print(provenance.closing_line(len(rounds), provenance.largest_spread(ratios)))
    return misses


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--harness", default="build/bin/harness")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep")
    options = parser.parse_args()
    rounds = []
    if options.keep and os.path.exists(options.keep):
        with open(options.keep) as file:
            rounds = json.load(file)
    for _ in range(options.rounds):
        rounds.append(run_round(options.harness))
        if options.keep:
            with open(options.keep, "w") as file:
                json.dump(rounds, file, indent=1)
    print(rounds[-1]["calibration"])
    return show(rounds) > 0


sys.exit(main())
