"""Predicts what DDP over a network adds to a step of PyTorch, and measures it.

    python3 tests/bench/ddp_over_network.py [--python PYTHON] [--rounds 9] [--out results/ddp-over-network.json]

Two ranks run in two network namespaces, which a link of 1 Gb/s or 200 Mb/s connects (tc tbf). Rounds alternate between both
ranks without communication and DDP over Gloo. If their medians spread by more than 10 %, the rounds of this case are
measured again, three times at most. The prediction comes from a trace of a rank without communication: `harness import`, then a replay on two
virtual machines. Needs root, and a PYTHON with torch and torchvision.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/support"))
import provenance
from two_hosts import TwoHosts, run

PROGRAM = os.path.join(os.environ.get("BUILD_DIR", "build"), "bin", "harness")
MODELS = ("mobilenet_v3_small", "resnet18", "gpt")
RATES = {"1Gb/s": "1gbit", "200Mb/s": "200mbit"}
STEPS = 4  # measured steps of a round
MOST_TRIES, MOST_SPREAD = 3, 0.1

RANK = r'''
import json, os, sys, time, torch, torch.distributed as dist, torchvision
sys.path.insert(0, os.environ["TRACES"])
from make_traces import GPT, describe
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
name, rounds, steps, folder, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
if name == "gpt":
    model, tokens = GPT(layers=6, positions=64), torch.randint(2048, (8, 64))
    loss_of = lambda m: F.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten())
else:
    model = getattr(torchvision.models, name)()
    images, labels = torch.randn(8, 3, 96, 96), torch.randint(1000, (8,))
    loss_of = lambda m: F.cross_entropy(m(images), labels)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, foreach=True)
ddp = DistributedDataParallel(model, broadcast_buffers=False)

def step(m):
    optimizer.zero_grad()
    loss_of(m).backward()
    optimizer.step()

def times(m):
    dist.barrier()
    out = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        step(m)
        out.append(time.perf_counter() - begin)
    return out[1:]

for m in (model, ddp, model, ddp):
    times(m)
alone = sorted(times(model))[steps // 2]
dist.barrier()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=schedule(wait=0, warmup=2, active=5, repeat=1),
             on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/trace{rank}.json")) as prof:
    for i in range(7):
        step(model)
        if i == 2:
            describe(prof, model, optimizer, 8, 1e3 * alone)
        prof.step()
results = []
for r in range(rounds):
    results.append({"alone": times(model), "ddp": times(ddp)})
with open(f"{folder}/times{rank}.json", "w") as out:
    json.dump({"torch": torch.__version__, "rounds": results, "bytes": sum(p.numel() * 4 for p in model.parameters())}, out)
dist.barrier()
dist.destroy_process_group()
'''


def start(hosts, python, rank, *words):
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29555",
           "GLOO_SOCKET_IFNAME": hosts.interfaces[rank], "TRACES": os.path.join(ROOT, "tests/traces"),
           "PYTHONPATH": os.path.join(ROOT, "tests/support"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(["ip", "netns", "exec", hosts.names[rank], "taskset", "-c", str(rank), python, "-B", "-c", RANK, *words], env=env)


def measure_once(python, model, rate, rounds, folder):
    """Steps in ms by round: the mean over both ranks of their median steps."""
    with TwoHosts(RATES[rate]) as hosts:
        ranks = [start(hosts, python, rank, model, str(rounds), str(STEPS), folder) for rank in (0, 1)]
        if any(process.wait() for process in ranks):
            sys.exit(f"{model} over {rate}: a rank failed")
    both = [json.load(open(f"{folder}/times{rank}.json")) for rank in (0, 1)]
    rows = {way: [statistics.mean(1e3 * statistics.median(rank["rounds"][i][way]) for rank in both) for i in range(rounds)]
            for way in ("alone", "ddp")}
    return {**rows, "bytes": both[0]["bytes"], "torch": both[0]["torch"]}


def spread(values):
    """Distance of the quartiles over the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def measure(*case):
    """The first try whose rounds spread little enough, or the last."""
    for tries in range(1, MOST_TRIES + 1):
        measured = measure_once(*case)
        spreads = {way: spread(measured[way]) for way in ("alone", "ddp")}
        if max(spreads.values()) <= MOST_SPREAD:
            break
    return {**measured, "spread": spreads, "tries": tries}


def step_ms(*words):
    out = subprocess.run([PROGRAM, "run", *words, "--warmup", "2", "--steps", "3", "--quiet", "--json", "-"], check=True, capture_output=True, text=True).stdout
    return 1e3 * json.loads(out)["jobs"][0]["step_time"]["median_s"]


def predict(workload, rate):
    """Increment in ms of a step on two machines over one that trains alone."""
    alone = step_ms("--device", "sim:cpu", "--mode", "none", "--workload", workload)
    both = step_ms("--device", "sim", "--gpu", "cpu", "--per-host", "1", "--adapters", "1", "--mode", "ring", "--policy", "ddp", "--gpus", "2", "--nodes", "2", "--link", f"{rate},100us", "--workload", workload)
    return both - alone


def bytes_per_ms(rate):
    return {"1Gb/s": 1e9, "200Mb/s": 2e8}[rate] / 8 / 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    cases = []
    for model in options.models.split(","):
        for rate in options.rates.split(","):
            with tempfile.TemporaryDirectory() as folder:
                measured = measure(options.python, model, rate, options.rounds, folder)
                workload = os.path.join(folder, "job.json")
                run(PROGRAM, "import", f"{folder}/trace0.json", "-o", workload)
                job = json.load(open(workload))
                peak = sum(p["bytes"] for p in job["parameters"]) * 3 + (1 << 30)
                share = job["parts_ns"]["forward"] / (job["parts_ns"]["forward"] + job["parts_ns"]["backward"])
                alone = statistics.median(measured["alone"])
                numbers = (f"params={measured['bytes'] // 4},units=12,step={alone:.3f}ms,peak={peak},forward={share:.3f},optimizer=sgd,"
                           f"update={job['parts_ns']['optimizer']}ns")
                increment = statistics.median(b - a for a, b in zip(measured["alone"], measured["ddp"]))
                wire = measured["bytes"] / bytes_per_ms(rate)
                backward = alone * job["parts_ns"]["backward"] / job["step_ns"]
                row = {"model": model, "rate": rate, **measured, "increment_ms": increment, "predicted_ms": predict(workload, rate), "numbers_ms": predict(numbers, rate),
                       "null_no_overlap_ms": wire, "null_full_overlap_ms": max(0.0, wire - backward)}
                cases.append(row)
                print("%-20s %8s alone %7.1f ddp %7.1f spread %4.1f %% increment %7.1f predicted %7.1f (%+5.1f %%) numbers %7.1f bytes over rate %7.1f less backward %7.1f" % (
                    model, rate, alone, statistics.median(measured["ddp"]), 100 * max(row["spread"].values()), increment, row["predicted_ms"],
                    100 * (row["predicted_ms"] / increment - 1), row["numbers_ms"], wire, row["null_full_overlap_ms"]), flush=True)
    if options.out:
        increments = [[ddp - alone for alone, ddp in zip(row["alone"], row["ddp"])] for row in cases]
        versions = {**provenance.versions_of(PROGRAM), "torch": cases[0]["torch"]}
        where = provenance.here("tests/bench/run.sh network", versions, options.rounds, provenance.largest_spread(increments))
        provenance.write(options.out, {"provenance": where, "emulated": True, "steps_per_round": STEPS, "cases": cases})


main()
