#!/usr/bin/env python3
"""GPT-2 XL on 8 to 512 virtual A100s under the policies that cut state, next to the null model, which says that more GPUs cost
nothing and that schemes are equal. Prints JSON; with --show the table of a file that has it.

usage: sharded_virtual.py [--show FILE] [HARNESS]"""
import json
import subprocess
import sys

WORDS = ["run", "--device", "sim:dgx-a100-80g", "--model", "gpt2-xl", "--batch", "4", "--optimizer", "adam", "--tf32", "--steps", "3",
         "--warmup", "1", "--eval-every", "-1", "--quiet", "--json", "-"]
POLICIES = [(name, ["--policy", name]) for name in ("ddp", "zero1", "zero2", "zero3", "fsdp", "zero3:group=8")]
POLICIES.append(("zero3, mixed", ["--policy", "zero3", "--mixed-precision"]))
GPUS = (8, 64, 512)


def job(harness, *words):
    out = subprocess.run([harness, *WORDS, *words], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(out)["jobs"][0]


def measure(harness):
    alone = job(harness, "--mode", "none")["throughput"]["samples_per_s"]
    rows = []
    for gpus in GPUS:
        for name, words in POLICIES:
            if name == "zero3:group=8" and gpus == 8:
                continue  # one machine: it is zero3
            found = job(harness, "--mode", "ring", "--gpus", str(gpus), *words)
            rows.append({"policy": name, "gpus": gpus, "samples_per_s": found["throughput"]["samples_per_s"], "null_samples_per_s": gpus * alone,
                         "step_s": found["step_time"]["mean_s"],
                         "exposed_communication_s": found["phases"]["exposed_communication_s"]["mean_s"],
                         "bytes_sent_per_step": found["traffic"]["per_rank"][0]["bytes_sent_per_step"],
                         "peak_bytes": found["ranks"][0]["memory"]["total"]["peak_bytes"]})
    return {"words": WORDS[1:], "one_gpu_samples_per_s": alone, "rows": rows}


def show(result):
    print("%-14s %5s %11s %11s %7s %9s %9s %9s %9s" % ("policy", "GPUs", "samples/s", "null model", "share", "step ms", "exposed",
                                                       "GB sent", "GiB peak"))
    for r in result["rows"]:
        print("%-14s %5d %11.1f %11.1f %6.1f%% %9.1f %9.1f %9.2f %9.2f" % (
            r["policy"], r["gpus"], r["samples_per_s"], r["null_samples_per_s"], 100 * r["samples_per_s"] / r["null_samples_per_s"],
            1e3 * r["step_s"], 1e3 * r["exposed_communication_s"], r["bytes_sent_per_step"] / 1e9, r["peak_bytes"] / 2 ** 30))


if sys.argv[1:2] == ["--show"]:
    with open(sys.argv[2], encoding="utf-8") as file:
        show(json.load(file))
else:
    print(json.dumps(measure(sys.argv[1] if len(sys.argv) > 1 else "build/bin/harness"), indent=1))
