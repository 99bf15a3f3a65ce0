"""Processes that train do not grow."""
import os
import re
import signal

from program import Run
from struck import LENET, strike
from tap import cases, expect, main

EARLY, LATE = 100, 1100  # by then libzmq has most of what it keeps to spare
# What a run comes to hold with every step: its record, some 120 bytes, and the pages of the list of samples that it has
# reached. The rest is libzmq's.
STEP_KIB, SPARE_KIB = 200 / 1024, 192


def anonymous_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1])


def memory_at(run, engine, ranks, step):
    """The step of every rank while the first one is stopped and the others wait for it. On a busy machine this is
    some time after the step asked for, and a second has a thousand steps."""
    pid, said = strike(run, engine, 0, "forward", step, signal.SIGSTOP)
    try:
        return int(re.search(r"at step (\d+)", said)[1]), [anonymous_kib(run.wait_for_rank(engine, rank)) for rank in ranks]
    finally:
        os.kill(pid, signal.SIGCONT)


@cases([("ps", "ps", ["--gpus", "2"]), ("none", "none", []), ("ps through messages", "ps", ["--gpus", "2", "--payload", "zmq"]),
        ("ring", "ring", ["--gpus", "2"]), ("ring, inline", "ring", ["--gpus", "2", "--progress", "inline"])], at_check=2)
def memory_does_not_grow_from_step_100_to_step_1100(engine, words):
    with Run("--mode", engine, *words, *LENET, "--steps", "100000") as run:
        ranks = range(2 if words else 1)
        (first, early), (last, late) = (memory_at(run, engine, ranks, step) for step in (EARLY, LATE))
        result = run.peek()
    limit = SPARE_KIB + STEP_KIB * (last - first)
    for rank in ranks:
        expect(late[rank] - early[rank] <= limit,
               f"rank {rank}: {early[rank]} KiB at step {first}, {late[rank]} KiB at step {last}, expected at most {limit:.0f} KiB more", result)


main()
