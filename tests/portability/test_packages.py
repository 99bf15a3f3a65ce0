"""Messages on a machine without the packages: of .ci/install-packages.sh, with stand-ins for Debian's tools, and of CMake."""
import os
import re
import subprocess
import sys
import tempfile

from program import BUILD
from tap import cases, expect, expect_equal, main, test

SOURCE = os.environ.get("SOURCE_DIR", os.getcwd())
SCRIPT = os.path.join(SOURCE, ".ci", "install-packages.sh")
GROUPS = ["build", "data", "check", "long"]
# Stand-ins for these tools install nothing. The archive lacks the packages of $ABSENT, and apt-get records its words.
TOOLS = {"dpkg-query": "exit 1", "apt-get": 'echo "$*" >>"$NOTES"', "sudo": 'exec "$@"', "id": 'echo "$USER_ID"',
         "apt-cache": 'case " $ABSENT " in *" $2 "*) ;; *) echo "  Candidate: 1" ;; esac'}


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def install(*groups, without=(), absent="", user=0, **tools):
    """Exit code and stderr of the script, and the packages that apt-get is to install. `tools` replaces some of TOOLS."""
    with tempfile.TemporaryDirectory(prefix="packages-test-") as folder:
        for name in ["sh", "env"] + [tool for tool in TOOLS if tool not in without]:
            path = os.path.join(folder, name)
            if name not in TOOLS:
                os.symlink(f"/usr/bin/{name}", path)
                continue
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n{tools.get(name, TOOLS[name])}\n")
            os.chmod(path, 0o755)
        notes = os.path.join(folder, "notes")
        done = subprocess.run([f"{folder}/sh", SCRIPT, *groups], capture_output=True, text=True, check=False,
                              env={"PATH": folder, "NOTES": notes, "ABSENT": absent, "USER_ID": str(user)})
        calls = open(notes, encoding="utf-8").read().splitlines() if os.path.exists(notes) else []
        installed = [call.split("--no-install-recommends ")[1].split() for call in calls if " install " in call]
        return done.returncode, done.stderr, sum(installed, [])


def packages(group):
    return re.search(rf'^{group}="(.*?)"', read(".ci", "install-packages.sh"), re.S | re.M)[1].split()


@test
def no_name_of_a_package_has_a_version_in_it():
    names = [name for group in GROUPS for name in packages(group)]
    expect_equal([name for name in names if re.search(r"-\d+(\.\d+)*(-|$)", name)], [], "names with versions")


@test
def a_package_that_the_archive_lacks_is_skipped_and_its_tests_are_named():
    code, err, installed = install("build", "check", absent="chromium zsh")
    expect_equal(code, 0, "exit code", err)
    expect_equal(installed, [name for name in packages("build") + packages("check") if name not in ("chromium", "zsh")], "installed")
    expect_equal([line.split(" is not in the archive: ")[0] for line in err.splitlines()],
                 [f"install-packages.sh: {name}" for name in ("chromium", "zsh")], "packages of the notices")
    expect("test_report_figures" in err and "test_installation" in err, "the tests are named", err)


@cases([("without root and sudo", {"without": ["sudo"], "user": 1000}), ("without apt-get", {"without": ["apt-get"]}),
        ("without the right to use sudo", {"sudo": "exit 1", "user": 1000})])
def each_missing_package_is_named_and_the_build_goes_on(options):
    code, err, installed = install("build", **options)
    expect_equal([code, installed], [0, []], "exit code, installed", err)
    expect_equal([line.split()[1] for line in err.splitlines()], packages("build"), "packages that are named")


@test
def each_test_that_a_notice_names_is_registered():
    text = subprocess.run(["ctest", "--test-dir", BUILD, "-N"], capture_output=True, text=True, check=True).stdout
    registered = re.findall(r"Test +#\d+: (\w+)", text)
    named = re.findall(r"\b(?:test|data)_\w+", read(".ci", "install-packages.sh"))
    expect_equal([name for name in named if name not in registered], [], "names of no test")


@test
def without_jsonschema_the_tests_that_need_it_are_skipped():
    with tempfile.TemporaryDirectory(prefix="module-test-") as folder:
        with open(os.path.join(folder, "jsonschema.py"), "w", encoding="utf-8") as file:
            file.write("raise ImportError\n")
        done = subprocess.run([sys.executable, "-B", os.path.join(SOURCE, "tests/commands/test_schemas.py"), "schema"], text=True,
                              capture_output=True, check=False, env=dict(os.environ, PYTHONPATH=f"{folder}:{SOURCE}/tests/support"))
    expect_equal(done.returncode, 0, "exit code", done.stdout, done.stderr)
    expect("# SKIP needs python3-jsonschema" in done.stdout, "the package is named", done.stdout)


@test
def one_file_depends_on_the_version_of_onednn():
    found = subprocess.run(["grep", "-rlE", "DNNL_VERSION|dnnl_memory_desc_t|primitive_desc_create", "common", "harness", "models", "ps",
                            "ring", "labs"], cwd=SOURCE, capture_output=True, text=True, check=False).stdout.split()
    expect_equal(found, ["common/device/cpu/onednn.c"], "files")


@test
def cmake_names_all_missing_libraries_at_once_each_with_its_package():
    with tempfile.TemporaryDirectory(prefix="libraries-test-") as folder:
        done = subprocess.run(["cmake", "-S", SOURCE, "-B", folder, "-G", "Ninja", "-DCMAKE_FIND_ROOT_PATH=/nonexistent",
                               "-DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY", "-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY"],
                              capture_output=True, text=True, check=False, env=dict(os.environ, PKG_CONFIG_LIBDIR="/nonexistent"))
    expect(done.returncode != 0, "the configuration fails")
    text = " ".join(done.stderr.split())
    expected = ["libcmocka-dev", "libdnnl-dev", "libjansson-dev", "libprotobuf-c-dev", "libxxhash-dev", "libzmq3-dev",
                "zlib1g-dev"]
    expect_equal(sorted(re.findall(r"\((\w[\w-]+-dev)\)", text)), expected, "packages of the missing libraries", done.stderr)
    command = text.split("apt-get install ")[1].split()[:len(expected)]
    expect_equal(sorted(command), expected, "packages of the command")
    expect_equal(sorted(set(expected) - set(packages("build"))), [], "packages that make deps does not install")


@cases([("without apt-get", "apt-get", "no Debian archive in apt's sources"), ("without pip", "python3", "python3 has no pip"),
        ("without a network", "", "Debian 13's nvidia-cuda-toolkit cannot be downloaded")])
def if_cuda_12_cannot_be_installed_one_line_names_the_reason_and_the_skipped_test(without, reason):
    tools = {"apt-get": 'case $1 in indextargets) echo "file:/debian" ;; *) exit 100 ;; esac', "python3": "exit 0", "uname": "echo x86_64"}
    with tempfile.TemporaryDirectory(prefix="cuda-test-") as folder:
        for name, text in tools.items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n{'exit 1' if name == without else text}\n")
            os.chmod(path, 0o755)
        done = subprocess.run(["sh", os.path.join(SOURCE, ".ci", "install-cuda-12.sh"), f"{folder}/cuda-12"], capture_output=True, text=True,
                              check=False, env={"PATH": f"{folder}:/usr/bin:/bin", "TMPDIR": folder})
        left = sorted(set(os.listdir(folder)) - set(tools))
    expect_equal([done.returncode, left], [1, []], "exit code, files that are left", done.stderr)
    expect_equal(done.stderr, f"install-cuda-12.sh: no CUDA 12: {reason}: test_cuda_12 is skipped\n", "stderr")


@cases([("CUDA 12", "50 52 60 61 70 75 80 86 90", "60 70 75 80 90 and PTX", ""),
        ("CUDA 13", "75 80 86 87 90 100 120", "75 80 90 and PTX", ", which has none for 60 70")])
def cmake_builds_the_code_that_nvcc_has_and_names_the_rest(known, code, lacks):
    with tempfile.TemporaryDirectory(prefix="nvcc-test-") as folder:
        nvcc, script = os.path.join(folder, "nvcc"), os.path.join(folder, "test.cmake")
        with open(nvcc, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nprintf 'compute_%s\\n' " + known + "\n")
        os.chmod(nvcc, 0o755)
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"""include({SOURCE}/common/build/Cuda.cmake)
set(CMAKE_CUDA_COMPILER {nvcc})
psring_cuda_architectures("${{PSRING_CUDA_ARCHITECTURES}}")
message("${{PSRING_CUDA_ARCHITECTURES_TEXT}}|${{PSRING_CUDA_LACKS}}|${{PSRING_CUDA_LEAST_ARCHITECTURE}}")
""")
        done = subprocess.run(["cmake", "-DPSRING_CUDA=OFF", "-P", script], capture_output=True, text=True, check=False)
    expect_equal(done.stderr.strip(), f"{code}|{lacks}|{code[:2]}", "code, missing code, least architecture")


if __name__ == "__main__":
    main()
