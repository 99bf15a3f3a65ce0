#!/usr/bin/env python3
"""Memory that the ledger counts compared with what NVML says the GPU holds. Two runs that differ in only one setting
must have the same difference by the ledger and by NVML, since drivers, libraries and kernels take the same memory in
both runs.

    nvml.py --out FILE [--harness build/bin/harness]

Needs the Python package nvidia-ml-py, and a GPU that does nothing else. Writes the differences in bytes, with the commands."""
import argparse
import json
import subprocess
import sys
import threading
import time

NONE = ["--mode", "none", "--model", "resnet50", "--batch", "16"]
DP = ["--share-gpu", "--mode", "ps", "--policy", "dp", "--gpus", "2", *NONE[2:]]
PAIRS = [("another optimizer", NONE, [*NONE, "--optimizer", "adam"]), ("a batch of 64 instead of 16", NONE, [*NONE, "--batch", "64"]),
         ("ResNet-101 instead of ResNet-50", NONE, [*NONE, "--model", "resnet101"]),
         ("dp on 2 ranks: a batch of 64 instead of 16", DP, [*DP, "--batch", "64"])]
PART, ROUNDED = 0.01, 16 << 20  # Allowed part of a difference; and pages of 2 MiB, one for each class and rank


class Watch(threading.Thread):
    """Records the most bytes that the GPU holds while it runs."""
    def __init__(self, used):
        super().__init__(daemon=True)
        self.used, self.most, self.over = used, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.01):
            self.most = max(self.most, self.used())


def bytes_of(used, command):
    """({class: bytes that the ledger has reserved for it, of all ranks}, bytes by NVML)."""
    watch = Watch(used)
    watch.start()
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=100).stdout
    watch.over.set()
    watch.join()
    classes = {}
    for rank in json.loads(out)["jobs"][0]["ranks"]:
        for name, account in rank["memory"]["classes"].items():
            classes[name] = classes.get(name, 0) + account["reserved_peak_bytes"]
    return classes, watch.most


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--harness", default="build/bin/harness")
    args = parser.parse_args()
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    used = lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used
    seen, rows, misses = {}, [], 0
    for what, *pair in PAIRS:
        commands = [[args.harness, "run", "--device", "cuda", *words, "--steps", "20", "--warmup", "2", "--eval-every", "-1",
                     "--quiet", "--json", "-"] for words in pair]
        for command in commands:
            key = " ".join(command)
            if key not in seen:
                seen[key] = bytes_of(used, command)
                time.sleep(1)  # the driver frees what a process held after it has ended
        (few, little), (many, much) = (seen[" ".join(command)] for command in commands)
        classes = {name: many[name] - few[name] for name in many if many[name] != few[name]}
        counted, held = sum(classes.values()), much - little
        missed = abs(held - counted) > PART * counted + ROUNDED
        misses += missed
        print(f"{what}: {held / 1e6:.1f} MB by NVML, {counted / 1e6:.1f} MB in the ledger: {classes}{'   beyond the limit' if missed else ''}",
              flush=True)
        rows.append({"between": what, "commands": [" ".join(command) for command in commands], "nvml_bytes": held, "ledger_bytes": counted,
                     "classes": classes})
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "limit": PART, "rounded_bytes": ROUNDED, "pairs": rows}, file, indent=1)
    return misses > 0


if __name__ == "__main__":
    sys.exit(main())
