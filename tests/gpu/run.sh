#!/usr/bin/env bash
# Everything that needs a GPU, on a machine with one: compares, trains, kills, measures; in three calls of ten minutes each.
#
#   tests/gpu/run.sh [--prefix DIR]... [--python PYTHON] [--build DIR] [--out DIR] [--commit NAME]
#                    [--call first|later|last] [--only STAGE[,STAGE]...] [--speed] [--scale N] [--emulated] [--list]
#   tests/gpu/run.sh --pack DIR [--build DIR] ...
#
#   --pack DIR       on a machine without a GPU: builds, and copies the programs, stripped, with the libraries that they
#                    need at run time, to DIR. With `--build DIR` another machine then builds nothing
#   --call first     values in float32 and bf16, kernels, and the figures that show most: bandwidth, a step, steps by
#                    operation, PyTorch's steps (as far as time goes). `later`, `last`: everything else
#   --prefix DIR     libraries that are not installed (docs/cuda.md): a prefix, or Debian packages unpacked into DIR
#   --python PYTHON  runs the tests; CUDA's wheels of its environment (nvidia/*) are used where the toolkit lacks a
#                    piece, and cmake and ninja that are installed next to it
#   --build DIR      [build-gpu]; what an earlier call has built there is used
#   --out DIR        [results/gpu]
#   --commit NAME    what is tested, where git does not know it
#   --only STAGES    these alone, in the order of --list, with what an earlier call has built; its record stays
#   --speed          also compare steps with predictions and with PyTorch (predict, speed); PYTHON has torch.
#                    `speed` ends in time and goes on where it was when it is called again
#   --scale N        N times the limits: a slow machine
#   --emulated       a rehearsal on the emulator, small sizes: every stage's commands run, figures mean nothing
#   --list           print each stage with its limit in seconds, and their sum, and run nothing
#
# Results go to DIR, each with the GPU, versions and commit, and so does an archive of the logs in BUILD/logs. A stage that fails says what to
# look at, and does not keep the others from running. Where there is no GPU every stage is skipped with the reason.
# Ends with 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
python=python3 build=build-gpu out=results/gpu commit= only= call= pack= scale=1 speed=no list=no emulated= failed=0 prefixes=()
while [ $# -gt 0 ]; do
    case $1 in
    --speed | --list) declare "${1#--}=yes"; shift; continue ;;
    --emulated) emulated=--emulated; shift; continue ;;
    esac
    [ $# -ge 2 ] || { echo "run.sh: found '$1' without a value, or unknown" >&2; exit 64; }
    case $1 in
    --prefix) prefixes+=("$(cd "$2" && pwd)") || exit 64 ;;
    --python | --build | --out | --commit | --call | --only | --pack | --scale) declare "${1#--}=$2" ;;
    *) echo "run.sh: expected one of --prefix, --python, --build, --out, --commit, --call, --only, --pack, --speed," \
        "--scale, --emulated, --list, got '$1'" >&2; exit 64 ;;
    esac
    shift 2
done
case $build in /*) ;; *) build=$PWD/$build ;; esac
logs=$build/logs tests=$build/tests harness=$build/bin/harness

# ---- stages ------------------------------------------------------------------------------------

# With their limits in seconds. The limits of a call add up to 570 at most, with what is left to `speed` in the first; those
# of --speed end within ten minutes each, where they are run alone. The first load of a library takes long on a cold disk.
# A process needs more than a second of an H200 to start, one after another: that is what most tests take.
build_stages="build:900"
first_stages="float32:50 bf16:40 kernels:60 bandwidth:20 step:40 profile:80 calibrate:50"
later_stages="tf32:30 golden:120 ledger:130 killed:40 memcheck:60 racecheck:50 nccl:120"
last_stages="engines:140 anatomy:160 ps:270"
stages="$build_stages $first_stages $later_stages $last_stages"
speed_stages="predict:200 speed:540"
case $call in '' | first | later | last) ;; *) echo "run.sh: --call: expected first, later or last, got '$call'" >&2; exit 64 ;; esac
[ "$call" != first ] || speed_stages="predict:200 speed:220"

names_of() { # stages with limits
    local pair
    for pair in $1; do echo "${pair%:*}"; done
}

limit_of() { # name
    local pair
    for pair in $stages $speed_stages; do [ "${pair%:*}" = "$1" ] && echo $((${pair#*:} * scale)); done
}

if [ $list = yes ]; then
    printf '%-12s %4d before\n' build "$(limit_of build)"
    for list in "first $first_stages" "later $later_stages" "last $last_stages"; do
        sum=0
        for name in $(names_of "${list#* }"); do
            printf '%-12s %4d %s\n' "$name" "$(limit_of "$name")" "${list%% *}"
            sum=$((sum + $(limit_of "$name")))
        done
        printf '%-12s %4d sum\n' "${list%% *}" "$sum"
    done
    for name in $(names_of "$speed_stages"); do printf '%-12s %4d with --speed\n' "$name" "$(limit_of "$name")"; done
    exit 0
fi

chosen=$(names_of "$stages")
# What was packed is not built again.
[ ! -e "$build/packed" ] || chosen=$(names_of "$first_stages $later_stages $last_stages")
case $call in
first) chosen="$(names_of "$first_stages") speed" ;;
later) chosen=$(names_of "$later_stages") ;;
last) chosen=$(names_of "$last_stages") ;;
esac
[ -z "$call" ] || [ -x "$harness" ] || chosen="build $chosen"
[ -z "$pack" ] || chosen=build
[ $speed = yes ] && chosen="$chosen $(names_of "$speed_stages")"
if [ -n "$only" ]; then
    chosen=
    for name in ${only//,/ }; do
        [ -n "$(limit_of "$name")" ] || { echo "run.sh: expected a stage of --list, got '$name'" >&2; exit 64; }
    done
    for name in $(names_of "$stages $speed_stages"); do
        case ",$only," in *,"$name",*) chosen="$chosen $name" ;; esac
    done
fi

is_chosen() { # name
    case " $(echo $chosen) " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

note() { # name seconds code
    printf '%s\t%s\t%s\t%s\n' "$1" "$(limit_of "$1")" "$2" "$3" >>"$logs/stages.tsv"
}

# What a stage that was stopped has left running: ranks are in process groups of their own.
end_ranks() {
    local process program
    program=$(readlink -f "$harness")
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe" 2>/dev/null)" != "$program" ] || kill -9 "${process#/proc/}" 2>/dev/null
    done
}

# Runs a stage that was asked for; its output goes to a log.
stage() { # name command...
    local name=$1 started code seconds; shift
    is_chosen "$name" || return 0
    started=$(date +%s)
    timeout -k 5 "$(limit_of "$name")" "$@" >"$logs/$name.log" 2>&1
    code=$? seconds=$(( $(date +%s) - started ))
    find "$logs" -name '*.part' -exec cat {} \; -delete >>"$logs/$name.log" # of tests that were stopped
    note "$name" "$seconds" "$code"
    if [ $code -eq 0 ]; then echo "ok       $name ($seconds s)"; return 0; fi
    failed=1
    case $code in 124 | 137) end_ranks; code="$code, out of time," ;; esac
    echo "FAILED   $name: exit code $code after $seconds s of $(limit_of "$name"); $logs/$name.log has:"
    { grep -a -E -A3 '^not ok|error:|: Error|^harness: |Sanitizer|^=========.*(Invalid|hazard|Error)' "$logs/$name.log" | head -n 28
      echo ...; tail -n 12 "$logs/$name.log"; } | cut -c 1-400 | sed 's/^/         /'
    echo "         alone: tests/gpu/run.sh --build $build --only $name"
    return 1
}

skip() { # name reason
    is_chosen "$1" || return 0
    note "$1" 0 "skipped: $2"
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

python=$(command -v "$python") || { echo "run.sh: --python: no such program" >&2; exit 64; }
prepend PATH "$(dirname "$python")"
wheels=$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
# The driver's own libraries, where nobody has told the loader; then CUDA's, a folder a package or one for all.
prepend LD_LIBRARY_PATH "$build/libraries" /usr/local/nvidia/lib /usr/local/nvidia/lib64
if [ -n "$wheels" ]; then prepend LD_LIBRARY_PATH "$wheels"/*/lib "$wheels"/*/lib64; fi
for prefix in ${prefixes[@]+"${prefixes[@]}"}; do use_prefix "$prefix"; done
nvcc=${CUDACXX:-$(first_of nvcc /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc /opt/cuda*/bin/nvcc \
    "$wheels"/*/bin/nvcc)}
smi=$(first_of nvidia-smi /usr/local/nvidia/bin/nvidia-smi)
# A wheel's nvcc looks for its libraries in a folder that the wheel does not have.
if [ -n "$nvcc" ]; then
    prepend PATH "$(dirname "$nvcc")"
    case $nvcc in "$wheels"/*) prepend LIBRARY_PATH "${nvcc%/bin/nvcc}/lib" ;; esac
fi

# Its compute capability without the dot, from the tool or from the driver itself; empty where there is none.
find_architecture() {
    local found
    found=$([ -n "$smi" ] && "$smi" --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -dc 0-9)
    [ -n "$found" ] || found=$("$python" - 2>/dev/null <<'EOF'
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
values = [ctypes.c_int(), ctypes.c_int()]
if driver.cuInit(0) == 0 and driver.cuDeviceGetAttribute(ctypes.byref(values[0]), 75, 0) == 0 \
        and driver.cuDeviceGetAttribute(ctypes.byref(values[1]), 76, 0) == 0:
    print(f"{values[0].value}{values[1].value}")
EOF
    )
    echo "$found"
}
architecture=$(find_architecture)

configure_and_build() {
    cmake -S . -B "$build" ${generator:+-G "$generator"} -DPSRING_CUDA_WHEELS="$wheels" \
        -DPython3_EXECUTABLE="$python" ${nvcc:+-DCMAKE_CUDA_COMPILER="$nvcc"} -DPSRING_COMMIT="$commit" \
        ${architecture:+-DPSRING_CUDA_ARCHITECTURES="$architecture"} &&
        cmake --build "$build" -j "$(nproc)" --target gpu_tests ${emulated:+psring_cuda_emulated}
}
generator=$(command -v ninja >/dev/null && echo Ninja)
export build logs wheels python nvcc architecture generator emulated harness commit
export -f configure_and_build

mkdir -p "$logs" "$out" || exit
out=$(cd "$out" && pwd)
# What earlier calls have found in the same build stays.
if is_chosen build; then : >"$logs/stages.tsv"; else touch "$logs/stages.tsv"; fi
for name in $chosen; do sed -i "/^$name\t/d" "$logs/stages.tsv"; done
stage build bash -c configure_and_build || exit 1

# Programs without their symbols, and the libraries that they are linked with, but for the loader's own. CUDA's are looked
# for at run time: those of PYTHON's wheels, or of the machine.
pack_programs() { # folder
    local file library
    mkdir -p "$1/bin" "$1/tests" "$1/libraries" "$1/share/psring/profiles" || return
    cp common/data/sets/wine_data.csv "$1/share/psring/" && cp common/sim/profiles/*.json "$1/share/psring/profiles/" || return
    cp "$build"/bin/harness "$build"/bin/bench_ops "$1/bin/" && cp "$tests"/test_cuda_* "$tests"/{bench_cuda,at_operation} "$1/tests/" || return
    # A program looks for the module in its own folder.
    if [ -e "$build/lib/libpsring_cuda.so" ]; then cp "$build/lib/libpsring_cuda.so" "$1/bin/" || return; fi
    if [ -n "$emulated" ]; then cp "$tests/libpsring_cuda_emulated.so" "$1/tests/" || return; fi
    find "$1/bin" "$1/tests" -type f -exec strip --strip-unneeded {} +
    [ ! -e "$1/bin/libpsring_cuda.so" ] || cp "$1/bin/libpsring_cuda.so" "$1/tests/" || return
    ldd "$1"/bin/* "$1"/tests/test_cuda_device | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv)\.so|/ld-linux' |
        while read -r library; do cp -L "$library" "$1/libraries/"; done
    echo "${commit:-$(git rev-parse HEAD 2>/dev/null)}" >"$1/packed"
}
if [ -n "$pack" ]; then
    pack_programs "$pack" || exit 1
    echo "packed   $pack ($(du -sh "$pack" | cut -f 1)): take it along, with this repository's files, and call run.sh --build $pack"
    exit $failed
fi
[ -n "$commit" ] || [ ! -e "$build/packed" ] || commit=$(cat "$build/packed")
[ -x "$harness" ] || { echo "run.sh: --only: $harness is not built: build belongs to the stages" >&2; exit 64; }

# ---- the machine -------------------------------------------------------------------------------

# Tests print what has passed when it has, so that a stage that is stopped has said how far it came.
export PYTHONPATH=$PWD/tests/support SOURCE_DIR=$PWD BUILD_DIR=$build CMOCKA_MESSAGE_OUTPUT=TAP OMP_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1 NCCL_DEBUG=${NCCL_DEBUG:-WARN} NCCL_DEBUG_FILE=${NCCL_DEBUG_FILE:-$logs/nccl.%h.%p.log}
# A command that hangs costs its test, not the stage.
export CUDA_RUN_LIMIT=$((40 * scale))
[ -z "$emulated" ] || export PSRING_CUDA_MODULE=${PSRING_CUDA_MODULE:-$tests/libpsring_cuda_emulated.so}
timeout -k 5 60 "$harness" doctor >"$logs/doctor.folded" 2>"$logs/doctor.err"
code=$?
# A line for each name: what does not fit into 80 columns is printed on further ones.
awk '/^ /{ sub(/^ +/, " "); line = line $0; next } line { print line } { line = $0 } END { print line }' "$logs/doctor.folded" >"$logs/doctor.txt"
if ! grep -q '^GPU 0 ' "$logs/doctor.txt"; then
    reason=$(sed -n 's/^CUDA driver *missing: //p; s/^device cuda *not usable: //p' "$logs/doctor.txt" | head -n 1)
    if [ $code -ne 0 ] || [ -n "$architecture" ]; then
        echo "FAILED   $harness doctor (exit code $code) sees no GPU${architecture:+, the driver one of compute capability $architecture}:"
        cat "$logs/doctor.txt" "$logs/doctor.err"
        exit 1
    fi
    for name in $chosen; do [ "$name" = build ] || skip "$name" "no GPU: $reason"; done
    exit 0
fi
grep -A 8 '^device cuda' "$logs/doctor.txt"
gpu=$(sed -n 's/^GPU 0 *\([^,]*\),.*/\1/p' "$logs/doctor.txt" | tr -c 'A-Za-z0-9\n' '-')
stamp=$gpu-$(date -u +%Y%m%dT%H%M%SZ)

# ---- comparisons -------------------------------------------------------------------------------

several() { # commands, each a word
    local command code=0
    for command in "$@"; do stdbuf -oL $command || code=1; done
    return $code
}
# Tests of one file, in several processes at a time: most of what they take is starting.
parts() { # processes file words...
    local count=$1 file=$2 code=0 i pid pids=() logs_of=$logs/$2-$BASHPID; shift 2
    for ((i = 1; i <= count; i++)); do
        "$python" -B "tests/gpu/$file.py" $emulated --part "$i/$count" "$@" >"$logs_of-$i.part" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=1; done
    cat "$logs_of"-*.part
    rm -f "$logs_of"-*.part
    return $code
}
# Few at a time: processes that meet on a GPU start one after another, and some forty found no memory there.
golden() {
    local code=0
    parts 4 test_cuda_program 'one rank' || code=1
    parts 6 test_cuda_program 'share a gpu' || code=1
    return $code
}
kernels() { # the last by own kernels alone
    local code=0
    several "$1/test_cuda_semantics" "$1/test_cuda_optimizers" "$1/test_cuda_syncbatchnorm" "$1/test_cuda_device" \
        "$1/test_cuda_powersgd" || code=1
    # What libraries refuse, and what --benchmark chooses, cuDNN's attention too. (The emulator needs to be asked for them.)
    export EMULATED_CUDNN=1 EMULATED_CUBLASLT=1
    several "$1/test_cuda_libraries" || code=1
    OP_BENCHMARK=1 several "$1/test_cuda_operations_bf16 conv2d linear attention" || code=1
    unset EMULATED_CUDNN EMULATED_CUBLASLT
    PSRING_OWN_KERNELS=1 several "$1/test_cuda_operations" || code=1
    return $code
}
engines() {
    local words code=0
    for words in 'train as' 'weights in' 'tensor cores' refused published; do
        parts 4 test_cuda_program "$words" || code=1
    done
    parts 6 test_cuda_graph || code=1
    parts 1 test_cuda_faults || code=1
    return $code
}
anatomy() { # the parts of a step, and a host that is ahead
    local file code=0
    for file in test_cuda_anatomy test_cuda_ahead; do parts 2 "$file" || code=1; done
    return $code
}
ledger() { # class by class, then next to what NVML says
    local code=0
    parts 4 test_cuda_program ledger || code=1
    parts 1 test_cuda_ps 'no gpu holds' || code=1
    [ -n "$emulated" ] || "$python" -B tests/gpu/nvml.py --harness "$harness" --out "$out/memory-$stamp.json" || code=1
    return $code
}
export -f several parts golden kernels engines anatomy ledger
export out stamp

stage float32 stdbuf -oL "$tests/test_cuda_operations"
stage tf32 stdbuf -oL "$tests/test_cuda_operations_tf32"
stage bf16 stdbuf -oL "$tests/test_cuda_operations_bf16"
stage kernels bash -c 'kernels "$0"' "$tests"
stage golden bash -c golden
stage ledger bash -c ledger
stage nccl bash -c 'parts 4 test_cuda_nccl'
stage anatomy bash -c anatomy
stage engines bash -c engines
stage ps bash -c 'parts 6 test_cuda_ps'
stage killed bash -c 'parts 2 test_cuda_program killed'

sanitizer=$(first_of compute-sanitizer /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda-*/bin/compute-sanitizer \
    /opt/nvidia/*/compute-sanitizer /opt/nvidia/*/*/compute-sanitizer "$wheels"/*/bin/compute-sanitizer)
if [ -n "$sanitizer" ]; then
    # Those of the libraries are not ours to check. In bfloat16 every kernel runs with its widest accesses.
    export PSRING_OWN_KERNELS=1
    stage memcheck stdbuf -oL "$sanitizer" --tool memcheck --error-exitcode 9 "$tests/test_cuda_operations_bf16"
    stage racecheck stdbuf -oL "$sanitizer" --tool racecheck --error-exitcode 9 "$tests/test_cuda_semantics"
    unset PSRING_OWN_KERNELS
else
    for name in memcheck racecheck; do skip $name "compute-sanitizer is not installed"; done
fi

# ---- measurements ------------------------------------------------------------------------------

model="resnet50 --batch 64" steps=10 elements= images="resnet50 --batch 128" transformer="bert_large --batch 16"
[ -z "$emulated" ] || model="lenet --batch 4" steps=2 elements=65536 images=$model transformer="wine_mlp"
into() { # file command...
    local file=$1; shift
    "$@" >"$file.part" && mv "$file.part" "$file" && cat "$file"
}
# Steps operation by operation, compared with what the fastest product and the fastest sum would allow; a transformer's also with
# biases' gradients by sums of their own, not in cuBLASLt's epilogue.
profile() { # images transformer
    local precision
    cat "$logs/doctor.txt"
    for precision in float32 tf32 bf16; do
        "$build/bin/bench_ops" $1 --device cuda ${emulated:+--steps 2} --precision $precision || return 1
    done
    "$build/bin/bench_ops" $2 --device cuda ${emulated:+--steps 2} --precision bf16 || return 1
    echo "PSRING_PLAIN_PRODUCTS=1"
    PSRING_PLAIN_PRODUCTS=1 "$build/bin/bench_ops" $2 --device cuda ${emulated:+--steps 2} --precision bf16
}
export -f into profile
stage bandwidth bash -c 'into "$0" "$@"' "$out/bandwidth-$stamp.json" "$tests/bench_cuda" $elements
stage step "$harness" run --device cuda --mode none --model $model --steps $steps --eval-every -1 --quiet \
    --json "$out/step-$stamp.json"
if stage calibrate "$harness" calibrate --device cuda --out "$build/gpu-profile.json" && is_chosen calibrate; then
    cp "$build/gpu-profile.json" "$out/profile-$stamp.json"
fi
stage profile bash -c 'into "$0" profile "$1" "$2"' "$out/operations-$stamp.txt" "$images" "$transformer"
quick=${emulated:+--emulated}
measured=()
[ ! -s "$build/gpu-profile.json" ] || measured=(--profile "$build/gpu-profile.json")
stage predict "$python" -B tests/gpu/predict.py $quick --harness "$harness" ${measured[@]+"${measured[@]}"} \
    --out "$out/predictions-$stamp.json"
stage speed "$python" -B tests/gpu/speed.py $quick --python "$python" --harness "$harness" \
    --seconds $(($(limit_of speed) - 40 * scale)) \
    --keep "$build/speed-measured.json" --log "$logs/speed-debug.log" --out "$out/speed-$stamp.json"
for name in bandwidth predict speed; do is_chosen $name && cat "$logs/$name.log"; done
"$python" -B tests/gpu/record.py "$logs" "$out/checks-$stamp.json" "$commit" || failed=1
tar -C "$build" -czf "$out/logs-$stamp.tar.gz" logs || failed=1
exit $failed
