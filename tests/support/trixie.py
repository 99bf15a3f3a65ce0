"""Debian 13 with the packages of the build and a compiler cache, in a folder of $XDG_CACHE_HOME (~/.cache by default) that is
kept between runs."""
import os
import re
import shutil
import sys

from debian import inside, make_debian
from tap import Skip

SOURCE = os.path.abspath(os.environ.get("SOURCE_DIR", os.getcwd()))
ROOT = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "psring", "trixie")


def make_trixie():
    if os.path.exists(os.path.join(ROOT, "complete")):
        return
    if "--long" not in sys.argv:
        raise Skip(f"no Debian 13 in {ROOT}: `make check-all` unpacks it")
    shutil.rmtree(ROOT, ignore_errors=True)
    make_debian(ROOT, suite="trixie")
    os.makedirs(os.path.join(ROOT, "src"), exist_ok=True)
    inside(ROOT, "apt-get", "update")
    with open(os.path.join(SOURCE, ".ci", "install-packages.sh"), encoding="utf-8") as file:
        packages = re.search(r'^build="(.*?)"', file.read(), re.S | re.M)[1].split()
    inside(ROOT, "apt-get", "install", "-y", "--no-install-recommends", *packages, "ccache", DEBIAN_FRONTEND="noninteractive")
    open(os.path.join(ROOT, "complete"), "w", encoding="utf-8").close()


def run_there(*words, **options):
    """Runs a command next to the source tree, which is in /src; its output."""
    make_trixie()
    return inside(ROOT, *words, source=SOURCE, limit=7200, **options)


def build_there(build_type, *targets):
    """Builds in the folder /build/TYPE there, with a warning as an error; the output."""
    make_trixie()
    folder = f"/build/{build_type}"
    caches = os.path.exists(os.path.join(ROOT, "usr", "bin", "ccache"))  # an older folder has none
    launchers = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX") if caches]
    return (run_there("cmake", "-S", "/src", "-B", folder, "-G", "Ninja", f"-DCMAKE_BUILD_TYPE={build_type}", "-DPSRING_WERROR=ON",
                      *launchers) +
            run_there("cmake", "--build", folder, "--target", *targets))
