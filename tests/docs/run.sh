#!/bin/sh
# run.sh PROGRAM TEXT: the program succeeds and prints the text. TAP.
echo "1..1"
if out=$("$1") && printf '%s\n' "$out" | grep -qF "$2"; then
    echo "ok 1 - $(basename "$1") prints '$2'"
else
    echo "not ok 1 - $(basename "$1") prints '$2'"
    printf '%s\n' "$out" | sed 's/^/# /'
    exit 1
fi
