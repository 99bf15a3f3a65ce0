#!/usr/bin/env python3
"""The parts of a step on the device `cuda`: they add up under every engine; with NCCL, which does not report when other ranks
began a call, a late rank is waited for and named; slowdown by communication is against the same ranks without exchange.

    test_cuda_anatomy.py [--emulated]
"""
import re

from anatomy import expect_all_wait, expect_anatomy, policies, shifted_clock
from on_cuda import EMULATED, TRAINING, needs_gpu, needs_nccl, run
from tap import cases, expect, expect_equal, long_cases, main, test

CUDA = ["run", "--device", "cuda", "--share-gpu", *[word for word in TRAINING if word != "--quiet"]]
RING = ["--mode", "ring", "--collective", "nccl"]
NCCL = [*CUDA, *RING]
DP = ["--mode", "ps", "--policy", "dp", "--payload", "nccl"]
HOUR = 3_600_000_000_000


def jobs_of(*words, env=None):
    result = run(*words, env=env, limit=180)
    expect_equal(result.code, 0, "exit code", result)
    return result.jobs()


def job_of(*words, env=None):
    job, = jobs_of(*words, env=env).values()
    return job


@cases([(" ".join(words), words) for words in (
    ["--mode", "none"], ["--mode", "ring", "--collective", "shm"], ["--mode", "ps", "--policy", "sync"], ["--mode", "ps", "--policy", "async"],
    ["--mode", "ps", "--policy", "ssp"], ["--mode", "ps", "--policy", "dp"])])
def the_parts_of_every_step_add_up(words):
    needs_gpu()
    expect_anatomy(job_of(*CUDA, *words, *([] if words[1] == "none" else ["--gpus", "2"])))


ROWS = [[], ["--bucket-cap-mb", "0.002"], ["--accumulate", "2"], ["--comm-hook", "powersgd"], ["--join", "world"], ["--cuda-graph"],
        ["--policy", "torch-0.4.1"], ["--policy", "zero3"], DP, [*DP, "--accumulate", "2"], [*DP, "--dp-loss", "replica"]]
# The hosts have done everything before the GPUs begin, or nothing.
AHEAD, AT_ONCE = ([(f"{' '.join(words) or 'ddp'}, {label}", words, env) for words in ROWS]
                  for label, env in (("the host ahead", {"EMULATED_ORDER": "ahead"}), ("the GPU at once", {})))


# Ranks of several jobs that share a card under NCCL wait for each other's turns, so on a card only one job runs at a
# time.
AT_ONCE_HERE = 2 if EMULATED else 1


@cases((AHEAD if EMULATED else AT_ONCE) + [(f"{policy}, another policy", ["--policy", policy], {}) for policy in policies("ring")
                                           if policy not in ("ddp", "torch-0.4.1", "zero3")], at_once=AT_ONCE_HERE, at_more=8 if EMULATED else 100)
@long_cases(AT_ONCE if EMULATED else [], at_once=2)
def the_parts_of_every_step_with_nccl_add_up(words, env):
    needs_nccl()
    job = job_of(*CUDA, "--gpus", "2", *(words if words[:2] == DP[:2] else [*RING, *words]), env=env)
    expect_anatomy(job)
    expect(job["ranks"][0]["merged_calls"] >= len(job["step_s"]), "calls are merged", job["ranks"][0]["merged_calls"])


SLOW = ["--gpus", "3", "--steps", "4", "--warmup", "1", "--stall-timeout", "100s", "--batch", "16"]


# For the ranks that waited for the late one, the whole call counted as communication.
@cases([(f"{words[1]}, rank {late}{', clocks differ' if shift else ''}", words, late, shift)
        for words, late, shift in ((RING, 1, 0), (DP, 0, HOUR), (RING, 0, HOUR), (RING, 1, HOUR), (DP, 1, 0))], at_once=AT_ONCE_HERE, at_more=2)
def all_others_wait_for_a_late_rank(words, late, shift):
    needs_nccl()
    factor = 200 if words is DP and late else 20  # rank 0 of DataParallel has the loss
    job = job_of(*CUDA, *words, *SLOW, "--slow", f"{late}:{factor}", env=shifted_clock(shift) if shift else None)
    expect_equal(job["ranks"][1]["clock"]["aligned"], shift > 0, "another clock", job["ranks"][1]["clock"])
    expect_all_wait(job, late)


@test
def the_report_says_how_exact_the_merged_clocks_are():
    needs_nccl()
    words = [word for word in NCCL if word not in ("--json", "-")]
    result = run(*words, "--gpus", "2", "--verbose")
    expect(re.search(r"Waiting of ring \(ddp\): until the last rank began a call \(\d+ calls\), on clocks within [\d.]+ (ns|us|ms|s)\.",
                     " ".join(result.out.split())), "no line on clocks", result)
    for rank in job_of(*NCCL, "--gpus", "2")["ranks"]:
        expect(rank["clock"]["waiting_error_s"] > 0, "the error of a GPU's clock", rank["clock"])


@cases([("ring", "ring", ["--mode", "ring", "--collective", "nccl"], 2), ("ps", "ps", ["--mode", "ps", "--policy", "sync"], 2),
        ("ps=dp, rank 0", "ps", ["--mode", "ps", "--policy", "dp"], 1)])
def slowdown_is_against_the_same_ranks_without_exchange(engine, words, of):
    needs_nccl()
    jobs = jobs_of(*CUDA, "--gpus", "2", "--steps", "12", "--isolated", *words)
    alone, job = jobs["isolated"], jobs[engine]
    expect_anatomy(job)
    expect_equal((alone["world_size"], alone["engine"], alone["slowdown"]), (2, "none", None), "the isolated ranks")
    expect_equal([rank["bytes_sent"] for rank in alone["ranks"]], [0, 0], "bytes of the isolated ranks")
    expect_equal([rank["step_index"] for rank in alone["ranks"]], [rank["step_index"] for rank in job["ranks"]], "turns")
    mine, others = [sum(sum(rank["forward_s"]) + sum(rank["backward_s"]) for rank in j["ranks"][:n]) / (12 * n) for j, n in ((job, of), (alone, 2))]
    found = job["slowdown"]
    expect(abs(found["mean_s"] - (mine - others)) < 1e-8, "slowdown", found, mine, others)
    expect(found["low_s"] <= found["mean_s"] <= found["high_s"], "interval", found)


if __name__ == "__main__":
    main()
