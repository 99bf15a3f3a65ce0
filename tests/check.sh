#!/usr/bin/env bash
# Builds and runs the test suites of the levels that are named: check, more, all. Prints for each suite what it protects, the
# time that it took, its budget and its cases, then the total time, and ends with "N passed, N failed, N skipped".
#
# On two idle cores `make check` takes at most 8 minutes and check-more 22 more. A budget is a suite's share of them. A suite
# that exceeds it is marked in the summary; a busy or slow machine fails no check. .ci/run sets HOLD_S, after which it fails.
#
# A suite is a set of CTest tests (psring_test(... SUITE name)) in one of the builds. Tests print TAP: a case is a line
# of it, under the name of its test; a test that prints none is one case. A case that runs in several builds counts once,
# and has failed if it failed in any of them. A test that ends badly without a "not ok" counts as one failure, and so do
# two cases of a test that have one name, and a test that ends before its plan.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
jobs=$(nproc)
tests=$((jobs + 1)) # at once: some of them wait
logs=build/logs
levels=" ${*:-check} "
summary=()

# Adds a case to those of this check.
note() { # build outcome case
    printf '%s\t%s\t%s\n' "$@" >>"$logs/cases.tsv"
}

# Ends a suite that began at second `started` of this shell. Of its cases, those that an earlier build ran, too, count
# there.
report() { # name budget_s started build cases protects
    local used=$((SECONDS - $3)) cases again line
    read -r cases again <<<"$(awk -F'\t' -v first="$5" 'FNR <= first { before[$3] } FNR > first && !seen[$3]++ { all++; again += $3 in before }
        END { print all + 0, again + 0 }' "$logs/cases.tsv")"
    line=$(printf '%-14s %4d s of %4d   %5d cases' "$1" "$used" "$2" "$cases")
    [ "$again" -gt 0 ] && line+=", $again of them again"
    [ "$used" -gt "$2" ] && line+=", over budget"
    summary+=("$line" "    $6")
}

# A folder that is there keeps its settings unless PRESET names others.
build() { # folder targets options...
    local folder=$1 targets=$2 preset=${PRESET:-}; shift 2
    [ -f "$folder/CMakeCache.txt" ] || preset=${preset:-user}
    cmake -S . -B "$folder" ${preset:+--preset "$preset"} "$@" >"$logs/$folder-configure.log" 2>&1 &&
        cmake --build "$folder" -j "$jobs" --target $targets >"$logs/$folder-build.log" 2>&1
}

build_suite() { # name budget_s protects folder targets options...
    local name=$1 budget=$2 protects=$3 started=$SECONDS first outcome=passed; shift 3
    first=$(wc -l <"$logs/cases.tsv")
    echo "== $name"
    if ! build "$@"; then
        tail -n 40 "$logs/$1-configure.log" "$logs/$1-build.log"
        outcome=failed
    fi
    note "$1" "$outcome" "$name compiles"
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

suite() { # name budget_s protects folder label [concurrent tests [folders of tests/ that are left out]]
    local name=$1 budget=$2 protects=$3 folder=$4 label=$5 concurrent=${6:-1} without=${7:-none} started=$SECONDS first log status found
    log=$logs/$name.log
    found=$logs/$name.tsv
    first=$(wc -l <"$logs/cases.tsv")
    echo "== $name"
    ctest --test-dir "$folder" -j "$concurrent" -L "^($label)\$" -LE "^tests/($without)/" -V --no-tests=error >"$log" 2>&1
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

# Prints the summary and succeeds if nothing failed.
finish() {
    summary+=("$(printf '%-14s %4d s' total "$SECONDS")")
    [ "$SECONDS" -le "${HOLD_S:-$SECONDS}" ] || note check failed "the check takes at most $HOLD_S s"
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

level() { # name; whether it is to run
    [[ $levels == *" $1 "* ]]
}

mkdir -p "$logs"
: >"$logs/cases.tsv"
if level check; then
    build_suite build 100 "The sources compile." build "suite_sources suite_units suite_golden suite_faults suite_commands suite_labs"
    suite sources 10 "Includes, documents, scripts and recorded results agree with one another." build sources "$jobs"
    suite units 85 "Each folder keeps the promises of its headers, also on input and failures that are rare." build units "$tests"
    suite golden 55 "Models and engines compute what PyTorch computes." build golden "$jobs"
    suite faults 90 "A rank that dies, stops or is attacked ends the run with its name, and nothing is left behind." build faults "$tests"
    suite commands 115 "The program prints, refuses and trains as its documents say." build commands "$tests"
    suite labs 10 "A lab can be started, solved, checked and packed." build labs "$tests"
fi
if level more; then
    gpu=30 # the tests skip, once a slow disk has read the CUDA libraries
    [ -e /dev/nvidiactl ] && gpu=480
    build_suite build-more 90 "All that is not in a test of every change compiles." build all
    suite gpu "$gpu" "Devices, engines and program do on a real GPU what they do elsewhere." build gpu
    suite gpu-emulated 100 "Devices, engines and program do on emulated GPUs what they do elsewhere." build gpu-emulated "$tests"
    if grep -qw avx512f /proc/cpuinfo; then # elsewhere units and golden were those already
        ONEDNN_MAX_CPU_ISA=AVX2 suite units-avx2 60 "Each folder that computes keeps its promises on a processor without AVX-512." build units "$tests" \
            'common/net|common/sim|docs|fuzz|harness|traces'
        ONEDNN_MAX_CPU_ISA=AVX2 suite golden-avx2 50 "Models and engines compute there what PyTorch computes." build golden "$jobs"
    fi
    suite units-more 15 "Kernels for older processors compute what those for this one compute." build units-more "$tests"
    suite faults-more 50 "A rank that dies or stops is named under more settings of each engine." build faults-more "$tests"
    suite commands-more 200 "Options and commands keep the promises of their pages, row by row." build commands-more "$tests"
    suite labs-more 50 "The labs' solutions have full points, mistakes are named, and no code harms the grader." build labs-more "$tests"
    suite compilers 110 "Clang and CUDA 12 compile without a warning what gcc and CUDA 13 did." build compilers
    suite trixie 60 "The kernels compute on Debian 13, with oneDNN 3, what they compute here." build trixie
    build_suite build-address 80 "The sources compile with the address sanitizer." build-asan "suite_units suite_units-more" -DPSRING_SANITIZE=address
    suite address 120 "No unit reads or writes memory that is not its own, loses any, or relies on undefined behavior." build-asan 'units|units-more' "$tests"
    build_suite build-thread 55 "The sources compile with the thread sanitizer." build-tsan suite_threads -DPSRING_SANITIZE=thread
    suite thread 55 "No two threads race for a field, and a gradient passes through few files." build-tsan threads "$tests"
    build_suite build-fuzz 30 "The decoders compile with clang and libFuzzer." build-fuzz suite_fuzz -DPSRING_FUZZ=ON -DCMAKE_C_COMPILER=clang
    suite fuzz 10 "No bytes from a file or a socket crash a decoder." build-fuzz fuzz "$jobs"
fi
if level all; then
    suite golden-long 3600 "Large models compute what PyTorch computes." build golden-long
    suite units-long 3600 "Collectives are right for every count, alignment and number of ranks." build units-long
    suite faults-long 1800 "A rank may die or stop at any operation of any engine." build faults-long
    suite commands-long 1800 "Accuracy after whole trainings, the gain from overlap and the benchmarks are as documented." build commands-long
    suite labs-long 7200 "The labs give the same scores under load, and each attack on the grader fails." build labs-long
    suite gpu-emulated-long 1800 "Every cell of the table of options holds on emulated GPUs." build gpu-emulated-long
    suite trixie-long 3600 "The kernels compute on Debian 13, which is unpacked first, with oneDNN 3, what they compute here." build trixie-long
    suite compilers-long 3600 "Each compiler compiles the program without a warning, in Debug as well and on Debian 13." build compilers-long
    suite bare-long 7200 "The two commands of README pass on a bare Debian, where git and make are all that was installed." build bare-long
    suite emulated-long 14400 "The program does on AArch64, emulated, what it does here." build emulated-long
    suite fuzz-long 1800 "No bytes crash a decoder in five minutes of search." build-fuzz fuzz-long
fi
finish
