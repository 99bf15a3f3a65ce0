"""Processes that train do not grow."""
import re

from program import Run
from struck import LENET, reach
from tap import cases, expect, main

EARLY, LATE = 10, 1010
# What a run keeps of every step is 100 bytes or so; the rest is what libzmq keeps to spare.
LIMIT_KIB = 384


def anonymous_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1])


@cases([("none", "none", []), ("ps", "ps", ["--gpus", "2"]), ("ps through messages", "ps", ["--gpus", "2", "--payload", "zmq"]),
        ("ring", "ring", ["--gpus", "2"]), ("ring, inline", "ring", ["--gpus", "2", "--progress", "inline"])])
def memory_does_not_grow_from_step_10_to_step_1010(engine, words):
    with Run("--mode", engine, *words, *LENET, "--steps", "100000") as run:
        ranks = range(2 if words else 1)
        early = [anonymous_kib(reach(run, engine, rank, EARLY)) for rank in ranks]
        late = [anonymous_kib(reach(run, engine, rank, LATE)) for rank in ranks]
        result = run.peek()
    for rank in ranks:
        expect(late[rank] - early[rank] <= LIMIT_KIB,
               f"rank {rank}: {early[rank]} KiB at step {EARLY} or a little later, {late[rank]} KiB at step {LATE}", result)


main()
