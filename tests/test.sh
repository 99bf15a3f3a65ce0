#!/bin/sh
# Builds what the chosen tests need and runs them: `make test T=NAME`. NAME is a test, a folder of tests/, or a regular
# expression for names of tests. Tests of `make check-all` run only by their whole name.
set -eu
name=${1%/} build=${BUILD:-build} jobs=${JOBS:-$(nproc)}
names() { # options of ctest
    ctest --test-dir "$build" -N "$@" | sed -n 's/^ *Test *#[0-9]*: //p'
}
if [ -n "$(names -R "^$name\$")" ]; then
    set -- -R "^$name\$"
elif [ -d "tests/${name#tests/}" ]; then
    set -- -L "^tests/${name#tests/}/" -LE '-long$'
else
    set -- -R "$name" -LE '-long$'
fi
found=$(names "$@")
if [ -z "$name" ] || [ -z "$found" ]; then
    echo "make: test: expected T=NAME, a test, a folder of tests/ or a regular expression, got '$name'" >&2
    exit 2
fi
# shellcheck disable=SC2046
cmake --build "$build" -j "$jobs" --target $(echo "$found" | sed 's/^/suite_/')
ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-label-summary "$@"
