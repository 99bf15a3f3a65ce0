#!/usr/bin/env bash
# Everything that needs a GPU, on a machine with one: builds, compares, trains, kills, measures; under 8 minutes.
#
#   tests/gpu/run.sh [--quick] [--python PYTHON]     PYTHON: one with torch, for the comparison of speed
#
# Results go to results/gpu/, each with the GPU, versions and commit. Where there is no GPU every stage is skipped
# with the reason. Ends with 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
quick= python=python3 failed=0
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=--quick ;;
    --python) python=$2; shift ;;
    *) echo "run.sh: found '$1', allowed are --quick and --python PYTHON" >&2; exit 64 ;;
    esac
    shift
done
logs=build/logs out=results/gpu
mkdir -p "$logs"

stage() { # name limit_s command...
    local name=$1 limit=$2 started code; shift 2
    started=$(date +%s)
    timeout "$limit" "$@" >"$logs/gpu-$name.log" 2>&1
    code=$?
    if [ $code -eq 0 ]; then echo "ok       $name ($(( $(date +%s) - started )) s)"
    else
        failed=1
        echo "FAILED   $name: exit code $code after $(( $(date +%s) - started )) s; $logs/gpu-$name.log ends:"
        tail -n 15 "$logs/gpu-$name.log" | sed 's/^/         /'
    fi
    return $code
}

skip() { # name reason
    echo "skipped  $1: $2"
}

find_sanitizer() {
    command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda/*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1
}

stages="device-tests sanitizer bandwidth speed step"
stage build 300 sh -c 'cmake -S . -B build -G Ninja && cmake --build build' || exit 1
if ! build/bin/harness doctor | grep -q '^GPU 0 '; then
    reason=$(build/bin/harness doctor | sed -n 's/^CUDA driver *missing: //p; s/^device cuda *not usable: //p' | head -n 1)
    for name in $stages; do skip "$name" "no GPU: $reason"; done
    exit 0
fi
build/bin/harness doctor | grep -A 8 '^device cuda'
mkdir -p "$out"
gpu=$(build/bin/harness doctor | sed -n 's/^GPU 0 *\([^,]*\),.*/\1/p' | tr -c 'A-Za-z0-9\n' '-')
stamp=$gpu-$(date -u +%Y%m%dT%H%M%SZ)

# Operations against the reference, semantics, fences, golden trajectories through none, ps and ring, the ledger
# beside the CPU's, refusals, ranks killed inside a collective.
stage device-tests 240 ctest --test-dir build -L '^gpu$' --output-on-failure --no-tests=error

sanitizer=$(find_sanitizer)
if [ -n "$sanitizer" ]; then
    stage sanitizer-memcheck 60 "$sanitizer" --tool memcheck --error-exitcode 9 build/tests/test_cuda_device
    stage sanitizer-racecheck 60 "$sanitizer" --tool racecheck --error-exitcode 9 build/tests/test_cuda_semantics
else
    skip sanitizer "compute-sanitizer is not installed"
fi

stage bandwidth 30 sh -c "build/tests/bench_cuda >$out/bandwidth-$stamp.json && cat $out/bandwidth-$stamp.json" &&
    cat "$out/bandwidth-$stamp.json"

stage speed 400 "$python" tests/gpu/speed.py $quick --python "$python" --out "$out/speed-$stamp.json"
grep -v '^$' "$logs/gpu-speed.log"

stage step 60 build/bin/harness run --device cuda --mode none --model resnet50 --batch 64 --steps 10 --quiet \
    --json "$out/step-resnet50-$stamp.json"
exit $failed
