#!/bin/sh
# Installs the missing Debian packages of the given groups: build, data, check, long. No name has a version in it, so that
# the names hold in every release. Skips a package that the archive lacks, and all packages without apt-get or the right to
# use it; a notice says what is lost without each. CMake then names the libraries that the build lacks.
set -eu
build="gcc g++ libc6-dev cmake ninja-build pkg-config libdnnl-dev libzmq3-dev libprotobuf-c-dev protobuf-c-compiler
       libjansson-dev libxxhash-dev zlib1g-dev libtomlplusplus-dev libcmocka-dev python3 help2man"
data="dataset-fashion-mnist"
check="python3-jsonschema clang-format libopenmpi-dev openmpi-bin clang libclang-rt-dev libomp-dev lld chromium
       zsh debootstrap iproute2"
long="lintian slurm-wlm"

# What is lost without a package; tests by their names.
lost() { # package
    case $1 in
    libtomlplusplus-dev) echo "--config reads JSON, no TOML" ;;
    help2man) echo "no manual pages, and test_installation skips them" ;;
    dataset-fashion-mnist) echo "no make demo, and data_dataset, test_tutorial and test_accuracy skip cases" ;;
    python3-jsonschema) echo "test_schemas and test_labs_reports skip cases" ;;
    clang-format) echo "no make format, and test_format is skipped" ;;
    libopenmpi-dev | openmpi-bin) echo "no --collective mpi, and test_other_starters and test_program_anatomy skip cases" ;;
    clang | libclang-rt-dev | libomp-dev) echo "no fuzz targets, and test_compilers skips cases" ;;
    lld) echo "tests take longer to link" ;;
    chromium) echo "test_report, test_report_figures, test_report_of_sweeps and test_demo skip cases" ;;
    zsh) echo "test_installation skips cases" ;;
    iproute2) echo "test_nodes skips cases" ;;
    slurm-wlm) echo "test_slurm is skipped" ;;
    lintian) echo "test_installation_long skips a case" ;;
    debootstrap) echo "test_trixie, test_arm64_long and test_labs_container_long are skipped" ;;
    *) echo "the program cannot be built" ;;
    esac
}

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

skip() { # reason package...
    reason=$1
    shift
    for package in "$@"; do
        echo "install-packages.sh: $package is $reason: $(lost "$package")" >&2
    done
}
if [ "$(id -u)" -eq 0 ]; then root=; else root=sudo; fi
if ! command -v apt-get >/dev/null || { [ -n "$root" ] && ! command -v sudo >/dev/null; }; then
    # shellcheck disable=SC2086
    skip "not installed (that needs apt-get and root or sudo)" $missing
    exit 0
fi
if ! $root env DEBIAN_FRONTEND=noninteractive apt-get -q update; then
    # shellcheck disable=SC2086
    skip "not installed (apt-get update failed)" $missing
    exit 0
fi
found=
for package in $missing; do
    case $(LC_ALL=C apt-cache policy "$package") in
    "" | *"Candidate: (none)"*) skip "not in the archive" "$package" ;;
    *) found="$found $package" ;;
    esac
done
[ -n "$found" ] || exit 0
echo "installing:$found"
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $found
