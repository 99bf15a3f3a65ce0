"""The CPU's kernels on Debian 13, with its compiler (gcc 14) and its libraries (oneDNN 3): their unit tests, and models that
are compared with PyTorch. The first run, with --long, unpacks Debian 13."""
import re

from tap import cases, expect, long_cases, main
from trixie import build_there, run_there

BUILD = "/build/Release"
FOLDERS = ["common/device", "common/device/cpu", "common/nn", "models"]
GOLDEN = ["toy_w4", "wine_mlp_w4", "bert_tiny_w2", "gpt2_tiny_w2", "resnet18_32_w2", "alexnet_w1", "inception_v3_107_w2_silu"]

with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpuinfo:
    ISAS = ("", "AVX2") if " avx512f " in cpuinfo.read() else ("",)  # elsewhere the best is AVX2


def at_both_levels(rows):
    return lambda function: cases(rows)(long_cases(rows)(function))


@at_both_levels([("gcc 14, oneDNN 3",)])
def the_program_and_the_tests_of_its_kernels_compile_without_a_warning():
    text = build_there("Release", "harness", *[f"tests/{folder}/all" for folder in FOLDERS])
    expect("warning:" not in text, "no warnings", text[-6000:])
    expect(re.search(r"oneDNN +3\.", run_there(f"{BUILD}/bin/harness", "doctor", code=None)), "the program has oneDNN 3")


@at_both_levels([(f"{folder}, {isa or 'the best instruction set'}", folder, isa) for folder in FOLDERS for isa in ISAS])
def unit_tests_pass(folder, isa):
    variables = {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}
    text = run_there("ctest", "--test-dir", f"{BUILD}/tests/{folder}", "-LE", "-(long|more)$", "-j", "2", "--no-tests=error",
                     "--output-on-failure", code=None, **variables)
    expect("100% tests passed" in text, folder, text[-6000:])


@at_both_levels([(f"{name}, {isa or 'the best instruction set'}", name, isa) for name in GOLDEN for isa in ISAS])
def runs_agree_with_pytorch(name, isa):
    variables = {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}
    text = run_there(f"{BUILD}/bin/harness", "verify", "--device", "cpu", f"/src/tests/golden/{name}.json", **variables)
    expect(text.startswith("agrees "), "the first word", text)


if __name__ == "__main__":
    main()
