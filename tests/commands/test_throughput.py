"""Step times and samples per second of a run: how they are counted, how they fit together, and what follows from them."""
import json
import os
import re
import tempfile

from anatomy import shifted_clock
from program import harness, in_ns
from tap import Skip, cases, expect, expect_equal, main, more_cases, more_test, test

ALONE = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "8", "--steps", "14", "--threads", "1"]
BOTH = [*ALONE, "--gpus", "2"]
WINE = ["--model", "wine_mlp", "--data", "wine", "--steps", "20", "--gpus", "2"]


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
