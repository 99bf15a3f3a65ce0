"""`harness compare --why A B`: the difference of two jobs by mechanism. In each of ten pairs one cause is planted."""
import functools
import json
import os
import random
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

FOLDER = tempfile.mkdtemp()
MACHINES = ["--device", "sim:dgx-a100-80g", "--gpus", "16", "--nodes", "2"]
MS = 1000000
UNITS, PER_UNIT, ELEMENTS = 8, 4, 2 << 20  # 32 parameters of 8 MiB
PASSES = ("forward", "backward")


def segment(kernel_ns, before, after, uses, ready=()):
    return {"kernel_ns": kernel_ns, "idle_ns": 0, "live_bytes": after, "peak_bytes": max(before, after), "arithmetic": 1.0, "traffic": 0.5,
            "uses": list(uses), "ready": list(ready)}


def added_up(job):
    """The job with the sums of its segments."""
    job["parts_ns"]["forward"] = sum(s["kernel_ns"] + s["idle_ns"] for s in job["forward"] + job["loss"])
    job["parts_ns"]["backward"] = sum(s["kernel_ns"] + s["idle_ns"] for s in job["backward"])
    for name in PASSES:
        job["parts_idle_ns"][name] = sum(s["idle_ns"] for s in job[name])
    job["step_ns"] = sum(job["parts_ns"].values())
    return job


def recorded():
    """A job whose backward pass takes twice as long as its forward pass."""
    unit = 64 << 20  # activations of a unit
    params = UNITS * PER_UNIT
    forward = [segment(4 * MS, u * unit, (u + 1) * unit, range(u * PER_UNIT, (u + 1) * PER_UNIT)) for u in range(UNITS)]
    backward = [segment(2 * MS, (params - i) * unit // PER_UNIT, (params - i - 1) * unit // PER_UNIT, [params - 1 - i], [params - 1 - i]) for i in range(params)]
    none = dict.fromkeys(("data", "forward", "backward", "communication", "optimizer", "other"), 0)
    return added_up({
        "schema_version": 1, "model": "recorded", "source": {"kind": "numbers"}, "batch": 8, "step_ns": 0, "parts_ns": {**none, "optimizer": 2 * MS},
        "parts_idle_ns": dict(none), "optimizer": "adamw", "optimizer_states": 2, "gradient_type": "float32", "peak_bytes": 0, "input_elements": 1, "rows": 1,
        "classes": 1, "parameters": [{"name": f"p{i}", "shape": [ELEMENTS], "bytes": 4 * ELEMENTS, "unit": i // PER_UNIT} for i in range(params)],
        "units": [f"unit{u}" for u in range(UNITS)], "buffers": [], "forward": forward, "loss": [], "backward": backward})


def disturbed(job, seed=1):
    """The job with kernels that take up to 1 % more or less, as in another recording."""
    draw = random.Random(seed)
    for s in job["forward"] + job["backward"]:
        s["kernel_ns"] = round(s["kernel_ns"] * draw.uniform(0.99, 1.01))
    return added_up(job)


def written(name, job):
    path = os.path.join(FOLDER, name + ".json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job, file)
    return path


def result(name, *words, job=None):
    """The file of a run in virtual time."""
    path = os.path.join(FOLDER, name + ".json")
    run = harness("run", *MACHINES, "--mode", "ring", "--workload", written("job", job or recorded()), "--warmup", "2", "--steps", "3", "--quiet", *words,
                  "--json", path)
    expect_equal(run.code, 0, "exit code", run)
    return path


def explained(a, b, *words):
    """The explanation, whose parts add up."""
    run = harness("compare", "--why", "--json", "-", a, b, *(["--", *words] if words else []))
    expect_equal(run.code, 0, "exit code", run)
    found = run.json()
    for part, key in (("step_ns", "step_ns"), ("memory_bytes", "memory_bytes")):
        expect_equal(sum(row[part] for row in found["mechanisms"]), found["b_" + key] - found["a_" + key], f"sum of {part}", run)
    return found


# ---- planted causes ----------------------------------------------------------------------------------

def compiled(job):
    """All gradients are ready at the end, and both passes are one segment. The kernels are 3 % faster."""
    for name in PASSES:
        all_of = job[name]
        job[name] = [segment(round(0.97 * sum(s["kernel_ns"] for s in all_of)), 0, all_of[-1]["live_bytes"], range(len(job["parameters"])),
                             [p for s in all_of for p in s["ready"]])]
        job[name][0]["peak_bytes"] = max(s["peak_bytes"] for s in all_of)


def slow_loader(job):
    job["parts_ns"]["data"] = job["parts_idle_ns"]["data"] = 30 * MS


def busy_host(job):
    for s in job["forward"] + job["backward"]:
        s["idle_ns"] = MS


def bfloat16(job):
    job["gradient_type"] = "bfloat16"
    for param in job["parameters"]:
        param["bytes"] //= 2


def checkpointing(job):
    """A quarter of the activations is kept, and the backward pass repeats the forward pass."""
    for s in job["forward"] + job["backward"]:
        s["live_bytes"] //= 4
        s["peak_bytes"] //= 4
    for s in job["backward"]:
        s["kernel_ns"] = s["kernel_ns"] * 3 // 2


def one_unit(job):
    job["units"] = ["whole"]
    for param in job["parameters"]:
        param["unit"] = 0


def recorded_pair(change, *words, reverse=False):
    """A recording, and another recording with the cause."""
    job = disturbed(recorded(), 2)
    change(job)
    pair = [written("a", disturbed(recorded())), written("b", added_up(job))]
    return (*(pair[::-1] if reverse else pair), *MACHINES, *words)


PLANTED = [
    ("a reduction per micro-batch", "reductions", lambda: (result("a", "--accumulate", "4"), result("b", "--accumulate", "4", "--reduce-micro-batches"))),
    ("small buckets", "buckets", lambda: (result("a"), result("b", "--bucket-cap-mb", "0.01"))),
    ("a compiled graph", "readiness", lambda: recorded_pair(compiled, "--link", "5GB/s")),
    ("a slow rank", "slow rank", lambda: (result("a"), result("b", "--slow", "5:1.3"))),
    ("a slow link", "link", lambda: (result("a"), result("b", "--link", "1GB/s"))),
    ("a slow loader", "input", lambda: recorded_pair(slow_loader)),
    ("a busy host", "host", lambda: recorded_pair(busy_host)),
    ("float32 gradients instead of bfloat16", "gradients", lambda: recorded_pair(bfloat16, "--link", "2GB/s", reverse=True)),
    ("checkpointing", "checkpointing", lambda: recorded_pair(checkpointing)),
    ("one FSDP unit", "units", lambda: recorded_pair(one_unit, "--policy", "fsdp"))]


@cases(PLANTED)
def the_largest_part_is(mechanism, pair):
    found = explained(*pair())
    rows = {row["mechanism"]: row["step_ns"] for row in found["mechanisms"]}
    expect_equal(found["largest"], mechanism, "largest part", rows)
    expect_equal(max(rows, key=lambda name: abs(rows[name])), mechanism, "largest part of the step", rows)
    expect(rows[mechanism] > 0, "job B takes longer", rows)


@cases([("less memory", checkpointing, lambda a, b: a < b), ("memory of a unit", one_unit, lambda a, b: b < a)])
def the_part_of_the_memory_is_shown(change, is_shown):
    found = explained(*recorded_pair(change, "--policy", "fsdp"))
    expect(is_shown(found["b_memory_bytes"], found["a_memory_bytes"]), "memory", found)
    row = next(row for row in found["mechanisms"] if row["mechanism"] == found["largest"])
    expect_equal(row["memory_bytes"], found["b_memory_bytes"] - found["a_memory_bytes"], "memory", found)


# ---- causes in traces of PyTorch ---------------------------------------------------------------------

CAUSES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "traces", "causes")
MEASURED = {"reduction-per-micro-batch": "reductions", "small-buckets": "buckets", "compiled": "readiness", "slow-rank": "slow rank",
            "slow-link": "link", "slow-loader": "input", "float32": "gradients", "checkpointing": "checkpointing", "one-unit": "units",
            "busy-host": "kernels"}  # the trace of a CPU does not say that other processes had the processor


@functools.cache
def imported(name):
    """A workload from the traces of all recorded ranks."""
    ranks = [path for path in (os.path.join(CAUSES, f"{name}{rank}.json.gz") for rank in ("", ".rank1")) if os.path.exists(path)]
    out = os.path.join(FOLDER, name + ".workload.json")
    expect_equal(harness("import", *ranks, "-o", out).code, 0, f"exit code of import for {name}")
    return out


def traced_pair(name):
    with open(os.path.join(CAUSES, "truth.json"), encoding="utf-8") as file:
        return imported(json.load(file)["jobs"][name]["reference"]), imported(name)


@cases([(f"{name}: {mechanism}", name, mechanism) for name, mechanism in MEASURED.items()])
def the_largest_part_in_traces_of_pytorch_is(name, mechanism):
    found = explained(*traced_pair(name))
    expect_equal(found["largest"], mechanism, "largest part", found["mechanisms"])


@test
def two_recordings_of_one_job_of_pytorch_show_no_difference():
    expect(explained(*traced_pair("again"))["equal"], "a difference")


# ---- the same job, and several causes ----------------------------------------------------------------

@cases([("two files of one run", lambda: (result("a"), result("b"))), ("a recording and itself", lambda: (written("a", recorded()), written("b", recorded()))),
        ("recordings with other sources", lambda: (written("a", recorded()), written("b", {**recorded(), "model": "other", "source": {"kind": "numbers", "x": 1}}))),
        ("numbers", lambda: ("params=1M,units=2,step=10ms,peak=1GiB",) * 2)])
def two_equal_jobs_show_no_difference(pair):
    a, b = pair()
    found = explained(a, b)
    expect_equal((found["equal"], found["mechanisms"], found["largest"]), (True, [], None), "explanation")
    text = harness("compare", "--why", a, b)
    expect_equal(text.code, 0, "exit code", text)
    expect("No difference is shown" in text.out and "mechanism" not in text.out, "one line", text)


def traced(name, seed, communication=5 * MS):
    job = disturbed(recorded(), seed)
    job["source"] = {"kind": "trace", "ranks": 4}
    job["parts_ns"]["communication"] = communication
    job["peak_bytes"] = 3 << 30
    return written(name, added_up(job))


@test
def two_traces_of_one_job_show_no_difference():
    a, b = traced("a", 1), traced("b", 2)
    found = explained(a, b)
    expect(found["equal"] and found["a_step_ns"] != found["b_step_ns"], "a difference", found)
    expect("No difference is shown" in harness("compare", "--why", a, b).out, "text")


@test
def waiting_that_no_replay_has_remains_after_the_mechanisms():
    found = explained(traced("a", 1), traced("b", 2, communication=60 * MS))
    expect_equal((found["largest"], found["equal"]), ("not replayed", False), "largest part", found)
    row = found["mechanisms"][-1]
    expect("5.00 ms -> 60.0 ms" in row["differs"], "measured waiting", row)


@test
def several_causes_have_a_row_each_in_the_stated_order():
    found = explained(result("a"), result("b", "--slow", "5:1.3", "--bucket-cap-mb", "0.01", "--link", "1GB/s"))
    expect_equal([row["mechanism"] for row in found["mechanisms"]], ["buckets", "slow rank", "link"], "rows")
    expect_equal([row["differs"] for row in found["mechanisms"]],
                 ["bucket-cap-mb default -> 0.01", "slow default -> 5:1.3", "link default -> 1GB/s"], "what differs")


@test
def a_mixture_that_is_no_job_is_counted_with_the_next_row():
    found = explained(result("a", "--policy", "ddp", "--comm-hook", "fp16"), result("b", "--policy", "zero3", "--group", "8"))
    expect_equal([row["mechanism"] for row in found["mechanisms"]], ["gradients", "units", "policy"], "rows", found)
    merged = found["mechanisms"][1]
    expect_equal((merged["step_ns"], merged["memory_bytes"], merged["differs"]), (0, 0, "group default -> 8, counted with the next row"), "no part", found)


@test
def another_number_of_parameters_is_another_model():
    job = recorded()
    job["parameters"].append({"name": "more", "shape": [1], "bytes": 4, "unit": None})
    job["backward"][-1]["ready"].append(len(job["parameters"]) - 1)
    job["backward"][-1]["kernel_ns"] += 20 * MS
    found = explained(written("a", recorded()), written("b", added_up(job)))
    expect_equal([row["mechanism"] for row in found["mechanisms"]], ["kernels", "model"], "rows", found)
    expect("parameters 32 -> 33" in found["mechanisms"][1]["differs"], "words", found)


@test
def a_recording_tells_its_options():
    job = recorded()
    job["source"]["ranks"] = 8
    job["source"]["options"] = {"bucket-cap-mb": "0.01", "gpus": "8"}
    found = explained(written("a", {**recorded(), "source": {"kind": "numbers", "ranks": 8}}), written("b", job))
    expect_equal([row["differs"] for row in found["mechanisms"]], ["bucket-cap-mb default -> 0.01"], "rows", found)


@test
def the_text_names_each_mechanism_and_the_largest():
    text = harness("compare", "--why", result("a"), result("b", "--slow", "5:1.3"))
    rows = [line.split() for line in text.out.splitlines()]
    found = explained(os.path.join(FOLDER, "a.json"), os.path.join(FOLDER, "b.json"))
    row = next(row for row in rows if row[:2] == ["slow", "rank"])
    expect_equal(row[2], f"{1e-6 * found['mechanisms'][0]['step_ns']:+.3f}", "ms", text)
    expect("The largest part is slow rank." in text.out, "sentence", text)
    expect(max(map(len, text.out.splitlines()[2:])) <= 80, "80 columns", text)


# ---- wrong input -------------------------------------------------------------------------------------

def changed_result(**options):
    with open(result("a"), encoding="utf-8") as file:
        run = json.load(file)
    run["options"].update(options)
    return written("changed", run)


def measured():
    path = os.path.join(FOLDER, "measured.json")
    run = harness("run", "--model", "toy", "--mode", "ring", "--gpus", "2", "--steps", "2", "--quiet", "--json", path)
    expect_equal(run.code, 0, "exit code", run)
    return path


def broken(**fields):
    return written("broken", {**recorded(), **fields})


@cases([("a run of both engines", lambda: [changed_result(mode="both")], 78, "none, ps or ring"), ("a real run", lambda: [measured()], 78, "harness import"),
        ("an option that is a list", lambda: [changed_result(link=["1GB/s"])], 65, "options.link"),
        ("an option that there is not", lambda: [changed_result(nonsense="1")], 64, "changed.json"),
        ("an option that reads a file of options", lambda: [changed_result(config="/etc/passwd")], 65, "options.config"),
        ("a workload that is missing", lambda: [changed_result(workload="/no/job.json")], 65, "/no/job.json"),
        ("no job", lambda: [written("list", [1])], 65, "a workload"), ("no file", lambda: ["/no/file.json"], 65, "/no/file.json"),
        ("a recording whose step is wrong", lambda: [broken(step_ns=1)], 65, "step_ns"),
        ("an index that no parameter has", lambda: [broken(forward=[{**recorded()["forward"][0], "uses": [99]}])], 65, "uses"),
        ("sources whose options are no texts", lambda: [broken(source={"options": {"gpus": 8}})], 65, "options.gpus"),
        ("numbers that are wrong", lambda: ["params=1M"], 64, "units="),
        ("a file for options", lambda: [broken(), "--", "--config", "x"], 64, "--config"),
        ("an option of outputs", lambda: [broken(), "--", "--trace", "x"], 64, "--trace"),
        ("words after the files", lambda: [broken(), "more"], 64, "more"),
        ("an option without a job", lambda: [broken(), "--", "--gpus", "0"], 64, "--gpus"),
        ("a run without measured steps", lambda: [broken(), "--", "--steps", "0"], 78, "--steps")])
def what_is_wrong_is_named_in_one_line(words, code, part):
    words = words()
    run = harness("compare", "--why", written("right", recorded()), *words)
    expect_equal(run.code, code, "exit code", run)
    expect_equal(len(run.lines()), 1, "lines on stderr", run)
    expect(part in run.err, f"expected {part!r}", run)


@test
def a_recording_of_several_ranks_is_replayed_with_the_contention_that_it_contains():
    """kappa of the profile is 1.1."""
    device = ("--device", "sim:v100-pcie-32g")
    files = [written(f"of-{ranks}", {**recorded(), "source": {"kind": "trace", "ranks": ranks}}) for ranks in (1, 4)]
    found = explained(*files, *device, "--gpus", "4")
    expect(1.05 < found["a_step_ns"] / found["b_step_ns"] < 1.1, "one rank and four", found)
    expect_equal([(row["mechanism"], row["differs"]) for row in found["mechanisms"]], [("machines", "ranks 1 -> 4, gpus 1 -> 4")], "mechanisms")
    run = harness("run", *device, "--mode", "ring", "--gpus", "4", "--workload", files[1], "--warmup", "2", "--steps", "3", "--quiet", "--json", "-").json()
    expect(abs(1e9 * run["jobs"][0]["step_time"]["median_s"] - found["b_step_ns"]) < 1, "the step of a run", found)


@cases([("builds", ["--builds"], "--builds"), ("a limit", ["--fail-above", "5%"], "--fail-above"), ("a folder", ["-o", "x"], "--out")])
def options_of_other_comparisons_are_refused(words, part):
    path = written("right", recorded())
    run = harness("compare", "--why", path, path, *words)
    expect_equal((run.code, len(run.lines())), (64, 1), "exit code and lines", run)
    expect(part in run.err, f"expected {part!r}", run)


main()
