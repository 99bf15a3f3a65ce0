#!/usr/bin/env bash
# Everything that needs a GPU, on a machine with one: builds once, compares, trains, kills, measures; under 8 minutes.
#
#   tests/gpu/run.sh [--prefix DIR]... [--python PYTHON] [--build DIR] [--speed] [--list]
#
#   --prefix DIR     libraries that are not installed (docs/cuda.md): a prefix, or Debian packages unpacked into DIR
#   --python PYTHON  runs the tests; CUDA's wheels of its environment (nvidia/*) are used where the toolkit lacks a piece
#   --build DIR      [build-gpu]
#   --speed          steps beside their predictions and beside PyTorch's, some 15 minutes more; PYTHON has torch
#   --list           print each stage with its limit in seconds, and their sum, and run nothing
#
# Results go to results/gpu/, each with the GPU, versions and commit. Where there is no GPU every stage is skipped
# with the reason. Ends with 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
python=python3 build=build-gpu speed=no list=no failed=0 prefixes=()
while [ $# -gt 0 ]; do
    case $1 in
    --speed | --list) declare "${1#--}=yes"; shift; continue ;;
    esac
    [ $# -ge 2 ] || { echo "run.sh: found '$1' without a value, or unknown" >&2; exit 64; }
    case $1 in
    --prefix) prefixes+=("$(cd "$2" && pwd)") || exit 64 ;;
    --python) python=$2 ;;
    --build) build=$2 ;;
    *) echo "run.sh: found '$1', allowed is one of --prefix, --python, --build, --speed, --list" >&2; exit 64 ;;
    esac
    shift 2
done
logs=$build/logs out=results/gpu tests=$build/tests

# Stages and their limits in seconds: together at most 480.
stages="build:100 float32:25 tf32:15 bf16:15 kernels:25 golden:65 ledger:20 engines:35 ps:45 killed:25
        memcheck:45 racecheck:20 bandwidth:5 step:10 calibrate:20 profile:10"

limit_of() { # name
    local pair
    for pair in $stages; do [ "${pair%:*}" = "$1" ] && echo "${pair#*:}"; done
}

if [ $list = yes ]; then
    sum=0
    for pair in $stages; do printf '%-12s %4d\n' "${pair%:*}" "${pair#*:}"; sum=$((sum + ${pair#*:})); done
    printf '%-12s %4d\n' sum "$sum"
    exit 0
fi

stage() { # name command...
    local name=$1 limit started code seconds; shift
    limit=$(limit_of "$name") started=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$logs/$name.log" 2>&1
    code=$? seconds=$(( $(date +%s) - started ))
    printf '%s\t%s\t%s\t%s\n' "$name" "$limit" "$seconds" "$code" >>"$logs/stages.tsv"
    if [ $code -eq 0 ]; then echo "ok       $name ($seconds s)"; return 0; fi
    failed=1
    echo "FAILED   $name: exit code $code after $seconds s of $limit; $logs/$name.log has:"
    { grep -E '^not ok|^#.*(error|fail)|Error' "$logs/$name.log" || true; tail -n 12 "$logs/$name.log"; } | head -n 40 |
        sed 's/^/         /'
    return $code
}

skip() { # name reason
    printf '%s\t%s\t0\tskipped: %s\n' "$1" "$(limit_of "$1")" "$2" >>"$logs/stages.tsv"
    echo "skipped  $1: $2"
}

# ---- what to build with ------------------------------------------------------------------------

# Prepends folders that exist to a variable that separates them by colons.
prepend() { # variable folder...
    local variable=$1 folder; shift
    for folder in "$@"; do [ -d "$folder" ] && export "$variable=$folder${!variable:+:${!variable}}"; done
    return 0
}

# A prefix, and what unpacked Debian packages have below it: their .pc files say /usr.
use_prefix() { # folder
    local at
    for at in "$1" "$1/usr"; do
        prepend CMAKE_PREFIX_PATH "$at"
        prepend CMAKE_INCLUDE_PATH "$at/include"
        prepend CMAKE_LIBRARY_PATH "$at"/lib/*-linux-gnu
        prepend PATH "$at/bin"
        prepend PKG_CONFIG_PATH "$at/lib/pkgconfig" "$at/share/pkgconfig" "$at"/lib/*-linux-gnu/pkgconfig
        prepend LD_LIBRARY_PATH "$at/lib" "$at"/lib/*-linux-gnu
    done
    if [ -d "$1/usr" ]; then export PKG_CONFIG_SYSROOT_DIR=$1; fi
}

first_of() { # the first of the arguments that can be run
    local at
    for at in "$@"; do command -v "$at" && return 0; done
    return 1
}

for prefix in ${prefixes[@]+"${prefixes[@]}"}; do use_prefix "$prefix"; done
wheels=$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
if [ -n "$wheels" ]; then prepend LD_LIBRARY_PATH "$wheels"/*/lib; fi
nvcc=${CUDACXX:-$(first_of nvcc /usr/local/cuda/bin/nvcc "$wheels"/*/bin/nvcc)}
smi=$(first_of nvidia-smi /usr/local/nvidia/bin/nvidia-smi)
architecture=$([ -n "$smi" ] && "$smi" --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -dc 0-9)

configure_and_build() {
    cmake -S . -B "$build" ${generator:+-G "$generator"} -DPSRING_CUDA_WHEELS="$wheels" \
        -DPython3_EXECUTABLE="$(command -v "$python")" ${nvcc:+-DCMAKE_CUDA_COMPILER="$nvcc"} \
        ${architecture:+-DPSRING_CUDA_ARCHITECTURES="$architecture"} &&
        cmake --build "$build" -j "$(nproc)" --target gpu_tests
}
generator=$(command -v ninja >/dev/null && echo Ninja)
export build logs wheels python nvcc architecture generator
export -f configure_and_build

mkdir -p "$logs"
: >"$logs/stages.tsv"
stage build bash -c configure_and_build || exit 1
export PYTHONPATH=$PWD/tests/support SOURCE_DIR=$PWD BUILD_DIR=$PWD/$build CMOCKA_MESSAGE_OUTPUT=TAP OMP_NUM_THREADS=1
harness=$build/bin/harness
"$harness" doctor >"$logs/doctor.txt"
if ! grep -q '^GPU 0 ' "$logs/doctor.txt"; then
    reason=$(sed -n 's/^CUDA driver *missing: //p; s/^device cuda *not usable: //p' "$logs/doctor.txt" | head -n 1)
    for pair in $stages; do [ "${pair%:*}" = build ] || skip "${pair%:*}" "no GPU: $reason"; done
    exit 0
fi
grep -A 8 '^device cuda' "$logs/doctor.txt"
mkdir -p "$out"
gpu=$(sed -n 's/^GPU 0 *\([^,]*\),.*/\1/p' "$logs/doctor.txt" | tr -c 'A-Za-z0-9\n' '-')
stamp=$gpu-$(date -u +%Y%m%dT%H%M%SZ)

# ---- the stages --------------------------------------------------------------------------------

several() { # commands, each a word
    local command code=0
    for command in "$@"; do $command || code=1; done
    return $code
}
export -f several
program() { # words in the names of the tests
    "$python" -B tests/gpu/test_cuda_program.py "$@"
}
export -f program
golden() { # one rank and several at a time
    local code=0
    program 'one rank' >"$logs/one-rank.log" 2>&1 &
    program 'share a gpu' || code=1
    wait $! || code=1
    cat "$logs/one-rank.log"
    return $code
}
export -f golden

stage float32 "$tests/test_cuda_operations"
stage tf32 "$tests/test_cuda_operations_tf32"
stage bf16 "$tests/test_cuda_operations_bf16"
stage kernels bash -c "several $tests/test_cuda_semantics $tests/test_cuda_optimizers $tests/test_cuda_syncbatchnorm \
    $tests/test_cuda_device $tests/test_cuda_powersgd; code=\$?; PSRING_OWN_KERNELS=1 $tests/test_cuda_operations && exit \$code"
stage golden bash -c golden
stage ledger bash -c 'program ledger'
engines() {
    local words file code=0
    for words in 'train as' 'replicas follow' refused published; do program "$words" || code=1; done
    for file in tests/gpu/test_cuda_*.py; do
        case $file in *_program.py | *_ps.py) continue ;; esac
        "$python" -B "$file" || code=1
    done
    return $code
}
export -f engines
stage engines bash -c engines
stage ps "$python" -B tests/gpu/test_cuda_ps.py
stage killed bash -c 'program killed'

sanitizer=$(first_of compute-sanitizer /usr/local/cuda/bin/compute-sanitizer "$wheels"/*/bin/compute-sanitizer)
if [ -n "$sanitizer" ]; then
    # Those of the libraries are not ours to check. In bfloat16 every kernel runs with its widest accesses.
    export PSRING_OWN_KERNELS=1
    stage memcheck "$sanitizer" --tool memcheck --error-exitcode 9 "$tests/test_cuda_operations_bf16"
    stage racecheck "$sanitizer" --tool racecheck --error-exitcode 9 "$tests/test_cuda_semantics"
    unset PSRING_OWN_KERNELS
else
    for name in memcheck racecheck; do skip $name "compute-sanitizer is not installed"; done
fi

stage bandwidth bash -c "$tests/bench_cuda >$out/bandwidth-$stamp.json" && cat "$out/bandwidth-$stamp.json"
stage step "$harness" run --device cuda --mode none --model resnet50 --batch 64 --steps 10 --eval-every -1 --quiet \
    --json "$out/step-resnet50-$stamp.json"
stage calibrate "$harness" calibrate --device cuda --out "$out/profile-$stamp.json"
# A step operation by operation, beside what the fastest product and the fastest sum would allow.
profile() {
    local precision
    for precision in float32 tf32 bf16; do
        "$build/bin/bench_ops" resnet50 --device cuda --batch 64 --precision $precision || return 1
    done
}
export -f profile
stage profile bash -c "set -o pipefail; { cat '$logs/doctor.txt'; profile; } | tee '$out/operations-$stamp.txt'"
"$python" -B tests/gpu/record.py "$logs" "$out/checks-$stamp.json"

if [ $speed = yes ]; then
    "$python" -B tests/gpu/predict.py --harness "$harness" --profile "$out/profile-$stamp.json" \
        --out "$out/predictions-$stamp.json" || failed=1
    "$python" -B tests/gpu/speed.py --python "$python" --harness "$harness" --out "$out/speed-$stamp.json" || failed=1
fi
exit $failed
