#!/usr/bin/env bash
# Every source file is as clang-format 14, Debian 12's, leaves it. Other versions break lines elsewhere. Prints TAP.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
name="clang-format changes no source file"
found=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
echo 1..1
if [ "$found" != 14 ]; then
    echo "ok 1 - $name # SKIP needs clang-format 14, found ${found:-none}"
    exit 0
fi
changed=$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format --dry-run -Werror 2>&1 | grep 'error:')
if [ -z "$changed" ]; then
    echo "ok 1 - $name"
else
    echo "$changed" | sed 's/^/# /' | head -20
    echo "not ok 1 - $name"
    exit 1
fi
