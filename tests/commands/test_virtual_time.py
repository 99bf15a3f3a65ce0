"""Virtual time from the command line: profiles, runs, published tables, what-if tables, and wrong input."""
import csv
import functools
import io
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import tempfile

from program import harness, in_ns
from tap import cases, expect, expect_equal, long_cases, main, test

FILES = tempfile.TemporaryDirectory(prefix="profiles-")
CONSTANT = {"value": 1.5, "unit": "1", "tag": "assumed", "source": "a test"}


def profile(name, **changes):
    path = os.path.join(FILES.name, name + ".json")
    content = {"profile": name, "summary": "a test", "base": "v100-pcie-32g", "constants": {}}
    content.update(changes)
    with open(path, "w") as file:
        json.dump(content, file)
    return path


def run(*words):
    return ("run", "--mode", "ring", "--model", "lenet", "--steps", "2", "--warmup", "1", *words)


# ---- wrong input -------------------------------------------------------------------------------

@cases([
    ("an unknown profile", run("--device", "sim:nowhere"), 64, "profile or its file: expected one of cpu,"),
    ("profiles of an unknown name", ("profiles", "dgx1-v10"), 64, "did you mean 'dgx1-v100'?"),
    ("more GPUs than there are", run("--device", "sim", "--gpus", "9"), 78, "expected 1 to 8 ranks (8 GPUs on each of 1 machine), got 9"),
    ("a missing constant", run("--device", "sim:" + profile("missing", base="nccl", topology={
        "machines": 1, "peer_access": True, "source": "a test", "links": [["gpu0", "socket0", "pcie"]]})), 65, "missing"),
    ("an absurd constant", run("--device", "sim:" + profile("absurd", constants={"kappa": dict(CONSTANT, value=7)})), 65,
     "kappa"),
    ("a wrong unit", run("--device", "sim:" + profile("unit", constants={"kappa": dict(CONSTANT, unit="ms")})), 65, "kappa"),
    ("an unknown constant", run("--device", "sim:" + profile("unknown", constants={"kapa": CONSTANT})), 65, "kapa"),
    ("a precision that GPUs lack", run("--device", "sim", "--tf32"), 78, "expected precision fp32, got tf32"),
    ("bfloat16 on GPUs that lack it", run("--device", "sim", "--bf16"), 78, "expected precision fp32, got bf16"),
    ("two precisions", run("--device", "sim:dgx-h100", "--tf32", "--bf16"), 64, "--bf16: unexpected with --tf32"),
    ("two precisions of whatif", ("whatif", "--tf32", "--bf16"), 64, "--bf16: unexpected with --tf32"),
    ("whatif twice to stdout", ("whatif", "--json", "-", "--csv", "-"), 64, "--csv -: unexpected with --json -"),
    ("steps of a time line of whatif", ("whatif", "--trace-steps", "1:2"), 64, "--trace-steps: unexpected with whatif"),
    ("threads", run("--device", "sim", "--threads", "2"), 78, "--threads: expected a real device"),
    ("transforms of data", run("--device", "sim", "--augment", "flip"), 78, "--augment: expected a real device"),
    ("a network in a machine", run("--device", "sim:dgx1-v100-4xib100", "--gpus", "2", "--link", "10Gbit/s,5us"), 78,
     "--link: expected ranks on several machines, got 2 on one of profile dgx1-v100-4xib100: take --nodes"),
    ("a network where there is none", run("--device", "sim", "--link", "10Gbit/s,5us"), 78, "expected a profile with a network"),
    ("a time line nowhere", run("--device", "sim", "--trace", "/no/such/folder/x.json"), 73, "/no/such/folder"),
    ("a link without latency on a CPU", run("--device", "cpu", "--link", "10Gbit/s"), 64, "--link: expected RATE,LATENCY"),
    ("efficiencies on a CPU", run("--device", "cpu", "--efficiency", "2"), 64, "--efficiency: expected --device sim:PROFILE, got cpu"),
    ("whatif of a CPU", ("whatif", "--device", "cpu"), 64, "--device: expected sim:PROFILE, got cpu"),
    ("whatif of two profiles", ("whatif", "--device", "sim", "--profile", "dgx1-v100"), 64, "--device: unexpected with --profile"),
    ("whatif of one engine", ("whatif", "--mode", "ring"), 64, "--mode: unexpected with whatif"),
    ("a time line of whatif", ("whatif", "--trace", FILES.name + "/x.json"), 64, "--trace: unexpected with whatif"),
    ("whatif of a server that no policy has", ("whatif", "--policy", "ddp", "--servers", "2"), 64,
     "--servers: expected a policy of ps, got none"),
    ("whatif several times", ("whatif", "--repeat", "5"), 64, "--repeat: unexpected with whatif"),
    ("whatif as a page", ("whatif", "--report", FILES.name + "/x.html"), 64, "--report: unexpected with whatif"),
    ("whatif of two measurements", ("whatif", "--step-ms", "1", "--samples-per-s", "1"), 64, "--samples-per-s: unexpected with --step-ms"),
    ("whatif of a measurement and an efficiency", ("whatif", "--step-ms", "1", "--efficiency", "0.5"), 64,
     "--efficiency: unexpected with a measured step of one GPU, which determines it"),
    ("whatif with a word too many", ("whatif", "resnet50"), 64, "whatif: unexpected argument 'resnet50'"),
    ("whatif with a wrong option", ("whatif", "--btach", "3"), 64, "unknown option '--btach'; did you mean --batch?"),
    ("a rendezvous", run("--device", "sim", "--rendezvous", "env://"), 78, "--rendezvous: expected a real device"),
    ("evaluations", run("--device", "sim", "--eval-every", "5"), 78, "--eval-every: expected a real device"),
    ("patience at the start", run("--device", "sim", "--connect-timeout", "5s"), 78, "--connect-timeout: expected a real device"),
    ("loader threads", run("--device", "sim", "--loader-threads", "3"), 78, "--loader-threads: expected a real device"),
    ("whatif of bits or bytes", ("whatif", "--link", "10gb/s,1us"), 64, "expected a rate such as 10Gbit/s or 1.25GB/s"),
    ("jitter on a CPU", run("--jitter", "3"), 64, "--jitter: expected --device sim:PROFILE, got c"),
    ("saving what is not there", run("--device", "sim", "--save", FILES.name + "/x.safetensors"), 78, "--save"),
    ("an unknown table", ("reproduce", "torch"), 64, "reproduce: expected one of torch-vs-apex"),
    ("a table on a CPU", ("reproduce", "torch-vs-apex", "--device", "cpu"), 64, "--device: expected sim:PROFILE"),
    ("whatif of an unknown policy", ("whatif", "--policy", "dpp"), 64, "got 'dpp'; did you mean 'dp'?"),
    ("whatif of warm-up steps only", ("whatif", "--model", "wine_mlp", "--data", "wine", "--batch", "40", "--epochs", "1", "--warmup", "1", "--drop-last",
                                      "--gpus", "2"), 78, "--warmup: expected fewer steps than 2 GPUs train, got all of them"),
    ("whatif of no link", ("whatif", "--gpus", "2", "--link", "1GB/s,1us"), 78, "expected a profile with a network"),
])
def wrong_input_is_answered_with_one_line(words, code, line):
    result = harness(*words)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect(line in result.err, f"expected '{line}'", result)


# ---- what is printed ---------------------------------------------------------------------------

@test
def every_profile_shows_where_its_constants_come_from():
    names = [line.split()[0] for line in harness("profiles").out.splitlines() if not line.startswith(" ")]
    for name in ("v100-pcie-32g", "dgx1-v100", "dgx1-v100-4xib100", "v100-sxm2-ib100", "dgx1-p100", "gce-k80", "dgx-a100-40g",
                 "dgx-a100-80g", "dgx-h100", "hgx-h200", "titan-rtx-x2", "titan-rtx-x2-no-p2p", "v100-pcie-10gbe", "cpu"):
        expect(name in names, f"expected the profile {name} in {names}")
        shown = harness("profiles", name).out
        expect("kappa: " in shown and "topology: " in shown and "source: " in shown, name, shown)


@test
def the_same_command_gives_the_same_results():
    words = run("--device", "sim", "--gpus", "4", "--json", "-", "--jitter", "5")
    first, second = (harness(*words).json() for _ in range(2))
    for result in (first, second):
        expect(result["simulated"], "simulated is not set")
        result.pop("started_at")
    expect_equal(first, second, "results")
    other = harness(*run("--device", "sim", "--gpus", "4", "--json", "-", "--jitter", "6")).json()
    expect(other["jobs"] != first["jobs"], "another seed of the jitter gives the same times")


@cases([("a rank alone", "none", 1, ""), ("the ring", "ring", 2, "ring=ddp"), ("replicas", "ps", 2, "ps=dp")])
def the_next_batch_is_copied_during_a_step(mode, ranks, policy):
    words = ["run", "--mode", mode, "--gpus", ranks, "--model", "resnet50", "--batch", "128", "--steps", "3", "--json", "-", "--quiet",
             "--device", "sim:dgx-h100", *(["--policy", policy] if policy else [])]
    jobs = [harness(*words, "--prefetch", value).jobs()[mode] for value in ("off", "on")]
    load, total = ([job["ranks"][0][key][-1] for job in jobs] for key in ("data_s", "step_s"))
    copied = jobs[1]["ranks"][0]["batch_copy_s"][-1]
    expect(load[0] > 5e-4 and load[1] < 0.1 * load[0], f"load without and with: {load}")
    expect(0.9 * load[0] < copied < 1.1 * load[0], f"a copy takes {copied}, and as a part of the step {load[0]}")
    expect(total[1] < total[0] - 0.5 * (load[0] - load[1]), f"steps without and with: {total}")
    expect_equal([job["ranks"][0]["batch_copy_s"][-1] is None for job in jobs], [True, False], "is it measured")


@test
def memory_equals_that_of_the_cpu():
    words = ("run", "--mode", "both", "--model", "lenet", "--steps", "2", "--gpus", "2", "--json", "-", "--quiet")
    sim, cpu = harness(*words, "--device", "sim", "--prefetch", "off").jobs(), harness(*words).jobs()
    for engine in ("none", "ps", "ring"):
        for a, b in zip(sim[engine]["ranks"], cpu[engine]["ranks"]):
            for phase, held in a["memory"]["phases"].items():
                if phase == "after_step":
                    continue  # ends with the next step's begin, on the CPU at last with the evaluation's
                found, expected = held["end_classes"], b["memory"]["phases"][phase]["end_classes"]
                for name in found:
                    if name != "workspace":
                        expect_equal(found[name], expected[name], f"{engine}, rank {a['rank']}, {phase}, {name}")


@test
def a_calibrated_machine_prints_predictions_next_to_measurements():
    words = ("run", "--mode", "both", "--policy", "ps=sync,ring=ddp", "--model", "lenet", "--steps", "6", "--gpus", "2",
             "--device", "cpu", "--quiet")
    with tempfile.TemporaryDirectory(prefix="home-") as home:
        folder = os.path.join(home, "psring", "profiles")
        os.makedirs(folder)
        mine = os.path.join(folder, "this-machine.json")
        os.rename(profile("this-machine", base="cpu", constants={}), mine)
        jobs = harness(*words, "--json", "-", env={"XDG_DATA_HOME": home}).jobs()
        expect_equal([name for name, job in jobs.items() if "prediction" in job], ["none", "ps", "ring"], "jobs with a prediction")
        for name, job in jobs.items():
            if name == "all-cores":  # whose threads no profile describes
                continue
            p, own = job["prediction"], [statistics.median(rank["step_s"]) for rank in job["ranks"]]
            expect_equal(p["profile"], mine, "profile")
            expect(abs(p["measured_s"] / statistics.mean(own) - 1) < 1e-9, f"{name}: {p['measured_s']}, expected of {own}")
            expect(abs(p["error"] - (p["step_median_s"] / p["measured_s"] - 1)) < 1e-9, f"{name}: error", p)
        shown = harness(*words, "--verbose", env={"XDG_DATA_HOME": home}).out
        expect("SIMULATED: predicted" in shown and "prediction / own steps - 1" in shown, "a report with the prediction", shown)
        other = harness(*words, "--verbose", env={"XDG_DATA_HOME": FILES.name})
        expect("SIMULATED: predicted" not in other.out, "a prediction without a profile", other)


@test
def slow_ranks_and_transports_slow_a_virtual_run_too():
    def step_ns(*words):
        words = ("run", "--mode", "ps", "--gpus", "2", "--model", "vgg16", "--image", "32", "--steps", "3", "--quiet", *words)
        return harness(*words, "--device", "sim:cpu", "--json", "-").jobs()["ps"]["step_time"]["median_s"]

    plain, shm, zmq = (step_ns("--policy", "sync", *words) for words in ((), ("--payload", "shm"), ("--payload", "zmq")))
    expect_equal(shm, plain, "a step through shared memory, which is what ranks of one host take")
    expect(zmq > plain, f"through sockets {zmq} ns, through shared memory {plain} ns")
    slow = step_ns("--policy", "sync", "--slow", "1:3")
    expect(slow > 2 * plain, f"with a slow rank {slow} ns, without one {plain} ns")


# ---- the host of DataParallel ------------------------------------------------------------------

def eight_gpus(*words, device="sim:dgx-a100-40g"):
    """A job of eight virtual A100, small images, and the parts of its host."""
    words = ("run", "--device", device, "--gpus", "8", "--model", "resnet18", "--image", "64", "--batch", "64", "--prefetch", "off",
             "--warmup", "2", "--steps", "2", "--quiet", *words, "--json", "-")
    job = harness(*words).json()["jobs"][0]
    return job, {part["name"].strip(): part["time_s"] for part in job.get("host_costs", {}).get("parts", [])}


DP, DDP = ("--mode", "ps", "--policy", "dp"), ("--mode", "ring", "--policy", "ddp")


@test
def a_steady_step_of_dataparallel_is_the_slowest_part_of_its_host():
    slow = {"loader_pin": {"value": 0.01, "unit": "GB/s", "tag": "assumed", "source": "a test"}}
    slow_pin = "sim:" + profile("slow-pin", base="dgx-a100-40g", constants=slow)
    for workers, slowest, device in (("1", "loader workers", "sim:dgx-a100-40g"), ("4096", "main thread", "sim:dgx-a100-40g"),
                                     ("4096", "pinning thread", slow_pin)):
        job, parts = eight_gpus(*DP, "--loader-workers", workers, device=device)
        expect_equal(job["host_costs"]["slowest"], slowest, f"{workers} workers", parts)
        expect(abs(job["step_time"]["median_s"] / parts[slowest] - 1) < 1e-3, f"a step of {job['step_time']['median_s']} s", parts)
        whole = ("loader workers", "pinning thread", "main thread", "of replicate: wiring")
        main_parts = [parts[name] for name in parts if name not in (*whole, "decode and transform", "collate")]
        expect(abs(sum(main_parts) - parts["main thread"]) < 1e-9, "the main thread is the sum of its parts", parts)
        expect(abs(parts["decode and transform"] + parts["collate"] - parts["loader workers"]) < 1e-9, "so are the workers", parts)


@test
def loader_workers_are_those_of_each_process():
    dp, of_dp = eight_gpus(*DP, "--loader-workers", "8")
    ddp, of_ddp = eight_gpus(*DDP, "--loader-workers", "1")
    expect(abs(of_dp["loader workers"] / of_ddp["loader workers"] - 1) < 1e-9, "8 workers of one process, 1 of each of eight", of_dp, of_ddp)
    expect(abs(dp["step_time"]["median_s"] / ddp["step_time"]["median_s"] - 1) < 1e-3, "both wait for their loaders", dp["step_time"], ddp["step_time"])
    expect(ddp["phases"]["data_s"]["median_s"] > 0.5 * ddp["step_time"]["median_s"], "the wait is in the step's data", ddp["phases"]["data_s"])
    none, parts = eight_gpus(*DDP)
    expect(none["step_time"]["median_s"] < ddp["step_time"]["median_s"] / 2 and not parts, "without a loader", none["step_time"])


@test
def a_python_host_costs_wiring_and_calls_and_an_exchange_by_nccl_sends_once():
    steps = {name: eight_gpus(*DP, *words) for name, words in (
        ("python", ()), ("none", ("--dp-host", "none")), ("nccl", ("--payload", "nccl")))}
    python, none, nccl = (steps[name][0] for name in ("python", "none", "nccl"))
    expect(python["step_time"]["median_s"] > none["step_time"]["median_s"] + 0.9 * steps["python"][1]["of replicate: wiring"],
           "wiring is in the step", steps["python"][1], steps["none"][1])
    expect("of replicate: wiring" not in steps["none"][1], "no interpreter, no wiring", steps["none"][1])
    expect(steps["python"][1]["forward"] > steps["none"][1]["forward"], "calls under the lock", steps["python"][1], steps["none"][1])
    sent, m = [job["ranks"][0]["bytes_sent"] for job in (python, nccl)], python["dataparallel_memory"]
    replica = m["parameters_bytes"] + m["buffers_bytes"]
    expect(abs((sent[0] - sent[1]) / ((2 * 5 + 6) * replica) - 1) < 0.01,
           f"in two steps 7 replicas, or a broadcast and a reduction; after them 7, or a broadcast: {sent}, of {replica} bytes")
    expect(nccl["step_time"]["median_s"] <= python["step_time"]["median_s"], "rings are no slower than a star", steps["nccl"][1])


@cases([("tokens", ("--mode", "none", "--device", "sim", "--model", "bert", "--loader-workers", "4"), 78, "--loader-workers: expected a model of images"),
        ("a processor", ("--mode", "none", "--device", "sim:cpu", "--model", "lenet", "--loader-workers", "4"), 78, "expected a profile with loader_decode")])
def loaders_that_nothing_is_known_of_are_refused(words, code, reason):
    result = harness("run", *words, "--steps", "1")
    expect_equal(result.code, code, "exit code", result)
    expect(reason in result.err, f"expected '{reason}'", result)


@test
def more_threads_of_a_server_shorten_what_if_steps():
    def steps(threads):
        words = ("whatif", "--profile", "dgx1-p100", "--model", "vgg16", "--image", "32", "--batch", "4", "--policy", "sync", "--gpus", "8",
                 "--server-threads", threads, "--json", "-")
        return harness(*words).json()["points"][0]["step_s"]

    one, eight, many = steps("1"), steps("8"), steps("64")
    expect(eight < one, f"{one} s with one thread, {eight} with eight")
    expect_equal(many, eight, "more threads than the memory feeds")


@test
def the_range_of_dataparallel_against_ddp_holds_what_was_published():
    result, text = table_and_text("dp-vs-ddp")
    cell = next(c for c in result["cells"] if (c["row"], c["quantity"]) == ("ResNet-50, 8 GPUs of 40 GB", "dp / ddp"))
    expect(cell["low"] <= cell["published"] <= cell["high"] <= 2.5 * cell["low"], "4.1 within a range of 2.5 at most", cell)
    expect(f"dp / ddp, 1 {cell['published']:.2f} {cell['ours']:.2f} ({cell['low']:.2f}-{cell['high']:.2f}) " in text, "it is printed", text)
    without = harness("reproduce", "dp-vs-ddp", "--dp-host", "none", "--draws", "0", "--json", "-").json()["cells"]
    parts = [c["quantity"] for c in without if "host under dp" in c["row"]]
    expect("pinning thread" in parts and not any("wiring" in part for part in parts), "parts without an interpreter", parts)
    refused = harness("reproduce", "throughput", "--dp-host", "none")
    expect_equal((refused.code, "--dp-host: expected table dp-vs-ddp" in refused.err), (64, True), "another table", refused)


# ---- published tables --------------------------------------------------------------------------

# Every draw of the constants runs a table again, which of these takes longest: their limits are for the long suite.
LIMITS_LATER = ("ddp-benchmark", "throughput", "tf-benchmarks")


@functools.lru_cache(maxsize=None)
def table_and_text(name, limits=None):
    path = os.path.join(FILES.name, name + ".table.json")
    limits = limits or name not in LIMITS_LATER
    shown = harness("reproduce", name, *([] if limits else ["--draws", "0"]), "--json", path, limit=300).out
    expect(all(len(line) <= 80 for line in shown.splitlines()), "80 columns", shown)
    with open(path) as file:
        return json.load(file), " ".join(shown.split())


def table(name):
    return table_and_text(name)[0]


ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
TABLES = ("torch-vs-apex", "dp-vs-ddp", "ddp-benchmark", "throughput", "tf-benchmarks", "reducer-memory")
MISSES = {  # docs/reproduction.md explains them
    "torch-vs-apex": {("2 to 4 GPUs, apex", "added to backward"), ("2 to 8 GPUs, apex", "added to backward"), ("4 GPUs, apex", "backward"),
                      ("4 GPUs, apex", "total"), ("8 GPUs, apex", "backward"), ("8 GPUs, apex", "total")},
    "dp-vs-ddp": {("GPT-2, 2 TITAN RTX", name) for name in ("ddp-no-p2p", "ddp-no-p2p / ddp-nvlink", "dp-nvlink / ddp-no-p2p")},
    "tf-benchmarks": {(row, "throughput") for row in (
        "DGX-1 P100, alexnet, batch 512, nccl, 8 GPUs", "GCE K80, vgg16, batch 32, ps-cpu, 8 GPUs",
        "DGX-1 P100, vgg16, batch 32, nccl, 8 GPUs", "DGX-1 P100, vgg16, batch 64, nccl, 8 GPUs",
        "GCE K80, alexnet, batch 512, ps-cpu, 4 GPUs", "GCE K80, alexnet, batch 512, ps-cpu, 8 GPUs",
        "GCE K80, vgg16, batch 32, ps-cpu, 4 GPUs")}}
REFUTED = {"dp-vs-ddp": ["GPT-2, 2 TITAN RTX: dp-nvlink is faster than ddp-no-p2p"]}


def recorded_losses(name):
    """For each scored cell of the recorded table its row, and what ours and the null model add to the skill's two sums."""
    with open(os.path.join(ROOT, "results/reproduce", name + ".json"), encoding="utf-8") as file:
        cells = [c for c in json.load(file)["cells"] if c["obtained"] == "predicted" and c["null"] is not None]
    for c in cells:
        ours, null = (abs(math.log(c[key] / c["published"])) for key in ("ours", "null"))
        if null > 2 * c["uncertainty"]:
            yield c["row"], max(0, ours - c["uncertainty"]), null - c["uncertainty"]


@test
def the_page_says_which_rows_lose_skill():
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        stated = re.findall(r"^\| (tf-benchmarks|torch-vs-apex), (.*) \| (\d+) \| (\S+) \| (\S+) \|$", file.read(), re.M)
    found = {}
    for name in ("tf-benchmarks", "torch-vs-apex"):
        losses = list(recorded_losses(name))
        for row, ours, null in losses:
            if name == "tf-benchmarks":
                of = "alexnet and vgg16" if "alexnet" in row or "vgg16" in row else "others"
                group = f"{'K80' if 'K80' in row else 'P100'}, {'nccl' if 'nccl' in row else 'server'}, {of}"
            else:
                group = "apex" if "apex" in row else "torch-0.4.1"
            sums = found.setdefault((name, group), [0, 0, 0, sum(loss[1] for loss in losses)])
            for i, more in enumerate((1, ours, null)):
                sums[i] += more
    expected = {(name, group, str(n), f"{ours / all_of_it:.2f}", f"{abs(s) if abs(s) < 0.005 else s:.2f}")
                for (name, group), (n, ours, null, all_of_it) in found.items() for s in [1 - ours / null]}
    expect_equal({*stated}, expected, "groups of rows")


@cases([(name, name) for name in TABLES])
def cells_are_within_their_limits_except_documented_ones(name):
    result = table(name)
    scored = [c for c in result["cells"] if c["verdict"]]
    expect(len(scored) > 0, "no cell is scored")
    found = {(c["row"], c["quantity"]) for c in scored if c["verdict"] == "MISS"}
    expect_equal(found, MISSES.get(name, set()), "cells beyond their limits")
    expect_equal([claim["claim"] for claim in result["claims"] if not claim["holds"]], REFUTED.get(name, []), "claims that do not hold")


@cases([("throughput", "throughput"), ("tf-benchmarks", "tf-benchmarks")])
def gpus_with_a_server_are_no_faster_than_as_many_times_one(name):
    found, one = 0, None
    for c in table(name)["cells"]:
        gpus = int(re.search(r"(\d+) GPUs?$", c["row"])[1])
        one = c["ours"] if gpus == 1 else one
        if "--policy sync" in c["command"] and gpus > 1:
            found += 1
            expect(c["ours"] <= gpus * one * (1 + 1e-6), f"{c['row']}: {c['ours']}, of one GPU {one}")
    expect(found >= 3, f"{found} rows with a server")


def page_rows(columns, first=r"[a-z-]+"):
    """Of docs/reproduction.md, the rows of tables of so many columns: {first cell: the others}"""
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in file if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows if len(row) == columns and re.fullmatch(first, row[0])}


@cases([(name, name) for name in TABLES])
def the_page_states_the_figures_of_the_snapshot(name):
    kept = recorded(name)
    scored = [c for c in kept["cells"] if c["limit"] is not None and c["verdict"] in ("within", "MISS")]
    ranges = [c for c in kept["cells"] if c["obtained"] == "predicted" and c["low"] < c["high"]]
    contained = sum(c["low"] <= c["published"] <= c["high"] for c in ranges)
    within, error, _, between = page_rows(5)[name]
    hits = sum(c["verdict"] == "within" for c in scored)
    expect_equal(within.partition(";")[0].partition(",")[0], f"{hits} of {len(scored)}", "scored cells within their limits")
    expect_equal(error.split()[0], f"{100 * statistics.mean(abs(c['deviation']) for c in scored):.1f}", "mean error, %")
    expect_equal(between, f"{contained} of {len(ranges)}" if ranges else "", "published between low and high")
    skill = kept["skill"]
    if skill:
        value, count, worst, _, constants = page_rows(6)[name]
        expect_equal(value, "no verdict" if skill["value"] is None else f"{skill['value']:.2f}", "S")
        expect_equal(re.findall(r"\d+", count), [str(skill["scored_cells"]), str(skill["sources"])], "scored cells, sources")
        at_worst = skill["worst_without_one_source"]
        expect_equal(worst.partition(" ")[0], "" if at_worst is None else f"{abs(at_worst) if abs(at_worst) < 0.005 else at_worst:.2f}", "at worst")
        expect_equal(re.findall("[0-9a-f]{7}", constants), re.findall("since ([0-9a-f]{7})", skill["constants"]), "commits")


@test
def the_page_states_the_host_of_dataparallel_as_in_the_snapshot():
    cells = {c["quantity"].strip(): c for c in recorded("dp-vs-ddp")["cells"] if c["row"].startswith("ResNet-50")}
    found = page_rows(3, "four loader workers.*|pinning thread|main thread.*")
    for label, (best, limits) in found.items():
        name = "loader workers" if "workers" in label else label.partition(":")[0]
        digits = [f"{float('%.3g' % cells[name][key]):.0f}" for key in ("ours", "low", "high")]
        expect_equal([best, *limits.split(" to ")], [f"{int(d):,}" for d in digits], name)
    expect_equal(len(found), 3, "parts")
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        page = " ".join(file.read().split())
    c = cells["dp / ddp"]
    expect(f"ours is {c['ours']:.1f} times slower, within {c['low']:.1f} to {c['high']:.1f}." in page, "DataParallel against DDP", c)


@test
def the_page_states_how_much_of_an_exchange_is_hidden():
    def exchanges(name, row, quantity):
        for c in recorded(name)["cells"]:
            if c["row"].endswith(row) and c["quantity"] == quantity:
                phases = harness(*c["command"].split()[1:], "--quiet", "--json", "-").json()["jobs"][0]["phases"]
                yield [1e3 * phases[key]["median_s"] for key in ("hidden_communication_s", "communication_s")]

    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        page = " ".join(file.read().split())
    parts = [100 * hidden / all_of_it for hidden, all_of_it in exchanges("torch-vs-apex", "apex", "backward")]
    expect(f"hide {min(parts):.0f} to {max(parts):.0f} % of what it exchanges" in page, f"apex hides {parts} %")
    (hidden, all_of_it), = exchanges("dp-vs-ddp", "TITAN RTX", "ddp-no-p2p")
    expect(f"of the {all_of_it:.0f} ms that pass host memory, {hidden:.0f} are hidden" in page, f"{hidden} of {all_of_it} ms")


def distance(a, b):
    return abs(math.log(a / b))


def skill_of(cells):
    """S, over the cells that the null model misses by more than 2 u."""
    def beyond(key):
        return sum(max(0, distance(c[key], c["published"]) - c["uncertainty"]) for c in cells)

    return 1 - beyond("ours") / beyond("null")


@cases([("throughput", "throughput", 10, 2, 0.5, 1), ("ddp-benchmark", "ddp-benchmark", 10, 0, 0.5, 1),
        ("a miss that the document explains", "torch-vs-apex", 5, 3, 0, 0.5), ("another", "tf-benchmarks", 32, 7, 0, 0.5),
        ("too few cells", "dp-vs-ddp", 2, 0, None, None), ("identities", "reducer-memory", 0, 0, None, None)])
def skill_is_that_of_the_cells(name, scored, unscored, least, most):
    result = table(name)
    skill, with_null = result["skill"], [c for c in result["cells"] if c["null"] is not None]
    used = [c for c in with_null if distance(c["null"], c["published"]) > 2 * c["uncertainty"]]
    expect_equal([len(used), len(with_null) - len(used)], [scored, unscored], "scored and unscored cells")
    expect(all(c["obtained"] == "predicted" and c["uncertainty"] >= 0.01 for c in with_null), "a cell that was fitted, or is sure")
    shown = table_and_text(name)[1]
    if not scored:
        expect(skill is None and "Skill" not in shown, "no null model", shown)
        return
    expect_equal([skill["scored_cells"], skill["unscored_cells"], skill["unscored_within"]], [scored, unscored, unscored], "counts")
    if least is None:
        expect(skill["value"] is None and "no verdict on 2 scored cells" in " ".join(shown.split()), "a verdict on few cells", shown)
    else:
        expect(abs(skill["value"] - skill_of(used)) < 1e-9, f"{skill['value']}, from the cells {skill_of(used)}")
        expect(least <= skill["value"] < most, f"skill {skill['value']}, the document says from {least} to {most}")
        expect(f"S = {skill['value']:.2f}" in shown, "the skill in the report", shown)
    if name == "throughput":
        expect_equal(skill["sources"], 4, "sources")
        left = [c for c in used if "SXM2" not in c["row"]]
        expect(abs(skill["worst_without_one_source"] - skill_of(left)) < 1e-9 and "OneFlow" in skill["without"], "at worst", skill)


def constants_at(commit, name):
    """Of a profile and of those that it extends, the nearest first: {constant: (value, range)}"""
    root, found = os.environ.get("SOURCE_DIR", os.getcwd()), {}
    while name:
        path = f"common/sim/profiles/{name}.json"
        if commit:
            text = subprocess.run(["git", "-C", root, "show", f"{commit}:{path}"], check=True, stdout=subprocess.PIPE).stdout
        else:
            with open(os.path.join(root, path), "rb") as file:
                text = file.read()
        profile = json.loads(text)
        for key, constant in profile["constants"].items():
            found.setdefault(key, (constant["value"], constant.get("range")))
        found.setdefault("links", profile.get("topology", {}).get("links"))
        name = profile.get("base")
    return found


@test
def constants_are_those_of_the_commit_that_the_table_names():
    for name in TABLES[:-1]:
        result = table(name)
        stated = re.findall(r"([^;]+) since ([0-9a-f]+)(?:, the outcome known)?(?:; |$)", result["skill"]["constants"])
        since = {profile: commit for profiles, commit in stated for profile in re.split(", | and ", profiles)}
        expect_equal(sorted(since), sorted(result["profiles"].split(", ")), f"{name}: profiles whose constants have a commit")
        for profile, commit in since.items():
            if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", commit]).returncode == 0:  # not in a copy without history
                expect_equal(constants_at(None, profile), constants_at(commit, profile), f"{name}: constants of {profile} since {commit}")


@test
def every_range_is_listed_in_constants_md_as_a_source_or_a_guess():
    root = os.environ.get("SOURCE_DIR", os.getcwd())
    folder = os.path.join(root, "common/sim/profiles")
    expected = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".json")):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            profile_of = json.load(file)
        for key, constant in profile_of["constants"].items():
            if "range" not in constant:
                expect("range_is" not in constant, f"{name}: {key} has no range")
                continue
            expect(constant.get("range_is") in ("source", "guess"), f"{name}: {key}: source or guess?")
            expect("a guess" not in constant["source"].partition("range")[2] or constant["range_is"] == "guess", f"{name}: {key} is a guess")
            ends = [constant["value"], *constant["range"]]
            shown = [", ".join(f"{x:g}" for x in v) if isinstance(v, list) else f"{v:g}" for v in ends]
            expected.append(f"| `{key}` | {profile_of['profile']} | {' | '.join(shown)} | {constant['unit']} | {constant['range_is']} |")
    with open(os.path.join(root, "docs/constants.md"), encoding="utf-8") as file:
        text = file.read()
    expect_equal([line for line in text.splitlines() if line.startswith("| `")], expected, "rows")
    guesses = sum(row.endswith(" guess |") for row in expected)
    expect(f"{guesses} of {len(expected)} ranges are guesses" in text, f"the sum: {guesses} of {len(expected)}")


@cases([(name, name) for name in TABLES])
def a_table_says_how_many_ranges_are_guesses(name):
    result, text = table_and_text(name)
    ranges = result["ranges"]
    if name == "reducer-memory":
        expect(ranges is None and "ranges are guesses" not in text, "no constant enters", text)
        return
    found, folder = {}, os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "common/sim/profiles")
    for used in result["profiles"].split(", "):
        seen = set()
        while used:
            with open(f"{folder}/{used}.json", encoding="utf-8") as file:
                content = json.load(file)
            for key, constant in content["constants"].items():
                if key not in seen and "range" in constant:
                    found[key, used] = constant["range_is"] == "guess"
                seen.add(key)
            used = content.get("base")
    expect_equal([ranges["constants"], ranges["guesses"]], [len(found), sum(found.values())], "constants with a range, guesses")
    expect(f"Of {len(found)} constants with a range, {sum(found.values())} ranges are guesses" in text, "the text", text)


@test
def the_range_of_dataparallel_on_two_gpus_holds_what_was_published():
    cells = {(c["row"], c["quantity"]): c for c in table("dp-vs-ddp")["cells"]}
    c = cells["GPT-2, 2 TITAN RTX", "dp-nvlink / ddp-nvlink"]
    expect(abs(c["published"] - 1.0853) < 1e-4 and c["low"] <= c["published"] <= c["high"] <= 1.25 * c["low"], "1.085 within a range", c)


@test
def ddp_s_table_names_ring_or_tree():
    result, text = table_and_text("ddp-benchmark")
    by = {c["row"]: c["algorithms"] for c in result["cells"]}
    expect_equal({by[f"{model}, {gpus} GPU{'s' * (gpus > 1)}"] for model in ("resnet50", "resnet101") for gpus in (2, 4, 8)}, {"ring"}, "in a machine")
    expect({by["resnet50, 16 GPUs"], by["resnet101, 16 GPUs"]} <= {"ring", "tree", "ring and tree"}, "two machines", by)
    expect(by["resnet50, 1 GPU, no DDP"] is None, "one GPU", by)
    expect("iteration, ms; ring" in text, "the text", text)


def figures(cells, limits):
    return [{key: value for key, value in c.items() if limits or key not in ("low", "high")} for c in cells]


def recorded(name):
    with open(os.path.join(ROOT, "results/reproduce", name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def expect_snapshot(name, found, limits):
    kept = recorded(name)
    expect_equal([figures(found["cells"], limits), found["skill"]], [figures(kept["cells"], limits), kept["skill"]], name)


@cases([(name, name) for name in TABLES])
def the_program_still_prints_the_snapshot_in_results_reproduce(name):
    expect_snapshot(name, table(name), name not in LIMITS_LATER)


@long_cases([(name, name) for name in LIMITS_LATER])
def the_program_still_prints_the_limits_in_results_reproduce(name):
    expect_snapshot(name, table_and_text(name, limits=True)[0], True)


@test
def without_draws_figures_are_those_with_them_and_have_no_limits():
    with_draws, without = table("torch-vs-apex"), harness("reproduce", "torch-vs-apex", "--draws", "0", "--json", "-").json()
    expect_equal(figures(without["cells"], False), figures(with_draws["cells"], False), "figures")
    expect(all(c["low"] == c["ours"] == c["high"] for c in without["cells"]), "no limits", without["cells"])


@cases([(name, name) for name in TABLES])
def a_figure_lies_between_its_limits(name):
    cells = [c for c in (recorded if name in LIMITS_LATER else table)(name)["cells"] if c["ours"] is not None]
    for c in cells:
        expect(c["low"] <= c["ours"] <= c["high"], f"{c['row']}: {c['low']} to {c['high']}, of {c['ours']}")
    wide = [c for c in cells if c["high"] > c["low"]]
    expect((len(wide) > len(cells) / 2) == (name != "reducer-memory"), f"{len(wide)} of {len(cells)} cells have a range: bytes have no constants")


@test
def the_table_rendered_from_a_file_is_the_one_that_the_program_printed():
    path = FILES.name + "/table.json"
    printed = harness("reproduce", "reducer-memory", "--json", path).out
    expect("published           ours (range)" in printed and all(len(line) <= 80 for line in printed.splitlines()), printed)
    expect_equal(harness("report", path).out, printed, "the report of the file")


@test
def virtual_runs_report_the_times_of_buckets():
    def phases(policy):
        words = ("run", "--mode", "ring", "--policy", policy, "--gpus", "4", "--device", "sim", "--model", "resnet18",
                 "--image", "64", "--steps", "3", "--quiet", "--json", "-")
        job = harness(*words).json()["jobs"][0]
        return {name: job["phases"][name]["median_s"] for name in (
            "communication_s", "hidden_communication_s", "first_to_backward_end_s", "backward_s", "last_bucket_s")}

    ddp, late = phases("ddp"), phases("torch-0.4.1")
    expect(0 < ddp["hidden_communication_s"] <= ddp["communication_s"], "hidden under ddp", ddp)
    expect(0 < ddp["first_to_backward_end_s"] <= ddp["backward_s"], "first all-reduce under ddp", ddp)
    expect(0 < ddp["last_bucket_s"] < ddp["communication_s"], "last bucket under ddp", ddp)
    expect_equal((late["hidden_communication_s"], late["first_to_backward_end_s"]), (0, 0), "under torch-0.4.1", late)


TREES = ("run", "--mode", "ring", "--gpus", "32", "--device", "sim:v100-pcie-10gbe", "--model", "resnet18", "--image", "32",
         "--classes", "10", "--batch", "4", "--warmup", "2", "--steps", "2")


@test
def every_bucket_goes_by_what_is_faster_and_the_job_says_which():
    def job(*words):
        result = harness(*TREES, "--bucket-cap-mb", "0.25", "--verbose", *words, "--json", FILES.name + "/trees.json")
        with open(FILES.name + "/trees.json", encoding="utf-8") as file:
            return result, json.load(file)["jobs"][0]

    result, own = job()
    rows = {row["algorithm"]: row for row in own["algorithms"]}
    expect_equal((own["algorithm"], sorted(rows)), ("library", ["ring", "tree"]), "both are taken", result)
    gradients = 4 * 11181642
    expect_equal(sum(row["bytes_per_step"] for row in rows.values()), gradients, "all gradients", result)
    mean = {name: row["bytes_per_step"] / row["calls_per_step"] for name, row in rows.items()}
    expect(mean["tree"] < mean["ring"], "small calls take trees", own["algorithms"])
    for name, row in rows.items():
        expect(f"{name} {row['calls_per_step']:.4g} call" in result.out, "the report's text", result)
    expect("all-reduce: ring and tree, sim" in result.out.replace("\n  ", " "), "the first sentence", result)
    ring, tree, library = job("--algorithm", "ring")[1], job("--algorithm", "tree")[1], job("--algorithm", "library")[1]
    expect_equal([row["algorithm"] for row in ring["algorithms"] + tree["algorithms"]], ["ring", "tree"], "fixed", ring)
    expect_equal(library["step_s"], own["step_s"], "library is the default")
    expect(own["step_s"][0] < min(ring["step_s"][0], tree["step_s"][0]), "faster than either alone", own["step_s"])


@test
def time_lines_name_the_algorithm_of_a_call():
    path = FILES.name + "/trees-trace.json"
    harness(*TREES, "--bucket-cap-mb", "0.25", "--quiet", "--trace", path)
    with open(path, encoding="utf-8") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"] if event["ph"] == "X"}
    for name in ("ring all_reduce", "tree all_reduce"):
        expect(name in names, "on the links", sorted(names))
        expect(any(one.startswith(name + " of bucket") for one in names), "on the communication row", sorted(names))


@test
def a_processor_takes_the_ring_of_shared_memory():
    for row in harness("run", "--mode", "ring", "--gpus", "2", "--device", "sim:cpu", "--model", "lenet", "--batch", "4", "--steps",
                       "2", "--quiet", "--json", "-").json()["jobs"]:
        expect_equal((row["algorithm"], [one["algorithm"] for one in row["algorithms"]]), ("ring", ["ring"]), "algorithm")


# ---- what if -----------------------------------------------------------------------------------

@test
def four_thousand_gpus_take_seconds_to_simulate_and_a_tree_beats_the_ring():
    result = harness("whatif", "--model", "resnet50", "--profile", "dgx-a100-80g", "--gpus", "8,64,...,4096", "--json", "-")
    points = result.json()["points"]
    expect_equal([p["gpus"] for p in points], [8, 64, 512, 4096], "GPUs", result)
    by = [{row["algorithm"]: row for row in p["algorithms"]} for p in points]
    expect(list(by[0]) == ["ring"] and points[0]["tree_step_s"] is None, "eight GPUs take rings", result)
    expect("tree" in by[-1] and points[-1]["tree_step_s"] == points[-1]["step_s"], "4,096 GPUs take trees", result)
    rings = harness("whatif", "--model", "resnet50", "--profile", "dgx-a100-80g", "--gpus", "8,4096", "--algorithm", "ring", "--json", "-")
    fixed = rings.json()["points"]
    expect([list(row["algorithm"] for row in p["algorithms"]) for p in fixed] == [["ring"], ["ring"]], "--algorithm ring", rings)
    expect(fixed[0]["step_s"] == points[0]["step_s"] and fixed[1]["step_s"] > points[-1]["step_s"], "a tree is faster", rings)
    expect(all(a["weak_scaling_efficiency"] >= b["weak_scaling_efficiency"] for a, b in zip(points, points[1:])), "efficiency grows", result)


@test
def whatif_writes_the_same_figures_to_csv_and_json():
    words = ("whatif", "--model", "lenet", "--profile", "dgx-a100-80g", "--gpus", "1,8,64", "--policy", "ddp,apex")
    points = harness(*words, "--json", "-").json()["points"]
    rows = list(csv.DictReader(io.StringIO(harness(*words, "--csv", "-").out)))
    expect_equal(len(rows), len(points), "rows")
    for row, point in zip(rows, points):
        expect_equal((row["profile"], row["model"], row["policy"]), ("dgx-a100-80g", "lenet", point["policy"]), "row")
        for key in ("gpus", "step_s", "exposed_communication_s", "weak_scaling_efficiency", "samples_per_s", "memory_peak_bytes"):
            expect(abs(float(row[key]) - point[key]) <= 1e-8 * abs(point[key]), f"{key}: {row[key]}, expected {point[key]}")
        expect_equal(row["tree_step_s"] == "", point["tree_step_s"] is None, "a tree's step")
    path = FILES.name + "/points.csv"
    shown = harness(*words, "--csv", path).out
    for point in points:
        expect(re.search(rf"^ *{point['gpus']} [\d.]+ \(", shown, re.M), f"{point['gpus']} GPUs, a blank, the step", shown)
    expect("weak-scaling efficiency: " in shown.lower() and len(open(path).read().splitlines()) == 1 + len(points), "a file in addition to the table", shown)


@test
def whatif_says_which_of_its_figures_are_medians():
    words = ("whatif", "--model", "lenet", "--profile", "dgx1-v100", "--batch", "4096", "--gpus", "4", "--policy", "ddp", "--jitter", "20")
    point = harness(*words, "--json", "-").json()["points"][0]
    shown = harness(*words).out
    mean = 4 * 4096 / point["samples_per_s"]
    expect(abs(point["step_s"] / mean - 1) > 1e-3, "the median of the steps is not their mean", point)
    row = next(line.split() for line in shown.splitlines() if re.match(r" +4 ", line))
    expect_equal((row[1], row[-4]), (f"{1000 * point['step_s']:.2f}", f"{float('%.3g' % point['samples_per_s']):.0f}"), "step and samples per s", shown)
    expect("step, exposed, waiting: medians of the steps; samples per s: of all steps, as their mean" in " ".join(shown.split()), "the note", shown)


@cases([("a learning rate", ("--lr", "0.5")), ("a seed", ("--seed", "2"))])
def what_if_notes_an_option_that_does_nothing(words):
    result = harness("whatif", "--profile", "dgx1-v100", "--model", "lenet", "--gpus", "2", *words)
    expect_equal(result.code, 0, "exit code", result)
    expect(f"{words[0]} has no effect here: virtual devices compute no values" in result.err, "a note", result)


A100 = ("whatif", "--profile", "dgx-a100-80g", "--model", "resnet50", "--batch", "256", "--tf32", "--gpus", "1,2")


@cases([("a step", ("--step-ms", "273"), 0.273), ("a throughput", ("--samples-per-s", "938"), 256 / 938)])
def a_measured_step_anchors_what_if_in_every_draw(words, seconds):
    result = harness(*A100, *words, "--json", "-").json()
    for key in ("one_gpu_step_s", "one_gpu_step_low_s", "one_gpu_step_high_s"):
        expect(abs(result[key] / seconds - 1) < 2e-4, f"{key}: {result[key]}, expected {seconds}")
    one, two = result["points"]
    expect(one["step_s"] == result["one_gpu_step_s"] and two["step_s"] > 0.999 * one["step_s"], "steps", result["points"])
    expect(two["step_high_s"] / two["step_low_s"] < 1.5, "the range of one GPU's time is gone", two)
    expect_equal(result["efficiencies_estimated"], False, "estimated")
    expect("is an estimate" not in harness(*A100, *words).out, "no note")


@test
def what_if_says_that_efficiencies_are_estimates():
    result = harness(*A100, "--json", "-").json()
    expect_equal(result["efficiencies_estimated"], True, "estimated")
    expect(result["one_gpu_step_high_s"] / result["one_gpu_step_low_s"] > 1.5, "a wide range", result)
    expect(result["one_gpu_step_low_s"] < 256 / 938 < result["one_gpu_step_high_s"], "the range holds the published 938 images/s", result)
    expect("is an estimate" in harness(*A100).out.replace("\n", " "), "a note")


@test
def limits_of_whatif_are_those_of_runs_with_drawn_constants():
    words = ("--model", "resnet18", "--image", "64", "--batch", "8", "--warmup", "2", "--steps", "1")
    result = harness("whatif", *words, "--profile", "dgx1-v100", "--gpus", "4", "--json", "-").json()

    def step(draw, *more):
        return harness("run", *words, *more, "--device", "sim:dgx1-v100", "--draw", draw, "--json", "-", "--quiet").json()["jobs"][0]["step_time"]["median_s"]

    draws = range(0, 17)
    four, one = [step(d, "--mode", "ring", "--gpus", "4") for d in draws], [step(d, "--mode", "none") for d in draws]
    point = result["points"][0]
    found = [point["step_s"], point["step_low_s"], point["step_high_s"], result["one_gpu_step_low_s"], result["one_gpu_step_high_s"]]
    expected = [four[0], min(four), max(four), min(one), max(one)]
    expect_equal([in_ns(value) for value in found], [in_ns(value) for value in expected], "steps and their limits")
    scaling = [a / b for a, b in zip(one, four)]
    expect(abs(point["weak_scaling_efficiency_low"] - min(scaling)) < 1e-9, "the ratio is that of one draw", point)
    shown = harness("profiles", "dgx1-v100").out
    expect("kappa: 1 (1 to 1.1; range: source)" in shown, "the range of a constant", shown)


def lenet_job(engine, *words):
    words = ("run", "--mode", engine, "--model", "lenet", "--steps", "3", "--prefetch", "off", "--quiet", "--json", "-", *words)
    return harness(*words).jobs()[engine]


@cases([("none", "none", ()), ("ring", "ring", ("--gpus", "4", "--policy", "flat")), ("sync", "ps", ("--gpus", "2", "--policy", "sync")),
        ("dp", "ps", ("--gpus", "2", "--policy", "dp"))])
def micro_batches_take_their_passes_and_one_exchange(engine, words):
    """Three batches per step: three times load and forward, one exchange, one update."""
    one, three = (lenet_job(engine, "--device", "sim:dgx1-v100", *words, "--accumulate", n) for n in (1, 3))
    expect_equal(three["throughput"]["samples"], 3 * one["throughput"]["samples"], "samples")
    if "dp" not in words:  # there inputs and outputs are exchanged, too
        expect_equal(three["traffic"], one["traffic"], "bytes and messages per step")
    alike = [("optimizer_s", 1)] + ([("data_s", 3), ("forward_s", 3)] if engine != "ps" else [])
    for a, b in zip(one["ranks"], three["ranks"]):
        for key, times in alike:
            for x, y in zip(in_ns(a[key]), in_ns(b[key])):
                expect(abs(y - times * x) <= 3, f"rank {a['rank']}, {key}: {y} ns, with one batch {x}")
        if engine == "none":  # later batches read the gradients that they add to
            for x, y in zip(in_ns(a["backward_s"]), in_ns(b["backward_s"])):
                expect(3 * x - 3 <= y < 3.3 * x, f"backward of {y} ns, with one batch {x}")


# A worker's gradients of LeNet and the parameters' update: 2 operands and their average; gradient, parameter read and written.
SUMMED_BYTES = 4 * 61706 * (2 + 1 + 3)


@test
def the_threads_of_a_server_share_its_sums_until_the_memory_is_the_limit():
    rate, memory = 0.05, 0.3  # GB/s: slow, so that a step waits for sums
    constants = {name: {"value": value, "unit": "GB/s", "tag": "assumed", "source": "a test"}
                 for name, value in (("host_sum", rate), ("host_memory", memory))}
    path = profile("slow-sums", constants=constants)
    step, sums = {}, {}
    for threads in (1, 2, 4, 8, 16):
        words = ["run", "--mode", "ps", "--policy", "sync", "--servers", "1", "--gpus", "2", "--model", "lenet", "--batch", "4",
                 "--steps", "2", "--device", f"sim:{path}", "--server-threads", threads, "--json", "-", "--quiet"]
        step[threads] = harness(*words).jobs()["ps"]["step_time"]["median_s"]
        sums[threads] = SUMMED_BYTES / (min(threads * rate, memory) * 1e9)
    for some, more in ((1, 2), (2, 4), (4, 8)):
        found, expected = step[some] - step[more], sums[some] - sums[more]
        expect(abs(found / expected - 1) < 0.02, f"{more} threads instead of {some} save {found} s, expected {expected} s")
    expect_equal(step[16], step[8], "the step beyond the memory's rate")


@test
def the_page_quotes_what_whatif_gives_with_one_thread_of_a_server_and_with_eight():
    with open(os.path.join(ROOT, "docs/simulation.md"), encoding="utf-8") as file:
        quoted = re.search(r"^    harness (whatif .*--server-threads) 1\n\nshows a step of (\d+) ms \((\d+) to (\d+)\); "
                           r"eight threads give (\d+) \((\d+) to (\d+)\)", file.read(), re.M)
    expect(quoted, "the command and its figures")
    for threads, figures in (("1", quoted.groups()[1:4]), ("8", quoted.groups()[4:])):
        point = harness(*shlex.split(quoted[1]), threads, "--json", "-").json()["points"][0]
        found = tuple(f"{1e3 * point[key]:.0f}" for key in ("step_s", "step_low_s", "step_high_s"))
        expect_equal(figures, found, f"{threads} threads")


@test
def a_network_of_ones_own_replaces_the_profiles():
    """10 Gbit/s instead of 1.2 GB/s, 5 us: an all-reduce of 246,824 bytes over four hosts."""
    words = ("--device", "sim:v100-pcie-10gbe", "--gpus", "4", "--policy", "flat")
    own, slow = lenet_job("ring", *words)["ranks"][0], lenet_job("ring", *words, "--link", "1Gbit/s,5us")["ranks"][0]
    bytes_sent = 2 * 3 / 4 * 4 * 61706
    for a, b in zip(own["communication_s"], slow["communication_s"]):
        more = bytes_sent * (1 / 0.125e9 - 1 / 1.2e9)
        expect(abs((b - a) - more) < 0.15 * more, f"{b - a} s more, expected {more}")


@test
def dataparallel_gathers_what_a_module_returns():
    """Logits, and keys and values of 12 layers, in float32, over two NVLinks of 20 GB/s each."""
    def step_s(gathered):
        return harness("run", "--device", "sim:titan-rtx-x2", "--mode", "ps", "--policy", "dp", "--gpus", "2", "--model", "gpt2", "--sequence",
                       "1024", "--batch", "4", "--dp-loss", "replica", "--dp-host", "none", "--payload", "nccl", "--dp-gather", gathered,
                       "--steps", "1", "--quiet", "--json", "-").jobs()["ps"]["step_s"][0]

    loss, outputs, caches = step_s("loss"), step_s("outputs"), step_s("caches")
    tokens, rate = 4 * 1024, 2 * 20e9
    expect(abs(outputs - loss - 4 * tokens * 50257 / rate) < 1e-4, f"logits take {outputs - loss} s")
    expect(abs(caches - outputs - 4 * tokens * 768 * 2 * 12 / rate) < 1e-6, f"keys and values take {caches - outputs} s")
    refused = harness("run", "--device", "sim", "--mode", "ps", "--policy", "dp", "--gpus", "2", "--model", "lenet", "--dp-gather", "outputs")
    expect_equal((refused.code, "--dp-gather: expected --dp-loss replica" in refused.err), (78, True), "one loss", refused)


# ---- one path ----------------------------------------------------------------------------------

RESNET = ["--model", "resnet50", "--batch", "16"]
SAME = [  # label, profile, engine, policy, GPUs, options
    ("one configuration", "dgx1-v100", "ring", "ddp", 8, ["--model", "resnet50", "--batch", "64"]),
    ("keys of a policy", "dgx1-v100", "ring", "ring=apex:message-size=1000000:order=ready", 4, RESNET),
    ("bfloat16 and Adam", "dgx-a100-80g", "ring", "torch-0.4.1", 8, [*RESNET, "--bf16", "--optimizer", "adam"]),
    ("machines, a network of one's own", "v100-sxm2-ib100", "ring", "ddp", 16, [*RESNET, "--nodes", "4", "--link", "25Gbit/s,20us"]),
    ("the rate of a network", "v100-pcie-10gbe", "ring", "ddp", 4, [*RESNET, "--link", "40Gbit/s"]),
    ("no batch ahead", "v100-pcie-32g", "ring", "ddp", 4, [*RESNET, "--prefetch", "off"]),
    ("jitter", "v100-pcie-32g", "ring", "ddp", 4, [*RESNET, "--jitter", "3"]),
    ("sequences and division before the sum", "dgx1-v100", "ring", "ddp", 4, ["--model", "bert", "--batch", "8", "--divide", "before"]),
    ("efficiencies", "v100-pcie-32g", "ring", "ddp", 2, [*RESNET, "--efficiency", "0.5"]),
    ("micro-batches", "v100-pcie-32g", "ring", "ddp", 2, [*RESNET, "--accumulate", "3"]),
    ("other steps", "v100-pcie-32g", "ring", "ddp", 2, [*RESNET, "--warmup", "1", "--steps", "5"]),
    ("stages of a pipeline", "dgx1-v100", "ring", "ddp", 4, ["--model", "resnet18", "--batch", "8", "--stages", "2", "--accumulate", "4", "--schedule", "gpipe"]),
    ("stages on a rank's devices", "dgx1-v100", "ring", "ddp", 2, ["--model", "resnet18", "--batch", "8", "--stages", "2", "--stages-on", "devices"]),
    ("servers", "dgx1-v100", "ps", "sync", 4, [*RESNET, "--servers", "2", "--payload", "zmq"]),
    ("servers in their own processes", "v100-pcie-10gbe", "ps", "sync", 4, [*RESNET, "--server-placement", "own"]),
    ("a slow rank under async", "v100-pcie-32g", "ps", "async", 4, [*RESNET, "--slow", "3:2"]),
    ("replicas", "v100-pcie-32g", "ps", "dp", 4, [*RESNET, "--dp-loss", "replica"]),
]


@cases([(label, *case) for label, *case in SAME])
def whatif_is_a_table_of_runs(profile, engine, policy, gpus, options):
    whatif = harness("whatif", "--profile", profile, "--policy", policy, "--gpus", gpus, *options, "--quiet", "--json", "-").json()
    length = [] if "--steps" in options else ["--warmup", "2", "--steps", "3"]
    words = ("run", "--device", "sim:" + profile, *options, *length, "--quiet", "--json", "-")
    run = harness(*words, "--mode", engine, "--policy", policy, "--gpus", gpus).json()
    job, point = run["jobs"][0], whatif["points"][0]
    phases = job["phases"]
    for found, expected in ((point["step_s"], job["step_time"]["median_s"]),
                            (point["exposed_communication_s"], phases["exposed_communication_s"]["median_s"]),
                            (point["waiting_s"], phases["waiting_s"]["median_s"])):
        expect_equal(round(1e9 * found), round(1e9 * expected), "nanoseconds")
    expect_equal(point["memory_peak_bytes"], job["memory_imbalance"]["maximum_bytes"], "bytes")
    expect(abs(point["samples_per_s"] / job["throughput"]["samples_per_s"] - 1) < 1e-12, "samples per second", point)
    stages = job.get("pipeline") and len(job["pipeline"]["stages"]) or 1  # of which only the first loads a batch
    expect(abs(point["weak_scaling_efficiency"] * stages * point["step_s"] / whatif["one_gpu_step_s"] - 1) < 1e-9, "efficiency", point)
    expect_equal(whatif["workload"], run["workload"], "workload")


@test
def the_step_of_one_gpu_is_that_of_run_without_communication():
    options = ("--batch", "16", "--model", "resnet50", "--optimizer", "adam", "--quiet", "--json", "-")
    whatif = harness("whatif", "--profile", "dgx1-v100", "--gpus", "1,4", "--slow", "3:2", *options).json()
    none = harness("run", "--device", "sim:dgx1-v100", "--mode", "none", "--warmup", "2", "--steps", "3", *options).jobs()["none"]
    expect_equal(round(1e9 * whatif["one_gpu_step_s"]), round(1e9 * none["step_time"]["median_s"]), "nanoseconds of one GPU")
    expect_equal(whatif["points"][0]["step_s"], whatif["one_gpu_step_s"], "the point of one GPU")
    expect(whatif["points"][1]["weak_scaling_efficiency"] < 0.6, "of four, one of which takes twice the time", whatif["points"])


@test
def whatif_takes_the_device_as_run_does():
    by_name, by_device = (harness("whatif", *RESNET, "--gpus", "1,2", *words, "--json", "-").json()
                          for words in (("--profile", "dgx1-p100"), ("--device", "sim:dgx1-p100")))
    expect_equal(by_device["points"], by_name["points"], "points")
    expect_equal([by_device["profile"], by_name["profile"]], ["dgx1-p100"] * 2, "profiles")


def samples_per_s(ms, batch, gpus):
    return batch * gpus / ms * 1000


@cases([("iterations", "ddp-benchmark", lambda ms, batch, gpus: ms), ("throughput", "throughput", samples_per_s), ("TensorFlow", "tf-benchmarks", samples_per_s),
        ("200 steps", "dp-vs-ddp", lambda ms, batch, gpus: 200 * ms / 1000)])
def a_cell_of_a_published_table_is_what_its_command_gives(name, figure_of):
    cells = [cell for cell in table(name)["cells"] if cell["ours"] is not None]
    for cell in cells[:2] + (cells[-2:] if cells[-1]["command"] else []):
        words = cell["command"].split()
        expect_equal(words[:2], ["harness", "run"], "command")
        run = harness(*words[1:], "--quiet", "--json", "-").json()
        ms, gpus = 1e3 * run["jobs"][0]["step_time"]["median_s"], run["jobs"][0]["world_size"]
        expected = figure_of(ms, run["workload"]["batch_per_rank"], gpus)
        expect(abs(cell["ours"] / expected - 1) < 1e-9, f"{cell['row']}: {cell['ours']}, its command gives {expected}")


@test
def precision_options_work_on_virtual_devices():
    def step_ns(*words):
        words = ("run", "--mode", "none", "--model", "resnet50", "--batch", "64", "--steps", "1", "--quiet", *words)
        return harness(*words, "--device", "sim:dgx-a100-40g", "--json", "-").jobs()["none"]["step_time"]["median_s"]

    fp32, tf32, bf16 = step_ns(), step_ns("--tf32"), step_ns("--bf16")
    expect(fp32 > 2 * tf32 and tf32 > bf16, f"steps of {fp32}, {tf32} and {bf16} ns in float32, TF32 and bfloat16")


if __name__ == "__main__":
    main()
