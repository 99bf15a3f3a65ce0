"""The two commands of README on a bare Debian, where git and make are all that was installed: `make demo` and `make check`, from
a clone of the commit at hand. The build's folder `bare` keeps their logs."""
import os
import shutil
import subprocess

from debian import inside, make_debian
from program import BUILD
from tap import cases, expect, main

SOURCE = os.path.abspath(os.environ.get("SOURCE_DIR", os.getcwd()))
KEPT = os.path.join(os.path.abspath(BUILD), "bare")


@cases([(release, release) for release in ("bookworm", "trixie")])
def the_two_commands_of_readme_pass(release):
    root, log = os.path.join(KEPT, release), os.path.join(KEPT, f"{release}.log")
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(KEPT, exist_ok=True)
    make_debian(root, suite=release)
    os.makedirs(os.path.join(root, "src"), exist_ok=True)
    inside(root, "apt-get", "update")
    inside(root, "apt-get", "install", "-y", "--no-install-recommends", "git", "make", "ca-certificates",
           DEBIAN_FRONTEND="noninteractive")
    commit = subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    inside(root, "git", "-c", "safe.directory=*", "clone", "-q", "/src", "/root/psring", source=SOURCE)
    with open(log, "w", encoding="utf-8") as file:
        file.write(f"commit {commit}\n{inside(root, 'cat', '/etc/os-release').splitlines()[0]}\n")
        for target in ("demo", "check"):
            text = inside(root, "sh", "-c", f"make {target} 2>&1; echo \"exit code $?\"", folder="/root/psring", limit=7200)
            file.write(f"\n$ make {target}\n{text}")
            file.flush()
            expect(text.endswith("exit code 0\n"), f"make {target}", text[-6000:])


if __name__ == "__main__":
    main()
