#!/usr/bin/env python3
"""A host that runs ahead of the GPU: with the engines that only enqueue (none, and the ring with NCCL) it begins a step
before the previous step has ended, and reads the loss, update and times of the previous step afterwards.

    test_cuda_ahead.py [--emulated]    on the emulator, whose streams run behind the host
"""
import os
import re
import tempfile

from on_cuda import EMULATED, TRAINING, needs_gpu, needs_nccl, run
from tap import Skip, cases, expect, expect_equal, main

NONE = ["--device", "cuda", "--mode", "none"]
RING = ["--device", "cuda", "--share-gpu", "--mode", "ring", "--gpus", 2, "--collective", "nccl", "--policy", "ring=ddp"]
AHEAD = {"EMULATED_ORDER": "ahead"}  # Only the emulator reads this variable.
ENGINES = [("none", NONE), ("none, micro-batches", [*NONE, "--accumulate", 2]), ("none, recorded", [*NONE, "--cuda-graph"]),
           ("ring", RING), ("ring, clipped", [*RING, "--clip-norm", 1])]
PARTS = ["data_s", "forward_s", "backward_s", "exposed_communication_s", "waiting_s", "optimizer_s", "other_s"]


def waits(words, steps):
    """How often the host has waited until a stream had nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "counts")
        result = run(*words, *TRAINING, "--steps", steps, "--prefetch", "off", env={**AHEAD, "EMULATED_COUNTS": path})
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="ascii") as file:
            return sum(int(count) for count in re.findall(r"^idle_waits (\d+)$", file.read(), re.MULTILINE))


# In an earlier version the host waited at the end of every step, again for its loss, and in the update.
@cases([row for row in ENGINES if "clipped" not in row[0]][::-1], at_once=2, at_more=2)
def the_host_waits_no_oftener_in_more_steps(words):
    needs_nccl() if "ring" in words else needs_gpu()
    if not EMULATED:
        raise Skip("the emulator counts waits")
    few, many = waits(words, 8), waits(words, 40)
    expect(many - few < 32, "32 more steps: idle waits", few, many)


@cases(ENGINES[::-1], at_once=2, at_more=2)
def losses_and_parameters_do_not_depend_on_how_far_the_host_is_ahead(words):
    needs_nccl() if "ring" in words else needs_gpu()
    found = [run(*words, *TRAINING, "--steps", 12, "--eval-every", 5, *more, env=env)
             for more, env in (([], {}), ([], AHEAD), (["--prefetch", "off"], AHEAD))]
    expect_equal([result.code for result in found], [0] * 3, "exit codes", *found)
    jobs = [result.json()["jobs"][0] for result in found]
    for job in jobs[1:]:
        expect_equal(job["parameter_hash"], jobs[0]["parameter_hash"], "parameters")
        for name in ("losses", "step_index"):
            expect_equal([rank[name] for rank in job["ranks"]], [rank[name] for rank in jobs[0]["ranks"]], name)
        expect_equal([e["loss"] for e in job["ranks"][0]["evaluations"]],
                     [e["loss"] for e in jobs[0]["ranks"][0]["evaluations"]], "evaluations")


@cases(ENGINES, at_once=2)
def steps_follow_each_other_and_their_parts_add_up(words):
    needs_nccl() if "ring" in words else needs_gpu()
    result = run(*words, *TRAINING, "--steps", 12, "--eval-every", -1, env=AHEAD)
    expect_equal(result.code, 0, "exit code", result)
    for rank in result.json()["jobs"][0]["ranks"]:
        expect_equal(len(rank["step_s"]), 12, "steps")
        for i, whole in enumerate(rank["step_s"]):
            parts = sum(round(1e9 * rank[name][i]) for name in PARTS)
            expect_equal(parts, round(1e9 * whole), "parts of a step", i, [rank[name][i] for name in PARTS])
            expect(rank["forward_s"][i] > 0 and rank["backward_s"][i] > 0 and rank["optimizer_s"][i] > 0, "no times", i)
        for begin, end in zip(rank["step_begin_s"][1:], rank["step_end_s"]):
            expect_equal(round(1e9 * begin), round(1e9 * end), "the begin of a step")


# The step that has begun meanwhile has other gradients, so the gradients of the named step have been overwritten.
@cases([("none", NONE), ("ring", RING)], at_once=2)
def a_gradient_that_is_not_finite_is_named_with_its_step(words):
    needs_nccl() if "ring" in words else needs_gpu()
    found = [run(*words, *TRAINING, "--optimizer", "sgd", "--momentum", 0, "--steps", 40, "--warmup", 0, "--lr", 1e30,
                 "--on-nonfinite", rule, env=env) for env in ({}, AHEAD) for rule in ("stop", "warn")]
    expect_equal([result.code for result in found], [79, 0, 79, 0], "exit codes", *found)
    named = [sorted(re.findall(r"step \d+: [^;\n]*is not finite", result.err)) for result in found]
    expect(all(named), "nothing is named", *found)
    expect_equal(named[2:], named[:2], "what is named")


if __name__ == "__main__":
    main()
