"""What a run reports: the JSON and its document, the text report, figures that must fit together."""
import json
import os
import re
import tempfile

from anatomy import shifted_clock
from program import harness, in_ns
from results import seal
from tap import Skip, cases, expect, expect_equal, main, more_cases, more_test, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
ALONE = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "8", "--steps", "14", "--threads", "1"]
BOTH = [*ALONE, "--gpus", "2"]
WINE = ["--model", "wine_mlp", "--data", "wine", "--steps", "20", "--gpus", "2"]


# ---- the document ------------------------------------------------------------------------------

def tables(path):
    """{heading: {key: the rest of its row}} of a document's tables."""
    found, heading = {}, ""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        for line in file:
            if line.startswith("## "):
                heading = line[3:].strip()
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|") or cells[0] in ("key", "class", "---", "figure"):
                continue
            for key in cells[0].split(", "):
                found.setdefault(heading, {})[key] = " | ".join(cells[1:])
    return found


DOCUMENT = tables("docs/results.md")
STATISTICS = {"count", "kept", "minimum_s", "p25_s", "median_s", "p75_s", "p95_s", "maximum_s", "mean_s", "spread"}
LEDGER_CLASSES = set(tables("docs/measuring.md")["Memory"])
with open(os.path.join(ROOT, "docs/measuring.md"), encoding="utf-8") as text:
    PHASES = set(re.findall(r"`(\w+)`", text.read()))
SECTIONS = {"jobs": "A job", "ranks": "A rank"}
OPTIONAL = {"agreement", "profile", "simulated_ranks", "prediction", "host_costs", "pipeline", "remote_stage", "of_rank", "stage", "without_python",
            "next"}


def undocumented_within(value, row, path):
    """The keys below a key that are documented: in backticks in its row, or of a family that the document names."""
    if isinstance(value, list):
        return [bad for item in value for bad in undocumented_within(item, row, path)]
    if not isinstance(value, dict):
        return []
    known = set(re.findall(r"`(\w+)`", row))
    if "statistics" in row:
        known |= STATISTICS
    if "ledger" in row:
        known |= LEDGER_CLASSES | PHASES
    free = "name to " in row  # names of libraries, options
    bad = [] if free else [f"{path}.{key}" for key in value if key not in known]
    return bad + [b for key, inner in value.items() for b in undocumented_within(inner, row, f"{path}.{key}")]


def undocumented(value, section):
    rows = DOCUMENT[section]
    bad = [f"{section}: {key}" for key in value if key not in rows]
    bad += [f"{section}: {key} is in the document alone" for key in set(rows) - set(value) - OPTIONAL]
    for key, inner in value.items():
        if key in SECTIONS:
            bad += [b for item in inner for b in undocumented(item, SECTIONS[key])]
        else:
            bad += undocumented_within(inner, rows.get(key, ""), f"{section}: {key}")
    return bad


@cases([("both", BOTH + ["--eval-every", "7"]), ("one engine", BOTH + ["--mode", "ring"]),
        ("nothing measured", WINE + ["--steps", "0"])])
def every_key_of_the_results_is_documented_and_every_documented_key_is_there(words):
    result = harness(*words, "--json", "-", "--quiet")
    expect_equal(result.code, 0, "exit code", result)
    bad = sorted(set(undocumented(result.json(), "The run")))
    expect(not bad, *bad)


# ---- stdout and stderr -------------------------------------------------------------------------

@test
def results_on_stdout_are_the_only_output():
    result = harness(*WINE, "--json", "-")
    expect_equal((result.out[0], result.out.rstrip()[-1]), ("{", "}"), "first and last character", result)
    expect_equal(result.json()["schema_version"], 5, "schema_version")
    expect_equal(result.lines(), [], "stderr but for the line on hardware", result)


@test
def the_first_line_names_the_hardware():
    result = harness("--mode", "ring", "--gpus", "8", "--model", "toy", "--steps", "3")
    first = result.err.splitlines()[0]
    for part in ("no CUDA device found", "8 cpu ranks", "processor"):
        expect(part in first, f"expected {part!r} in the first line", result)


IMPLEMENTATION = "the cost of the implementation, not of the scheme on separate devices"


@more_cases([("a rank per core", 1, False), ("more ranks than cores", 8, True)])
def a_run_with_more_ranks_than_cores_says_what_it_shows(ranks, crowded):
    one = {min(os.sched_getaffinity(0))} if crowded else os.sched_getaffinity(0)
    result = harness(*WINE, "--verbose", "--gpus", ranks, preexec_fn=lambda: os.sched_setaffinity(0, one))
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(IMPLEMENTATION in result.err.splitlines()[0], crowded, "the first line", result)
    row = next(line for line in result.out.splitlines() if line.startswith("speed-up over none"))
    below = " ".join(result.out[result.out.index(row):].split())
    expect_equal(IMPLEMENTATION in below, crowded, "below the row of the speed-up", result)


@cases([("one core", 1), ("all", None)])
def without_gpus_there_is_a_rank_per_core(processors):
    mine = sorted(os.sched_getaffinity(0))[:processors]
    job = harness("--mode", "ring", "--model", "toy", "--steps", "2", "--json", "-",
                  preexec_fn=lambda: os.sched_setaffinity(0, mine)).jobs()["ring"]
    cores = set()
    for p in mine:
        try:
            with open(f"/sys/devices/system/cpu/cpu{p}/topology/thread_siblings_list", encoding="ascii") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(p)
    expect(job["world_size"] <= min(len(cores), 64), f"{job['world_size']} ranks on {len(cores)} cores")
    expect(job["world_size"] >= 1 and (job["world_size"] == len(cores) or len(cores) > 2), "a rank per core")


@cases([("virtual time", ["--device", "sim"], 2)])
def the_number_of_ranks_in_virtual_time_does_not_depend_on_the_machine(words, ranks):
    expect_equal(harness("--mode", "ring", "--model", "toy", "--steps", "2", *words, "--json", "-").jobs()["ring"]["world_size"], ranks, "ranks")


@test
def a_model_given_or_by_default_is_the_same_workload():
    plans = [harness(*words, "--plan", "--json", "-").json() for words in
             ([], ["--model", "resnet18"], ["--data", "synthetic"], ["--model", "resnet18", "--data", "synthetic"])]
    expect_equal(plans[1:], plans[:1] * 3, "plans")
    expect_equal([plans[0][key] for key in ("model", "input", "classes", "parameters")],
                 ["resnet18", "images of 3x32x32 with 1000 classes", 1000, 11689512], "the workload")
    listed = next(line.split() for line in harness("models").out.splitlines() if line.startswith("resnet18 "))
    expect_equal(int(listed[1]), plans[0]["parameters"], "parameters as `harness models` lists them")
    small = harness("--data", "synthetic:3x32x32:10", "--plan", "--json", "-").json()
    expect_equal([small[key] for key in ("input", "classes", "parameters")], ["images of 3x32x32 with 10 classes", 10, 11181642],
                 "with data of a shape")


VIRTUAL = ["--device", "sim", "--gpus", "2", "--batch", "4", "--steps", "1"]
RESNET = "resnet18: images of 3x224x224 with 1000 classes, 11689512 parameters, synthetic, "
WORKLOAD_END = "batch 4 per rank, sgd, float32, seed 1"
BERT = "bert: sequences of 128 tokens out of 8192, 5462784 parameters, synthetic, 2 sim ranks, batch 4 per rank"


@cases([("a run", ["run", *VIRTUAL], RESNET + "2 sim ranks, batch 4 per rank; dp: nccl; all-reduce: "),
        ("its tables", ["run", "-v", *VIRTUAL], RESNET + WORKLOAD_END),
        ("its plan", ["run", *VIRTUAL, "--plan"], RESNET + WORKLOAD_END),
        ("whatif", ["whatif", "--gpus", "2", "--batch", "4"], RESNET + WORKLOAD_END),
        ("tokens", ["run", *VIRTUAL, "--model", "bert"], BERT),
        ("features", ["run", *WINE, "--gpus", "2"], "wine_mlp: 13 features with 3 classes, 1091 parameters, wine, ")])
def the_first_line_states_the_model_its_input_classes_and_parameters(words, line):
    result = harness(*words)
    expect_equal(result.code, 0, "exit code", result)
    shown = result.out.replace("\n  ", " ")
    expect(shown.startswith(line) or f"\n\n{line}" in shown, f"expected {line!r} at the begin of the tables", result)


@test
def quiet_means_an_empty_stderr():
    expect_equal(harness(*WINE, "--quiet").err, "", "stderr")


ROWS = ["ranks", "threads per rank", "batch per rank", "trained steps", "measured steps", "step time, mean", "median", "p95", "spread (p75-p25)/median", "forward", "backward",
        "exposed communication", "waiting for other ranks", "optimizer", "samples/s, all ranks", "per rank", "speed-up over none",
        "weak-scaling efficiency", "efficiency per core", "speed-up over none (all cores)", "bytes sent per step, max", "bytes received per step, max",
        "peak memory, max over ranks", "memory imbalance, max/mean", "memory imbalance, max-min", "loss, first measured step",
        "last step", "accuracy on the test data"]


@test
def the_report_shows_every_figure_side_by_side():
    result = harness(*WINE, "--gpus", "3", "--verbose")
    lines = result.out.splitlines()
    head = next((i for i, line in enumerate(lines) if line.split() == ["none", "none", "none", "ps", "ring"]), None)
    expect(head is not None, "column heads", result)
    expect_equal(re.split("  +", lines[head + 1].strip()), ["all cores", "isolated", "dp", "ddp"], "policies below", result)
    for row in ROWS:
        found = [line for line in lines if line.strip().startswith(row + " ")]
        expect(found, f"no row {row!r}", result)
        expect("nan" not in found[0] and "inf" not in found[0], f"row {row!r} has a figure that is none", result)
    for job in ("none", "none (all cores)", "none (isolated)", "ps (dp)", "ring (ddp)"):
        expect(f"Memory of {job}, " in result.out, f"no memory table of {job}", result)
    expect_equal(result.out.count("Memory imbalance: max/mean "), 5, "summaries of memory", result)
    expect("bit-identical" in result.out or "largest difference" in result.out, "no agreement of the engines", result)


@cases([("one step", "1", True), ("two steps", "2", False)])
def a_single_step_has_no_spread(steps, single):
    result = harness("--mode", "none", "--model", "toy", "--data", "synthetic", "--steps", steps, "--warmup", "0", "--json", "-")
    expect_equal(result.jobs()["none"]["step_time"]["spread"] is None, single, "no spread", result)


@test
def the_report_shows_what_the_results_say():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r.json")
        result = harness(*WINE, "--json", path, "--verbose")
        with open(path, encoding="utf-8") as file:
            result_json = json.load(file)
    for job in result_json["jobs"]:
        accuracy = [f"{100 * job['accuracy']:.1f} %"] if job["name"] != "isolated" else []
        for text in (f"{job['loss_last']:.4f}", *accuracy, str(job["step_time"]["count"])):
            expect(text in result.out, f"{job['engine']}: {text} is not in the report", result)
    expect(result_json["agreement"]["hash_ps"] in result.out, "hash in the report", result)


# ---- figures that fit together -----------------------------------------------------------------

@cases([("2 ranks", 2, True), ("3 ranks", 3, None), ("8 ranks", 8, None)], at_check=1)
def engines_agree_side_by_side(ranks, same_bits):
    result = harness(*BOTH, "--gpus", ranks, "--json", "-", limit=120)
    data = result.json()
    ps, ring = result.jobs()["ps"], result.jobs()["ring"]
    agreement = data["agreement"]
    if same_bits:
        expect(agreement["parameters_equal"], "2 ranks are bit-identical", agreement)
    expect(agreement["parameters_equal"] == (ps["parameter_hash"] == ring["parameter_hash"]), agreement)
    expect(agreement["largest_difference"] < 1e-5, "differences are of rounding", agreement)
    expect(abs(ps["losses"][0] - ring["losses"][0]) < 1e-6, "first losses", ps["losses"][0], ring["losses"][0])
    expect_equal([ps["world_size"], ring["world_size"], result.jobs()["none"]["world_size"]], [ranks, ranks, 1], "ranks")


@cases([("2 ranks", ["--gpus", "2"], True), ("4 ranks", ["--gpus", "4"], False),
        ("3 ranks, sync", ["--gpus", "3", "--policy", "ps=sync"], False),
        ("3 ranks, rank order", ["--gpus", "3", "--policy", "ps=sync", "--algorithm", "two-shot", "--divide", "after"], True),
        ("servers, ssp", ["--gpus", "3", "--policy", "ps=ssp", "--servers", "2"], False),
        ("accumulation", ["--gpus", "2", "--accumulate", "2"], True)], at_check=1)
def averaged_gradients_of_the_first_step_differ_at_most_by_the_order_of_sums(words, same_bits):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r.json")
        result = harness(*BOTH, *words, "--json", path, "--verbose", limit=120)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)["agreement"]["first_gradient"]
    expect(found["compared"] and found["within_bound"], "the engines disagree", found)
    expect_equal(found["bit_identical"], same_bits, "bit-identical", found)
    expect(0 <= found["largest_share_of_bound"] <= 1 and (found["largest_share_of_bound"] == 0) == same_bits, "share", found)
    expect_equal(found["bound"], "2 n 2^-24 sum|g| / n" if "3" in words else "2 (n - 1) 2^-24 sum|g| / n", "bound")
    line = "first step: bit-identical" if same_bits else "the same but for the order of sums"
    expect(line in " ".join(result.out.split()), "the report does not say it", result)


@test
def gradients_that_differ_by_more_are_reported_as_different():
    found = harness(*WINE, "--json", "-").json()
    for share, shown in ((3.25, "3.25 times the bound"), (None, "beyond any multiple of the bound")):
        found["agreement"]["first_gradient"].update(bit_identical=False, within_bound=False, largest_share_of_bound=share,
                                                    largest_difference=share, largest_share_in="net1.weight")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "r.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(seal(found), file)
            result = harness("report", path, "--verbose")
        text = " ".join(result.out.split())
        expect("DIFFERENT first gradients of ps and ring, by more than orders of sums" in text, "the verdict", result)
        expect(f"DIFFERENT by more than orders of sums can be; largest difference {shown} 2 (n - 1) 2^-24 sum|g| / n, in net1.weight." in text,
               "the tables", result)


@more_cases([("a hook", ["--comm-hook", "fp16"], "--comm-hook"), ("no warm-up", ["--warmup", "0"], "--warmup 0"),
        ("async", ["--policy", "ps=async"], "no averages"), ("one loss of three ranks", ["--gpus", "3"], "divides the loss")])
def gradients_that_cannot_be_compared_have_a_reason(words, part):
    result = harness(*BOTH, *words, "--json", "-")
    found = result.json()["agreement"]["first_gradient"]
    expect(not found["compared"] and part in found["reason"], "reason", found)


@more_cases([("ring, ps in shared memory", [], "ring", "shm", "ipc"),
        ("two-shot, ps in messages over tcp", ["--algorithm", "two-shot", "--payload", "zmq", "--transport", "tcp"], "two-shot", "zmq",
         "tcp")])
def reports_and_figures_name_algorithm_and_transport(words, algorithm, payload, transport):
    with tempfile.TemporaryDirectory() as folder:
        path, trace, page, figures = (os.path.join(folder, name) for name in ("r.json", "t.json", "page.html", "figures"))
        result = harness(*WINE, *words, "--json", path, "--trace", trace, "--verbose")
        with open(path, encoding="utf-8") as file:
            found = json.load(file)["jobs"]
        jobs = {job["engine"]: (job["collective"], job["algorithm"]) for job in found}
        ways = {job["engine"]: (job["payload"], job["transport"]) for job in found}
        harness("report", path, "-o", page)
        harness("report", path, "--svg", figures)
        drawn = {}
        for name in ("page.html", *(os.path.join("figures", svg) for svg in os.listdir(figures))):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                drawn[name] = file.read()
        with open(trace, encoding="utf-8") as file:
            about = json.load(file)["otherData"]
    expect_equal(jobs, {"none": (None, None), "ps": (None, None), "ring": ("shm", algorithm)}, "of the jobs")
    expect_equal((about["collective"], about["algorithm"]), ("shm", algorithm), "of the trace")
    expect_equal(ways, {"none": (None, None), "ps": (payload, transport), "ring": (None, None)}, "of the parameter server")
    expect(re.search(rf"^ring \(ddp\): {algorithm} 1 call of \S+ KiB per step, shm\.$", result.out, re.M), "the report does not say it", result)
    expect(f"ps (dp): {payload}, messages over {transport}." in result.out, "the report does not say it", result)
    expect(len(drawn) > 5, f"figures: {sorted(drawn)}")
    for name, text in drawn.items():
        for job in (f"ring (ddp): {algorithm} all-reduce, shm", f"ps (dp): {payload}, messages over {transport}"):
            expect(job in text.split("</desc>", 1)[1], f"{name} does not show '{job}'")


@more_test
def time_spent_on_a_late_rank_is_waiting_and_not_communication():
    job = harness("run", *BOTH, "--mode", "ring", "--slow", "1:150", "--warmup", "1", "--steps", "6", "--json", "-").jobs()["ring"]
    first, late = (sum(rank["waiting_s"]) for rank in job["ranks"])
    exposed = sum(job["ranks"][0]["exposed_communication_s"])
    expect(first > 2 * exposed and first > 2 * late, f"rank 0 waits {first} s for the others, exposed {exposed} s; rank 1 {late} s")


@cases([("none", ["--mode", "none"]), ("ring", ["--mode", "ring", "--gpus", "2"]), ("ps", ["--mode", "ps", "--gpus", "2"]),
        ("virtual time", ["--mode", "ring", "--gpus", "2", "--device", "sim:v100-pcie-10gbe"])])
def a_step_begins_when_the_previous_one_ends(words):
    job, = harness("run", "--model", "lenet", "--batch", "8", "--steps", "14", *words, "--json", "-").jobs().values()
    for rank in job["ranks"]:
        ends, steps = in_ns(rank["step_end_s"]), in_ns(rank["step_s"])
        gaps = [end - step - before for before, end, step in zip(ends, ends[1:], steps[1:])]
        expect_equal(gaps, [0] * (len(steps) - 1), f"rank {rank['rank']}: ns between two steps")
        expect_equal(in_ns(rank["wall_s"]), sum(steps), f"rank {rank['rank']}: wall time")


def segments(job):
    """Parts of the run between which no rank paused, as indices of the first and last measured step."""
    ranks = job["ranks"]
    count = min(rank["measured_steps"] for rank in ranks)
    breaks = [i for i in range(1, count) if any(rank["step_begin_s"][i] != rank["step_end_s"][i - 1] for rank in ranks)]
    return list(zip([0] + breaks, [i - 1 for i in breaks] + [count - 1]))


@cases([("side by side", ["--policy", "ps=dp"]), ("sync, with evaluations", ["--mode", "ps", "--policy", "sync", "--eval-every", "3"]),
        ("ring, and a late rank", ["--mode", "ring", "--slow", "1:4"]),
        ("virtual time", ["--policy", "sync", "--device", "sim:v100-pcie-10gbe", "--jitter", "3"])], at_check=2)
def the_steps_of_a_job_sum_to_its_wall_time_and_samples_per_second_follow(words):
    for name, job in harness(*BOTH[:-4], "--gpus", "2", *words, "--json", "-").jobs().items():
        if name == "isolated":  # Its ranks do not wait for each other.
            continue
        begins, ends = ([in_ns(rank[key]) for rank in job["ranks"]] for key in ("step_begin_s", "step_end_s"))
        steps = in_ns(job["step_s"])
        for first, last in segments(job):
            latest = [max(begin[first] for begin in begins)] + [max(end[i] for end in ends) for i in range(first, last + 1)]
            expect_equal(steps[first:last + 1], [b - a for a, b in zip(latest, latest[1:])], f"{name}: steps from {first} on")
        rate = job["throughput"]
        expect_equal(in_ns(rate["wall_s"]), sum(steps), f"{name}: wall time")
        expect_equal((rate["over"], rate["samples"]), ("steps", sum(rank["samples"] for rank in job["ranks"])), name)
        expect(abs(rate["samples_per_s"] * rate["wall_s"] - rate["samples"]) < 1e-6 * rate["samples"], f"{name}: samples/s")
        expect(abs(job["step_time"]["mean_s"] * len(steps) - rate["wall_s"]) < 1e-6 * rate["wall_s"], f"{name}: mean step")


@test
def the_report_shows_as_many_samples_per_second_as_steps():
    lines = harness(*BOTH, "--verbose").out.splitlines()
    units = {"s": 1, "ms": 1e-3, "us": 1e-6}

    def row(label):
        return re.findall(r"([\d.]+)(?: (s|ms|us))?\b", next(line for line in lines if line.strip().startswith(label + " "))[30:])

    steps = [float(number) * units[unit] for number, unit in row("step time, mean")]
    rates = [float(number) for number, _ in row("samples/s, all ranks")]
    for step, rate, samples in list(zip(steps, rates, (8, 16, 0, 16, 16)))[:2] + list(zip(steps, rates, (8, 16, 0, 16, 16)))[3:]:
        expect(abs(step * rate / samples - 1) < 0.02, f"{rate} samples/s, but {samples} samples in {step} s", *lines[:30])


@more_cases([("async", ["--policy", "async"]), ("ssp", ["--policy", "ssp", "--staleness", "2"])])
def without_synchronous_steps_samples_count_while_all_ranks_train(words):
    job = harness(*ALONE, "--mode", "ps", *words, "--gpus", "3", "--batch", "32", "--slow", "1:40", "--steps", "15", "--json", "-").jobs()["ps"]
    (first, last), = segments(job)
    begin = max(in_ns(rank["step_begin_s"][first]) for rank in job["ranks"])
    end = min(in_ns(rank["step_end_s"][last]) for rank in job["ranks"])
    if end <= begin:
        raise Skip("neighbors kept a rank from training while the others did")
    samples = 0
    for rank in job["ranks"]:
        for b, e, count in zip(in_ns(rank["step_begin_s"]), in_ns(rank["step_end_s"]), rank["step_samples"]):
            samples += count * max(0, min(e, end) - max(b, begin)) / (e - b)
    rate = job["throughput"]
    expect_equal((in_ns(rate["wall_s"]), rate["over"]), (end - begin, "time in which all ranks train"), "the window")
    expect(abs(rate["samples"] - samples) < 1e-6 * samples, f"{rate['samples']} samples, expected {samples}")
    slowest = max(rank["wall_s"] for rank in job["ranks"])
    of_all = sum(rank["samples"] for rank in job["ranks"]) / slowest
    expect(words[1] != "async" or rate["samples_per_s"] > 1.5 * of_all,
           f"{rate['samples_per_s']} samples/s, with the time in which the late rank trains alone {of_all}")


@test
def the_report_says_how_samples_are_counted_without_synchronous_steps():
    line = "of the time in which all its ranks train"
    words = [*ALONE, "--gpus", "2", "--mode", "ps", "--quiet", "--verbose"]
    expect(f"samples/s of ps (async): {line}." in harness(*words, "--policy", "async").out, "a note on async")
    expect(line not in harness(*words, "--policy", "sync").out, "a note on sync")


@cases([("one clock", 0), ("a clock that is 50 ms ahead", 50_000_000), ("a clock that is an hour ahead", 3_600_000_000_000)])
def clocks_of_ranks_are_aligned_where_they_differ(shift):
    env = shifted_clock(shift)
    words = [*ALONE, "--gpus", "2", "--mode", "ps", "--policy", "sync", "--verbose"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r.json")
        result = harness(*words, "--json", path, env=env)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            job, = json.load(file)["jobs"]
    clock = job["ranks"][1]["clock"]
    expect_equal(clock["aligned"], shift > 0, "aligned", clock)
    expect(abs(in_ns(clock["offset_s"]) - shift) <= in_ns(clock["error_s"]), f"an offset of {shift} ns", clock)
    for note in ("the ranks' clocks are aligned to rank 0's by exchanged messages, within",
                 "Waiting of ps (sync): until a message was sent, on clocks within"):
        expect_equal(note in " ".join(result.out.split()), shift > 0, note, result)
    # Each rank ends its step after the other rank has begun the same step, since each needs the other's gradients.
    for mine, other in (job["ranks"], job["ranks"][::-1]):
        for begin, end in zip(other["step_begin_s"], mine["step_end_s"]):
            expect(end > begin - 2 * clock["error_s"], f"a step ends at {end} s, before the other rank's begins at {begin} s", clock)


@more_cases([("no evaluations", []), ("evaluations at the end of blocks", ["--eval-every", "3"])])
def the_wall_time_includes_every_measured_step(words):
    for job in harness(*BOTH, *words, "--json", "-").jobs().values():
        for rank in job["ranks"]:
            wall, steps = in_ns(rank["wall_s"]), sum(in_ns(rank["step_s"]))
            expect(wall >= steps, f"{job['engine']}: {wall} ns for steps of {steps} ns")


@cases([("alone", ["--mode", "ps"], list(range(5, 19))), ("side by side", [],
        [i for i in range(5, 24) if (i - 5) % 4 != 0])])
def the_first_step_of_a_turn_is_not_measured(words, expected):
    for name, job in harness(*BOTH, *words, "--json", "-").jobs().items():
        for rank in job["ranks"]:
            expect_equal(rank["step_index"], expected, name)
        expect_equal((job["steps"], job["trained_steps"], job["warmup_steps"]), (expected[-1] + 1, expected[-1] + 1, 5), name)


@cases([(f"{name}, {steps} steps", words, steps) for steps in (1, 7, 20) for name, words in (
    ("none", ["--mode", "none"]), ("ps", ["--mode", "ps", "--gpus", "2"]), ("ring", ["--mode", "ring", "--gpus", "2"]),
    ("both", ["--gpus", "2"]), ("virtual time", ["--gpus", "2", "--device", "sim:cpu"]))], at_check=5, at_more=10)
def as_many_steps_are_measured_as_asked_for(words, steps):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r.json")
        result = harness("--model", "lenet", "--data", "synthetic", "--batch", "4", "--warmup", "3", "--steps", steps, *words,
                         "--json", path, "--verbose")
        with open(path, encoding="utf-8") as file:
            jobs = json.load(file)["jobs"]
    for job in jobs:
        expect_equal((job["warmup_steps"], job["step_time"]["count"]), (3, steps), job["name"])
        expect_equal({rank["measured_steps"] for rank in job["ranks"]}, {steps}, job["name"])
        expect(job["trained_steps"] >= 3 + steps, f"{job['name']}: trained steps", result)
    for row, wanted in (("trained steps", [job["trained_steps"] for job in jobs]), ("measured steps", [steps] * len(jobs))):
        shown = next(line for line in result.out.splitlines() if line.startswith(row + " "))
        expect_equal([int(cell) for cell in shown.split()[2:]], wanted, row, result)


@cases([("distributed", []), ("global", ["--sampler", "global"])])
def every_batch_of_synthetic_data_is_full(words):
    result = harness("--model", "toy", "--data", "synthetic", "--batch", "333", "--epochs", "1", "--gpus", "2", "--threads", "1",
                     "--eval-every", "-1", *words, "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    for name, job in result.jobs().items():
        batch = 666 if name == "all-cores" else 333
        if name == "isolated":  # It has few steps.
            continue
        expect_equal(job["steps"], 50000 // (batch * job["world_size"]), f"{name}: steps of an epoch")
        expect_equal(job["throughput"]["samples"], job["step_time"]["count"] * batch * job["world_size"], f"{name}: samples")


@test
def synthetic_batches_can_not_be_cut_short():
    result = harness("--model", "toy", "--data", "synthetic", "--no-drop-last")
    expect_equal(result.code, 64, "exit code", result)
    expect("--no-drop-last: expected a data set of files" in result.err, result)


@cases([("2 ranks", 2), ("4 ranks", 4)], at_check=1)
def traffic_is_what_the_algorithms_move(ranks):
    model = 4 * 61706
    # The server in rank 0 sends (n-1) P and receives as much; a worker sends P. In a ring every rank sends 2 (n-1)/n
    # P.
    expected = {"none": [0] * ranks, "ps": [(ranks - 1) * model] + [model] * (ranks - 1),
                "ring": [2 * (ranks - 1) / ranks * model] * ranks}
    for engine, wanted_per_rank in expected.items():  # The engine runs alone, since each turn of a job has two ends.
        more = {"none": [], "ring": ["--gpus", ranks], "ps": ["--gpus", ranks, "--policy", "ps=sync"]}[engine]
        job = harness(*ALONE, "--steps", "60", "--mode", engine, *more, "--json", "-").jobs()[engine]
        for row, wanted in zip(job["traffic"]["per_rank"], wanted_per_rank):
            for key in ("bytes_sent_per_step", "bytes_received_per_step"):
                # Chunks of a ring are no equal parts, and a step in flight at an end of the measurement is not counted.
                expect(abs(row[key] - wanted) <= 0.04 * wanted, f"{engine} {key}: found {row[key]}, expected {wanted}")


@cases([(f"{ranks} ranks, {label}", ranks, words, partitions) for ranks in (2, 3) for label, words, partitions in (
    ("617 partitions", ["--model", "lenet", "--threads", "1", "--eval-every", "-1"], ["--partition-bytes", "400"]),
    ("44.7 MB of parameters in virtual time", ["--model", "resnet18", "--device", "sim"], []))], at_check=1)
def one_server_per_rank_has_the_traffic_of_the_ring(ranks, words, partitions):
    words = [*words, "--data", "synthetic", "--batch", "2", "--gpus", ranks, "--steps", "60", "--json", "-"]
    ring = harness(*words, "--mode", "ring", limit=180).jobs()["ring"]["traffic"]["per_rank"]
    ps = harness(*words, "--mode", "ps", "--policy", "sync", "--servers", ranks, *partitions, limit=180).jobs()["ps"]["traffic"]["per_rank"]
    for key in ("bytes_sent_per_step", "bytes_received_per_step"):
        wanted = sum(row[key] for row in ring) / ranks
        for rank, row in enumerate(ps):
            expect(abs(row[key] - wanted) <= 0.02 * wanted, f"rank {rank} {key}: found {row[key]}, the ring's {wanted}")


@cases([("2 ranks", 2), ("4 ranks", 4)])
def traffic_of_dp_goes_through_rank_0(ranks):
    job = harness(*BOTH, "--mode", "ps", "--gpus", ranks, "--json", "-").jobs()["ps"]
    model, inputs, outputs = 4 * 61706, 8 * 28 * 28 * 4, 8 * 10 * 4
    to_rank, to_root = model + inputs + outputs, model + outputs  # parameters, inputs, gradient; outputs, gradients
    for rank, row in enumerate(job["traffic"]["per_rank"]):
        times = ranks - 1 if rank == 0 else 1
        sent, received = (to_rank, to_root) if rank == 0 else (to_root, to_rank)
        expect_equal((row["bytes_sent_per_step"], row["bytes_received_per_step"]), (times * sent, times * received), f"rank {rank}")


@test
def the_memory_of_dp_follows_the_formula():
    result = harness(*BOTH, "--mode", "ps", "--gpus", "3", "--optimizer", "adam", "--json", "-")
    memory = result.jobs()["ps"]["dataparallel_memory"]
    expect_equal((memory["parameters_bytes"], memory["optimizer_state_bytes"]), (4 * 61706, 8 * 61706), "P and S")
    expect_equal(len(memory["phases"]), 7, "phases")
    for phase in memory["phases"]:
        expect_equal(phase["device0_bytes"] - phase["other_bytes"], phase["difference_bytes"], phase["phase"])
        expect_equal(phase["difference_bytes"], phase["formula_bytes"], phase["phase"])


@test
def staleness_is_counted_where_reads_can_be_stale():
    for policy, largest in (("sync", 0), ("ssp", 3)):
        job = harness(*BOTH, "--mode", "ps", "--policy", policy, "--gpus", "3", "--json", "-").jobs()["ps"]
        for rank in job["ranks"]:
            stale = rank["staleness"]
            expect_equal(sum(stale["histogram"]), stale["reads"], policy)
            expect(stale["reads"] > 0 and stale["largest"] <= largest, policy, str(stale))


@test
def memory_equals_the_need_of_the_model():
    jobs = harness(*BOTH, "--gpus", "4", "--optimizer", "adam", "--policy", "ps=sync", "--json", "-").jobs()
    model = 4 * 61706
    for engine, job in jobs.items():
        peaks = [rank["memory"]["total"]["peak_bytes"] for rank in job["ranks"]]
        summary = job["memory_imbalance"]
        expect_equal(summary["maximum_bytes"], max(peaks), engine)
        expect_equal(summary["maximum_minus_minimum_bytes"], max(peaks) - min(peaks), engine)
        expect(abs(summary["maximum_over_mean"] - max(peaks) * len(peaks) / sum(peaks)) < 1e-12, engine)
        for rank in job["ranks"]:
            classes = rank["memory"]["classes"]
            own = classes["parameters"]["peak_bytes"] + classes["replicas"]["peak_bytes"]
            expect_equal(own, model, f"{engine} rank {rank['rank']}: parameters")
            expect_equal(classes["gradients"]["peak_bytes"], model, f"{engine} rank {rank['rank']}: gradients")
            expect_equal(sum(rank["memory"]["peak_classes"].values()), rank["memory"]["total"]["peak_bytes"], engine)
        states = [rank["memory"]["classes"]["optimizer_state"]["peak_bytes"] for rank in job["ranks"]]
        expect_equal(states, [2 * model] + [0] * 3 if engine == "ps" else [2 * model] * len(peaks), f"{engine}: Adam's state")


@test
def efficiency_follows_from_throughput():
    result = harness(*WINE, "--json", "-")
    comparison, jobs = result.json()["comparison"], result.jobs()
    rate = {name: job["throughput"]["samples_per_s"] for name, job in jobs.items()}
    for base, rows in (("none", comparison["against_none"]), ("all-cores", comparison["against_all_cores"])):
        expect_equal([row["name"] for row in rows], list(jobs), f"jobs against {base}")
        for row in rows:
            if rate[row["name"]] is None:  # Isolated ranks that never trained at the same time.
                expect_equal(row["speedup"], None, "speed-up", row)
                continue
            speedup = rate[row["name"]] / rate[base]
            expect(abs(row["speedup"] - speedup) < 1e-9 * speedup, row)
            ranks = {"none": 1, "all-cores": None}.get(row["name"], 2)
            if base == "none" and ranks:
                expect(abs(row["weak_scaling_efficiency"] - speedup / ranks) < 1e-9 * speedup, row)
            elif base == "none":
                expect_equal(row["weak_scaling_efficiency"], None, "weak scaling of another batch")


@test
def efficiency_per_core_is_of_ranks_on_the_cores_of_this_machine():
    for device, known in (("reference", True), ("sim:dgx1-v100", False)):
        data = ["--model", "lenet"] if not known else WINE
        result = harness(*data, "--device", device, "--gpus", "2", "--steps", "2", "--json", "-")
        rows = result.json()["comparison"]["against_none"]
        expect_equal([row["efficiency_per_core"] is not None for row in rows], [known] * len(rows), device)


@more_test
def a_second_baseline_has_all_cores_and_the_batch_of_all_ranks():
    jobs = harness(*ALONE, "--gpus", "3", "--json", "-").jobs()
    expect_equal(list(jobs), ["none", "all-cores", "isolated", "ps", "ring"], "jobs")
    one, every = jobs["none"], jobs["all-cores"]
    cores = len(os.sched_getaffinity(0))
    for job, wanted in ((one, ("none", 1, 1, 8)), (every, ("none", 1, cores, 24)), (jobs["ring"], ("ring", 3, 1, 8))):
        expect_equal((job["engine"], job["world_size"], job["threads_per_rank"], job["batch_per_rank"]), wanted, job["name"])
    expect_equal(every["throughput"]["samples"], 14 * 24, "samples of all cores")
    # Every step has the same samples, so gradients are equal except for rounding.
    for mine, ring in zip(every["losses"], jobs["ring"]["losses"]):
        expect(abs(mine - ring) < 1e-4 * abs(ring), f"loss {mine} on all cores, {ring} on 3 ranks")


@test
def a_run_of_one_rank_that_has_all_cores_needs_no_second_baseline():
    expect_equal(list(harness(*WINE, "--gpus", "1", "--json", "-").jobs()), ["none", "ps", "ring"], "jobs")


@test
def evaluations_run_at_the_given_steps_and_at_the_end():
    for job in harness(*WINE, "--eval-every", "10", "--json", "-").jobs().values():
        if job["name"] == "isolated":
            expect_equal((job["evaluations"], job["accuracy"]), ([], None), "isolated ranks")
            continue
        expect_equal([e["step"] for e in job["evaluations"]], [10, 20, 30], job["name"])
        expect_equal({e["samples"] for e in job["evaluations"]}, {36}, job["name"])
        expect_equal(job["accuracy"], job["evaluations"][-1]["accuracy"], job["name"])


def evaluated(*words):
    return harness(*WINE, "--optimizer", "adam", "--lr", "0.01", "--eval-every", "5", *words)


@cases([("loss", "loss", 0.9, lambda e: e["loss"] <= 0.9), ("accuracy", "accuracy", 0.6, lambda e: e["accuracy"] >= 0.6)])
def a_report_has_the_training_time_to_a_target(figure, chosen, reached):
    result = evaluated("--steps", "60", f"--target-{figure}", chosen, "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    for name, job in result.jobs().items():
        if name == "isolated":
            expect_equal(job["target"][f"{figure}_s"], None, "isolated ranks are not evaluated")
            continue
        times = [e["training_s"] for e in job["evaluations"]]
        expect_equal(times, sorted(times), f"{name}: training times")
        first = next(e["training_s"] for e in job["evaluations"] if reached(e))
        other = "accuracy" if figure == "loss" else "loss"
        expect_equal(job["target"], {figure: chosen, f"{figure}_s": first, other: None, f"{other}_s": None}, name)


@test
def training_time_is_that_of_the_steps_without_evaluations():
    job = evaluated("--mode", "ring", "--warmup", "0", "--target-loss", "0.0001", "--json", "-").jobs()["ring"]
    for e in job["evaluations"]:
        longest = max(sum(in_ns(rank["step_s"][:e["step"]])) for rank in job["ranks"])
        expect(abs(in_ns(e["training_s"]) - longest) <= 1, f"after {e['step']} steps: {e['training_s']} s, steps of {longest} ns")
    expect_equal(job["target"]["loss_s"], None, "the time to a target that was not reached")


@cases([("with --eval-every", ["--eval-every", "7"], [7, 14, 21, 25]), ("20 times by default", [], [*range(2, 25, 2), 25])])
def a_target_is_looked_for_between_steps(words, steps):
    job = harness(*WINE, "--mode", "ring", "--target-accuracy", "0.5", *words, "--json", "-").jobs()["ring"]
    expect_equal([e["step"] for e in job["evaluations"]], steps, "steps")


@test
def the_report_shows_the_training_time_to_a_target():
    result = harness(*WINE, "--verbose", "--target-accuracy", "0.2", "--target-loss", "0.001", "--quiet")
    row = next(line for line in result.out.splitlines() if line.startswith("time to 20 % accuracy "))
    expect(re.search(r"\d (s|ms|us) ", row + " ") and row.split().count("-") == 1, "reached, but not by isolated ranks", result)
    row = next(line for line in result.out.splitlines() if line.startswith("time to loss 0.001 "))
    expect_equal(set(row.split()[4:]), {"-"}, "not reached", result)


main()
