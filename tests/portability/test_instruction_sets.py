"""An older processor by ONEDNN_MAX_CPU_ISA: which kernels run there, oneDNN's and our own."""
import os
import re

from program import harness
from tap import cases, expect, expect_equal, main

GOLDEN = os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "tests", "golden", "resnet18_32_w1.json")
# Value of ONEDNN_MAX_CPU_ISA; a word in the names of oneDNN's kernels for it, and a word in the names of those for
# newer sets; and the name of our kernels.
SETS = [("AVX2", "avx2", "avx512", "AVX2"), ("SSE41", "sse41", "avx", "baseline")]


@cases([(row[0], *row) for row in SETS])
def no_kernel_of_a_newer_instruction_set_runs(name, its, newer, ours):
    older = {"ONEDNN_MAX_CPU_ISA": name, "ONEDNN_VERBOSE": "1"}
    result = harness("verify", "--device", "cpu", GOLDEN, env=older)
    expect_equal(result.code, 0, "exit code", result)
    kernels = set(re.findall(r"^onednn_verbose,(?:\w+,)*exec,cpu,convolution,([\w:]+),", result.out, re.M))
    expect(any(its in kernel for kernel in kernels), f"oneDNN's kernels for {name}", sorted(kernels), result)
    expect_equal([kernel for kernel in kernels if newer in kernel], [], "oneDNN's kernels for newer processors")
    expect(re.search(rf"device cpu +\d+ threads?, {ours}, oneDNN", harness("doctor", env=older).out), f"our kernels are those for {ours}")


if __name__ == "__main__":
    main()
