"""What a run reports: the JSON and its document, the text report, traffic and memory that must fit together."""
import json
import os
import re
import tempfile

from program import harness
from results import seal
from tap import cases, expect, expect_equal, main, more_cases, test

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
    expect_equal(result.json()["schema_version"], 6, "schema_version")
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
def evaluations_run_at_the_given_steps_and_at_the_end():
    for job in harness(*WINE, "--eval-every", "10", "--json", "-").jobs().values():
        if job["name"] == "isolated":
            expect_equal((job["evaluations"], job["accuracy"]), ([], None), "isolated ranks")
            continue
        expect_equal([e["step"] for e in job["evaluations"]], [10, 20, 30], job["name"])
        expect_equal({e["samples"] for e in job["evaluations"]}, {36}, job["name"])
        expect_equal(job["accuracy"], job["evaluations"][-1]["accuracy"], job["name"])


main()
