"""Signals at drawn moments, to the launcher or to ranks that something else has started: all ranks stop after the same step, save
and report, and a run that goes on from the checkpoint ends as one that was never stopped."""
import json
import os
import random
import signal
import socket
import time

from program import Run, SLOWER, Watch, ends_within, harness
from struck import GONE
from tap import cases, expect, expect_equal, long_cases, main

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "4", "--threads", "1", "--warmup", "0"]
JOBS = {"ring": ["--mode", "ring"], "dp": ["--mode", "ps", "--policy", "dp"], "sync": ["--mode", "ps", "--policy", "sync"],
        "ssp": ["--mode", "ps", "--policy", "ssp"], "async": ["--mode", "ps", "--policy", "async"],
        "zero1": ["--mode", "ring", "--policy", "zero1"], "zero3": ["--mode", "ring", "--policy", "zero3"],
        "two stages": ["--mode", "ring", "--stages", "2"]}
BETWEEN = {"": [], "save-every": ["--save-every", "3"], "eval-every": ["--eval-every", "3"]}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
GOES_ON = 3  # steps after the checkpoint


def takes_signals(pid):
    """Whether the process has begun to handle signals itself. Before that it has nothing to save."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        blocked = next(line.split()[1] for line in file if line.startswith("SigBlk:"))
    return int(blocked, 16) >> (signal.SIGTERM - 1) & 1


def wait_until_signals_are_taken(run):
    until = time.monotonic() + 30 * SLOWER
    while not takes_signals(run.pid):
        expect(time.monotonic() < until and run.process.poll() is None, "no signals are taken", run.peek())
        time.sleep(0.002)


def start(words, world, by_hand):
    """The processes that get signals: the launcher, or all ranks."""
    if not by_hand:
        return [Run(*words, "--gpus", world)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HARNESS_KEY": "0123456789abcdef" * 4}
    return [Run(*words, "--rendezvous", "env://", env={"RANK": str(r), "LOCAL_RANK": str(r), **env}) for r in range(world)]


def checkpoint_step(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return int(header["__metadata__"]["psring.step"])


def parameters_after(words, steps, load=()):
    return harness(*words, "--gpus", 2, "--steps", steps, *load, "--json", "-", "--quiet", limit=300).json()["jobs"][0]["parameter_hash"]


def stop(job, between, by_hand, number, seed, goes_on):
    draw = random.Random(seed)
    words, watch = [*JOBS[job], *LENET], Watch()
    runs = start([*words, *between, "--steps", 10**7, "--save", "z.st", "--json", "-", "--quiet"], 2, by_hand)
    path = os.path.join(runs[0].cwd, "z.st")
    try:
        struck = runs if draw.random() < 0.5 else [draw.choice(runs)]
        for run in struck:
            wait_until_signals_are_taken(run)
        time.sleep(draw.choice([0.1, 0.7, 1.5]) * draw.random())
        for run in struck:
            run.kill(run.pid, number)
        for run in runs:
            ends_within(run.process, GONE * SLOWER)
        results = [run.wait(GONE) for run in runs]
        watch.check(*runs, allowed=("z.st",))
        for result in results:
            expect_equal(result.code, 128 + number, "exit code", *results)
        lines = [line for result in results for line in result.lines() if "ending after this step" not in line]
        report = results[0].json()["jobs"][0]
        steps = report["steps"]
        expect_equal(report["stopped_early"], True, "stopped early", *results)
        expect_equal(len(lines), 1, "lines on stderr", *results)
        expect(lines[0].endswith(f": stopped: z.st has step {steps}"), "file and step", *results)
        expect_equal(checkpoint_step(path), steps, "step of the checkpoint", *results)
        if goes_on and job not in ("ssp", "async"):
            after = parameters_after(words, GOES_ON, ["--load", path])
            expect_equal(after, parameters_after(words, steps + GOES_ON), f"parameters after step {steps} + {GOES_ON}", *results)
    finally:
        for run in runs:
            run.__exit__()


def drawn(count, seed, goes_on_every):
    """Every job with every option and starter, one after another; the signal and the moment are drawn."""
    draw, rows = random.Random(seed), []
    all_of = [(job, between, by_hand) for between in BETWEEN for by_hand in (False, True) for job in JOBS]
    for i in range(count):
        job, between, by_hand = all_of[i * 7 % len(all_of)]
        number, moment = draw.choice(SIGNALS), draw.randrange(2**32)
        label = f"{i}: {job} {between} {'by hand' if by_hand else ''} {number.name}"
        rows.append((label, job, BETWEEN[between], by_hand, number, moment, i % goes_on_every == 0))
    return rows


@cases([("", False), ("by hand", True)], at_once=2, at_check=1)
def a_limit_shorter_than_the_gap_between_ranks_does_not_end_a_run_while_the_slower_one_makes_progress(by_hand):
    watch = Watch()
    words = [*JOBS["async"], *LENET, "--slow", "1:32", "--stall-timeout", "2s", "--steps", "1200", "--save", "a.st", "--json", "-", "--quiet"]
    runs = start(words, 2, by_hand)
    try:
        for run in runs:
            ends_within(run.process, 120 * SLOWER)
        results = [run.wait(GONE) for run in runs]
        watch.check(*runs, allowed=("a.st",))
        for result in results:
            expect_equal(result.code, 0, "exit code", *results)
        expect_equal(results[0].json()["jobs"][0]["steps"], 1200, "steps", *results)
        gap = [sum(rank["step_s"]) for rank in results[0].json()["jobs"][0]["ranks"]]
        expect(gap[1] - gap[0] > 2, f"ranks trained for {gap} s, expected a gap above the limit of 2 s")
    finally:
        for run in runs:
            run.__exit__()


@cases([(f"{job}{', by hand' if by_hand else ''}{', the signal first' if first else ''}", job, by_hand, first)
        for job in ("ring", "sync", "async") for by_hand in (False, True) for first in (False, True)], at_once=2)
def a_signal_while_a_rank_dies_leaves_the_death_as_the_cause(job, by_hand, first):
    watch = Watch()
    runs = start([*JOBS[job], *LENET, "--steps", 10**7, "--save", "z.st", "--save-every", "3", "--quiet"], 2, by_hand)
    try:
        while not os.path.exists(os.path.join(runs[0].cwd, "z.st")):  # so the ranks train
            expect(not ends_within(runs[0].process, 0.01), "the run has ended", runs[0].peek())
        dies = runs[1].pid if by_hand else runs[0].wait_for_rank(JOBS[job][1], 1)
        if first:
            runs[0].kill(dies, signal.SIGSTOP)  # or the run might end before the death
        for step in ("signal", "death") if first else ("death", "signal"):
            if step == "death":
                runs[0].kill(dies, signal.SIGKILL)
            else:
                runs[0].kill(runs[0].pid, signal.SIGTERM)
        result = runs[0].wait(GONE)
        watch.check(*runs, allowed=os.listdir(runs[0].cwd))
        expect_equal(result.code, 75, "exit code", result)
        lines = [line for line in result.lines() if "ending after this step" not in line]
        expect(len(lines) == 1 and "rank 1" in lines[0], "one line that names the rank", result)
    finally:
        for run in runs:
            run.__exit__()


@cases(drawn(20, 1, 4), at_once=2, at_check=10)
def a_signal_at_any_moment_stops_all_ranks_after_one_step(*row):
    stop(*row)


@long_cases(drawn(200, 2, 1), at_once=2)
def a_signal_at_any_moment_stops_all_ranks_after_one_step_and_loses_nothing(*row):
    stop(*row)


main()
