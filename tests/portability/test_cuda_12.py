"""The CUDA module compiled by CUDA 12, with code for P100 (6.0) and V100 (7.0), which CUDA 13 lacks. .ci/install-cuda-12.sh puts
that toolkit into a folder of $XDG_CACHE_HOME (~/.cache by default). Kernels are not optimized, to save time."""
import os
import re
import subprocess

from program import BUILD, harness
from tap import Skip, expect, expect_equal, main, test

SOURCE = os.environ.get("SOURCE_DIR", os.getcwd())
BIN = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "psring", "cuda-12", "bin")
FOLDER = os.path.join(os.path.abspath(BUILD), "cuda-12")
MODULES = {12: os.path.join(FOLDER, "lib", "libpsring_cuda.so"), 13: os.path.join(os.path.abspath(BUILD), "lib", "libpsring_cuda.so")}


def printed(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    expect_equal(done.returncode, 0, f"{' '.join(words)}: exit code", done.stdout[-6000:])
    return done.stdout


def code_of(module):
    """For each architecture, how many of the module's sources have code for it."""
    found = re.findall(r"ELF file.*\.sm_(\d+)\.cubin", printed(os.path.join(BIN, "cuobjdump"), "--list-elf", module))
    return {architecture: found.count(architecture) for architecture in found}


def doctor(version):
    text = harness("doctor", env={"PSRING_CUDA_MODULE": MODULES[version]}).out
    return " ".join(re.search(r"^device cuda +(.*(?:\n +.*)*)", text, re.M)[1].split())


def needs_cuda_12():
    if not os.path.exists(BIN):
        raise Skip(f"no CUDA 12 in {os.path.dirname(BIN)}: `sh .ci/install-cuda-12.sh` downloads it")


@test
def the_module_compiles_and_links_with_cuda_12_without_a_warning():
    needs_cuda_12()
    text = printed("cmake", "-S", SOURCE, "-B", FOLDER, "-G", "Ninja", "-DPSRING_WERROR=ON", f"-DCMAKE_CUDA_COMPILER={BIN}/nvcc",
                   "-DCMAKE_CUDA_FLAGS=-Xcicc=-O0 -Xptxas=-O0", "-DPSRING_CUDA_ARCHITECTURES=60;70")
    expect(re.search(r"^-- CUDA: code for 60 70 and PTX, by toolkit 12\.[.\d]+$", text, re.M), "CMake names the code", text[-3000:])
    text = printed("cmake", "--build", FOLDER, "--target", "psring_cuda")
    expect("warning" not in text, "no warnings", text[-6000:])


@test
def each_kernel_of_the_module_from_cuda_12_has_code_for_p100_and_v100():
    needs_cuda_12()
    kernels = printed("git", "-C", SOURCE, "ls-files", "*.cu").split()
    expect_equal(code_of(MODULES[12]), {"60": len(kernels), "70": len(kernels)}, "sources with code, by architecture")


@test
def the_program_opens_the_module_from_cuda_12():
    needs_cuda_12()
    row = doctor(12)
    expect(re.search(r"built with CUDA 12\.\d+ for 60 70 and PTX$", row), "doctor names toolkit and code", row)


@test
def the_module_from_cuda_13_has_no_code_for_p100_and_v100_and_doctor_says_so():
    needs_cuda_12()  # for cuobjdump
    if not os.path.exists(MODULES[13]) or "CUDA 13" not in doctor(13):
        raise Skip("needs a build with CUDA 13")
    expect_equal([name for name in code_of(MODULES[13]) if int(name) < 75], [], "code for older GPUs than CUDA 13 knows")
    expect(doctor(13).endswith("; P100 and V100 need a build with CUDA 12"), "doctor names the toolkit for P100 and V100", doctor(13))


if __name__ == "__main__":
    main()
