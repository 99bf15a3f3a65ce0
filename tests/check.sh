#!/usr/bin/env bash
# Runs the test suites and prints, for each, its budget and the time it used; ends with
# "N passed, N failed[, N skipped]" over all single tests. --all adds the suites that take longer.
#
# A suite is a set of CTest tests (psring_test(... SUITE name)) in one of the builds. Tests print TAP;
# a program that dies without a "not ok" counts as one failure.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
all=no
[ "${1:-}" = --all ] && all=yes
passed=0 failed=0 skipped=0
logs=build/logs
summary=()

report() { # name budget_s started
    local used=$(( $(date +%s) - $3 ))
    summary+=("$(printf '%-22s budget %5d s   used %5d s%s' "$1" "$2" "$used" "$([ $used -gt $2 ] && echo '   over budget')")")
}

build() { # folder options...
    local folder=$1; shift
    cmake -S . -B "$folder" -G Ninja "$@" >"$logs/$folder-configure.log" 2>&1 &&
        cmake --build "$folder" -j "$jobs" >"$logs/$folder-build.log" 2>&1
}

build_suite() { # name budget folder options...
    local name=$1 budget=$2 started; started=$(date +%s); shift 2
    echo "== $name"
    if build "$@"; then
        passed=$((passed + 1))
    else
        tail -n 40 "$logs/$1-configure.log" "$logs/$1-build.log"
        failed=$((failed + 1))
    fi
    report "$name" "$budget" "$started"
}

suite() { # name budget folder label
    local name=$1 budget=$2 folder=$3 label=$4 started log ok not_ok skip dead
    started=$(date +%s)
    log=$logs/$name.log
    echo "== $name"
    ctest --test-dir "$folder" -L "^$label\$" -V --no-tests=error >"$log" 2>&1
    local status=$?
    ok=$(grep -Ec '^[0-9]+: ok ' "$log")
    not_ok=$(grep -Ec '^[0-9]+: not ok ' "$log")
    skip=$(grep -Eci '^[0-9]+: ok .*# skip' "$log")
    dead=$(grep -Ec '\*\*\*(Failed|Exception|Timeout|Not Run)' "$log")
    if [ "$status" -ne 0 ]; then
        [ "$not_ok" -eq 0 ] && not_ok=$(( dead > 0 ? dead : 1 ))
        grep -E '^[0-9]+: (not ok|#|.*(ERROR|error:))|\*\*\*' "$log" | head -n 60
        echo "   (all of it: $log)"
    fi
    passed=$((passed + ok - skip)); failed=$((failed + not_ok)); skipped=$((skipped + skip))
    printf '   %d passed, %d failed, %d skipped\n' $((ok - skip)) "$not_ok" "$skip"
    grep -Ei '^[0-9]+: ok .*# skip' "$log" | sed 's/^[0-9]*: ok [0-9]* -* */   skipped: /' | sort | uniq -c | sort -rn | head -n 20
    report "$name" "$budget" "$started"
}

mkdir -p "$logs"
build_suite build 150 build
suite units 180 build units
suite golden 120 build golden
suite faults 180 build faults
suite commands 180 build commands
build_suite build-address 120 build-asan -DPSRING_SANITIZE=address
suite address 150 build-asan 'units|faults-asan'
build_suite build-thread 100 build-tsan -DPSRING_SANITIZE=thread
suite thread 150 build-tsan threads
build_suite build-fuzz 60 build-fuzz -DPSRING_FUZZ=ON -DCMAKE_C_COMPILER=clang
suite fuzz 60 build-fuzz fuzz
if [ $all = yes ]; then
    suite golden-large 3600 build golden-large
    suite fuzz-long 1800 build-fuzz fuzz-long
fi

echo
printf '%s\n' "${summary[@]}"
echo
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
