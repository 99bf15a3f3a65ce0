#!/bin/sh
# Comparisons with peers, as far as they are installed; `make bench` runs all of them.
#
#   run.sh [--quick] [train|profile|allreduce|link|exchange|trace|sim|predict|binding ...] [-- words for train.py]
#
# train      training steps compared with PyTorch (train.py): results/speed-DATE.json and .md
# profile    a step operation by operation, against the floor (bench_ops): results/profile-DATE.txt
# allreduce  collectives compared with Open MPI's (allreduce_vs_mpi.py): results/allreduce-DATE.json
# link       the gain from overlap over an emulated network (link_overlap.py): results/link-overlap-DATE.json
# exchange   the parameter server and one over Gloo (ps_exchange.py), bulk messages and a plain socket
#            (bench_zmq_bulk): results/exchange-DATE.txt
# trace      the cost of recording a trace (trace_cost.py): results/trace-DATE.txt
# sim        the cost of simulating a thousand ranks and more (sim_scale.py): results/sim-scale-DATE.txt
# predict    step times of two ranks, predicted after a calibration with one (predict_cpu.py): results/predict-DATE.txt
# binding    steps of ranks that are bound to cores, and that are not (binding.py): results/binding-DATE.txt
#
# BUILD is the build folder (build), RESULTS where results go (results), PSRING_PYTHON a Python with a newer
# torch. In pieces: `run.sh train -- --cases resnet18,resnet50`; names: `run.sh train -- --list`.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build} results=${RESULTS:-results} quick= groups=
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=--quick ;;
    --) shift; break ;;
    train|profile|allreduce|link|exchange|trace|sim|predict|binding) groups="$groups $1" ;;
    *) echo "run.sh: expected one of --quick, train, profile, allreduce, link, exchange, trace, sim, predict, binding, got '$1'" >&2; exit 64 ;;
    esac
    shift
done
date=$(date +%Y-%m-%d)
mkdir -p "$results"

train() {
    python3 tests/bench/train.py --harness "$build/bin/harness" --results "$results" $quick "$@"
}

profile() {
    cmake --build "$build" --target bench_ops >/dev/null
    steps=${quick:+2}
    for model in resnet18 resnet50 bert_base bert gpt2; do
        "$build/bin/bench_ops" "$model" --steps "${steps:-7}"
        echo
    done | tee "$results/profile-$date.txt"
}

allreduce() {
    if ! command -v mpirun >/dev/null; then
        echo "allreduce: no mpirun found (Debian's packages: libopenmpi-dev, openmpi-bin)"
        return
    fi
    cmake --build "$build" --target allreduce_vs_mpi >/dev/null
    python3 tests/bench/allreduce_vs_mpi.py --build "$build" --results "$results" || true # says what it missed
}

link() {
    python3 tests/bench/link_overlap.py --build "$build" --results "$results" ${quick:+--rounds 1} || true # says what it missed
}

exchange() {
    cmake --build "$build" --target ps_exchange bench_zmq_bulk >/dev/null
    { servers; "$build/bin/bench_zmq_bulk"; } | tee "$results/exchange-$date.txt" || true # says what it missed
}

servers() {
    for python in python3 /usr/bin/python3 "${PSRING_PYTHON:-}"; do
        if [ -n "$python" ] && "$python" -c 'import torch, torchvision' 2>/dev/null; then
            python3 tests/bench/ps_exchange.py --build "$build" --python "$python" || true
            return
        fi
    done
    echo "exchange: no Python with torch found: ours alone"
    "$build/bin/ps_exchange"
}

trace() {
    python3 tests/bench/trace_cost.py --build "$build" | tee "$results/trace-$date.txt" || true # likewise
}

sim() {
    python3 tests/bench/sim_scale.py "$build/bin/harness" | tee "$results/sim-scale-$date.txt" || true # says what it missed
}

predict() {
    python3 tests/bench/predict_cpu.py --harness "$build/bin/harness" | tee "$results/predict-$date.txt" || true # likewise
}

binding() {
    python3 tests/bench/binding.py --harness "$build/bin/harness" ${quick:+--rounds 1} | tee "$results/binding-$date.txt"
}

for group in ${groups:-train profile allreduce link exchange trace sim predict binding}; do
    echo "== $group"
    if [ "$group" = train ]; then train "$@"; else "$group"; fi
done
