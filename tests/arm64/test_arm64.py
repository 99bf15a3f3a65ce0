"""The program on AArch64: cross-built with Debian's compiler, then run by qemu's user emulation.

    ctest --test-dir build -R '^test_arm64_long$' -V

The libraries are Debian's for arm64, unpacked into a folder of the build, which is the compiler's sysroot and later the
root of the program's processes. The tests run in a user namespace of their own, in which the kernel hands programs for
AArch64 to qemu: processes start further ones there as on a real machine. Nothing of the tester's system changes.
"""
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from container import build, walk
from debian import make_debian
from labs import LABS, Student
from program import BUILD, PROGRAM
from tap import Skip, expect, expect_equal, long_cases, long_test, main, test

SOURCE = os.environ.get("SOURCE_DIR", os.getcwd())
BASE = os.path.join(os.path.abspath(BUILD), "arm64")
ROOT, OUT = os.path.join(BASE, "debian"), os.path.join(BASE, "build")
HARNESS = os.path.join(OUT, "bin", "harness")
QEMU = "/usr/lib/binfmt.d/qemu-aarch64.conf"
# Folders of tests/ whose programs run there, and what `harness verify` compares.
FOLDERS = ["common/base", "common/memory", "common/ops", "common/reduce", "common/net", "common/collectives", "common/device",
           "common/nn", "models"]
GOLDEN = ["toy_w1", "toy_w4", "wine_mlp_w2", "wine_mlp_w4", "bert_tiny_w1", "gpt2_tiny_w2", "resnet18_32_w2"]
# Cases that fail because of the emulator.
EMULATOR = {"the_size_needed_is_named_where_the_system_refuses_it": "qemu does not pass RLIMIT_AS on"}
# What the test's processes find in the namespace: the kernel hands programs for AArch64 to qemu, and ROOT has
# devices, processes and students' files.
SET_UP = f"""mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && cat {QEMU} >/proc/sys/fs/binfmt_misc/register &&
mount --rbind /dev "$0/dev" && mount --rbind /proc "$0/proc" && mount --rbind /tmp "$0/tmp" && exec "$@" """


def packages():
    """The packages of `make deps` that a sysroot needs, and the packages that the container of the labs holds besides
    the program."""
    with open(os.path.join(SOURCE, ".ci/install-packages.sh"), encoding="utf-8") as file:
        build = re.search(r'build="(.*?)"', file.read(), re.S)[1].split()
    with open(os.path.join(SOURCE, "labs/Dockerfile"), encoding="utf-8") as file:
        image = re.search(r"apt-get install -y --no-install-recommends (.*?)&&", file.read(), re.S)[1].split()
    return sorted({name for name in build if name.endswith("-dev")} | set(image) - {"\\"})


def make_sysroot():
    """Unpacked, not configured: no program for AArch64 runs for it."""
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"):
        if not shutil.which(tool):
            raise Skip(f"needs {tool}")
    if os.path.exists(os.path.join(ROOT, "complete")):
        return
    shutil.rmtree(ROOT, ignore_errors=True)
    make_debian(ROOT, "--foreign", "--arch=arm64", "--include=" + ",".join(packages()))
    archives = os.path.join(ROOT, "var/cache/apt/archives")
    for name in sorted(os.listdir(archives)):
        if name.endswith(".deb"):
            subprocess.run(["sh", "-c", 'dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1"',
                            os.path.join(archives, name), ROOT], check=True)
    shutil.rmtree(archives)
    os.symlink("gcc", os.path.join(ROOT, "usr/bin/cc"))
    if os.path.islink(os.path.join(ROOT, "proc")):  # as in a container
        os.remove(os.path.join(ROOT, "proc"))
        os.mkdir(os.path.join(ROOT, "proc"))
    open(os.path.join(ROOT, "complete"), "w", encoding="utf-8").close()


def run(*words, limit=3600, code=0, **options):
    done = subprocess.run(words, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL, **options)
    expect_equal(done.returncode, code, f"{' '.join(words)}: exit code", done.stdout[-6000:], done.stderr[-6000:])
    return done.stdout


@test
def only_these_files_name_a_processor():
    """All other code is the same for every processor; a loop that waits calls processor_pause()."""
    expected = ["common/base/processor.h", "common/device/cpu/isa/table.c", "common/device/cpu/isa/vector.h", "common/net/message_wire.c", "harness/result/json_schema.c",
                "labs/runner/confine.h"]
    words = r"x86_64__|aarch64__|ARM_NEON|_SSE|_AVX|immintrin|__builtin_ia32|__builtin_cpu_|__asm__"
    folders = ["common", "harness", "labs", "models", "ps", "ring"]
    found = run("grep", "-rlE", words, "--include=*.c", "--include=*.h", "--include=*.cpp", *folders, cwd=SOURCE).split()
    expect_equal(sorted(found), expected, "files")


@long_test
def the_program_and_its_tests_compile_without_a_warning():
    run("cmake", "-S", SOURCE, "-B", OUT, "-G", "Ninja", f"-DCMAKE_TOOLCHAIN_FILE={SOURCE}/tests/arm64/toolchain.cmake",
        f"-DCMAKE_SYSROOT={ROOT}", "-DPSRING_WERROR=ON", "-DPSRING_CUDA=OFF", f"-DPython3_EXECUTABLE={sys.executable}", "-DCMAKE_INSTALL_PREFIX=/usr/local")
    run("cmake", "--build", OUT, "--target", "program", *[f"tests/{folder}/all" for folder in FOLDERS])
    run("cmake", "--install", OUT, env=dict(os.environ, DESTDIR=ROOT))
    expect("ARM aarch64" in run("file", "-L", HARNESS), "the program is one for AArch64")


@long_cases([(folder, folder) for folder in FOLDERS])
def unit_tests_pass(folder):
    text = subprocess.run(["ctest", "--test-dir", os.path.join(OUT, "tests", folder), "-LE", "long", "-V", "-j", "2", "--no-tests=error"],
                          capture_output=True, text=True, check=False).stdout
    found = [(bad, name) for bad, name in re.findall(r"^\d+: (not )?ok \d+ - (.*)", text, re.M) if "# SKIP" not in name]
    failed, ended_badly = {name for bad, name in found if bad}, re.findall(r"\*\*\*(?!Failed|Skipped).*", text)
    expect(found and failed <= set(EMULATOR) and not ended_badly, folder, failed, *ended_badly, text[-6000:])
    print(f"# {folder}: {len(found) - len(failed)} of {len(found)} cases in {len(re.findall('^ *[0-9]+/[0-9]+ Test ', text, re.M))} tests")


@long_cases([(name, name) for name in GOLDEN])
def runs_agree_with_pytorch(name):
    text = run(HARNESS, "verify", "--device", "cpu", f"{SOURCE}/tests/golden/{name}.json")
    expect(text.startswith("agrees "), "the first word", text)


def losses(program):
    jobs = json.loads(run(program, "--device", "cpu", "--model", "lenet", "--data", "synthetic", "--gpus", "2", "--batch", "8",
                          "--steps", "4", "--threads", "1", "--policy", "ps=sync,ring=ddp", "--quiet", "--json", "-"))["jobs"]
    return {job["name"]: job["losses"] for job in jobs}


@long_test
def both_engines_train_lenet_on_two_ranks_to_the_losses_of_the_native_program():
    found, native = losses(HARNESS), losses(PROGRAM)
    expect_equal(sorted(found), sorted(native), "jobs")
    for job, values in native.items():
        expect(len(values) == len(found[job]) > 0 and all(abs(a - b) <= 1e-4 * b for a, b in zip(found[job], values)),
               f"{job}: losses", found[job], values)


@long_cases([(lab.name, lab) for lab in LABS])
def the_solution_of_a_lab_has_full_points(lab):
    """Runs in a root that holds Debian for arm64 only, so compiler and sanitizers are those of AArch64, too."""
    wrapper = os.path.join(BASE, "harness")
    with open(wrapper, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec chroot {ROOT} /usr/bin/env -C "$PWD" /usr/local/bin/harness "$@"\n')
    os.chmod(wrapper, 0o755)
    with Student(lab, program=wrapper) as student:
        student.solve()
        done = student.check(limit=3600)
        expect_equal([done.returncode, done.report["score"] >= 100], [0, True], "exit code, full points", done.text)
        expect_equal(student.left_behind(), [], "left behind")


@long_test
def the_container_of_the_labs_is_built_and_a_student_solves_a_lab_in_it():
    """Runs each instruction of the Dockerfile emulated, also the compiler that builds the program."""
    with tempfile.TemporaryDirectory(prefix="container-") as folder:
        walk(*build(folder, "--arch=arm64"), confined=False)


def enter(words):
    """Runs a command in the namespace; its exit code. All users have the numbers that they have outside."""
    inner, outer, libc = os.pipe(), os.pipe(), ctypes.CDLL(None)
    pid = os.fork()
    if pid == 0:
        made = libc.unshare(0x10020000)  # CLONE_NEWUSER | CLONE_NEWNS
        os.write(inner[1], b"failed" if made else b"mapped")
        os.read(outer[0], 1)
        os.execvpe("sh", ["sh", "-c", SET_UP, ROOT, *words], dict(os.environ, QEMU_LD_PREFIX=ROOT, PSRING_ON_ARM64="1"))
    if os.read(inner[0], 6) == b"mapped":
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w", encoding="utf-8") as file:
                file.write("0 0 65536")
    os.write(outer[1], b"x")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    if "--long" in sys.argv and "PSRING_ON_ARM64" not in os.environ:
        try:
            make_sysroot()
            if enter(["true"]) != 0:
                raise Skip("needs binfmt_misc in user namespaces (Linux 6.7)")
        except Skip as reason:
            print(f"1..1\nok 1 - the program on AArch64 # SKIP {reason}")
            sys.exit(0)
        sys.exit(enter([sys.executable, "-B", *sys.argv]))
    main()
