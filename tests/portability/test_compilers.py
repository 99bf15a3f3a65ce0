"""The whole program with a warning as an error: in Release by clang, which no other build of the tests does, and with --long in
Debug, without assertions and on Debian 13 as well. CUDA's sources are compiled by every other build for one GPU, and with --long
for all. Folders are kept between runs."""
import os
import shutil
import subprocess

from program import BUILD
from tap import Skip, cases, expect, expect_equal, long_cases, main
from trixie import build_there

SOURCE = os.environ.get("SOURCE_DIR", os.getcwd())


def build_here(name, target, *options):
    """The output of the build."""
    folder = os.path.join(os.path.abspath(BUILD), "compilers", name)
    text = ""
    for words in (["-S", SOURCE, "-B", folder, "-G", "Ninja", "-DPSRING_WERROR=ON", *options], ["--build", folder, "--target", target]):
        done = subprocess.run(["cmake", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        text += done.stdout
        expect_equal(done.returncode, 0, f"cmake {' '.join(words)}: exit code", text[-6000:])
    return text


@cases([("clang in Release", "clang", "Release")])
@long_cases([("gcc in Debug", "gcc", "Debug"), ("clang in Debug", "clang", "Debug"),
             ("gcc without assertions", "gcc", "Release", "-DCMAKE_C_FLAGS=-O3 -DNDEBUG")])
def the_program_compiles_without_a_warning(compiler, build_type, *options):
    if not shutil.which(compiler):
        raise Skip(f"needs {compiler}")
    text = build_here(f"{compiler}-{build_type}", "program", f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_BUILD_TYPE={build_type}", "-DPSRING_CUDA=OFF",
                      *options)
    expect("warning:" not in text, "no warnings", text[-6000:])


@long_cases([("nvcc",)])
def cuda_sources_compile_for_every_gpu_without_a_warning():
    if not shutil.which("nvcc") and not os.path.exists("/usr/local/cuda/bin/nvcc"):
        raise Skip("needs nvcc")
    text = build_here("every-gpu", "psring_cuda")
    expect("warning:" not in text, "no warnings", text[-6000:])


@long_cases([(build_type, build_type) for build_type in ("Debug", "Release")])
def the_program_compiles_without_a_warning_on_debian_13(build_type):
    text = build_there(build_type, "program")
    expect("warning:" not in text, "no warnings", text[-6000:])


if __name__ == "__main__":
    main()
