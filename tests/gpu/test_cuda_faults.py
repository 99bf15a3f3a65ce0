#!/usr/bin/env python3
"""What goes wrong with GPUs, drivers and NCCL, on the device `cuda`: each named in one line with rank, host and operation,
with the exit code of its cause. The faults are emulated: on a GPU every test skips.

    test_cuda_faults.py [--emulated]
"""
import os
import socket
import sys

from on_cuda import EMULATED, TRAINING, golden, run
from program import PROGRAM
from tap import Skip, cases, expect, expect_equal, main

HOST = socket.gethostname()
TRAIN = [*TRAINING, "--steps", 60]


def fails(words, env, code, parts):
    if not EMULATED:
        raise Skip("faults are emulated")
    result = run(*words, env=env)
    expect_equal(result.code, code, "exit code", result)
    lines = [line for line in result.lines() if ": warning: " not in line]
    expect(len(lines) == 1 and all(part in lines[0] for part in parts), "not one line with the reason", result)


@cases([("too old", "old", "CUDA driver version is insufficient for CUDA runtime version"),
        ("of two versions", "mismatch", "unsupported display driver / cuda driver combination")])
def a_driver_that_does_not_fit_is_named_before_ranks_start(driver, words):
    fails(["--device", "cuda", "--mode", "ring", "--gpus", 2, *TRAIN], {"EMULATED_DRIVER": driver}, 69,
          ["device cuda: no GPU can be used", words, "--device cpu"])


@cases([(f"{options or mode}, {'in setup' if waits == 1 else 'in a step'}", mode, options, waits)
        for mode, options in (("none", ""), ("ps", "ps=sync"), ("ps", "ps=dp"), ("ps", "ps=dp --payload nccl"),
                              ("ring", "ring=ddp --algorithm two-shot")) for waits in (1, 60)])
def a_gpu_that_is_lost_is_named_with_rank_host_and_operation(mode, options, waits):
    words = ["--device", "cuda", "--mode", mode, *TRAIN]
    if options:
        words += ["--gpus", 2, "--share-gpu", "--policy", *options.split()]
    fails(words, {"EMULATED_LOST": str(waits)}, 71,
          [f"{mode} rank ", "in setup" if waits == 1 else "at step ", f" on {HOST}, GPU 0: ", "(cudaErrorLaunchFailure)"])


@cases([("a system error", "0:5:2", 71, "rank 0", "ncclAllReduce", "ncclSystemError"),
        ("an error of CUDA", "1:5:1", 71, "rank 1", "ncclAllReduce", "ncclUnhandledCudaError"),
        ("another rank's", "1:3:6", 75, "rank ", "ncclBroadcast", "ncclRemoteError"),
        ("at the start", "0:0:2", 71, "rank 0", "ncclCommInitRankConfig", "ncclSystemError"),
        ("of DataParallel", "1:60:2", 71, "rank 1", "nccl", "ncclSystemError")])
def an_error_of_nccl_is_named_with_rank_host_and_operation(fault, code, rank, operation, name):
    words = ["--mode", "ring", "--collective", "nccl", "--policy", "ring=ddp"]
    if operation == "nccl":
        words = ["--mode", "ps", "--policy", "ps=dp", "--payload", "nccl"]
    for more in ([], ["--cuda-graph"]):
        fails(["verify", "--device", "cuda", *words, *more,
               golden("wine_mlp_w2")], {"EMULATED_NCCL_FAULT": fault}, code, [rank, f" on {HOST}, GPU 0: NCCL, {operation}", f"({name})"])


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM} is not built")
    main()
