#!/usr/bin/env python3
"""The program on the device `cuda`: golden trajectories through every engine, the ledger compared with the CPU's, what is
refused, and a rank that is killed inside a collective.

    test_cuda_program.py [--emulated]    on the emulator: small files, since its kernels run on the host
"""
import json
import os
import re
import signal
import sys
import tempfile

from on_cuda import (CONVOLUTIONS, EMULATED, TRAINING, TRANSFORMER, USABLE, classes, golden, needs_gpu, needs_nccl, run,
                     verify)
from program import BUILD, PROGRAM, Run
from struck import strike
from tap import Skip, cases, expect, expect_equal, main, test

SMALL = ["toy_w1", "wine_mlp_w1", "wine_mlp_w2", "toy_w4"]
LARGE = ["wine_mlp_w4", "bert_tiny_w1", "bert_tiny_w2", "gpt2_tiny_w2", "resnet18_32_w1", "resnet18_32_w2",
         "resnet18_32_w2_syncbn", "resnet18_32_w3_silu", "resnet18_32_w4_silu"]
FILES = SMALL if EMULATED else SMALL + LARGE


@cases([(name, name) for name in FILES if name.endswith("_w1")])
def one_rank_follows_pytorch(name):
    needs_gpu()
    verify(name, "--mode", "none")


@cases([(f"{name}, {precision}", name, precision) for name in FILES if name.endswith("_w1") for precision in ("bf16", "tf32")])
def one_rank_that_rounds_factors_follows_pytorch(name, precision):
    needs_gpu()
    verify(name, "--mode", "none", "--" + precision)


@cases([(f"{name}, {mode}", name, mode) for name in FILES if not name.endswith("_w1") for mode in ("ps", "ring")])
def ranks_that_share_a_gpu_follow_pytorch(name, mode):
    needs_gpu()
    verify(name, "--mode", mode, "--policy", "ps=sync,ring=ddp", "--algorithm", "two-shot")


@cases([(f"{name}, {mode}, {precision}", name, mode, precision) for name in (SMALL[2:] if EMULATED else ["wine_mlp_w2", "bert_tiny_w2",
        "resnet18_32_w2", "wine_mlp_w4", "toy_w4"]) for mode in ("ps", "ring") for precision in ("bf16", "tf32")])
def ranks_that_share_a_gpu_and_round_factors_follow_pytorch(name, mode, precision):
    needs_gpu()
    verify(name, "--mode", mode, "--policy", "ps=sync,ring=ddp", "--algorithm", "two-shot", "--" + precision)


@cases([("cpu", "cpu", [], "--tf32: expected --device cuda, got cpu"), ("with bf16", "cuda", ["--bf16"], "--bf16: unexpected with --tf32")])
def tf32_is_refused(device, words, reason):
    result = run("verify", "--device", device, "--tf32", *words, golden("toy_w1"))
    expect_equal(result.code, 64, "exit code", result)
    expect(reason in result.err, "another reason", result)


@cases([(f"{algorithm}, {'Ring' if ring else 'any'}", algorithm, ring) for algorithm in ("library", "ring") for ring in (False, True)])
def nccl_is_left_only_its_ring_where_that_is_chosen(algorithm, ring):
    needs_nccl()
    if not EMULATED:
        raise Skip("only the emulated NCCL compares NCCL_ALGO with what a test expects")
    env = {"EMULATED_NCCL_ALGO": "Ring" if ring else "", "NCCL_ALGO": ""}
    result = run("verify", "--device", "cuda", "--mode", "ring", "--collective", "nccl", "--algorithm", algorithm,
                 golden("wine_mlp_w2"), env=env)
    expect_equal(result.code == 0, (algorithm == "ring") == ring, "success", result)


# `verify` has ranks that are threads; on a GPU NCCL's must be processes (below).
NCCL_POLICIES = [("buckets, ddp", "ddp", []), ("one bucket after backward", "torch-0.4.1", []),
                 ("in the gradients' own memory", "apex", ["--bucket-view"]), ("in bfloat16", "ddp", ["--comm-hook", "bf16"]),
                 ("with bfloat16 activations", "ddp", ["--bf16"])]


@cases([(label, policy, options) for label, policy, options in NCCL_POLICIES if EMULATED])
def the_ring_on_device_memory_follows_pytorch(policy, options):
    needs_nccl()
    name = "wine_mlp_w2"
    options = ["--mode", "ring", "--collective", "nccl", "--policy", f"ring={policy}", *options]
    if "--comm-hook" in options:  # travels rounded: it must run, and not agree to float32's limit
        result = run("verify", "--device", "cuda", *options, golden(name))
        expect(result.code in (0, 1), "it did not run", result)
        return
    verify(name, *options)


@cases([("from the first step", "--powersgd-start 0"), ("from the second", "--powersgd-start 1 --powersgd-rank 2")])
def gradients_that_travel_as_factors_come_out_as_on_the_cpu(options):
    needs_nccl()
    if not EMULATED:
        raise Skip("NCCL's ranks must be processes on a GPU")
    found = []
    for device in (["cpu"], ["cuda", "--collective", "nccl"]):
        result = run("verify", "--device", *device, "--mode", "ring", "--policy", "ring=ddp", "--comm-hook", "powersgd",
                     *options.split(), golden("wine_mlp_w2"))  # lossy: not PyTorch's numbers, but the same on both
        expect_equal(result.code, 1, "exit code", result)
        found.append(float(re.search(r"found (\S+),", result.out).group(1)))
    expect(abs(found[0] - found[1]) <= 1e-5 * abs(found[0]), "other numbers than on the CPU", found)


@cases([(f"{mode} on {ranks}", mode, ranks) for mode, ranks in (("none", 1), ("ps", 2), ("ring", 2), ("ring", 4), ("ps", 4))])
def the_ledger_is_that_of_the_cpu_and_of_the_virtual_device(mode, ranks):
    needs_gpu()
    policy = [] if mode == "none" else ["--policy", "ps=sync,ring=ddp"]
    words = [*TRAINING, "--mode", mode, "--gpus", ranks, *policy]
    on_gpu = run("--device", "cuda", "--share-gpu", "--prefetch", "off", *words)
    on_cpu = run("--device", "cpu", *words)
    virtual = run("--device", "sim:v100-pcie-32g", "--prefetch", "off", *[word for word in words if word not in ("--data", "wine")])
    expect_equal(on_gpu.code, 0, "exit code", on_gpu)
    expect(len(classes(on_cpu)) >= 8 and max(classes(on_cpu).values()) > 0, "the ledger is empty", on_cpu)
    expect_equal(classes(on_gpu), classes(on_cpu), "logical bytes compared with the CPU's")
    expect_equal(classes(on_gpu), classes(virtual), "logical bytes compared with the virtual device's")


@cases([("none", "none", 1, "none"), ("ring", "ring", 2, "ring=ddp"), ("ps", "ps", 2, "ps=sync"), ("dp", "ps", 2, "ps=dp")])
def a_batch_that_is_copied_ahead_is_in_the_ledger(mode, ranks, policy):
    needs_gpu()
    words = ["--model", "wine_mlp", "--batch", 16, "--steps", 4, "--warmup", 2, "--json", "-", "--quiet", "--eval-every", -1,
             "--mode", mode, "--gpus", ranks, *([] if mode == "none" else ["--policy", policy])]
    on_gpu = run("--device", "cuda", "--share-gpu", "--data", "wine", *words)
    without = run("--device", "cuda", "--share-gpu", "--data", "wine", "--prefetch", "off", *words)
    virtual = run("--device", "sim:v100-pcie-32g", *words)
    planned = run("--device", "cuda", "--share-gpu", "--data", "wine", "--plan", *words)
    for result in (on_gpu, without, virtual, planned):
        expect_equal(result.code, 0, "exit code", result)
    expect_equal(classes(on_gpu), classes(virtual), "logical bytes compared with the virtual device's")
    expect_equal(classes(on_gpu), classes(planned), "logical bytes compared with the plan's")
    loads = range(1 if policy == "ps=dp" else ranks)  # under dp the first loads for all
    twice = {key: 2 * held if key[2] == "batch" and key[1] in loads else held for key, held in classes(without).items()}
    expect_equal(classes(on_gpu), twice, "logical bytes compared with those without")


AHEAD = [("an epoch's last batch is smaller", ["--model", "wine_mlp", "--data", "wine", "--batch", "50"]),
         ("two micro-batches", ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--accumulate", "2"]),
         ("recorded passes", ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--cuda-graph"]),
         ("evaluations between steps", ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--eval-every", "3"]),
         ("rows with targets are listed", [*TRANSFORMER, "--head", "mlm", "--batch", "2"])]


@cases(AHEAD[::2] + AHEAD[1::2], at_more=2)
def batches_that_are_copied_ahead_train_as_those_that_are_not(words):
    needs_gpu()
    words = ["--mode", "none", "--device", "cuda", "--steps", "10", "--warmup", "0", "--quiet", "--json", "-", *words]
    words += [] if "--eval-every" in words else ["--eval-every", "-1"]
    hashes = {}
    for name, more, env in [("off", ["--prefetch", "off"], {})] + [(order, [], {"EMULATED_ORDER": order} if order else {})
                                                                   for order in ("", "late", "early") if EMULATED or not order]:
        result = run(*words, *more, env=env)
        expect_equal(result.code, 0, "exit code", result)
        job = result.json()["jobs"][0]
        hashes[name] = job["parameter_hash"]
        measured = [seconds is not None for seconds in job["ranks"][0]["batch_copy_s"]]
        expect_equal(set(measured), {name != "off"}, "whether copies are measured", result)
    expect_equal(len(set(hashes.values())), 1, f"different parameters: {hashes}")


@cases([("a linear model", "wine_mlp", 16, ["--data", "wine"]), ("convolutions", "lenet", 4, [])])
def the_ledger_in_bfloat16_is_that_of_the_virtual_device_and_of_the_plan(model, batch, data):
    needs_gpu()
    words = ["--model", model, "--batch", batch, "--mode", "none", "--steps", "2", "--warmup", "1", "--json", "-", "--quiet",
             "--eval-every", "-1"]
    env = {"EMULATED_CUDNN": "1"}
    wide = run("--device", "cuda", *data, *words, env=env)
    narrow = run("--device", "cuda", "--bf16", *data, *words, env=env)
    virtual = run("--device", "sim:dgx-h100", "--bf16", *words)
    expect_equal(wide.code, 0, "exit code", wide)
    expect_equal(narrow.code, 0, "exit code", narrow)
    expect_equal(classes(narrow), classes(virtual), "logical bytes compared with the virtual device's")
    planned = run("--device", "cuda", "--bf16", "--plan", *data, *words, env=env)
    expect_equal(classes(planned), classes(narrow), "logical bytes compared with the plan's")
    was, is_now = classes(wide)["none", 0, "activations"], classes(narrow)["none", 0, "activations"]
    expect(0.5 <= is_now / was < 0.55, f"activations of {was} bytes take {is_now} in bfloat16")


@test
def processes_with_nccl_train_as_those_with_host_memory():
    needs_nccl()
    words = ["--device", "cuda", "--share-gpu", *TRAINING, "--mode", "ring", "--gpus", 2]
    losses = []
    factors = "--comm-hook powersgd --powersgd-start 0"
    for more in ("--collective nccl", "--algorithm two-shot", "--collective nccl --cuda-graph", f"--collective nccl {factors}",
                 f"--algorithm two-shot {factors}"):
        result = run(*words, *more.split())
        expect_equal(result.code, 0, "exit code", result)
        losses.append([round(x, 4) for x in result.json()["jobs"][0]["ranks"][0]["losses"]])
    expect_equal(losses[0], losses[1], "losses with NCCL")
    expect_equal(losses[2], losses[0], "losses with recorded passes")
    expect(all(abs(a - b) < 1e-3 for a, b in zip(losses[3], losses[4])), "losses with PowerSGD", *losses[3:])


@cases([("float32", [], 1e-4), ("bf16", ["--bf16"], 0.05)])
def timed_algorithms_train_as_those_that_cudnn_puts_first(words, limit):
    needs_gpu()
    env = {"EMULATED_CUDNN": "1"}  # Only the emulator reads this variable.
    losses = []
    for more in ([], ["--benchmark"]):
        result = run(*CONVOLUTIONS, "--device", "cuda", *words, *more, env=env)
        expect_equal(result.code, 0, "exit code", result)
        rank = result.json()["jobs"][0]["ranks"][0]
        expect_equal("cuDNN" in rank["device"] and "benchmarked" in rank["device"], bool(more), "benchmarked", rank["device"])
        losses.append(rank["losses"])
    expect(all(abs(a - b) <= limit * abs(a) for a, b in zip(*losses)), "other losses", *losses)


@test
def searches_that_fail_are_reported():
    needs_gpu()
    if not EMULATED:
        raise Skip("only the emulator's cuDNN fails on request")
    words = [word for word in CONVOLUTIONS if word not in ("--json", "-", "--quiet")]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        result = run(*words, "--verbose", "--device", "cuda", "--json", path, env={"EMULATED_CUDNN": "1", "EMULATED_FAULT": "search"})
        expect_equal(result.code, 0, "exit code", result)
        with open(path) as file:
            found = json.load(file)["jobs"][0]["ranks"][0]["fallbacks"]
    expect_equal(len(found), 3, "a convolution and its two gradients", found)
    expect(all(row["reason"] == "cuDNN: CUDNN_STATUS_NOT_SUPPORTED" and row["count"] > 0 for row in found), "reasons", found)
    for row in found:
        said = f"{row['operation']} {row['shape']}: {row['reason']}; {row['instead']}, which is slower"
        expect_equal(result.err.count(said), 1, "warnings", said, result)
        expect(f"{row['operation']} runs slower than it could, in {row['count']} place" in result.out, "not in the report", result)


@test
def an_old_name_of_the_option_works_with_a_notice():
    needs_gpu()
    result = run(*CONVOLUTIONS, "--device", "cuda", "--cudnn-benchmark", env={"EMULATED_CUDNN": "1"})
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(result.err.count("--cudnn-benchmark is now called --benchmark"), 1, "notices", result)
    expect_equal(result.json()["configuration"]["benchmark"], "yes", "--benchmark", result)


# In an earlier version a rank that named its host to NCCL moved the environment, and another rank that read the
# environment at that time crashed.
@test
def ranks_that_are_threads_add_nothing_to_the_environment():
    needs_nccl()
    if not EMULATED:
        raise Skip("NCCL's ranks must be processes on a GPU")
    guard = os.path.join(os.path.abspath(BUILD), "tests", "guard_environment.so")
    result = run("verify", "--device", "cuda", "--mode", "ring", "--collective", "nccl", "--policy", "ring=ddp",
                 golden("wine_mlp_w2"), env={"LD_PRELOAD": guard})
    expect_equal(result.code, 0, "exit code", result)


@test
def a_bucket_is_packed_and_unpacked_by_one_launch():
    needs_nccl()
    if not EMULATED:
        raise Skip("only the emulator counts launches")
    made = []
    for cap in ("25", "0.0001"):  # one bucket, and from the second step on three
        with tempfile.NamedTemporaryFile("r") as file:
            result = run("verify", "--device", "cuda", "--mode", "ring", "--collective", "nccl", "--policy", "ring=ddp",
                         "--bucket-cap-mb", cap, golden("wine_mlp_w2"), env={"EMULATED_COUNTS": file.name})
            expect_equal(result.code, 0, "exit code", result)
            counts = dict(line.split() for line in file)
            made.append(int(counts["launches"]) + int(counts["copies"]))
    steps, ranks = 10, 2
    expect_equal(made[1] - made[0], 2 * 2 * (steps - 1) * ranks, "launches that two buckets fewer save", made)


@cases([("float32", []), ("bfloat16", ["--bf16"]), ("two micro-batches", ["--accumulate", "2"]),
        ("recorded passes", ["--cuda-graph"])], at_more=2)
def gradients_of_biases_beside_the_weights_train_as_sums_of_their_own(words):
    needs_gpu()
    losses = []
    for env, said in ({}, "with the weights'"), ({"PSRING_PLAIN_PRODUCTS": "1"}, "by a separate sum"):
        result = run(*CONVOLUTIONS, *TRANSFORMER, "--device", "cuda", *words, "--steps", "4", "--log-level", "debug",
                     env={"EMULATED_CUBLASLT": "1", **env})
        expect_equal(result.code, 0, "exit code", result)
        if EMULATED:
            expect("the bias's gradient " + said in result.err, f"no bias's gradient {said}", result)
        losses.append(result.jobs()["none"]["ranks"][0]["losses"])
    expect(all(abs(a - b) <= (1e-3 if "--bf16" in words else 1e-5) * abs(a) for a, b in zip(*losses)), "other losses", *losses)


@test
def bfloat16_meets_tensor_cores_in_cudnn():
    needs_gpu()
    wide = [] if EMULATED else ["--model", "resnet18"]  # cuDNN has LeNet's one and six channels without tensor cores
    result = run(*CONVOLUTIONS, *wide, "--device", "cuda", "--bf16", "--log-level", "debug", env={"EMULATED_CUDNN": "1"})
    expect_equal(result.code, 0, "exit code", result)
    for kind in ("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weights"):
        said = [line for line in result.err.splitlines() if f"{kind} in bfloat16" in line and "(tensor cores," in line]
        expect(said, f"{kind} by tensor cores", result)


@cases([("as many as there are", 1), ("two or more", 2)])
def a_published_table_is_measured_as_far_as_there_are_gpus(gpus):
    needs_gpu()
    if gpus > 1 and not EMULATED:
        raise Skip("the GPUs are those that are there")
    env = {"EMULATED_CUDNN": "1", "EMULATED_GPUS": str(gpus)}
    result = run("reproduce", "torch-vs-apex", "--device", "cuda", "--json", "-", env=env, limit=200)
    expect_equal(result.code, 0, "exit code", result)
    report = result.json()
    ours = {(cell["row"], cell["quantity"]): cell["ours"] for cell in report["cells"]}
    expect(ours["1 GPU, none", "forward"] > 0 and ours["1 GPU, none", "backward"] > 0, "no time", result)
    expect(not report["simulated"], "measured figures are said to be simulated", result)
    measured = {int(row.split()[0]) for row, _ in ours}
    expect(gpus in measured, f"{gpus} GPUs are not measured", result)
    for gpus in (2, 4, 8):
        said = any(note.startswith(f"{gpus} GPUs") and "not measured, found" in note for note in report["notes"])
        expect(said != (gpus in measured), f"{gpus} GPUs: neither measured nor named, or both", result)
    other = run("reproduce", "dp-vs-ddp", "--device", "cuda")
    expect_equal(other.code, 64, "exit code", other)
    expect("only torch-vs-apex is measured" in other.err, "what is measured is not said", other)


@cases([("one", 1), ("three", 3)])
def the_calibrated_gpus_are_a_profile_of_virtual_time(gpus):
    needs_gpu()
    if gpus > 1 and not EMULATED:
        raise Skip("the GPUs are those that are there")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "here.json")
        result = run("calibrate", "--device", "cuda", "--out", path, env={"EMULATED_CUDNN": "1", "EMULATED_GPUS": str(gpus)})
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            source = json.load(file)["topology"]["source"]
        if EMULATED and gpus == 1:
            expect("ASSUMED" in source and "links between GPUs are assumed" in result.out, "what is assumed is not said", result)
        elif EMULATED:
            expect("3 GPUs: " in source and "all-reduce, bus bandwidth" in result.out, "what was measured is not said", result)
            together = run("--device", "sim:" + path, "--mode", "ring", "--gpus", 3, *CONVOLUTIONS[2:-1], "-1")
            expect_equal(together.code, 0, "exit code", together)
        expect("written to " + path in result.out, "the file is not named", result)
        virtual = run("--device", "sim:" + path, *[word for word in CONVOLUTIONS if word != "--quiet"])
        expect_equal(virtual.code, 0, "exit code", virtual)
        expect(virtual.jobs()["none"]["step_time"]["median_s"] > 0, "a step takes no time", virtual)
        if EMULATED:
            shown = run("profiles", path)
            expect("EMULATED" in shown.out and "means nothing" in shown.out, "the emulator is not named", shown)


@cases([("float32", []), ("bfloat16", ["--bf16"])])
def products_over_other_rows_in_every_step_have_the_bits_of_a_run_that_did_not_stop(more):
    needs_gpu()
    words = [*CONVOLUTIONS, *TRANSFORMER, "--head", "mlm", "--device", "cuda", "--steps", "3", "--warmup", "0", *more]
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        found = [run(*words, *last, env={"EMULATED_CUBLASLT": "1"})
                 for last in (["--save", saved], ["--load", saved], ["--steps", "6"])]
    expect_equal([result.code for result in found], [0, 0, 0], "exit codes", *found)
    _, went_on, at_once = (result.json()["jobs"][0] for result in found)
    expect_equal(went_on["parameter_hash"], at_once["parameter_hash"], "parameters")


@cases([("launched one by one", []), ("recorded", ["--cuda-graph"])])
def weights_in_bfloat16_are_those_of_the_checkpoint_that_a_run_goes_on_from(more):
    needs_gpu()
    words = ["--device", "cuda", "--mode", "none", *TRAINING, "--bf16", "--warmup", "0", "--steps", "4", *more]
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        found = [run(*words, *last) for last in (["--save", saved], ["--load", saved], ["--steps", "8"])]
    expect_equal([result.code for result in found], [0, 0, 0], "exit codes", *found)
    _, went_on, at_once = (result.json()["jobs"][0] for result in found)
    expect_equal(went_on["parameter_hash"], at_once["parameter_hash"], "parameters")
    expect_equal(went_on["ranks"][0]["losses"], at_once["ranks"][0]["losses"][4:], "losses")


@cases([(f"{words}, {rule}", words, rule) for rule in ("stop", "skip", "warn")
        for words in ("none", "ps --policy dp", "ps --policy sync",
                      "ps --policy async", "ps --policy sync --server-optimizer off", "ring --algorithm two-shot")])
def gradients_that_are_not_finite_stop_the_run_or_are_skipped_or_warned_of(words, rule):
    needs_gpu()
    gpus = ["--gpus", "2", "--share-gpu"] if words != "none" else []
    result = run("--device", "cuda", "--mode", *words.split(), *gpus, "--model", "wine_mlp", "--data", "wine", "--steps", "8",
                 "--lr", "1e30", "--warmup", "0", "--eval-every", "-1", "--json", "-", "--on-nonfinite", rule)
    expect_equal(result.code, 79 if rule == "stop" else 0, "exit code", result)
    expect(" step " in result.err and "is not finite" in result.err, "nothing is named", result)
    if rule != "stop":  # servers may find a gradient first; on a GPU the loss is checked at the step's end
        job = result.json()["jobs"][0]
        expect((job["updates_skipped"] > 0) == (rule == "skip"), job["updates_skipped"], result)
        expect(": gradient of " in result.err, "no gradient is named", result)


@cases([("cuda-graph", "--cuda-graph"), ("tf32", "--tf32"), ("benchmark", "--benchmark"), ("share-gpu", "--share-gpu")])
def on_the_cpu_it_is_refused(option):
    result = run("--device", "cpu", *CONVOLUTIONS, option)
    expect_equal(result.code, 64, "exit code", result)
    expect("expected --device cuda" in result.err, "what is expected is not named", result)


@test
def without_a_gpu_it_is_refused_in_one_line():
    if USABLE:
        raise Skip("there is a GPU")
    result = run("--device", "cuda", "--mode", "none", "--model", "toy")
    expect_equal(result.code, 69, "exit code", result)
    lines = result.lines()
    expect(len(lines) == 1 and "device cuda" in lines[0] and "--device cpu" in lines[0], "not one line", result)


@test
def more_ranks_than_gpus_are_refused_with_what_would_run():
    needs_gpu()
    result = run("--device", "cuda", "--mode", "ring", "--gpus", 64, "--model", "toy")
    expect_equal(result.code, 78, "exit code", result)
    lines = result.lines()
    expect(len(lines) == 1 and "got 64 ranks" in lines[0] and "--share-gpu" in lines[0], "not one line", result)


@cases([("P100", "60", "CUDA 12 and -DPSRING_CUDA_ARCHITECTURES=60"), ("V100", "70", "CUDA 12 and -DPSRING_CUDA_ARCHITECTURES=70"),
        ("T4", "75", "")])
def a_gpu_older_than_the_code_of_the_module_is_refused_and_the_toolkit_that_helps_is_named(architecture, toolkit):
    needs_gpu()
    if not EMULATED:
        raise Skip("only the emulated GPU has the compute capability that a test asks for")
    result = run("--device", "cuda", "--mode", "none", "--model", "toy", "--quiet", env={"EMULATED_ARCHITECTURE": architecture})
    expect_equal(result.code, 69 if toolkit else 0, "exit code", result)
    if toolkit:
        got = f"expected compute capability 7.5 or later, got {architecture[0]}.{architecture[1]} "
        expect(len(result.lines()) == 1 and got in result.err and result.err.endswith(f"; build with {toolkit}\n"), "not one line", result)


@cases([("host memory", "ring", "--collective shm"), ("NCCL", "ring", "--collective nccl"),
        ("DataParallel through NCCL", "ps", "--policy dp --payload nccl")])
def a_rank_killed_in_training_ends_the_job_and_is_named(mode, options):
    (needs_nccl if "nccl" in options else needs_gpu)()
    words = ["--device", "cuda", "--share-gpu", "--mode", mode, "--gpus", "2", "--model", "wine_mlp", "--data", "wine",
             "--batch", "16", "--steps", "1000000", *options.split(), "--stall-timeout", "10s" if EMULATED else "60s"]  # a card may start slowly
    with Run(*words) as running:
        strike(running, mode, 1, "wait" if "nccl" in options else "forward", 20, signal.SIGKILL)
        result = running.wait(80)
        expect(result.code not in (0, 130), "it ended as if nothing had happened", result)
        expect("rank 1" in result.err, "the rank is not named", result)
        running.wait_until_gone(20)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM} is not built")
    main()
