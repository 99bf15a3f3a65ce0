#!/usr/bin/env python3
"""The parameter server on the device `cuda`: DataParallel's step and the servers' sums and updates in device memory,
whatever tensors travel through; the ledger compared with the CPU's and the virtual device's; what is refused.

    test_cuda_ps.py [--emulated]    on the emulator: small files, since its kernels run on the host
"""
import os
import sys
import tempfile

from on_cuda import EMULATED, TRAINING, classes, needs_gpu, needs_nccl, needs_nccl_of_threads, run, verify
from program import PROGRAM
from tap import Skip, cases, expect, expect_equal, main, test

SMALL = ["wine_mlp_w2", "toy_w4"]
LARGE = ["gpt2_tiny_w2", "bert_tiny_w2_global_loss", "resnet18_32_w2_syncbn"]
PAYLOADS = ("zmq", "shm", "nccl")


@cases([(f"{name}, {payload}", name, payload) for name in (SMALL[:1] if EMULATED else SMALL + LARGE) for payload in PAYLOADS] +
       [(f"toy_w4, {options}", "toy_w4", options) for options in ("zmq --dp-loss replica", "shm --dp-lifetimes lean", "nccl --dp-loss replica")])
def dataparallel_follows_pytorch(name, payload):
    verify_dataparallel(name, payload.split())


def verify_dataparallel(name, payload, *options):
    needs_gpu()
    if "nccl" in payload:
        needs_nccl_of_threads()
    verify(name, "--mode", "ps", "--policy", "ps=dp", *options, "--payload", *payload)


@cases([(f"{payload}{options}", [payload, *options.split()]) for payload in PAYLOADS for options in ("", " --dp-loss replica", " --cuda-graph")])
def dataparallel_in_bfloat16_follows_pytorch(payload):
    verify_dataparallel("wine_mlp_w2", payload, "--bf16")


@cases([("as in PyTorch", []), ("lean", ["--dp-lifetimes", "lean"]), ("the replicas' losses", ["--dp-loss", "replica"])])
def the_ledger_of_dataparallel_in_bfloat16_is_the_virtual_devices_and_the_plans(options):
    needs_gpu()
    words = ["--policy", "ps=dp", "--eval-every", -1, *options]
    wide, narrow = on_gpu(*words), on_gpu(*words, "--bf16")
    expect_equal(classes(narrow), classes(train("--device", "sim:dgx-h100", "--bf16", *words)), "logical bytes compared with the virtual device's")
    planned = train("--device", "cuda", "--share-gpu", "--bf16", "--plan", *words)
    expect_equal(classes(narrow), classes(planned), "logical bytes compared with the plan's")
    for rank in (0, 1):
        was, is_now = (classes(result)["ps", rank, "activations"] for result in (wide, narrow))
        expect(0.5 <= is_now / was < 0.55, f"activations of {was} bytes take {is_now} on rank {rank}")
    for phase in narrow.json()["jobs"][0]["dataparallel_memory"]["phases"]:
        expect_equal(phase["difference_bytes"], phase["formula_bytes"], f"{phase['phase']}: {phase['formula']}")


@cases([(options, options) for options in ("ps=sync --servers 2", "ps=ssp --staleness 0 --payload zmq",
                                           "ps=sync --servers 2 --divide before --partition-bytes 512",
                                           "ps=sync --server-optimizer off")])
def servers_on_a_gpu_follow_pytorch(options):
    needs_gpu()
    verify("toy_w4", "--mode", "ps", "--policy", *options.split())


def train(*words, ranks=2, env=None):
    result = run("--mode", "ps", "--gpus", ranks, *TRAINING, *words, env=env)
    expect_equal(result.code, 0, "exit code", result)
    return result


def on_gpu(*words, **more):
    return train("--device", "cuda", "--share-gpu", *words, **more)


def parameters(result):
    return result.json()["jobs"][0]["parameter_hash"]


@test
def processes_compute_the_same_bits_whatever_tensors_travel_through():
    needs_gpu()
    replicas = ["--policy", "ps=dp", "--dp-loss", "replica"]
    payloads = PAYLOADS if EMULATED else PAYLOADS[:-1]  # NCCL adds three gradients in an order of its own
    runs = {payload: parameters(on_gpu(*replicas, "--payload", payload, ranks=3)) for payload in payloads}
    for words in ("ps=sync --servers 2", "ps=sync --servers 3 --payload zmq", "ps=ssp --staleness 0"):
        runs[words] = parameters(on_gpu("--policy", *words.split(), ranks=3))
    expect_equal(len(set(runs.values())), 1, f"different parameters: {runs}")


# Of three ranks the last batch has parts for two; of two there is one order of summation.
@cases([(" ".join(map(str, words)), words) for words in (
    ["--dp-loss", "device0"], ["--dp-loss", "replica", "--divide", "before"], ["--dp-loss", "device0", "--accumulate", 2],
    ["--dp-loss", "replica", "--divide", "after"])], at_more=2)
def dataparallel_computes_the_same_bits_through_messages_and_nccl(words):
    needs_nccl()
    runs = [on_gpu("--policy", "ps=dp", "--batch", 58, *words, "--payload", payload, ranks=3 if EMULATED else 2,
                   env={"EMULATED_ORDER": "ahead"}) for payload in ("zmq", "nccl")]
    sent = [[rank["bytes_sent"] for rank in result.json()["jobs"][0]["ranks"]] for result in runs]
    expect_equal(parameters(runs[1]), parameters(runs[0]), "parameters")
    # A single rank sends as many bytes; two ranks send fewer with a tree.
    expect(min(sent[1]) > 0 and sent[1][0] < sent[0][0] + (len(sent[0]) == 2), "rank 0 sends more than by messages", sent)


@cases([("clipped", ["--clip-norm", "0.5"]), ("divided first", ["--divide", "before"]), ("in two micro-batches", ["--accumulate", "2"])])
def servers_compute_the_same_bits_through_messages_and_shared_memory(words):
    needs_gpu()
    runs = [parameters(on_gpu("--policy", "ps=sync", "--servers", 2, *words, "--payload", payload, ranks=3)) for payload in ("zmq", "shm")]
    expect_equal(runs[1], runs[0], "parameters")


@cases([("async", "ps=async"), ("async, clipped", "ps=async --clip-norm 0.5"), ("ssp", "ps=ssp --staleness 2")], at_more=2)
def ranks_that_go_ahead_train(options):
    needs_gpu()
    result = on_gpu("--policy", *options.split(), "--servers", 2, "--steps", 60, ranks=3)
    losses = [rank["losses"] for rank in result.json()["jobs"][0]["ranks"]]  # of different samples, since updates come in random order
    first, last = (sum(sum(of_rank[part]) for of_rank in losses) for part in (slice(0, 10), slice(-10, None)))
    expect(last < first, f"it does not learn: {first} at first, {last} in the end", result)


# In bfloat16 a rank alone has copies of its weights from the update, a rank with a server makes them in each forward pass.
@cases([("float32", []), ("bfloat16", ["--bf16", "--eval-every", "2"])])
def one_rank_under_async_computes_what_a_rank_alone_does(more):
    needs_gpu()
    found = []
    for words in (["--mode", "none"], ["--mode", "ps", "--policy", "ps=async", "--gpus", 1]):
        result = run("--device", "cuda", *words, *TRAINING, *more)
        expect_equal(result.code, 0, "exit code", result)
        job = result.json()["jobs"][0]
        evaluations = [{key: value for key, value in e.items() if key != "training_s"} for e in job["ranks"][0].get("evaluations", [])]
        found.append((job["ranks"][0]["losses"], job["parameter_hash"], evaluations))
    expect_equal(found[1], found[0], "losses, parameters, evaluations")


@cases([(options, options) for options in ("ps=dp", "ps=dp --payload nccl", "ps=sync --servers 2")])
def a_run_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(options):
    needs_gpu()
    words = ["--policy", *options.split(), "--steps", 3, "--warmup", 0, "--eval-every", -1]
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        on_gpu(*words, "--save", saved)
        went_on = parameters(on_gpu(*words, "--load", saved))
    expect_equal(went_on, parameters(on_gpu(*words, "--steps", 6)), "parameters")


@cases([(options, options) for options in ("ps=dp", "ps=dp --dp-lifetimes lean --accumulate 2", "ps=ssp --servers 2",
                                           "ps=sync --servers 2", "ps=async")] +
       [(f"{options} --payload nccl", f"{options} --payload nccl") for options in ("ps=dp", "ps=dp --dp-lifetimes lean")])
def the_ledger_is_the_cpus_and_the_virtual_devices(options):
    needs_gpu()
    options, _, payload = options.partition(" --payload ")  # it is the ledger of all payloads
    words = ["--policy", *options.split(), "--eval-every", -1]  # the virtual device evaluates nothing
    found = classes(on_gpu(*words, "--prefetch", "off", *(["--payload", payload] if payload else [])))
    for device, off in (("cpu", []), ("sim:v100-pcie-32g", ["--prefetch", "off"])):
        expected = classes(train("--device", device, *off, *words))
        expect(len(expected) >= 8 and max(expected.values()) > 0, f"the ledger of {device} is empty")
        expect_equal(found, expected, f"logical bytes on cuda compared with {device}")


@cases([("dp", "ps=dp", "gpu"), ("servers on the ranks", "ps=sync", "gpu"),
        ("servers of their own", "ps=sync --server-placement own", "host"),
        ("ranks that update", "ps=sync --server-optimizer off", "host")])
def the_report_says_who_sums_and_updates(options, where):
    needs_gpu()
    result = on_gpu("--policy", *options.split())
    expect_equal(result.json()["jobs"][0]["updates_on"], where, "updates_on", result)


def refused(words, parts, env=None, code=78, policy="dp"):
    result = run("--mode", "ps", "--gpus", 2, "--policy", f"ps={policy}", *TRAINING, *words, env=env)
    expect_equal(result.code, code, "exit code", result)
    lines = [line for line in result.lines() if ": warning: " not in line]
    expect(len(lines) == 1 and all(part in lines[0] for part in parts), "not one line with the reason", result)


@cases([("the CPU", "cpu", [], "a device with GPUs"), ("a virtual processor", "sim:cpu", [], "a device with GPUs"),
        ("servers", "cuda", ["--share-gpu"], "ps=dp"), ("an emulated link", "cuda", ["--share-gpu", "--link", "1GB/s,10us"], "paced")])
def nccl_is_refused_where_it_cannot_carry_tensors(device, words, reason):
    if device == "cuda": needs_nccl()
    refused(["--device", device, *words, "--payload", "nccl"], ["--payload", "got nccl", reason], policy="sync" if reason == "ps=dp" else "dp")


@test
def a_device_0_without_memory_for_it_all_is_named_with_what_it_holds_more_than_others():
    needs_gpu()
    if not EMULATED:
        raise Skip("a GPU with little memory is emulated")
    refused(["--device", "cuda", "--share-gpu"],
            ["rank 0, which holds parameters", "allocating outputs_and_loss", "no memory for", "under dp rank 0 would hold",
             "gradients 8.5 KiB", "rank 1", "more on rank 0"], env={"EMULATED_BYTES": "98304"}, code=71)


@test
def a_batch_that_no_gpu_holds_is_refused_with_what_each_rank_would_hold_under_dp():
    needs_gpu()
    if EMULATED:
        raise Skip("the emulator's memory is the host's")
    words = ["--model", "bert", "--head", "cls", "--sequence", "512", "--layers", "2", "--hidden", "1024", "--heads", "16", "--vocabulary",
             "100", "--data", "synthetic", "--batch", "8192"]  # 545 GiB of activations on each rank
    refused(["--device", "cuda", "--share-gpu", *words],
            ["allocating ", "no memory for", "under dp rank 0 would hold", "activations 5"], code=71)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM} is not built")
    main()
