#!/bin/sh
# test_races.sh HARNESS: the emulated GPU, built with the thread sanitizer, which fails a run with a race. Golden trajectories:
# ranks are threads of one process, and each has threads that copy, sum and update while another one computes. Runs: the host
# is ahead of the streams, and reads a step's loss, flags and times while the next one is under way.
training="--model wine_mlp --data wine --batch 16 --steps 12 --warmup 2 --quiet --eval-every 5 --optimizer adam --share-gpu"
number=0 failed=0
echo "1..11"
check() { # what, the program, its words
    what=$1 number=$((number + 1)); shift
    if found=$("$@" 2>&1) && [ "${found##*ThreadSanitizer}" = "$found" ]; then
        echo "ok $number - no race is found in $what"
    else
        failed=1
        echo "not ok $number - no race is found in $what"
        printf '%s\n' "$found" | grep -v ': warning: ' | head -n 60 | sed 's/^/# /'
    fi
}
while read -r mode file options; do
    # shellcheck disable=SC2086
    check "a golden trajectory: $mode $options" "$1" verify --device cuda --mode "$mode" $options "tests/golden/$file.json"
done <<END
ps wine_mlp_w2 --policy ps=sync --servers 2 --payload shm
ps wine_mlp_w2 --policy ps=ssp --staleness 0 --servers 2
ps wine_mlp_w2 --policy ps=sync --server-optimizer off
ps wine_mlp_w2 --policy ps=sync --servers 2 --payload zmq
ps wine_mlp_w2 --policy ps=dp --payload shm
ps wine_mlp_w2 --policy ps=dp --payload zmq
ps wine_mlp_w2 --policy ps=dp --payload nccl
ring wine_mlp_w2 --policy ring=ddp --collective nccl --cuda-graph
END
export EMULATED_ORDER=ahead
while read -r mode options; do
    # shellcheck disable=SC2086
    check "a run that is ahead: $mode $options" "$1" run --device cuda --mode "$mode" $options $training
done <<END
none --accumulate 2
ring --gpus 2 --policy ring=ddp --collective nccl --bucket-cap-mb 0.002
ps --gpus 2 --policy ps=dp --payload nccl
END
exit $failed
