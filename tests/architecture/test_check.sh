#!/usr/bin/env bash
# What tests/check.sh counts and what fails the check, and which tests tests/test.sh chooses. ctest and cmake are replaced by
# functions that print, take time or fail as a test says.
set -u
unset BUILD JOBS PRESET HOLD_S
. "$(dirname "$0")/../check.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=$work

number=0 bad=0
echo "1..28"
expect() { # name found expected
    number=$((number + 1))
    if [ "$2" = "$3" ]; then
        echo "ok $number - $1"
        return
    fi
    echo "not ok $number - $1"
    printf '# found    %s\n# expected %s\n' "$2" "$3"
    bad=1
}

output='' exit_code=0 takes_s=0 fails_in=
ctest() {
    local text=$output
    if [ "$2" = "$fails_in" ]; then
        text=${text/ok 1/not ok 1}
        printf '%s\n' "${text/ Passed/***Failed}"
        return 8
    fi
    printf '%s\n' "$output"
    SECONDS=$((SECONDS + takes_s))
    return "$exit_code"
}
cmake() {
    SECONDS=$((SECONDS + takes_s))
    return "$exit_code"
}
outcome() { # suites; prints the last line of the check and its result
    summary=() SECONDS=0
    : >"$logs/cases.tsv"
    "$@" >"$work/out" 2>&1
    local result=red
    finish >>"$work/out" && result=green
    echo "$(tail -n 1 "$work/out"), $result"
}
units() { suite units 1000 "Units work." build units; }
build_all() { build_suite build 1000 "The sources compile." build all; }
both() {
    units
    suite address 1000 "Memory is in order." build-asan units
}
line() { outcome "$1" >/dev/null; grep -Eo "$2" "$work/out"; }

output='1: ok 1 - adds
1: ok 2 - subtracts
1/2 Test #1: numbers ....   Passed    0.01 sec
2/2 Test #2: silent .....   Passed    0.01 sec'
expect "TAP lines count, and a program that prints none counts as one" \
    "$(outcome units)" "3 passed, 0 failed, 0 skipped, green"
expect "a case that runs in two builds counts once" "$(outcome both)" "3 passed, 0 failed, 0 skipped, green"
expect "the summary says in how many builds cases ran" "$(line both '[0-9]+ cases ran in 2 builds')" \
    "3 cases ran in 2 builds"
expect "a suite shows how many of its cases an earlier build ran" "$(line both '3 cases, 3 of them again')" \
    "3 cases, 3 of them again"
expect "a suite shows what it protects" "$(line units '^ +Units work\.')" "    Units work."
fails_in=build-asan
expect "a case that fails in the second build has failed" "$(outcome both)" "2 passed, 1 failed, 0 skipped, red"
fails_in=build
expect "a case that fails in the first build has failed" "$(outcome both)" "2 passed, 1 failed, 0 skipped, red"
fails_in=
output='1: ok 1 - adds
1: ok 2 - adds
1/1 Test #1: numbers ....   Passed    0.01 sec'
expect "two cases of a test that have one name fail the check" "$(outcome units)" "1 passed, 1 failed, 0 skipped, red"
output='1: 1..2
1: ok 1 - adds
1/1 Test #1: numbers ....   Passed    0.01 sec'
expect "a test that runs fewer cases than it planned fails the check" "$(outcome units)" "1 passed, 1 failed, 0 skipped, red"
exit_code=8
output='1: ok 1 - adds
1: not ok 2 - subtracts
1/1 Test #1: numbers ....***Failed    0.01 sec'
expect "a test that fails counts once" "$(outcome units)" "1 passed, 1 failed, 0 skipped, red"
output='1: ok 1 - adds
1/1 Test #1: numbers ....***Exception: SegFault  0.01 sec'
expect "a program that crashes counts as one failure" "$(outcome units)" "1 passed, 1 failed, 0 skipped, red"
output='1/1 Test #1: numbers ....***Timeout 600.00 sec'
expect "a program that times out counts as one failure" "$(outcome units)" "0 passed, 1 failed, 0 skipped, red"
output='No tests were found!!!'
expect "a suite without tests fails" "$(outcome units)" "0 passed, 1 failed, 0 skipped, red"
exit_code=0
output='1: not ok 1 # SKIP by cmocka
1: ok 2 - by TAP # SKIP no GPU
1/1 Test #1: numbers ....   Passed    0.01 sec'
expect "a skipped test has neither passed nor failed" "$(outcome units)" "0 passed, 0 failed, 2 skipped, green"
takes_s=1001
output='1: ok 1 - adds
1/1 Test #1: numbers ....   Passed 1001.00 sec'
expect "a suite over its budget fails no check" "$(outcome units)" "1 passed, 0 failed, 0 skipped, green"
expect "the summary marks a build over its budget" "$(line build_all 's of 1000 .*')" "s of 1000       1 cases, over budget"
expect "a check fails for its time only after HOLD_S seconds" \
    "$(HOLD_S=1500 outcome units), $(HOLD_S=1000 outcome units)" \
    "1 passed, 0 failed, 0 skipped, green, 1 passed, 1 failed, 0 skipped, red"
takes_s=0
expect "only .ci/run sets HOLD_S" "$(grep -l 'HOLD_S=' Makefile .ci/run tests/*.sh)" .ci/run
suites() { # level; prints the suites of check.sh without the variables that are set for them
    sed -n "/^if level $1;/,/^fi/s/^ *\([A-Z_0-9]*=[^ ]* \)*\(\(build_\)*suite \)/\2/p" tests/check.sh
}
budgets() { # level seconds
    suites "$1" | awk -v most="$2" '
        { sum += $3 == "\"$gpu\"" ? 30 : $3 }
        END { print((sum > 0 && sum <= most ? "at most " most : sum) " s") }'
}
expect "the budgets of make check add up to at most 8 minutes" "$(budgets check 480)" "at most 480 s"
expect "the budgets of make check-more add up to at most 22 minutes" "$(budgets more 1320)" "at most 1320 s"

calls() { # function...; prints the calls of cmake and ctest
    cmake() { echo "cmake $*" >>"$work/calls"; }
    ctest() {
        echo "ctest $*" >>"$work/calls"
        [ "$3" != -N ] || [ "$5" != "$named" ] || printf '  Test  #1: %s\n' "$found"
    }
    : >"$work/calls"
    "$@" >/dev/null 2>&1
    cat "$work/calls"
}
preset() { # folder [PRESET]
    (cd "$work" && PRESET=${2:-} calls build "$1" all | grep -o -- '--preset [a-z]*')
}
mkdir "$work/old"
touch "$work/old/CMakeCache.txt"
expect "a new build folder has the preset user, one that is there keeps its settings, and PRESET changes both" \
    "$(preset new), $(preset old), $(preset new dev), $(preset old dev)" "--preset user, , --preset dev, --preset dev"
werror() { # preset
    command cmake -N --preset "$1" | grep -o 'WERROR=.*'
}
expect "only the preset dev and CI make an error of a warning" \
    "$(werror user), $(werror dev), $(grep -lE 'PRESET=dev|--preset dev|WERROR=ON' Makefile .ci/* tests/*.sh)" \
    'WERROR="OFF", WERROR="ON", .ci/run'
choose() (. tests/test.sh)
chosen() { # test found named
    found=$2 named=$3
    calls choose "$1" | grep -v -- ' -N '
}
expect "make test builds what the chosen tests need and runs them" "$(chosen test_ring test_ring '^test_ring$')" \
    "cmake --build build -j $(nproc) --target suite_test_ring
ctest --test-dir build -j $(nproc) --output-on-failure --no-label-summary -R ^test_ring\$"
expect "make test chooses by a folder or a regular expression, but for long tests" \
    "$({ chosen tests/ring/ test_ring '^tests/ring/'; chosen r.ng test_ring r.ng; } | grep -o -- '-[LR] .*')" \
    "-L ^tests/ring/ -LE -long\$
-R r.ng -LE -long\$"
expect "make test says what it expects" "$(found='' named='' choose nothing 2>&1)" \
    "make: test: expected T=NAME, a test, a folder of tests/ or a regular expression, got 'nothing'"
expect "tests/check.sh runs the suites of all tests" \
    "$(command ctest --test-dir "${BUILD_DIR:-build}" --print-labels | grep -E '^  [a-z-]+$' | while read -r suite; do
        suites '[a-z]*' | grep -qE "^suite .*[ '|]$suite('| |\$)" || echo "$suite"; done)" ""
expect "docs/testing.md has each suite of make check and check-more with its budget" \
    "$({ suites check; suites more; } | sed -n 's/"\$gpu"/30/; s/^suite \([a-z0-9-]*\) \([0-9]*\) .*/\1 \2/p' | while read -r suite budget; do
        grep -q "^| \`$suite\` .* | $budget s |\$" docs/testing.md || echo "$suite $budget s"; done)" ""
expect "every suite says in a sentence what it protects" \
    "$(suites '[a-z]*' | grep -vE '^(build_)?suite [a-z0-9-]+ ("\$gpu"|[0-9]+) "[A-Z][^"]+\." ')" ""
exit $bad
