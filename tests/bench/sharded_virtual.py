#!/usr/bin/env python3
"""GPT-2 XL on 8 to 512 virtual A100s under the policies that cut state, next to the null model, which says that more GPUs cost
nothing and that schemes are equal. Prints JSON; with --show the table of a file that has it.

usage: sharded_virtual.py [--show FILE] [HARNESS]"""
import json
import subprocess
import sys

WORDS = ["whatif", "--profile", "dgx-a100-80g", "--model", "gpt2-xl", "--batch", "4", "--optimizer", "adam", "--tf32", "--gpus", "8,64,512",
         "--json", "-"]
CASES = [("", ["--policy", "ddp,zero1,zero3,zero3:group=8"]), (", mixed", ["--policy", "zero3", "--mixed-precision"])]


def predict(harness, words):
    return json.loads(subprocess.run([harness, *WORDS, *words], stdout=subprocess.PIPE, check=True).stdout)


def measure(harness):
    rows = []
    for suffix, words in CASES:
        result = predict(harness, words)
        rows += [{**point, "policy": point["policy"] + suffix, "null_samples_per_s": point["samples_per_s"] / point["weak_scaling_efficiency"]}
                 for point in result["points"]]
    return {"words": WORDS, "one_gpu_step_s": result["one_gpu_step_s"], "rows": rows}


def show(result):
    print("%-14s %5s %11s %11s %7s %9s %9s %9s" % ("policy", "GPUs", "samples/s", "null model", "share", "step ms", "exposed", "GiB peak"))
    for r in result["rows"]:
        print("%-14s %5d %11.1f %11.1f %6.1f%% %9.1f %9.1f %9.2f" % (
            r["policy"], r["gpus"], r["samples_per_s"], r["null_samples_per_s"], 100 * r["weak_scaling_efficiency"], 1e3 * r["step_s"],
            1e3 * r["exposed_communication_s"], r["memory_peak_bytes"] / 2 ** 30))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--show"]:
        with open(sys.argv[2], encoding="utf-8") as file:
            show(json.load(file))
    else:
        print(json.dumps(measure(sys.argv[1] if len(sys.argv) > 1 else "build/bin/harness"), indent=1))
