#!/usr/bin/env bash
# What tests/check.sh counts and what fails the check. ctest and cmake are replaced by functions that print, take
# time or fail as a test says.
set -u
. "$(dirname "$0")/../check.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=$work

number=0 bad=0
echo "1..10"
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

output='' exit_code=0 takes_s=0
ctest() {
    printf '%s\n' "$output"
    SECONDS=$((SECONDS + takes_s))
    return "$exit_code"
}
cmake() {
    SECONDS=$((SECONDS + takes_s))
    return "$exit_code"
}
outcome() { # a suite; prints the last line of the check and its result
    passed=0 failed=0 skipped=0 summary=()
    "$@" >"$work/out" 2>&1
    local result=red
    finish >>"$work/out" && result=green
    echo "$(tail -n 1 "$work/out"), $result"
}

output='1: ok 1 - adds
1: ok 2 - subtracts
1/2 Test #1: numbers ....   Passed    0.01 sec
2/2 Test #2: silent .....   Passed    0.01 sec'
expect "TAP lines count, and a program that prints none counts as one" \
    "$(outcome suite units 1000 build units)" "3 passed, 0 failed, 0 skipped, green"
exit_code=8
output='1: ok 1 - adds
1: not ok 2 - subtracts
1/1 Test #1: numbers ....***Failed    0.01 sec'
expect "a test that fails counts once" "$(outcome suite units 1000 build units)" "1 passed, 1 failed, 0 skipped, red"
output='1: ok 1 - adds
1/1 Test #1: numbers ....***Exception: SegFault  0.01 sec'
expect "a program that crashes counts as one failure" \
    "$(outcome suite units 1000 build units)" "1 passed, 1 failed, 0 skipped, red"
output='1/1 Test #1: numbers ....***Timeout 600.00 sec'
expect "a program that times out counts as one failure" \
    "$(outcome suite units 1000 build units)" "0 passed, 1 failed, 0 skipped, red"
output='No tests were found!!!'
expect "a suite without tests fails" "$(outcome suite units 1000 build units)" "0 passed, 1 failed, 0 skipped, red"
exit_code=0
output='1: not ok 1 # SKIP by cmocka
1: ok 2 - by TAP # SKIP no GPU
1/1 Test #1: numbers ....   Passed    0.01 sec'
expect "a skipped test has neither passed nor failed" \
    "$(outcome suite units 1000 build units)" "0 passed, 0 failed, 2 skipped, green"
takes_s=1001
output='1: ok 1 - adds
1/1 Test #1: numbers ....   Passed 1001.00 sec'
expect "a suite over its budget fails the check" \
    "$(outcome suite units 1000 build units)" "1 passed, 1 failed, 0 skipped, red"
expect "a build over its budget fails the check" \
    "$(outcome build_suite build 1000 build all)" "1 passed, 1 failed, 0 skipped, red"
takes_s=0
expect "a suite within its budget passes" "$(outcome suite units 1000 build units)" "1 passed, 0 failed, 0 skipped, green"

sum=$(awk '/^if \[ .*--all/ { exit } /^(build_suite|suite) / { sum += $3 } END { print sum }' tests/check.sh)
result="$sum s"
[ "$sum" -gt 0 ] && [ "$sum" -le 2400 ] && result="at most 2400 s"
expect "the budgets add up to at most twice 20 minutes" "$result" "at most 2400 s"
exit $bad
