#!/usr/bin/env python3
"""what_ran.py [--check]: writes the table of docs/cuda.md that says which stages of tests/gpu/run.sh have run where; --check
only compares. The emulator's column follows from tests/gpu/CMakeLists.txt, a card's from results/gpu/checks-*.json (record.py):
the newest record of a stage that was not skipped. No row says more than was recorded."""
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.environ.get("SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BEGIN, END = "<!-- tests/gpu/what_ran.py writes from here -->\n", "<!-- to here -->\n"

# stage: what the stage checks, and the tests of which it runs all or some
STAGES = {
    "float32": ("every operation against the reference, with the bounds below", ["test_cuda_operations"]),
    "tf32": ("the same in TF32", ["test_cuda_operations_tf32"]),
    "bf16": ("the same in bfloat16", ["test_cuda_operations_bf16"]),
    "kernels": ("semantics, optimizers, SyncBatchNorm, PowerSGD, memory, copies, fences, failures; what `--benchmark` chooses; "
                "own kernels", ["test_cuda_semantics", "test_cuda_optimizers", "test_cuda_syncbatchnorm", "test_cuda_device",
                                "test_cuda_powersgd", "test_cuda_libraries"]),
    "bandwidth": ("the optimizers compared with a copy", []),
    "step": ("a step of ResNet-50", []),
    "profile": ("steps operation by operation", []),
    "calibrate": ("a profile for virtual time", []),
    "golden": ("golden files in float32, TF32 and bfloat16 through `none`, and through `ps` and `ring` with 2 to 4 ranks that share the GPU",
               ["test_cuda_program"]),
    "ledger": ("equal to the CPU's and the virtual device's, class by class; differences as NVML sees them; too large a batch under `dp`",
               ["test_cuda_program", "test_cuda_ps"]),
    "nccl": ("NCCL between processes: the order of streams, sharded state, errors", ["test_cuda_nccl"]),
    "anatomy": ("the parts of a step, a host that runs ahead", ["test_cuda_anatomy", "test_cuda_ahead"]),
    "engines": ("timed algorithms, recorded passes, bfloat16 copies of weights, errors, a published table",
                ["test_cuda_program", "test_cuda_graph", "test_cuda_faults"]),
    "ps": ("`ps=dp`, `sync`, `ssp` and `async` through every payload", ["test_cuda_ps"]),
    "killed": ("a rank killed inside a collective ends the job and is named", ["test_cuda_program"]),
    "memcheck": ("compute-sanitizer's memcheck over the own kernels", []),
    "racecheck": ("its racecheck", []),
    "predict": ("(by name, or `--speed`) steps compared with their predictions, to within 10%", []),
    "speed": ("(likewise) steps compared with PyTorch's on the same GPU", []),
}


def stages_of_script():
    listed = subprocess.run(["bash", os.path.join(ROOT, "tests/gpu/run.sh"), "--list"], stdout=subprocess.PIPE, check=True)
    return [line.split()[0] for line in listed.stdout.decode().splitlines() if line.split()[-1] not in ("sum", "before")]


def emulated_tests():
    with open(os.path.join(ROOT, "tests/gpu/CMakeLists.txt"), encoding="utf-8") as file:
        return set(re.findall(r"^psring_cuda_(?:program_)?test\((\w+)", file.read(), re.MULTILINE))


def cards(folder):
    """{stage: "CARD, DAY"} of the newest records."""
    found = {}
    for path in glob.glob(os.path.join(folder, "checks-*.json")):
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        card, day = record["machine"].get("GPU 0", "unknown GPU").split(",")[0], record["provenance"]["date"][:10]
        for row in record["stages"]:
            if "skipped" in row or found.get(row["stage"], ("",))[0] > record["provenance"]["date"]:
                continue
            result = "" if row["exit_code"] == 0 else ": failed"
            found[row["stage"]] = (record["provenance"]["date"], f"{card}, {day}{result}")
    return {stage: text for stage, (_, text) in found.items()}


def table(folder):
    listed, known, seen = stages_of_script(), emulated_tests(), cards(folder)
    if set(listed) != set(STAGES):
        sys.exit(f"what_ran.py: run.sh has other stages: {sorted(set(listed) ^ set(STAGES))}")
    lines = ["| stage | what it checks | on the emulator | on a GPU |", "| --- | --- | --- | --- |"]
    for stage in listed:
        what, tests = STAGES[stage]
        if set(tests) - known:
            sys.exit(f"what_ran.py: {stage}: {sorted(set(tests) - known)}: no such test")
        lines.append(f"| `{stage}` | {what} | {'every `make check-more`' if tests else 'no'} | {seen.get(stage, 'never')} |")
    return "\n".join(lines) + "\n"


def replaced(text, folder):
    before, rest = text.split(BEGIN)
    return before + BEGIN + table(folder) + END + rest.split(END)[1]


def main():
    path = os.path.join(ROOT, "docs/cuda.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    new = replaced(text, os.path.join(ROOT, "results/gpu"))
    if "--check" in sys.argv:
        sys.exit(0 if new == text else "docs/cuda.md: the table of stages is not current: tests/gpu/what_ran.py writes it")
    with open(path, "w", encoding="utf-8") as file:
        file.write(new)


if __name__ == "__main__":
    main()
