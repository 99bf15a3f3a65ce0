#!/bin/sh
# test_races.sh HARNESS: golden trajectories on the emulated GPU, built with the thread sanitizer, which fails a run with a
# race. Ranks are threads of one process, and each has threads that copy, sum and update while another one computes.
number=0 failed=0
echo "1..7"
while read -r mode file options; do
    number=$((number + 1))
    # shellcheck disable=SC2086
    if found=$("$1" verify --device cuda --mode "$mode" $options "tests/golden/$file.json" 2>&1); then
        echo "ok $number - no race is found in a golden trajectory: $mode $options"
    else
        failed=1
        echo "not ok $number - no race is found in a golden trajectory: $mode $options"
        printf '%s\n' "$found" | grep -v ': warning: ' | head -n 60 | sed 's/^/# /'
    fi
done <<END
ps wine_mlp_w2 --policy ps=sync --servers 2 --payload p2p
ps wine_mlp_w2 --policy ps=ssp --staleness 0 --servers 2 --payload p2p
ps wine_mlp_w2 --policy ps=sync --server-optimizer off --payload p2p
ps wine_mlp_w2 --policy ps=sync --servers 2 --payload zmq
ps wine_mlp_w2 --policy ps=dp --payload p2p
ps wine_mlp_w2 --policy ps=dp --payload zmq
ring wine_mlp_w2 --policy ring=ddp --collective nccl --cuda-graph
END
exit $failed
