"""What tests of the parts of a step share."""
import os
import re

from program import BUILD, SANITIZED, in_ns
from tap import Failure, Skip, expect, expect_equal

PARTS = ("data_s", "forward_s", "backward_s", "exposed_communication_s", "waiting_s", "optimizer_s", "other_s")
HIDDEN = ("hidden_while_computing_s", "hidden_while_waiting_s", "hidden_communication_s", "communication_s")
EXECUTED = ("data_s", "forward_s", "backward_s", "optimizer_s")


def policies(engine):
    root = os.environ.get("SOURCE_DIR", os.getcwd())
    with open(os.path.join(root, engine, "policies.h"), encoding="utf-8") as file:
        return re.findall(r'^POLICY\(\s*"([^"]+)"', file.read(), re.M)


def expect_anatomy(job):
    """The parts of every step of every rank add up to it, and what is waited for has a name."""
    for rank in job["ranks"]:
        where = f"{job['engine']}={job['policy']}, rank {rank['rank']}"
        for i, total in enumerate(in_ns(rank["step_s"])):
            parts = {key: in_ns(rank[key][i]) for key in PARTS}
            expect(min(parts.values()) >= 0, f"{where}, step {i}: a negative part", parts)
            expect_equal(sum(parts.values()), total, f"{where}, step {i}: {parts}")
            computing, waiting, hidden, communication = (in_ns(rank[key][i]) for key in HIDDEN)
            expect(computing >= 0 <= waiting <= parts["waiting_s"], f"{where}, step {i}: hidden", computing, waiting, parts)
            expect_equal(computing + waiting, hidden, f"{where}, step {i}: hidden while computing and while waiting")
            expect_equal(computing + waiting + parts["exposed_communication_s"], communication, f"{where}, step {i}: communication")
            expect((rank["waited_for"][i] is not None) == (parts["waiting_s"] > 0), f"{where}, step {i}: who is waited for")
        named = sum(in_ns(seconds) for seconds in rank["waited_for_s"].values())
        expect_equal(named, sum(in_ns(rank["waiting_s"])), f"{where}: waiting, by rank")
        expect(str(rank["rank"]) not in rank["waited_for_s"], f"{where}: waits for itself", rank["waited_for_s"])
    # One rank may have no communication: if the other rank is always late, all of its communication may count as
    # waiting.
    expect(job["world_size"] == 1 or sum(sum(rank["communication_s"]) for rank in job["ranks"]) > 0, "no communication")


def executed(rank, steps):
    return sum(rank[key][i] for key in EXECUTED for i in steps)


def waiting_and_delay(job, rank, steps, ahead=0, late=1):
    """How long a rank that is `ahead` steps ahead of rank `late` waited for others, and how much longer that rank
    computed; in seconds."""
    rank, late = job["ranks"][rank], job["ranks"][late]
    return sum(rank["waiting_s"][i] for i in steps), executed(late, [i - ahead for i in steps]) - executed(rank, steps)


def best_of(runs, job, check):
    """Fails unless `check` holds for at least one of `runs` results of job(). Load on the machine delays transfers,
    so it sometimes hides waiting; a wrong definition always fails."""
    for left in reversed(range(runs)):
        try:
            return check(job())
        except Failure:
            if left == 0:
                raise


def expect_all_wait(job, late, named_by_all=True, part=0.9):
    """All other ranks waited for the late one, at least that part of its delay."""
    expect_anatomy(job)
    for rank in range(job["world_size"]):
        if rank == late:
            continue
        waited, delay = waiting_and_delay(job, rank, range(1, len(job["step_s"])), late=late)
        expect(waited >= part * delay > 0, f"rank {rank} waited {waited:.3f} s for a delay of {delay:.3f} s")
        named = job["ranks"][rank]["waited_for_s"]
        expected = str(late if named_by_all or rank == 0 else 0)
        expect_equal(max(named, key=named.get), expected, f"whom rank {rank} waits for", named)


def shifted_clock(ns):
    """Variables that give rank 1 a clock that is `ns` later than the others, as on another host."""
    if SANITIZED:
        raise Skip("sanitizers do not share clock_gettime")
    return {"LD_PRELOAD": os.path.join(os.path.abspath(BUILD), "tests", "shift_clock.so"), "SHIFT_CLOCK_NS": str(ns)}
