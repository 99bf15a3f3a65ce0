"""A run of any length keeps its results in bounded memory and delivers them soon after its last step."""
import csv
import itertools
import json
import os
import re
import statistics
import tempfile
import time

import jsonschema

from anatomy import PARTS
from program import SLOWER, harness, in_ns
from tap import cases, expect, expect_equal, long_cases, main, more_cases, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
WINE = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--quiet"]
KEPT = 4096
MOST_BYTES, MOST_GROWTH = 2_000_000, 5_000_000  # Of a rank's JSON; and of its memory after the first thousands of steps.
AFTER_LAST_STEP_S = 2
NONE, RING = ["--mode", "none"], ["--mode", "ring", "--gpus", "2"]
SYNC, ASYNC = (["--mode", "ps", "--policy", f"ps={policy}", "--gpus", "2"] for policy in ("sync", "async"))


def long_run(words, steps):
    """The job, the bytes of the result, and the seconds from the last step to the end of the program."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        result = harness(*words, *WINE, "--steps", str(steps), "--json", path, limit=1200)
        end = time.monotonic()
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            text = file.read()
    value = json.loads(text)
    with open(os.path.join(ROOT, "docs/schemas/run.schema.json"), encoding="utf-8") as file:
        jsonschema.Draft202012Validator(json.load(file)).validate(value)
    job, = value["jobs"]
    last = (job["ranks"][0]["stretches"] or job["ranks"][0])["step_end_s"][-1]
    return job, len(text), end - last


def check_stretches(rank, steps):
    of = rank["stretches"]
    ns = {key: in_ns(of[key]) for key in (*PARTS, "step_s", "step_begin_s", "step_end_s", "gaps_s")}
    expect_equal((sum(of["steps"]), rank["measured_steps"]), (steps, steps), "steps of the stretches")
    expect_equal(set(of["steps"][:-1]), {of["steps"][0]}, "lengths but for the last")
    expect(KEPT // 2 < len(rank["step_s"]) <= KEPT, "kept steps", len(rank["step_s"]))
    expect_equal(sum(ns["step_s"]), in_ns(rank["wall_s"]), "sum of the steps")
    expect_equal(sum(of["step_samples"]), rank["samples"], "samples")
    for i, whole in enumerate(ns["step_s"]):
        expect_equal(ns["step_end_s"][i] - ns["step_begin_s"][i] - ns["gaps_s"][i], whole, f"stretch {i}: its steps")
        expect_equal(sum(ns[part][i] for part in PARTS), whole, f"stretch {i}: parts")
    for i, whole in enumerate(in_ns(rank["step_s"])):
        expect_equal(sum(in_ns(rank[part][i]) for part in PARTS), whole, f"kept step {i}: parts")


def check_run(words, steps, shorter):
    short, _, _ = long_run(words, shorter)
    job, size, seconds = long_run(words, steps)
    for rank, before in zip(job["ranks"], short["ranks"]):
        check_stretches(rank, steps)
        expect_equal(rank["step_index"], job["ranks"][0]["step_index"], "kept steps of all ranks")
        grown = rank["process"]["resident_bytes"] - before["process"]["resident_bytes"]
        expect(grown < MOST_GROWTH * SLOWER, f"rank {rank['rank']}: memory grew by {grown} bytes after {shorter} steps")
    expect(size < MOST_BYTES * len(job["ranks"]), f"a result of {size} bytes")
    expect(seconds < 3 * AFTER_LAST_STEP_S * SLOWER, f"ended {seconds:.1f} s after the last step")
    expect_equal((job["step_time"]["count"], job["step_time"]["kept"]), (steps, len(job["step_s"])), "steps of the job")
    expect_equal(sum(in_ns(job["stretches"]["step_s"])), in_ns(job["throughput"]["wall_s"]), "time of all steps")
    expect(abs(job["step_time"]["mean_s"] * steps - job["throughput"]["wall_s"]) < 1e-6, "mean step", job["step_time"])
    expect(job["loss_last"] < 0.1 < job["loss_first"], "losses", job["loss_first"], job["loss_last"])


@cases([("ring", RING, 10_000, 4500), ("ps=sync", SYNC, 8500, 4500)], at_check=1)
@long_cases([(name, words, 1_000_000, 10_000) for name, words in (("none", NONE), ("ring", RING), ("ps=sync", SYNC))])
def a_long_run_delivers_its_results_from_bounded_memory(words, steps, shorter):
    check_run(words, steps, shorter)


# Ranks that do not wait for each other measure for different times, and evaluations lie between steps.
@more_cases([("gaps", ["--eval-every", "997"]), ("no gaps", [])])
def under_async_each_rank_has_its_stretches(words):
    job, _, _ = long_run([*ASYNC, *words], 4500)
    rates = [rank["samples"] / rank["wall_s"] for rank in job["ranks"]]
    for rank in job["ranks"]:
        check_stretches(rank, 4500)
        expect_equal(max(rank["stretches"]["gaps_s"]) > 0, bool(words), "gaps", rank["stretches"]["gaps_s"])
    expect(abs(job["throughput"]["samples_per_s"] / sum(rates) - 1) < 0.5, "samples/s", job["throughput"], rates)


@test
def evaluations_are_not_more_than_4096_and_the_last_is_there():
    job, _, _ = long_run([*NONE, "--eval-every", "1"], 4200)
    steps = [e["step"] for e in job["evaluations"]]
    expect(KEPT // 2 <= len(steps) <= KEPT, "evaluations", len(steps))
    expect_equal((steps[:3], steps[-1]), ([1, 3, 5], 4205), "steps")
    expect_equal(job["accuracy"], job["evaluations"][-1]["accuracy"], "accuracy")


@test
def the_report_shows_how_many_steps_quantiles_are_of():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        note = r"Median, p95 and spread of none: of (\d+) of its (\d+) steps"
        for steps, shown in ((KEPT, None), (KEPT + 1, (KEPT // 2 + 1, KEPT + 1))):
            result = harness(*NONE, *WINE, "--steps", str(steps), "--json", path)
            expect_equal(result.code, 0, "exit code", result)
            text = " ".join(harness("report", path, "-v").out.split())
            found = re.search(note, text)
            expect_equal(found and tuple(map(int, found.groups())), shown, "kept and measured steps", text[:2000])


@test
def the_report_accepts_a_run_whose_mean_step_is_below_all_kept_steps():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        result = harness("--device", "sim", "--mode", "none", "--model", "toy", "--steps", "5000", "--json", path)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            step, = (job["step_time"] for job in json.load(file)["jobs"])
        expect(step["mean_s"] < step["minimum_s"], "the mean, which is over all steps", step)
        expect_equal(harness("report", path).code, 0, "exit code of report")


@test
def the_steps_of_a_result_of_version_4_are_all_kept():
    with tempfile.TemporaryDirectory() as folder:
        path, old = os.path.join(folder, "result.json"), os.path.join(folder, "old.json")
        result = harness(*RING, *WINE, "--steps", "20", "--json", path)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        value["schema_version"] = 4
        for job in value["jobs"]:
            for of in (job, *job["ranks"], job["step_time"], *job["phases"].values()):
                for key in ("stretches", "kept", *(["loss_last"] if of is not job else [])):
                    of.pop(key, None)
        value.pop("checksum", None)
        with open(old, "w", encoding="utf-8") as file:
            json.dump(value, file)
        expect_equal(harness("report", old, "-v").out, harness("report", path, "-v").out, "report")


@test
def a_loss_curve_shows_the_means_of_stretches():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        result = harness(*NONE, *WINE, "--steps", str(2 * KEPT), "--json", path)
        expect_equal(result.code, 0, "exit code", result)
        expect_equal(harness("report", path, "-o", os.path.join(folder, "x.html"), "--csv", folder).code, 0, "exit code of report")
        with open(path, encoding="utf-8") as file:
            job, = json.load(file)["jobs"]
        with open(os.path.join(folder, "loss-time.csv"), encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        times = list(itertools.accumulate(job["stretches"]["step_s"]))
        losses, steps = job["stretches"]["losses"], job["ranks"][0]["stretches"]["step_index"]
        size = len(losses) // 60 + 1
        groups = [range(begin, min(begin + size, len(losses))) for begin in range(0, len(losses), size)]
        expected = [(steps[group[-1]], times[group[-1]], statistics.fmean(losses[i] for i in group)) for group in groups]
        found = [(int(r["step"]), float(r["time_s"]), float(r["loss"])) for r in rows]
        expect(size > 1 and len(found) == len(expected), "points", found, expected)
        expect(all(abs(a - b) < 1e-9 * abs(b) for f, e in zip(found, expected) for a, b in zip(f, e)), "points", found, expected)


@test
def a_trace_without_room_for_its_steps_says_so_before_the_run():
    with tempfile.TemporaryDirectory() as folder:
        result = harness(*NONE, *WINE, "--steps", "10", "--trace", os.path.join(folder, "t.json"), "--trace-steps", "0:100000")
        expect_equal(result.code, 0, "exit code", result)
        expect(re.search(r"--trace-steps: expected at most \d+ steps of this model, got 100000", result.err), "no warning", result)


if __name__ == "__main__":
    main()
