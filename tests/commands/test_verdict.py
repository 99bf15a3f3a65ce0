"""The verdict at the end of a run: at most ten lines of 80 columns after the workload, whose figures are those of the JSON;
the lost time and its causes; what to try next; and --repeat, which gives medians and intervals over runs."""
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

from program import harness
from tap import cases, expect, expect_equal, long_cases, main, more_cases, more_test, test

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "4", "--gpus", "2", "--steps", "12"]
SIM = ["--model", "resnet50", "--steps", "2", "--gpus", "8"]


def run(*words, limit=60):
    """What a run prints, and its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        result = harness(*words, "--quiet", "--json", path, limit=limit)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            return result, json.load(file)


def line_of(result, begin):
    """The line that begins with this text, and the lines that continue it."""
    lines = re.sub(r"\n  ", " ", result.out).splitlines()
    found = [line for line in lines if line.startswith(begin)]
    expect(found, f"no line {begin!r}", result)
    return found[0]


# ---- its form ----------------------------------------------------------------------------------

def expect_ten_lines(result):
    lines = result.out.splitlines()
    verdict = next(i for i, line in enumerate(lines) if i and not line.startswith(("  ", "SIMULATED", "EMULATED")))
    expect(2 <= len(lines) - verdict <= 10, f"{len(lines) - verdict} lines", result)


@cases([("both", LENET), ("a server per rank", [*LENET, "--policy", "ps=sync", "--servers", "2"]),
        ("servers of their own", [*LENET, "--policy", "ps=sync,ring=ddp", "--servers", "2", "--server-placement", "own"]),
        ("an emulated link", [*LENET, "--link", "250MB/s,50us"]), ("more ranks than cores", [*LENET, "--gpus", "8"]),
        ("baselines", [*LENET, "--isolated"]), ("ring", [*LENET, "--mode", "ring"]), ("ps", [*LENET, "--mode", "ps"]),
        ("none", ["--mode", "none", "--model", "toy"]), ("virtual time", [*SIM, "--device", "sim:dgx1-v100"]),
        ("a long name", [*SIM, "--device", "sim:dgx1-v100-4xib100", "--mode", "ring", "--policy", "powersgd"]),
        ("several runs", [*LENET, "--repeat", "2"]), ("nothing measured", [*LENET, "--steps", "0"])], at_check=3)
def it_is_at_most_ten_lines_of_80_columns(words):
    if "powersgd" in words and " powersgd " not in harness("policies").out:
        words = words[:-1] + ["apex"]
    result, found = run(*words)
    lines = result.out.splitlines()
    expect_ten_lines(result)
    expect(all(len(line) <= 80 and not re.search(r"\bnan\b|\binf\b|\x1b", line) for line in lines), "lines", result)
    expect_equal("SIMULATED on " in result.out, found["simulated"], "SIMULATED", result)
    expect_equal("EMULATED network, paced to " in result.out, found["emulated"], "EMULATED", result)


@more_test
def a_busy_machine_adds_a_sentence_and_no_line():
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        result, _ = run(*LENET, "--policy", "ps=sync,ring=ddp", "--servers", "2", "--server-placement", "own")
    expect("Others used" in result.out, "a quiet machine", result)
    expect_ten_lines(result)


@test
def a_step_that_loses_nothing_ends_with_one_period():
    result = harness(*SIM, "--device", "sim:dgx1-v100", "--policy", "ps=sync", "--loader-workers", "1", "--loader-rate", "1")
    expect("of one rank alone 32.0 s.\n" in result.out, "the sentence", result)


@test
def tables_follow_with_verbose_and_are_always_in_the_json():
    words = [*SIM, "--device", "sim:dgx1-v100", "--quiet"]
    short, long = harness(*words), harness(*words, "--verbose")
    expect(long.out.startswith(short.out + "\n") and "step time, mean" in long.out, "verdict, then tables", long)
    expect("step time, mean" not in short.out, "no tables", short)


# ---- its figures -------------------------------------------------------------------------------

@more_cases([("ring", ["--algorithm", "ring"], "; all-reduce: ring, shm"), ("two-shot", ["--algorithm", "two-shot"], "; all-reduce: two-shot, shm"),
        ("no ring", ["--mode", "ps"], "batch 4 per rank")])
def it_begins_with_the_workload_the_ranks_and_the_all_reduce(words, end):
    result, _ = run(*LENET, *words)
    first = line_of(result, "")
    workload = "lenet: images of 1x28x28 with 10 classes, 61706 parameters, synthetic, 2 cpu ranks"
    expect_equal(first.partition(", batch 4 per rank")[0], workload, "the first sentence", result)
    expect(first.endswith(end), "its end", result)


@cases([("one rank", ["--gpus", "1"]), ("stages without replicas", ["--stages", "2"]),
        ("stages on devices of one rank", ["--gpus", "1", "--stages", "2", "--stages-on", "devices"]), ("virtual time", ["--gpus", "1", "--device", "sim"])])
def a_ring_of_one_rank_names_no_all_reduce(words):
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "t.json")
        result, found = run(*LENET, "--steps", "2", "--mode", "ring", *words, "--verbose", "--trace", trace)
        with open(trace, encoding="utf-8") as file:
            about = json.load(file)["otherData"]
    job, = found["jobs"]
    expect_equal([job[key] for key in ("collective", "algorithm", "algorithms")], [None] * 3, "of the JSON", result)
    expect("all-reduced" not in result.out and "; all-reduce:" not in result.out, "the report", result)
    expect("algorithm" not in about, "the trace", about)


@cases([(model, model) for model in ("bert_large", "gpt2_medium", "gpt2_large", "vgg16", "toy")])
def the_workload_takes_at_most_two_lines_and_its_end_is_there(model):
    result, _ = run("--model", model, "--batch", "1", "--steps", "1", "--gpus", "16", "--device", "sim:dgx1-v100-4xib100",
                    "--mode", "ring")
    expect(not result.out.splitlines()[2].startswith("  "), "two lines at most", result)
    end = line_of(result, "").partition(", 16 sim ranks, batch 1 per rank; all-reduce: ")[2]
    expect(end in ("ring, sim", "tree, sim", "ring and tree, sim"), "the first sentence", result)


@more_test
def its_figures_are_those_of_the_json():
    result, found = run(*LENET, "--repeat", "3")
    jobs, verdict, runs = {job["name"]: job for job in found["jobs"]}, found["verdict"], found["repetitions"]["runs"]
    rates = {name: statistics.median(job["throughput"]["samples_per_s"] for one in runs for job in one["jobs"] if job["name"] == name)
             for name in ("ps", "ring")}
    faster, slower = verdict["faster"], verdict["slower"]
    expect(rates[faster] >= rates[slower], "faster", verdict)
    expect_equal(verdict["samples_per_s"], rates, "median samples/s")
    expect(abs(verdict["factor"] - rates[faster] / rates[slower]) < 1e-12, "factor", verdict)
    expect(verdict["low"] <= verdict["factor"] <= verdict["high"], "interval", verdict)
    expect_equal((verdict["over"], verdict["count"], verdict["shown"], verdict["p"]), ("runs", 3, None, None), "too few runs for a verdict")
    text = re.sub(r"\n  ", " ", result.out)
    for part in (f"{verdict['factor']:.3f}", f"95 % interval {verdict['low']:.3f} to {verdict['high']:.3f} over 3 runs"):
        expect(part in text, part, result)
    expect_equal("No difference is shown" in text, verdict["low"] <= 1, "the headline", result)
    memory = jobs["ps"]["memory_imbalance"]
    expect(f"{memory['maximum_bytes'] / 2**20:.1f} MiB" in line_of(result, "Memory: ps rank 0 (reducer)"), "memory", result, memory)


@more_cases([("one", 1, ", its server {}; ring "), ("two", 2, ", its 2 servers at most {}; ring ")])
def the_memory_of_servers_of_their_own_is_named(count, expected):
    words = ["--policy", "ps=sync,ring=ddp", "--servers", str(count), "--server-placement", "own"]
    result, found = run(*LENET, "--steps", "3", *words)
    servers = next(job for job in found["jobs"] if job["name"] == "ps")["servers"]
    expect_equal(len(servers), count, "servers")
    most = max(server["memory"]["total"]["peak_bytes"] for server in servers)
    line = line_of(result, "Memory: ")
    expect(expected.format(f"{most / 2**10:.1f} KiB") in line and "(reducer)" not in line, expected, result, most)


@more_test
def results_of_servers_that_end_at_the_same_time_are_all_kept():
    for _ in range(4):  # Without a lock one of 32 lines was lost in every other run.
        _, found = run(*LENET, "--steps", "2", "--mode", "ps", "--policy", "sync", "--servers", "32", "--server-placement", "own")
        numbers = sorted(server["server"] for job in found["jobs"] if job["name"] == "ps" for server in job["servers"])
        expect_equal(numbers, list(range(32)), "servers")


@test
def the_slower_engine_is_found_and_named():
    slow, found = run("--model", "resnet50", "--steps", "2", "--gpus", "8", "--device", "sim:dgx1-v100")
    expect_equal((found["verdict"]["faster"], found["verdict"]["over"], found["verdict"]["low"]), ("ring", "virtual time", None), "verdict")
    factor = f"ring (ddp) trains {found['verdict']['factor']:.3f} times as fast as ps (dp)"
    expect(1.4 < found["verdict"]["factor"] < 1.7 and factor in slow.out, factor, slow)


@test
def the_scheme_and_the_python_process_of_dp_are_told_apart():
    result, found = run("--model", "resnet50", "--batch", "32", "--steps", "2", "--gpus", "8", "--device", "sim:dgx1-v100")
    ps, ring = (next(job for job in found["jobs"] if job["name"] == name)["throughput"]["samples_per_s"] for name in ("ps", "ring"))
    _, none = run("--model", "resnet50", "--batch", "32", "--steps", "2", "--gpus", "8", "--device", "sim:dgx1-v100", "--mode", "ps",
                  "--dp-host", "none")
    without, = (job["throughput"]["samples_per_s"] for job in none["jobs"])
    text = f"{ring / without:.2f} times by the scheme, {without / ps:.2f} by dp's single Python process."
    expect(text in re.sub(r"\n  ", " ", result.out), text, result)


DP_LOADER = ["--model", "resnet50", "--gpus", "8", "--steps", "3", "--device", "sim:dgx1-v100", "--loader-workers"]


@test
def the_loader_of_dp_has_its_own_share_in_every_report():
    """Python runs while a batch is loaded, so the loader costs the time by which fewer workers make the step longer."""
    result, found = run(*DP_LOADER, "4", "--policy", "ps=dp", "--verbose")
    _, fast = run(*DP_LOADER, "64", "--policy", "ps=dp")
    dp, of_fast, ring = (next(job for job in one["jobs"] if job["name"] == name) for one, name in ((found, "ps"), (fast, "ps"), (found, "ring")))
    step, unloaded = (1e3 * job["phases"]["step_s"]["mean_s"] for job in (dp, of_fast))
    data, python = (1e3 * dp["lost"][key] for key in ("data_s", "python_s"))
    expect(abs(data - (step - unloaded)) < 0.1 and data > 0.4 * step, "the loader's part", data, step, unloaded)
    expect(abs(python - 1e3 * of_fast["lost"]["python_s"]) < 0.1 and python > 0.1 * step, "Python's part, as without a slow loader", python, of_fast["lost"])
    expect(0 <= dp["lost"]["waiting_s"] < 1e-3 * dp["lost"]["step_s"], "nothing of it is waiting", dp["lost"])
    for label in ("  data ", "  by loading data "):
        row = next(line for line in result.out.splitlines() if line.startswith(label))
        expect(f" {data:.1f} ms" in row, f"{data} ms", row)
    scheme, of_ring = (1e3 * (phases["step_s"]["mean_s"] - phases["data_s"]["mean_s"]) for phases in (dp["without_python"]["phases"], ring["phases"]))
    text = f"{scheme / of_ring:.2f} times by the scheme, {unloaded / scheme:.2f} by dp's single Python process, {step / unloaded:.2f} by loading data."
    expect(text in re.sub(r"\n  ", " ", result.out), text, result)
    short, _ = run(*DP_LOADER, "4", "--mode", "ps", "--policy", "dp")
    expect(f"{100 * data / step:.1f} % loading data" in line_of(short, "Of a step of ") and "waiting" not in line_of(short, "Of a step of "), "the short line", short)
    asked, fast = (harness("whatif", "--profile", "dgx1-v100", "--model", "resnet50", "--gpus", "8", "--policy", "dp", "--loader-workers", workers, "--draws", "0")
                   for workers in ("4", "64"))
    expect(f" data {100 * data / step:.3g} %" in asked.out, "whatif", asked)
    expect(" Python " in fast.out and "Batches take no time" not in fast.out, "whatif with a fast loader", fast)


# ---- lost time -----------------------------------------------------------------------------------

@test
def no_time_is_shown_as_minus_zero():
    result, _ = run(*DP_LOADER, "4", "--policy", "ps=dp", "--verbose")
    expect(not re.search(r"-0(\.0+)? ", result.out), "a sign of zero", result)


@test
def the_verdict_names_the_rank_that_is_waited_for_most():
    result, found = run("--device", "sim:dgx1-v100", "--model", "resnet18", "--gpus", "3", "--slow", "1:2", "--steps", "3", "--policy", "ps=sync,ring=ddp")
    job = next(job for job in found["jobs"] if job["name"] == found["verdict"]["slower"])
    waited = sum(rank["waited_for_s"].get("1", 0) for rank in job["ranks"]) / (3 * 3)
    expect(0.5 * job["lost"]["waiting_s"] < waited <= job["lost"]["waiting_s"] + 1e-9, "most of it", waited, job["lost"])
    expect(" waiting mostly for rank 1" in line_of(result, "A step of "), "its name", result)


@test
def a_slow_rank_is_no_contention_with_the_exchange():
    words = ("--device", "sim:dgx1-v100", "--model", "resnet50", "--gpus", "2", "--policy", "ps=sync,ring=ddp", "--steps", "3")
    result, found = run(*words, "--slow", "1:3")
    _, usual = run(*words)
    for name in ("ps", "ring"):
        lost, before = (next(job for job in one["jobs"] if job["name"] == name)["lost"] for one in (found, usual))
        expect(lost["exchange_s"] <= before["exchange_s"] + 1e-9, f"{name}: contention", lost, before)
        removed = lost["step_s"] - before["step_s"]
        expect(abs(lost["waiting_s"] - before["waiting_s"] - removed) < 0.03 * removed, f"{name}: what the same job without --slow saves", lost, before)
    expect(" waiting mostly for rank 1" in line_of(result, "A step of "), "its name", result)


CAUSES = ["neighbors_s", "exchange_s", "update_s", "engine_s", "communication_s", "waiting_s", "data_s", "python_s"]


@cases([("ranks on cores", [*LENET, "--policy", "ps=sync,ring=ddp"]), ("virtual time", [*SIM, "--device", "sim:dgx1-v100"]),
        ("a virtual server", [*SIM, "--device", "sim:dgx1-v100", "--policy", "ps=sync,ring=zero3"])])
def the_causes_of_lost_time_add_up_to_it(words):
    result, found = run(*words)
    slower = found["verdict"]["slower"]
    phases = {job["name"]: {key: (value or {}).get("mean_s") for key, value in job["phases"].items()} for job in found["jobs"]}
    for name in ("ps", "ring"):
        lost = next(job for job in found["jobs"] if job["name"] == name)["lost"]
        expect_equal((lost["step_s"], lost["alone_s"]), (phases[name]["step_s"], phases["none"]["step_s"]), "steps")
        expect(abs(sum(lost[cause] for cause in CAUSES) - (lost["step_s"] - lost["alone_s"])) < 1e-9, "the sum", lost)
        expect_equal(lost["total_s"], lost["step_s"] - lost["alone_s"], "the total")
        if name != slower:
            continue
        shown = [float(value) * {"us": 1e-6, "ms": 1e-3, "s": 1, "ns": 1e-9}[unit]
                 for value, unit in re.findall(r"(-?[0-9.]+) (ns|us|ms|s) ", line_of(result, "A step of ").partition(" Lost:")[2])]
        rounding = 0.005 * max(map(abs, shown), default=0)  # of three digits
        expect(abs(sum(shown) - lost["total_s"]) <= 0.02 * abs(lost["total_s"]) + rounding, "what is shown adds up", shown, lost, result)


@test
def isolated_ranks_tell_the_neighbors_from_the_exchange_and_run_few_steps():
    result, found = run(*LENET, "--steps", "80")
    jobs = {job["name"]: job for job in found["jobs"]}
    computed = {name: sum(jobs[name]["phases"][f"{part}_s"]["mean_s"] for part in ("forward", "backward", "optimizer"))
                for name in ("none", "isolated")}
    expect_equal((jobs["isolated"]["step_time"]["count"], jobs["ring"]["step_time"]["count"], jobs["isolated"]["accuracy"]), (60, 80, None), "isolated ranks")
    expect(abs(jobs["ring"]["lost"]["neighbors_s"] - (computed["isolated"] - computed["none"])) < 1e-9, "neighbors", jobs["ring"]["lost"])
    expect(" of these ranks without exchange." in re.sub(r"\n  ", " ", result.out), "the efficiency", result)


@cases([("one engine", [*LENET, "--mode", "ring"]), ("virtual time", [*SIM, "--device", "sim:dgx1-v100"])])
def without_isolated_ranks_nothing_is_compared_with_them(words):
    result, found = run(*words)
    expect("isolated" not in [job["name"] for job in found["jobs"]] and "without exchange" not in result.out, "no isolated ranks", result)


# ---- what to try next ----------------------------------------------------------------------------

V100 = ["--device", "sim:dgx1-v100", "--gpus", "8", "--steps", "3"]


@cases([("one server of eight ranks", [*V100, "--model", "resnet50", "--batch", "16", "--mode", "ps", "--policy", "sync", "--servers", "1"]),
        ("the reducer", [*V100, "--model", "resnet50", "--batch", "32", "--mode", "ps", "--policy", "dp"]),
        ("a policy with a key", [*V100, "--model", "vgg16", "--batch", "8", "--mode", "ring", "--policy", "ddp:order=registration"]),
        ("epochs", [*V100[:-2], "--epochs", "1", "--model", "vgg16", "--batch", "8", "--mode", "ring", "--bucket-cap-mb", "1000"]),
        ("large buckets", [*V100, "--model", "vgg16", "--batch", "8", "--mode", "ring", "--bucket-cap-mb", "1000"]),
        ("loaders that limit a ring", [*V100, "--model", "resnet50", "--mode", "ring", "--loader-workers", "host:8"]),
        ("loaders that limit servers", [*V100[:-1], "40", "--model", "resnet50", "--mode", "ps", "--policy", "sync", "--loader-workers", "1"]),
        ("an optimizer that is much work", [*V100, "--model", "gpt2", "--batch", "4", "--optimizer", "adam", "--mode", "ring"])])
def the_setting_that_next_names_shortens_a_step_by_as_much_as_it_says(words):
    result, found = run(*words)
    line = re.fullmatch(r"Next: (--.*) shortens a step of (\S+) by (\d+) %\. Tried: .*", line_of(result, "Next: "))
    expect(line, "a setting", result)
    _, changed = run(*words, *line[1].split())
    before, after = (one["jobs"][0]["throughput"]["samples_per_s"] for one in (found, changed))
    expect(abs(1 - before / after - int(line[3]) / 100) < 0.012 and before / after <= 0.96, "the step", before, after, result)


@test
def a_rank_that_waits_for_its_virtual_loader_needs_more_workers():
    result, _ = run(*V100[:2], "--steps", "3", "--model", "resnet50", "--mode", "none", "--loader-workers", "1")
    expect_equal(line_of(result, "Next: "), "Next: more --loader-workers. -v: all tables.", "what to try", result)


def drawn(seed):
    """The words of a job in virtual time."""
    draw = random.Random(seed)
    device, gpus = draw.choice((("dgx1-v100", 8), ("v100-pcie-32g", 4), ("dgx-a100-40g", 16), ("dgx1-v100-4xib100", 16)))
    model = draw.choice((["--model", "resnet50"], ["--model", "vgg16"], ["--model", "bert"],
                         ["--model", "gpt", "--layers", "4", "--hidden", "512", "--heads", "8", "--sequence", "128", "--optimizer", "adam"]))
    engine, policies = draw.choice((("ring", ("ddp", "apex", "zero1", "zero2", "zero3", "naive")), ("ps", ("sync", "ssp", "async", "dp"))))
    words = ["--device", "sim:" + device, "--gpus", str(gpus), *model, "--batch", str(draw.choice((4, 16, 32))), "--steps", "12", "--warmup", "8", "--mode", engine,
             "--policy", draw.choice(policies)]
    return words + (["--bucket-cap-mb", str(draw.choice((1, 200)))] if words[-1] == "ddp" and draw.random() < 0.5 else [])


@long_cases([(f"draw {seed}", seed) for seed in range(100)])
def no_setting_that_next_names_makes_a_step_longer(seed):
    words = drawn(seed)
    result, found = run(*words)
    if not found["next"] or not found["next"]["options"]:
        expect("nothing tried shortens" in line_of(result, "Next: ") or not found["next"], "no setting", result)
        return
    _, changed = run(*words, *found["next"]["options"].split())
    before, after = (one["jobs"][0]["throughput"]["samples_per_s"] for one in (found, changed))
    expect(before / after <= 0.96, "the step", before, after, result)


@test
def of_one_run_its_samples_per_second_are_those_of_the_jobs():
    _, found = run(*LENET, "--steps", "30")
    rates = {job["name"]: job["throughput"]["samples_per_s"] for job in found["jobs"] if job["name"] in ("ps", "ring")}
    verdict = found["verdict"]
    expect_equal(verdict["samples_per_s"], rates, "samples/s")
    expect_equal((verdict["over"], verdict["count"]), ("turns", 6), "over")
    expect(abs(verdict["factor"] - max(rates.values()) / min(rates.values())) < 1e-12, "factor", verdict)
    expect(0 < verdict["low"] <= verdict["factor"] <= verdict["high"], "the interval holds the factor", verdict)


@cases([("ring", [*LENET, "--mode", "ring"], True), ("ps", [*LENET, "--mode", "ps"], True),
        ("virtual time", [*SIM, "--device", "sim:dgx1-v100", "--mode", "ring"], False),
        ("three runs", [*LENET, "--mode", "ring", "--repeat", "3"], False)])
def of_one_engine_the_samples_per_second_and_one_length_of_a_step_are_shown(words, single):
    result, found = run(*words)
    job, = found["jobs"]
    jobs = [one["jobs"][0] for one in found["repetitions"]["runs"]] if "--repeat" in words else [job]
    rate = statistics.median(one["throughput"]["samples_per_s"] for one in jobs)
    line = line_of(result, f"{job['engine']} (")
    expect(f" {rate:.0f} samples/s" in line and "step" not in line, "the rate", rate, line)
    expect_equal("a single measurement" in line, single, "a single measurement", line)
    shown = re.match(r"Of a step of [^,]*, ([0-9.]+) (us|ms|s):", line_of(result, "Of a step of "))
    seconds, mean = float(shown[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[shown[2]], job["phases"]["step_s"]["mean_s"]
    expect(abs(seconds / mean - 1) <= 0.006, f"{seconds} s shown, {mean} s in the JSON", result)


@test
def without_a_time_in_which_all_ranks_train_the_verdict_says_so_and_what_its_step_is_of():
    result, found = run("--device", "sim:v100-pcie-32g", "--model", "vgg16", "--batch", "1", "--gpus", "8", "--mode", "ps", "--policy", "ssp", "--slow", "1:1.5",
                        "--servers", "2", "--warmup", "2", "--steps", "3")
    expect_equal(found["jobs"][0]["throughput"]["samples_per_s"], None, "samples/s")
    line_of(result, "ps (ssp): no samples/s, because there was no time in which all ranks trained")
    line_of(result, "Of a rank's mean step of ps (ssp), ")


A100 = "dgx-a100-80g"
SMALL = ["--model", "gpt", "--layers", "4", "--hidden", "256", "--heads", "4", "--sequence", "128", "--batch", "8"]
STAGES = ["--mode", "ring", "--device", "sim:" + A100, "--steps", "2", *SMALL]
SLOW_LINKS = ["--model", "resnet50", "--gpus", "8", "--stages", "2", "--accumulate", "4"]
EVEN, UNEVEN = ["--vocabulary", "100"], ["--vocabulary", "50000"]  # the last stage has the output layer


@cases([("few micro-batches", [*STAGES, *EVEN, "--gpus", "4", "--stages", "4", "--accumulate", "4"], "--accumulate 8: more micro-batches"),
        ("slow links", ["--mode", "ring", "--device", "sim:v100-pcie-32g", *SLOW_LINKS], "--accumulate 8: more micro-batches"),
        ("stages in turn", [*STAGES, *EVEN, "--gpus", "2", "--stages", "2", "--accumulate", "4", "--schedule", "sequential"], "--schedule 1f1b"),
        ("unequal stages", [*STAGES, *UNEVEN, "--gpus", "4", "--stages", "4", "--accumulate", "64"], "fewer --stages"),
        ("stages on devices", [*STAGES, *EVEN, "--gpus", "2", "--stages", "2", "--stages-on", "devices"], "a pipeline: --gpus 4 --stages 2 --accumulate 8")])
def where_nothing_was_tried_stages_that_wait_for_each_other_are_advised_on_the_bubble(words, advice):
    untried = harness(*words, "--json", "-")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "untried.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(untried.out)
        result = harness("report", path)
    expect(advice in line_of(result, "Next: "), advice, result, untried.jobs()["ring"]["pipeline"])


@cases([("slow links", "v100-pcie-32g", SLOW_LINKS, "--accumulate 8"),
        ("few micro-batches", A100, [*SMALL, *EVEN, "--gpus", "4", "--stages", "4", "--accumulate", "4"], "--accumulate 8"),
        ("unequal stages", A100, [*SMALL, *UNEVEN, "--gpus", "4", "--stages", "4", "--accumulate", "64"], "--stages 2"),
        ("stages on devices", A100, [*SMALL, *EVEN, "--gpus", "2", "--stages", "2", "--stages-on", "devices"],
         "--stages-on ranks --gpus 4 --accumulate 8")])
def the_setting_that_next_names_for_a_pipeline_trains_as_many_more_samples_as_it_says(profile, words, options):
    ring = ["--mode", "ring", "--device", "sim:" + profile, *words]
    result, found = run(*ring)
    line = re.fullmatch(r"Next: (--.*) trains (\d+) % more samples/s under ddp\. Tried: .*", line_of(result, "Next: "))
    expect(line and line[1] == options, options, result)
    _, changed = run(*ring, *options.split())
    before, after = (one["jobs"][0]["throughput"]["samples_per_s"] for one in (found, changed))
    expect(abs(after / before - 1 - int(line[2]) / 100) < 0.012 and before / after <= 0.96, "samples/s", before, after, result)
    same = harness("whatif", "--profile", profile, *words, "--draws", "0", "--json", "-").json()["next"]
    expect_equal(same, found["next"], "whatif")


@test
def the_setting_that_next_names_for_a_sequential_pipeline_shortens_a_step():
    result, _ = run(*STAGES, *EVEN, "--gpus", "2", "--stages", "2", "--accumulate", "4", "--schedule", "sequential")
    expect("Next: --schedule 1f1b shortens a step of ddp by" in line_of(result, "Next: "), "the setting", result)


# ---- repetitions -------------------------------------------------------------------------------

@test
def repetitions_have_medians_and_intervals_and_the_run_of_the_median_is_shown():
    _, found = run(*LENET, "--repeat", "4", "--mode", "ring")
    again = found["repetitions"]
    steps = [one["jobs"][0]["step_time"]["median_s"] for one in again["runs"]]
    expect_equal((again["count"], len(steps), len(set(steps))), (4, 4, 4), "runs of their own")
    expect_equal(found["jobs"][0]["step_time"]["median_s"], steps[again["shown"]], "the run that is shown")
    expect_equal(sorted(steps)[1], steps[again["shown"]], "the lower median")
    row, = again["jobs"]
    expect(min(steps) <= row["step_s"]["low"] <= row["step_s"]["median"] <= row["step_s"]["high"] <= max(steps), row, steps)
    expect_equal(row["step_s"]["median"], statistics.median(steps), "median")
    expect_equal(len({one["jobs"][0]["parameter_hash"] for one in again["runs"]}), 1, "the same computation every time")


@more_test
def eight_runs_allow_a_verdict():
    result, found = run("--model", "toy", "--steps", "6", "--warmup", "1", "--eval-every", "-1", "--gpus", "2", "--repeat", "8", limit=180)
    verdict = found["verdict"]
    expect(isinstance(verdict["shown"], bool) and 0 < verdict["p"] <= 1 and verdict["detectable"] > 0, verdict, result)


@cases([("trace", ["--trace", "t.json"]), ("save", ["--mode", "ring", "--save", "s.safetensors"]), ("rendezvous", ["--mode", "ring", "--rendezvous", "env://"])])
def what_runs_would_write_over_each_other_is_refused(words):
    result = harness(*LENET, *words, "--repeat", "2")
    expect_equal(result.code, 64, "exit code", result)
    expect(f"--repeat: expected 1 with {words[-2]}, got 2" in result.err, "message", result)


main()
