#!/bin/sh
# Comparisons with peers, as far as they are installed; `make bench` runs all of them.
#
#   run.sh [--quick] [train|profile|allreduce|link|exchange|messages|curve|trace|sim|predict|sharded|binding|neighbor|host|sum|virtual|network|reproduce ...]
#          [-- words for train.py]
#
# train      training steps compared with PyTorch (train.py): results/speed.json
# profile    a step operation by operation, against the floor (bench_ops): results/profile.json
# allreduce  collectives compared with Open MPI's (allreduce_vs_mpi.py): results/allreduce.json
# link       the gain from overlap over an emulated network (link_overlap.py): results/link-overlap.json
# exchange   the parameter server and one over Gloo (ps_exchange.py): results/exchange.json
# messages   bulk messages and a plain socket (bench_zmq_bulk): results/messages.json
# curve      the cost of CURVE in a step (curve_cost.py): results/curve.json
# trace      the cost of recording a trace (trace_cost.py): results/trace.json
# sim        the cost of simulating a thousand ranks and more (sim_scale.py): results/sim-scale.json
# predict    step times of two ranks, predicted after a calibration with one (predict_cpu.py): results/predict.json
# sharded    steps of zero1 to zero3 compared with ddp's and with PyTorch's fully_shard (sharded.py): results/sharded.json
# binding    steps of ranks that are bound to cores, and that are not (binding.py): results/binding.json
# neighbor   a step alone and next to a niced endless loop (neighbor.py): results/neighbor.json
# host       what the host of torch.nn.DataParallel takes, part by part (dp_host.py): results/dp-host.json
# sum        a parameter server's sum by one thread and more (server_sum.c): results/server-sum.json
# virtual    GPT-2 XL on virtual A100s under the policies that cut state (sharded_virtual.py): results/sharded-virtual.json
# network    what DDP over a network adds to a step of PyTorch, predicted and measured (ddp_over_network.py):
#            results/ddp-over-network.json; needs root
# reproduce  published tables in virtual time (harness reproduce): results/reproduce/*.json, snapshots that a test holds
#
# BUILD is the build folder (build), RESULTS where results go (results), PSRING_PYTHON a Python with a newer
# torch. In pieces: `run.sh train -- --cases resnet18,resnet50`; names: `run.sh train -- --list`.
set -eu
cd "$(dirname "$0")/../.."
export BUILD="${BUILD:-build}"
build=$BUILD quick= groups=
all="train profile allreduce link exchange messages curve trace sim predict sharded binding neighbor host sum virtual network reproduce"
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=--quick ;;
    --) shift; break ;;
    *)
        case " $all " in
        *" $1 "*) groups="$groups $1" ;;
        *) echo "run.sh: expected one of --quick, $all, got '$1'" >&2; exit 64 ;;
        esac ;;
    esac
    shift
done
results=${RESULTS:-${quick:+$build/}results}
mkdir -p "$results"

# Keeps what a command prints, with its provenance. Benchmarks say themselves what they missed.
record() { # name command...
    name=$1; shift
    python3 -B tests/support/provenance.py "$results/$name.json" -- "$@" || true
}

# Prints the first Python that can run the words, or nothing.
python_with() { # words
    for python in python3 /usr/bin/python3 "${PSRING_PYTHON:-}"; do
        if [ -n "$python" ] && "$python" -c "$1" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

train() {
    python3 tests/bench/train.py --harness "$build/bin/harness" --results "$results" $quick "$@"
}

profile() {
    cmake --build "$build" --target bench_ops >/dev/null
    # shellcheck disable=SC2016
    record profile sh -c 'for model in resnet18 resnet50 bert_base bert gpt2; do "$@" "$model"; echo; done' - \
        "$build/bin/bench_ops" ${quick:+--steps 2}
}

allreduce() {
    if ! command -v mpirun >/dev/null; then
        echo "allreduce: no mpirun found (Debian's packages: libopenmpi-dev, openmpi-bin)"
        return
    fi
    cmake --build "$build" --target allreduce_vs_mpi >/dev/null
    python3 tests/bench/allreduce_vs_mpi.py --build "$build" --results "$results" ${quick:+--rounds 1} || true # says what it missed
}

link() {
    python3 tests/bench/link_overlap.py --build "$build" --results "$results" ${quick:+--rounds 1} || true # says what it missed
}

exchange() {
    cmake --build "$build" --target ps_exchange >/dev/null
    python=$(python_with 'import torch, torchvision')
    if [ -n "$python" ]; then
        record exchange python3 tests/bench/ps_exchange.py --build "$build" --python "$python" ${quick:+--rounds 1}
    else
        echo "exchange: no Python with torch found: ours alone"
        "$build/bin/ps_exchange"
    fi
}

messages() {
    cmake --build "$build" --target bench_zmq_bulk >/dev/null
    record messages "$build/bin/bench_zmq_bulk" ${quick:+1}
}

curve() {
    record curve python3 tests/bench/curve_cost.py --build "$build" ${quick:+--rounds 2}
}

trace() {
    record trace python3 tests/bench/trace_cost.py --build "$build" ${quick:+--rounds 1}
}

sim() {
    record sim-scale python3 tests/bench/sim_scale.py "$build/bin/harness"
}

predict() {
    record predict python3 tests/bench/predict_cpu.py --harness "$build/bin/harness" ${quick:+--rounds 1}
}

sharded() {
    python=$(python_with 'from torch.distributed.fsdp import fully_shard; import torchvision')
    if [ -n "$python" ]; then
        python3 tests/bench/sharded.py --harness "$build/bin/harness" --python "$python" --keep "$results/sharded.json" ${quick:+--rounds 1}
    else
        echo "sharded: no Python with a PyTorch that has fully_shard found"
    fi
}

binding() {
    record binding python3 tests/bench/binding.py --harness "$build/bin/harness" ${quick:+--rounds 1}
}

neighbor() {
    python=$(python_with 'import torch, torchvision')
    record neighbor python3 tests/bench/neighbor.py --harness "$build/bin/harness" ${python:+--python "$python"} ${quick:+--rounds 1}
}

host() {
    python=$(python_with 'import torch, torchvision')
    if [ -n "$python" ]; then
        record dp-host "$python" -W ignore tests/bench/dp_host.py ${quick:+--rounds 1}
    else
        echo "host: no Python with torch and torchvision found"
    fi
}

sum() {
    cmake --build "$build" --target bench_server_sum >/dev/null
    record server-sum "$build/bin/bench_server_sum" ${quick:+16}
}

virtual() {
    python3 -B tests/support/provenance.py "$results/sharded-virtual.json" --virtual -- \
        python3 -B tests/bench/sharded_virtual.py "$build/bin/harness"
}

network() {
    python=$(python_with 'from torch.distributed.fsdp import fully_shard; import torchvision')
    if [ -n "$python" ] && [ "$(id -u)" = 0 ]; then
        BUILD_DIR=$build python3 tests/bench/ddp_over_network.py --python "$python" --out "$results/ddp-over-network.json" ${quick:+--rounds 2}
    else
        echo "network: no Python with a new PyTorch and torchvision found, or not root"
    fi
}

reproduce() {
    mkdir -p "$results/reproduce"
    for table in $("$build/bin/harness" reproduce --list | cut -d ' ' -f 1); do
        python3 -B tests/support/provenance.py "$results/reproduce/$table.json" --virtual -- \
            "$build/bin/harness" reproduce "$table" --json -
    done
}

for group in ${groups:-$all}; do
    echo "== $group"
    if [ "$group" = train ]; then train "$@"; else "$group"; fi
done
