#!/usr/bin/env bash
# Builds and runs the test suites. Prints for each suite what it protects, the time that it took, its budget and its
# cases, then the total time, and ends with "N passed, N failed, N skipped". --all adds the suites that take longer.
#
# The suites of every check are to take less than 20 minutes on two idle cores. Each budget is about twice the suite's share of
# them, and the check fails where the total is more than twice that, so that a machine with one busy core stays within both.
#
# A suite is a set of CTest tests (psring_test(... SUITE name)) in one of the builds. Tests print TAP: a case is a line
# of it, under the name of its test; a test that prints none is one case. A case that runs in several builds counts once,
# and has failed if it failed in any of them. A test that ends badly without a "not ok" counts as one failure, and so do
# a suite that exceeds its budget, two cases of a test that have one name, and a test that ends before its plan.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
jobs=$(nproc)
tests=$((jobs + 1)) # at once: some of them wait
logs=build/logs
promise=1200 # seconds, of the suites of every check
summary=()

# Adds a case to those of this check.
note() { # build outcome case
    printf '%s\t%s\t%s\n' "$@" >>"$logs/cases.tsv"
}

# Ends a suite that began at second `started` of this shell. Of its cases, those that an earlier build ran, too, count
# there.
report() { # name budget_s started build cases protects
    local used=$((SECONDS - $3)) cases again line
    if [ "$used" -gt "$2" ]; then
        note "$4" failed "$1 stays within its budget"
        echo "   over budget: counts as a failure"
    fi
    read -r cases again <<<"$(awk -F'\t' -v first="$5" 'FNR <= first { before[$3] } FNR > first && !seen[$3]++ { all++; again += $3 in before }
        END { print all + 0, again + 0 }' "$logs/cases.tsv")"
    line=$(printf '%-14s %4d s of %4d   %5d cases' "$1" "$used" "$2" "$cases")
    [ "$again" -gt 0 ] && line+=", $again of them again"
    summary+=("$line" "    $6")
}

build() { # folder target options...
    local folder=$1 target=$2; shift 2
    cmake -S . -B "$folder" -G Ninja "$@" >"$logs/$folder-configure.log" 2>&1 &&
        cmake --build "$folder" -j "$jobs" --target "$target" >"$logs/$folder-build.log" 2>&1
}

build_suite() { # name budget_s protects folder target options...
    local name=$1 budget=$2 protects=$3 started=$SECONDS first outcome=passed; shift 3
    first=$(wc -l <"$logs/cases.tsv")
    echo "== $name"
    if ! build "$@"; then
        tail -n 40 "$logs/$1-configure.log" "$logs/$1-build.log"
        outcome=failed
    fi
    note "$1" "$outcome" "$name compiles without a warning"
    report "$name" "$budget" "$started" "$1" "$first" "$protects"
}

# The cases in a log of `ctest -V`: "passed", "failed" or "skipped", a tab, and "test: case". cmocka prints
# "not ok N # SKIP name" for a case that is skipped.
cases() { # log
    awk '
        /^[0-9]+: 1\.\.[0-9]+$/ { plan[substr($1, 1, length($1) - 1)] += substr($2, 4) }
        /^[0-9]+: (not )?ok [0-9]+/ {
            number = substr($1, 1, length($1) - 1)
            outcome = $2 == "not" ? "failed" : "passed"
            if (tolower($0) ~ /# *skip/) outcome = "skipped"
            name = $0
            sub(/^[0-9]+: (not )?ok [0-9]+( -)? */, "", name)
            if (outcome == "skipped" && !sub(/^# *[Ss][Kk][Ii][Pp] */, "", name)) sub(/ *# *[Ss][Kk][Ii][Pp].*/, "", name)
            count[number]++
            outcomes[number, count[number]] = outcome
            names[number, count[number]] = name
            if (outcome == "failed") bad[number]++
        }
        /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
            match($0, /#[0-9]+:/); number = substr($0, RSTART + 1, RLENGTH - 2)
            test = substr($0, RSTART + RLENGTH + 1)
            sub(/ .*/, "", test); sub(/\.*\**$/, "", test)
            for (i = 1; i <= count[number]; i++) {
                print outcomes[number, i] "\t" test ": " names[number, i]
                if (seen[number, names[number, i]]++) print "failed\t" test ": two cases are called \"" names[number, i] "\""
            }
            if (number in plan && plan[number] != count[number] && $0 ~ / Passed /)
                print "failed\t" test ": " plan[number] " cases were planned, " count[number] + 0 " ran"
            if ($0 ~ /\*\*\*Skipped/) print "skipped\t" test
            else if ($0 ~ /\*\*\*Failed/) { if (!bad[number]) print "failed\t" test }
            else if ($0 ~ /\*\*\*/) print "failed\t" test
            else if (!count[number]) print "passed\t" test
        }' "$1"
}

suite() { # name budget_s protects folder label [concurrent tests]
    local name=$1 budget=$2 protects=$3 folder=$4 label=$5 concurrent=${6:-1} started=$SECONDS first log status found
    log=$logs/$name.log
    found=$logs/$name.tsv
    first=$(wc -l <"$logs/cases.tsv")
    echo "== $name"
    ctest --test-dir "$folder" -j "$concurrent" -L "^($label)\$" -V --no-tests=error >"$log" 2>&1
    status=$?
    cases "$log" >"$found"
    if [ "$status" -ne 0 ] && ! grep -q '^failed' "$found"; then
        printf 'failed\t%s runs to its end\n' "$name" >>"$found"
    fi
    awk -v build="$folder" '{ print build "\t" $0 }' "$found" >>"$logs/cases.tsv"
    if grep -q '^failed' "$found"; then
        grep '^failed' "$found"
        grep -E '^[0-9]+: (not ok|#|.*(ERROR|error:))|\*\*\*' "$log" | grep -Eiv 'not ok.*# *skip|# [0-9.]+ s$|: # ok - ' | head -n 60
        echo "   (full log: $log)"
    fi
    awk -F'\t' '{ n[$1]++ } END { printf "   %d passed, %d failed, %d skipped\n", n["passed"], n["failed"], n["skipped"] }' "$found"
    grep -Ei '^[0-9]+: (not )?ok .*# *skip' "$log" | sed -E 's/^[0-9]+: (not )?ok [0-9]+ -? */   skipped: /' | sort | uniq -c | sort -rn | head -n 20
    report "$name" "$budget" "$started" "$folder" "$first" "$protects"
}

# Ends the suites of every check, which began with this shell.
total() {
    local used=$SECONDS
    [ "$used" -le $((2 * promise)) ] || note check failed "the whole check takes at most $((2 * promise)) s"
    summary+=("$(printf '%-14s %4d s of %4d' total "$used" "$promise")")
}

# Prints the summary and succeeds if nothing failed.
finish() {
    echo
    printf '%s\n' "${summary[@]}"
    echo
    awk -F'\t' '
        BEGIN { worse["skipped"] = 1; worse["passed"] = 2; worse["failed"] = 3 }
        worse[$2] > worse[outcome[$3]] { outcome[$3] = $2 }
        $2 != "skipped" && !seen[$1, $3]++ { builds[$3]++ }
        END {
            for (name in outcome) n[outcome[name]]++
            for (name in builds) { ran[builds[name]]++; if (builds[name] > most) most = builds[name] }
            for (b = 1; b <= most; b++) printf "%d cases ran in %d build%s\n", ran[b], b, b == 1 ? "" : "s"
            printf "%d passed, %d failed, %d skipped\n", n["passed"], n["failed"], n["skipped"]
            exit n["failed"] > 0
        }' "$logs/cases.tsv"
}

[ "${BASH_SOURCE[0]}" = "$0" ] || return 0 # tests/architecture/test_check.sh tests the functions above

gpu=30 # the tests skip, once a slow disk has read the CUDA libraries
[ -e /dev/nvidiactl ] && gpu=480
mkdir -p "$logs"
: >"$logs/cases.tsv"
build_suite build 280 "The sources compile with gcc." build all
suite sources 30 "Includes, documents, scripts and recorded results agree with one another." build sources "$jobs"
suite units 190 "Each folder keeps the promises of its headers, also on input and failures that are rare." build units "$tests"
suite golden 110 "Models and engines compute what PyTorch computes." build golden "$jobs"
suite faults 150 "A rank that dies, stops or is attacked ends the run with its name, and nothing is left behind." build faults "$tests"
suite gpu "$gpu" "Devices, engines and program do on a real GPU what they do elsewhere." build gpu
suite commands 850 "The program prints, refuses and trains as its documents say." build commands "$tests"
suite labs 120 "The labs' solutions have full points, mistakes are named, and no code harms the grader." build labs "$tests"
build_suite build-address 155 "The sources compile with the address sanitizer." build-asan suite_units -DPSRING_SANITIZE=address
suite address 220 "No unit reads or writes memory that is not its own, loses any, or relies on undefined behavior." build-asan units "$tests"
build_suite build-thread 100 "The sources compile with the thread sanitizer." build-tsan suite_threads -DPSRING_SANITIZE=thread
suite thread 105 "No two threads race for a field, and a gradient passes through few files." build-tsan threads "$tests"
build_suite build-fuzz 50 "The decoders compile with clang and libFuzzer." build-fuzz suite_fuzz -DPSRING_FUZZ=ON -DCMAKE_C_COMPILER=clang
suite fuzz 10 "No bytes from a file or a socket crash a decoder." build-fuzz fuzz "$jobs"
total
if [ "${1:-}" = --all ]; then
    suite golden-large 3600 "Large models compute what PyTorch computes." build golden-large
    suite units-long 3600 "Collectives are right for every count, alignment and number of ranks." build units-long
    suite faults-long 1800 "A rank may die or stop at any operation of any engine." build faults-long
    suite commands-long 1800 "Accuracy after whole trainings, the gain from overlap and the benchmarks are as documented." build commands-long
    suite labs-long 7200 "The labs give the same scores under load, and each attack on the grader fails." build labs-long
    suite emulated-long 14400 "The program does on AArch64, emulated, what it does here." build emulated-long
    suite fuzz-long 1800 "No bytes crash a decoder in five minutes of search." build-fuzz fuzz-long
fi
finish
