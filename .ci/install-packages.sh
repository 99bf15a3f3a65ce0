#!/bin/sh
# Installs the missing Debian packages of the given groups: build, data, check, long. Needs root or sudo only if one is
# missing.
set -eu
build="gcc g++ libc6-dev cmake ninja-build pkg-config libdnnl-dev libzmq3-dev libprotobuf-c-dev protobuf-c-compiler
       libjansson-dev libxxhash-dev libhwloc-dev zlib1g-dev libtomlplusplus-dev libcmocka-dev python3 help2man"
data="dataset-fashion-mnist"
check="python3-jsonschema clang-format libopenmpi-dev openmpi-bin clang libclang-rt-14-dev libomp-14-dev binutils procps iproute2
       chromium zsh"
long="lintian"
wanted=
for group in "$@"; do
    case $group in
    build) wanted="$wanted $build" ;;
    data) wanted="$wanted $data" ;;
    check) wanted="$wanted $check" ;;
    long) wanted="$wanted $long" ;;
    *) echo "install-packages.sh: expected one of build, data, check, long, got '$group'" >&2; exit 64 ;;
    esac
done
missing=
for package in $wanted; do
    case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true) in
    "install ok installed") ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
if [ "$(id -u)" -eq 0 ]; then root=; else root=sudo; fi
if [ -n "$root" ] && ! command -v sudo >/dev/null; then
    echo "install-packages.sh: installing packages needs root or sudo" >&2
    exit 77
fi
$root env DEBIAN_FRONTEND=noninteractive apt-get -q update
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing
