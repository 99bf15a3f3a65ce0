#!/bin/sh
# Puts a CUDA toolkit of version 12 into DIR (~/.cache/psring/cuda-12). CUDA 13 compiles nothing for P100 and V100. The
# compiler is Debian 13's nvcc, because PyPI has no nvcc of CUDA 12. Headers and run-time library are PyPI's. A folder
# that is there stays. Without the archives nothing is installed, and the exit code is 1.
set -eu
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/psring/cuda-12}
[ ! -x "$folder/bin/nvcc" ] || exit 0

skip() { # reason
    echo "install-cuda-12.sh: no CUDA 12: $1: test_cuda_12 is skipped" >&2
    exit 1
}
[ "$(uname -m)" = x86_64 ] || skip "not an x86-64 machine"
mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep '/debian/*$' | head -n 1)
[ -n "$mirror" ] || skip "no Debian archive in apt's sources"
python3 -m pip --version >/dev/null 2>&1 || skip "python3 has no pip"

parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
mkdir -p "$parts/lists/partial" "$parts/cache/archives/partial" "$parts/wheels" "$(dirname "$folder")"
echo "deb $mirror trixie non-free" >"$parts/sources.list"
(
    cd "$parts"
    set -- -q -o APT::Sandbox::User=root -o Dir::Etc::SourceList="$parts/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$parts/lists" -o Dir::Cache="$parts/cache"
    apt-get "$@" update && apt-get "$@" download nvidia-cuda-toolkit && dpkg-deb -x nvidia-cuda-toolkit_*.deb debian
) >/dev/null || skip "Debian 13's nvidia-cuda-toolkit cannot be downloaded"

wheels() { # package==version...
    python3 -m pip --disable-pip-version-check --retries 1 download -q --no-deps -d "$parts/wheels" "$@" || skip "PyPI's packages cannot be downloaded"
}
wheels nvidia-cuda-nvcc-cu12==12.4.* nvidia-cuda-runtime-cu12==12.4.* nvidia-cuda-cccl-cu12==12.4.* nvidia-cublas-cu12==12.4.*
wheels nvidia-cuda-runtime-cu12==12.9.* # the static library; older packages have none

# The folders of NVIDIA's own installer.
new=$parts/cuda-12 debian=$parts/debian/usr
mkdir -p "$new/bin" "$new/nvvm/bin" "$new/lib64"
python3 - "$new" "$parts"/wheels/*.whl <<'END'
import os, re, sys, zipfile
for path in sorted(sys.argv[2:]):  # the first runtime's headers, the last one's library
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            at = re.fullmatch(r"nvidia/\w+/(include/.*[^/]|lib/(libcudart_static\.a|libcudart\.so\.12))", name)
            target = os.path.join(sys.argv[1], at[1].replace("lib/", "lib64/")) if at else None
            if target and ("lib64/" in target or not os.path.exists(target)):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as file:
                    file.write(wheel.read(name))
END
mv "$debian"/lib/nvidia-cuda-toolkit/bin/nvcc "$debian"/lib/nvidia-cuda-toolkit/bin/crt "$new/bin/"
mv "$debian"/bin/cudafe++ "$debian"/bin/ptxas "$debian"/bin/fatbinary "$debian"/bin/nvlink "$debian"/bin/cuobjdump "$new/bin/"
mv "$debian"/lib/nvidia-cuda-toolkit/bin/cicc "$new/nvvm/bin/"
mv "$debian"/lib/nvidia-cuda-toolkit/libdevice "$new/nvvm/"
cat >"$new/bin/nvcc.profile" <<'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
END
rm -rf "$folder"
mv "$new" "$folder"
echo "installed: CUDA 12 in $folder"
