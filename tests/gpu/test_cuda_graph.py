#!/usr/bin/env python3
"""Recorded passes (--cuda-graph) on the device `cuda`: they compute what passes compute that are launched one by one,
through every engine, and are refused where they could not.

    test_cuda_graph.py [--emulated]    on the emulator: small files, since its kernels run on the host
"""
import os
import sys

from on_cuda import CONVOLUTIONS, EMULATED, TRAINING, TRANSFORMER, classes, golden, needs_gpu, needs_nccl, needs_nccl_of_threads, run, verify
from program import PROGRAM
from tap import cases, expect, expect_equal, main, test


@cases([("a convolutional model", []), ("two micro-batches", ["--accumulate", "2"]),
        ("three micro-batches", ["--accumulate", "3"]), ("bfloat16", ["--bf16"]),
        ("a small transformer", TRANSFORMER)])
def recorded_passes_train_as_those_that_are_launched_one_by_one(words):
    needs_gpu()
    env = {"EMULATED_CUDNN": "1"}
    words = [*CONVOLUTIONS, "--device", "cuda", *words, "--steps", "4", "--warmup", "0"]
    plain, recorded = run(*words, env=env), run(*words, "--cuda-graph", "--log-level", "debug", env=env)
    expect_equal((plain.code, recorded.code), (0, 0), "exit codes", plain, recorded)
    expect_equal(recorded.jobs()["none"]["ranks"][0]["losses"], plain.jobs()["none"]["ranks"][0]["losses"], "losses")
    expect_equal(classes(recorded), classes(plain), "logical bytes")
    kinds = int(words[words.index("--accumulate") + 1]) if "--accumulate" in words else 1  # first, between, last micro-batch
    expect_equal(recorded.err.count("recorded a CUDA graph"), 3 * kinds, "passes recorded", recorded)


@test
def recorded_micro_batches_in_the_middle_make_no_copies_of_weights_that_the_update_has_written():
    needs_gpu()
    nodes = []
    for count in "3", "4":
        result = run("--device", "cuda", "--mode", "none", *TRAINING, "--bf16", "--cuda-graph", "--accumulate", count,
                     "--log-level", "debug")
        expect_equal(result.code, 0, "exit code", result)
        nodes.append(sorted(line.split(" of ")[1] for line in result.err.splitlines() if "recorded a CUDA graph" in line))
    expect_equal(nodes[1], nodes[0], "nodes recorded of four micro-batches compared with three")


BUCKETS = [("buckets, ddp", "wine_mlp_w2", "ddp", "--bucket-cap-mb 0.002"),
           ("four ranks, small buckets", "toy_w4", "ddp", "--bucket-cap-mb 0.001"),
           ("one bucket after backward", "wine_mlp_w2", "torch-0.4.1", ""),
           ("in the gradients' own memory", "wine_mlp_w2", "apex", "--bucket-view"),
           ("divided first", "toy_w4", "ddp", "--divide before")]


# `verify` has ranks that are threads; on a GPU NCCL's must be processes (test_cuda_program.py).
@cases([(label, name, policy, options) for label, name, policy, options in BUCKETS if EMULATED])
def recorded_passes_between_buckets_follow_pytorch(name, policy, options):
    needs_nccl()
    words = ["--mode", "ring", "--collective", "nccl", "--policy", f"ring={policy}", *options.split()]
    lines = [run("verify", "--device", "cuda", *words, *more, golden(name)).out for more in ([], ["--cuda-graph"])]
    expect(lines[1].startswith("agrees"), "the trajectory is not PyTorch's", *lines)
    expect_equal(lines[1], lines[0], "with recorded passes")


@cases([(f"{name}, {payload}", name, payload) for name in ("wine_mlp_w2", "toy_w4") for payload in ("zmq", "nccl")])
def recorded_passes_of_replicas_follow_pytorch(name, payload):
    needs_nccl_of_threads() if payload == "nccl" else needs_gpu()
    verify(name, "--mode", "ps", "--policy", "ps=dp", "--payload", payload, "--cuda-graph")


# Their parameters are new in every step, and so are the copies that products read.
@cases([(payload, payload) for payload in ("zmq", "nccl")])
def recorded_passes_of_replicas_in_bfloat16_compute_what_launched_ones_do(payload):
    needs_nccl_of_threads() if payload == "nccl" else needs_gpu()
    words = ["--bf16", "--mode", "ps", "--policy", "ps=dp", "--payload", payload, golden("wine_mlp_w2")]
    lines = [run("verify", "--device", "cuda", *words, *more).out for more in ([], ["--cuda-graph"])]
    expect(lines[0].startswith("agrees"), "the trajectory is not PyTorch's", *lines)
    expect_equal(lines[1], lines[0], "with recorded passes")


@test
def replicas_train_recorded_passes_as_those_that_are_launched_one_by_one():
    needs_gpu()
    words = ["--device", "cuda", "--share-gpu", "--mode", "ps", "--gpus", 2, *TRAINING, "--policy", "dp", "--payload", "zmq", "--bf16"]
    plain, recorded = run(*words), run(*words, "--cuda-graph")
    expect_equal((plain.code, recorded.code), (0, 0), "exit codes", plain, recorded)
    expect_equal(recorded.json()["jobs"][0]["parameter_hash"], plain.json()["jobs"][0]["parameter_hash"], "parameters")
    expect_equal(classes(recorded), classes(plain), "logical bytes")


@cases([("PowerSGD", "ring", "ring=ddp --comm-hook powersgd", "starts at a later step"),
        ("ranks without data", "ring", "ring=ddp --join world", "--join"),
        ("a ring on host memory", "ring", "ring=ddp --algorithm two-shot", "host memory")] +
       [(f"{policy}, {payload}", "ps", f"ps={policy} --payload {payload}", "in the middle of a pass")
        for policy, payload in (("sync", "zmq"), ("ssp", "shm"), ("async", "zmq"))])
def recording_is_refused_where_the_host_works_within_a_pass_or_the_divisor_changes(mode, policy, why):
    needs_gpu()
    result = run("--device", "cuda", "--share-gpu", "--gpus", 2, "--mode", mode, "--policy", *policy.split(), "--model", "toy",
                 "--cuda-graph", "--quiet")
    expect_equal(result.code, 78, "exit code", result)
    lines = [line for line in result.lines() if ": warning: " not in line]
    expect(len(lines) == 1 and f"got {policy.split()[0]}: " in lines[0] and "--cuda-graph: " in lines[0] and why in lines[0],
           "not one line with the reason", result)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM} is not built")
    main()
