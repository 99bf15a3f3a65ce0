#!/bin/sh
# test_profile.sh BENCH_OPS: a step on the device cuda has a line for each operation, with a time.
echo "1..1"
found=$("$1" lenet --device cuda --batch 2 --steps 2 --precision bf16 2>&1) &&
    lines=$(printf '%s\n' "$found" | awk '$1 ~ /^(conv2d_forward|conv2d_backward_data|linear_backward_weights|sgd)$/ && / [0-9.]+%/' | wc -l)
if [ "${lines:-0}" -ge 4 ] && printf '%s\n' "$found" | grep -q '^lenet, batch 2, GPU 0, .*bf16'; then
    echo "ok 1 - a step of lenet is shown operation by operation"
else
    echo "not ok 1 - a step of lenet is shown operation by operation"
    printf '%s\n' "$found" | sed 's/^/# /'
    exit 1
fi
