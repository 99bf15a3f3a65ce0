#!/usr/bin/env python3
"""Calibrates the GPU and compares predicted step times of one GPU with measured ones, model by model, to within 10 %.
Needs a GPU that does nothing else.

    predict.py --out FILE [--harness build/bin/harness] [--profile FILE] [--emulated]

    --profile FILE   one that is there already
    --emulated       a rehearsal where there is no GPU: a tiny model, nothing is judged

Writes what was measured and predicted, with the commands, to FILE."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

LIMIT = 0.10
TOKENS = ["--head", "cls", "--sequence", "128"]
MODELS = [("resnet18", 128, []), ("resnet50", 128, []), ("vgg16", 32, []), ("bert_base", 16, TOKENS),
          ("bert_large", 16, TOKENS), ("gpt2", 8, ["--sequence", "256"])]
EMULATED_MODELS = [("wine_mlp", 4, [])]
STEP_LIMIT = 100


def step(harness, device, model, batch, options):
    """(median step in ms without loading, command), or (None, reason)."""
    command = [harness, "run", "--device", device, "--mode", "none", "--model", model, "--batch", str(batch), "--steps", "20",
               "--warmup", "5", "--eval-every", "-1", "--quiet", "--json", "-", *options]
    try:
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False,
                             timeout=STEP_LIMIT)
    except subprocess.TimeoutExpired as error:
        return None, str(error)
    if out.returncode:
        return None, (out.stderr.strip().splitlines() or ["exit code %d" % out.returncode])[-1]
    job = json.loads(out.stdout)["jobs"][0]
    load = sorted(job["ranks"][0]["data_s"])
    return (job["step_time"]["median_s"] - load[len(load) // 2]) * 1e3, " ".join(command)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--harness", default="build/bin/harness")
    parser.add_argument("--profile")
    parser.add_argument("--emulated", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = args.profile or os.path.join(folder, "gpu.json")
        if not args.profile:
            subprocess.run([args.harness, "calibrate", "--device", "cuda", "--out", profile], check=True)
        rows, misses = [], 0
        for model, batch, options in EMULATED_MODELS if args.emulated else MODELS:
            measured, how = step(args.harness, "cuda", model, batch, options)
            predicted, also = step(args.harness, "sim:" + profile, model, batch, options)
            row = {"model": model, "batch": batch, "measured_ms": measured, "predicted_ms": predicted, "commands": [how, also]}
            if measured and predicted:
                row["error"] = predicted / measured - 1
                misses += abs(row["error"]) > LIMIT
                print("%-12s measured %9.2f ms  predicted %9.2f ms  %+6.1f %%%s" % (
                    model, measured, predicted, 100 * row["error"], "   beyond the limit" if abs(row["error"]) > LIMIT else ""), flush=True)
            else:
                misses += 1
                print("%-12s not compared: %s" % (model, how if measured is None else also), flush=True)
            rows.append(row)
        with open(profile, encoding="utf-8") as file:
            used = json.load(file)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "limit": LIMIT,
                   "profile": used, "models": rows}, file, indent=1)
    return 0 if args.emulated else misses > 0


if __name__ == "__main__":
    sys.exit(main())
