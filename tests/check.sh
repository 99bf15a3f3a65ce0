#!/usr/bin/env bash
# Builds and runs the test suites. Prints for each suite its budget and the time that it took, and ends with
# "N passed, N failed, N skipped" over all single tests. --all adds the suites that take longer.
#
# A suite is a set of CTest tests (psring_test(... SUITE name)) in one of the builds. Tests print TAP. A program
# that ends badly without a "not ok" counts as one failure, and so does a suite that exceeds its budget.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
jobs=$(nproc)
passed=0 failed=0 skipped=0
logs=build/logs
summary=()

# Notes the time of a suite that began at second `started` of this shell.
report() { # name budget_s started
    local used=$((SECONDS - $3)) over=
    if [ "$used" -gt "$2" ]; then
        failed=$((failed + 1))
        over='   over budget: counts as a failure'
    fi
    summary+=("$(printf '%-22s budget %5d s   used %5d s%s' "$1" "$2" "$used" "$over")")
}

build() { # folder target options...
    local folder=$1 target=$2; shift 2
    cmake -S . -B "$folder" -G Ninja "$@" >"$logs/$folder-configure.log" 2>&1 &&
        cmake --build "$folder" -j "$jobs" --target "$target" >"$logs/$folder-build.log" 2>&1
}

build_suite() { # name budget_s folder target options...
    local name=$1 budget=$2 started=$SECONDS; shift 2
    echo "== $name"
    if build "$@"; then
        passed=$((passed + 1))
    else
        tail -n 40 "$logs/$1-configure.log" "$logs/$1-build.log"
        failed=$((failed + 1))
    fi
    report "$name" "$budget" "$started"
}

# Counts "passed failed skipped" from a log of `ctest -V`. A test that prints no TAP counts as one. A test that was
# killed, timed out or ended badly without a "not ok" counts as one failure. cmocka prints "not ok N # SKIP name" for
# a test that is skipped.
count() { # log
    awk '
        /^[0-9]+: (not )?ok [0-9]+/ {
            split($1, number, ":")
            if (tolower($0) ~ /# *skip/) skipped++
            else if ($2 == "not") { failed++; bad[number[1]]++ }
            else passed++
            tap[number[1]] = 1
        }
        /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
            match($0, /#[0-9]+:/); test = substr($0, RSTART + 1, RLENGTH - 2)
            if ($0 ~ /\*\*\*Skipped/) skipped++
            else if ($0 ~ /\*\*\*Failed/) failed += !bad[test]
            else if ($0 ~ /\*\*\*/) failed++
            else passed += !tap[test]
        }
        END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

suite() { # name budget_s folder label [concurrent tests]
    local name=$1 budget=$2 folder=$3 label=$4 concurrent=${5:-1} started=$SECONDS log status ok not_ok skip
    log=$logs/$name.log
    echo "== $name"
    ctest --test-dir "$folder" -j "$concurrent" -L "^($label)\$" -V --no-tests=error >"$log" 2>&1
    status=$?
    read -r ok not_ok skip <<<"$(count "$log")"
    if [ "$status" -ne 0 ]; then
        [ "$not_ok" -eq 0 ] && not_ok=1
        grep -E '^[0-9]+: (not ok|#|.*(ERROR|error:))|\*\*\*' "$log" | grep -Eiv 'not ok.*# *skip|# [0-9.]+ s$|: # ok - ' | head -n 60
        echo "   (full log: $log)"
    fi
    passed=$((passed + ok)); failed=$((failed + not_ok)); skipped=$((skipped + skip))
    printf '   %d passed, %d failed, %d skipped\n' "$ok" "$not_ok" "$skip"
    grep -Ei '^[0-9]+: (not )?ok .*# *skip' "$log" | sed -E 's/^[0-9]+: (not )?ok [0-9]+ -? */   skipped: /' | sort | uniq -c | sort -rn | head -n 20
    report "$name" "$budget" "$started"
}

# Prints the summary and succeeds if nothing failed.
finish() {
    echo
    printf '%s\n' "${summary[@]}"
    echo
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
}

[ "${BASH_SOURCE[0]}" = "$0" ] || return 0 # tests/architecture/test_check.sh tests the functions above

# On two idle cores the suites up to `fuzz` take less than 20 minutes in total, with a cold compiler cache. Each budget is
# about twice the suite's share, so that a machine with one busy core stays within it.
gpu=10 # the tests skip
[ -e /dev/nvidiactl ] && gpu=480
mkdir -p "$logs"
build_suite build 280 build all
suite units 240 build units "$jobs"
suite golden 120 build golden "$jobs"
suite faults 240 build faults
suite gpu "$gpu" build gpu
suite commands 400 build commands
build_suite build-address 120 build-asan suite_units -DPSRING_SANITIZE=address
suite address 260 build-asan units "$jobs"
build_suite build-thread 80 build-tsan suite_threads -DPSRING_SANITIZE=thread
suite thread 220 build-tsan threads
build_suite build-fuzz 60 build-fuzz suite_fuzz -DPSRING_FUZZ=ON -DCMAKE_C_COMPILER=clang
suite fuzz 20 build-fuzz fuzz "$jobs"
if [ "${1:-}" = --all ]; then
    suite golden-large 3600 build golden-large
    suite units-long 3600 build units-long
    suite faults-long 1800 build faults-long
    suite commands-long 1800 build commands-long
    suite fuzz-long 1800 build-fuzz fuzz-long
fi
finish
