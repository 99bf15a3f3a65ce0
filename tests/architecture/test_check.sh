#!/usr/bin/env bash
# What tests/check.sh counts and what fails the check. ctest and cmake are replaced by functions that print, take
# time or fail as a test says.
set -u
. "$(dirname "$0")/../check.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=$work

number=0 bad=0
echo "1..20"
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
    summary=()
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
expect "a suite over its budget fails the check" "$(outcome units)" "1 passed, 1 failed, 0 skipped, red"
expect "a build over its budget fails the check" "$(outcome build_all)" "1 passed, 1 failed, 0 skipped, red"
takes_s=0
of_total() {
    SECONDS=$total_s
    total
}
expect "the total is shown next to the time that is promised" "$(total_s=1201; line of_total '^total +[0-9]+ s of [0-9]+')" "total          1201 s of 1200"
expect "a check that takes more than twice the promised time fails" \
    "$(total_s=2400; outcome of_total), $(total_s=2401; outcome of_total)" "0 passed, 0 failed, 0 skipped, green, 0 passed, 1 failed, 0 skipped, red"

sum=$(awk '/^if \[ .*--all/ { exit } /^(build_suite|suite) / { sum += $3 } END { print sum }' tests/check.sh)
result="$sum s"
[ "$sum" -gt 0 ] && [ "$sum" -le $((2 * promise)) ] && result="at most 2400 s"
expect "the budgets add up to at most twice 20 minutes" "$result" "at most 2400 s"
expect "every suite says in a sentence what it protects" \
    "$(grep -E '^ *(build_)?suite [a-z]' tests/check.sh | grep -vE '^ *(build_)?suite [a-z-]+ ("\$gpu"|[0-9]+) "[A-Z][^"]+\." ')" ""
exit $bad
