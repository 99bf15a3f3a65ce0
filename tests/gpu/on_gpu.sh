#!/bin/sh
# on_gpu.sh HARNESS COMMAND...: runs the command where the program can use a GPU, else says once why not (TAP).
harness=$1
shift
found=$("$harness" doctor)
if printf '%s\n' "$found" | grep -q '^GPU 0 '; then exec "$@"; fi
reason=$(printf '%s\n' "$found" | sed -n 's/^CUDA driver *missing: //p; s/^device cuda *not usable: //p' | head -n 1)
echo "1..1"
echo "ok 1 - $(basename "$1") # SKIP no GPU: $reason"
