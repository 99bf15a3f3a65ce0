#!/usr/bin/env python3
"""NCCL, whose calls run in the order of a stream. The ring: buckets overlap with the backward pass, no host thread stands between
a gradient and its average. The ring and DataParallel: what goes wrong ends the job with its cause.

    test_cuda_nccl.py [--emulated]    on the emulator, whose streams run behind the host
"""
import contextlib
import functools
import glob
import json
import os
import sys
import tempfile
import time

from anatomy import best_of
from on_cuda import EMULATED, TRAINING, TRANSFORMER, golden, needs_nccl, run
from program import PROGRAM, Run
from tap import Skip, cases, expect, expect_equal, main, test

RING = ["--device", "cuda", "--share-gpu", "--mode", "ring", "--gpus", 2, "--collective", "nccl", "--policy", "ring=ddp"]
DP = ["--device", "cuda", "--share-gpu", "--mode", "ps", "--gpus", 2, "--policy", "ps=dp", "--payload", "nccl"]
ENGINES = [("ring", RING), ("ps", DP)]
LENET = ["--model", "lenet", "--data", "synthetic", "--batch", 4, "--warmup", 2, "--quiet", "--eval-every", -1]
AHEAD = {"EMULATED_ORDER": "ahead"}  # Only the emulator reads this variable.


def emulated_faults():
    needs_nccl()
    if not EMULATED:
        raise Skip("faults are emulated")


def slices(path, name):
    """{rank: [(begin, end)]} of the events of that name, in microseconds, from the first track that has such
    events."""
    with open(path, encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X" and e["name"] == name]
    found = {}
    for event in events:
        if event["tid"] == min(e["tid"] for e in events):
            found.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
    return found


# In an earlier version the communication stream waited for all buckets that the host had posted before it began with
# the first one.
@test
def the_first_bucket_is_on_its_way_before_the_backward_pass_ends():
    needs_nccl()
    best_of(6, traced_passes, expect_first_buckets_within)  # on a busy machine the thread of a stream may come late


def traced_passes():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        # On a card a backward pass of LeNet is as short as its clock is exact.
        model = [0.02] if EMULATED else [2, "--model", "resnet18", "--batch", 64]
        result = run(*RING, *LENET, "--steps", 6, "--bucket-cap-mb", *model, "--trace", path, env=AHEAD)
        expect_equal(result.code, 0, "exit code", result)
        return slices(path, "backward"), slices(path, "all_reduce of bucket 0")


def expect_first_buckets_within(traced):
    backward, buckets = traced
    expect(len(backward) == 2 and set(backward) == set(buckets), "not the traces of two ranks", backward, buckets)
    for rank, passes in backward.items():
        expect_equal(len(buckets[rank]), len(passes), "first buckets", rank)
        for (begin, end), (started, arrived) in zip(passes, buckets[rank]):  # On a card that ranks share, NCCL uses the network transport.
            expect(begin < started and (arrived if EMULATED else started) < end, f"rank {rank}: backward {begin} to {end}, bucket {started} to {arrived}")


def names_of_threads(process):
    names = []
    for path in glob.glob(f"/proc/{process}/task/*/comm"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            with open(path, encoding="ascii") as file:
                names.append(file.read().strip())
    return names


# In an earlier version the agent's thread released the compute stream.
@test
def a_rank_has_a_watchdog_and_no_communication_thread():
    needs_nccl()
    with Run(*RING, *TRAINING[:-4], "--steps", 1000000) as running:
        process = running.wait_for_rank("ring", 1, limit=60)
        threads = []
        for _ in range(600):  # until it trains
            threads = names_of_threads(process)
            if "nccl-watchdog" in threads:
                break
            time.sleep(0.1)
        expect("nccl-watchdog" in threads, "no watchdog", threads)
        expect(not any("agent" in name for name in threads), "a communication thread", threads)


SMALL_BUCKETS = [("wine_mlp_w2", "ddp", "--bucket-cap-mb 0.002"), ("toy_w4", "ddp", "--bucket-cap-mb 0.001"),
                 ("wine_mlp_w2", "apex", "--bucket-view"), ("wine_mlp_w2", "ddp", "--bucket-cap-mb 0.002 --cuda-graph"),
                 ("wine_mlp_w2", "ddp", "--join world")]


# Before, ranks stood still where NCCL connected in the second step, for buckets of other sizes, while streams waited for
# the thread that connected.
@cases([(f"{name}, {policy} {options}, {order or 'as it comes'}", name, policy, options, order)
        for name, policy, options in SMALL_BUCKETS for order in ("", "ahead") if EMULATED])
def streams_that_run_behind_the_host_follow_pytorch(name, policy, options, order):
    needs_nccl()
    result = run("verify", "--device", "cuda", "--mode", "ring", "--collective", "nccl", "--policy", f"ring={policy}",
                 *options.split(), golden(name), env={"EMULATED_ORDER": order} if order else {})
    expect_equal(result.code, 0, "exit code", result)
    expect(result.out.startswith("agrees"), "the trajectory is not PyTorch's", result)


@cases([("PowerSGD", "--comm-hook powersgd --powersgd-start 1"), ("more ranks than data", "--join world"),
        ("recorded passes", "--cuda-graph"), ("two micro-batches", "--accumulate 2")])
def a_host_that_is_ahead_trains_as_one_that_is_not(options):
    needs_nccl()
    found = [run(*RING, *TRAINING, *options.split(), env=env) for env in ({}, AHEAD)]
    expect_equal([result.code for result in found], [0, 0], "exit codes", *found)
    hashes = [result.jobs()["ring"]["parameter_hash"] for result in found]
    expect_equal(hashes[1], hashes[0], "parameters")


# Before, the abort waited for a stream that waited for the thread that aborted.
@cases([(f"{engine}, {label}", engine, words, order) for label, order in (("ahead", AHEAD), ("behind", {}))
        for engine, words in (("ring", [*RING, "--bucket-cap-mb", 0.02]), ("ps", DP))], at_more=2)
def an_asynchronous_error_ends_the_job_with_its_cause(engine, words, order):
    emulated_faults()
    result = run(*words, *LENET, "--steps", 60, env={**order, "EMULATED_NCCL_FAULT": "0:40:-2"})
    expect_equal(result.code, 71, "exit code", result)
    lines = [line for line in result.lines() if ": warning: " not in line]
    expect(len(lines) == 1 and f"{engine} rank 0 " in lines[0] and "NCCL, communication: " in lines[0] and "(ncclSystemError)" in lines[0],
           "not one line with the reason", result)


@cases([(f"{engine}, {label}", words, *row) for engine, words in ENGINES for label, *row in (
    ("on the GPU", "1:20:-1", "2s", "no progress "), ("the start", "1:0:-100", "60s", "collectives nccl: the start: rank "))], at_once=4)
def what_hangs_in_nccl_ends_the_job_and_is_named(words, fault, stall_timeout, text):
    emulated_faults()
    result = run(*words, *TRAINING[:-4], "--steps", 1000000, "--stall-timeout", stall_timeout, "--connect-timeout", "2s",
                 env={"EMULATED_NCCL_FAULT": fault}, limit=60)
    expect_equal(result.code, 75, "exit code", result)
    expect(text in result.err, "it is not named", result)


@cases(ENGINES)
def the_rank_that_is_furthest_behind_is_named_with_what_it_has_enqueued(words):
    emulated_faults()
    engine = words[words.index("--mode") + 1]

    result = run(*words, *TRAINING[:-4], "--steps", 1000000, "--stall-timeout", "2s", env={"EMULATED_NCCL_FAULT": "1:20:-100"}, limit=60)
    expect_equal(result.code, 75, "exit code", result)
    expect(f"{engine} rank 1 " in result.err and "collectives: " in result.err, "rank 1 is not named", result)


@functools.lru_cache(maxsize=None)
def trained(policy, *words):
    result = run(*RING[:-2], "--policy", f"ring={policy}", *TRANSFORMER, "--batch", 4, "--warmup", 1, "--steps", 4, "--eval-every", -1, "--quiet",
                 "--optimizer", "adam", *words, "--json", "-")
    expect_equal(result.code, 0, f"{policy}: exit code", result)
    return result.jobs()["ring"]


@cases([(" ".join(map(str, (policy, *words))), policy, words) for policy, words in (
    ("zero3", ["--clip-norm", 0.1]), ("zero1", ["--mixed-precision"]), ("zero1", []), ("zero2", ["--accumulate", 2]), ("fsdp", []),
    ("zero2:group=1", []), ("zero3", ["--mixed-precision"]), ("zero3:group=2", ["--gpus", 4]), ("fsdp:group=2", ["--gpus", 4]))], at_more=2)
def state_that_is_cut_among_ranks_gives_the_losses_of_ddp(policy, words):
    """Two ranks: one order of summation, so bit-identical without accumulation and clipping."""
    needs_nccl()
    ends = [trained(name, *words) for name in ("ddp", policy)]
    if not words or words == ["--mixed-precision"]:
        expect_equal(ends[1]["parameter_hash"], ends[0]["parameter_hash"], f"{policy}, and ddp")
    differences = [abs(a - b) for a, b in zip(ends[1]["losses"], ends[0]["losses"])]
    expect(len(differences) > 0 and max(differences) < 1e-4, f"losses differ by {differences}")


@test
def sharded_state_needs_nccl_and_no_graph():
    needs_nccl()
    for words, text in ((["--collective", "shm"], "--collective"), (["--cuda-graph"], "--cuda-graph")):
        result = run(*RING[:-4], "--policy", "ring=zero1", *LENET, "--steps", 2, *words)
        expect(result.code != 0 and text in result.err, f"expected an error about {text}", result)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM} is not built")
    main()
