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

# Counts from a log of `ctest -V`: "passed failed skipped". A test that prints no TAP counts as one, and one
# that was killed, ran out of time or ended badly without a "not ok" as one failure. cmocka has a form of
# its own for what is skipped: "not ok N # SKIP name".
count() { # log
    awk '
        /^[0-9]+: (not )?ok [0-9]+/ {
            split($1, number, ":")
            if (tolower($0) ~ /# *skip/) skipped++
            else if ($2 == "not") { failed++; bad[number[1]]++ }
            else passed++
            spoke[number[1]] = 1
        }
        /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
            match($0, /#[0-9]+:/); number_of = substr($0, RSTART + 1, RLENGTH - 2)
            if ($0 ~ /\*\*\*Skipped/) skipped++
            else if ($0 ~ /\*\*\*Failed/) failed += !bad[number_of]
            else if ($0 ~ /\*\*\*/) failed++
            else passed += !spoke[number_of]
        }
        END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

suite() { # name budget folder label [tests at once]
    local name=$1 budget=$2 folder=$3 label=$4 at_once=${5:-1} started log status ok not_ok skip
    started=$(date +%s)
    log=$logs/$name.log
    echo "== $name"
    ctest --test-dir "$folder" -j "$at_once" -L "^($label)\$" -V --no-tests=error >"$log" 2>&1
    status=$?
    read -r ok not_ok skip <<<"$(count "$log")"
    if [ "$status" -ne 0 ]; then
        [ "$not_ok" -eq 0 ] && not_ok=1
        grep -E '^[0-9]+: (not ok|#|.*(ERROR|error:))|\*\*\*' "$log" | grep -Eiv 'not ok.*# *skip|# [0-9.]+ s$|: # ok - ' | head -n 60
        echo "   (all of it: $log)"
    fi
    passed=$((passed + ok)); failed=$((failed + not_ok)); skipped=$((skipped + skip))
    printf '   %d passed, %d failed, %d skipped\n' "$ok" "$not_ok" "$skip"
    grep -Ei '^[0-9]+: (not )?ok .*# *skip' "$log" | sed -E 's/^[0-9]+: (not )?ok [0-9]+ -? */   skipped: /' | sort | uniq -c | sort -rn | head -n 20
    report "$name" "$budget" "$started"
}

mkdir -p "$logs"
build_suite build 120 build
suite units 110 build units "$jobs"
suite golden 100 build golden "$jobs"
suite faults 120 build faults
suite gpu 10 build gpu # 8 minutes where there is a GPU
suite commands 190 build commands
build_suite build-address 140 build-asan -DPSRING_SANITIZE=address
suite address 120 build-asan units "$jobs"
build_suite build-thread 80 build-tsan -DPSRING_SANITIZE=thread
suite thread 120 build-tsan threads
build_suite build-fuzz 60 build-fuzz -DPSRING_FUZZ=ON -DCMAKE_C_COMPILER=clang
suite fuzz 20 build-fuzz fuzz "$jobs"
if [ $all = yes ]; then
    suite golden-large 3600 build golden-large
    suite units-long 3600 build units-long
    suite faults-long 1800 build faults-long
    suite commands-long 1800 build commands-long
    suite fuzz-long 1800 build-fuzz fuzz-long
fi

echo
printf '%s\n' "${summary[@]}"
echo
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
