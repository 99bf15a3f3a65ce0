"""The ring engine from the command line: buckets, policies, what differs between ranks, options that change what a
step does."""
import json
import os
import socket

from images import few_clothes
from program import Run, Watch, harness
from tap import cases, expect, expect_equal, long_cases, main, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
POLICIES = ["ddp", "ddp-2019", "ddp-1.0", "apex", "torch-0.4.1", "torch-0.4.1-gloo", "horovod", "horovod-xla", "flat", "naive", "zero1", "zero2", "zero3", "fsdp"]
LENET = ["--model", "lenet", "--threads", "1"]
RING = ["--mode", "ring"]

with open(os.path.join(ROOT, "tests/golden/buckets/pytorch.json"), encoding="utf-8") as file:
    GOLDEN = json.load(file)["cases"]


# ---- buckets -----------------------------------------------------------------------------------

def buckets(*words):
    result = harness("buckets", *words, "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    return result.json()


@cases([(f"{c['model']}, {c['order']}, {c['limits_bytes']}", c) for c in GOLDEN])
def every_assignment_equals_that_of_pytorch(case):
    found = buckets("--model", case["model"], "--order", case["order"], "--limits", ",".join(map(str, case["limits_bytes"])))
    expect_equal(found, {"bytes": case["buckets_bytes"], "tensors": case["buckets_tensors"]}, case["model"])


@cases([("ddp, rebuilt", "ddp", [8196000, 31502336, 26255360, 26550272, 9724160], []),
        ("ddp, first step", "ddp", [102228128], ["--first-step"]),
        ("ddp-2019", "ddp-2019", [12410784, 31502336, 29669376, 27022336, 1623296], []),
        ("ddp, unused", "ddp", [12410784, 31502336, 29669376, 27022336, 1623296], ["--find-unused-parameters"]),
        ("torch-0.4.1", "torch-0.4.1", [102228128], []),
        ("apex", "apex", [43896736, 40982528, 17348864], [])])
def buckets_of_resnet50_are_those_of_the_published_systems(policy, sizes, words):
    """The expected sizes are derived from the sources of the systems."""
    expect_equal(buckets("--model", "resnet50", "--policy", policy, *words)["bytes"], sizes, policy)


@cases([("all as float32", [], ""), ("mixed precision", ["--mixed-precision"], ""), ("bf16", ["--comm-hook", "bf16"], "bfloat16"),
        ("fp16", ["--comm-hook", "fp16"], "float16")])
def a_run_sends_the_bytes_that_buckets_shows(words, sent_as):
    job = harness("--mode", "ring", "--device", "sim:dgx1-v100", "--gpus", "2", "--model", "resnet50", "--steps", "2", *words, "--json", "-").jobs()["ring"]
    sent = sum(row["bytes_per_step"] for row in job["algorithms"])
    shown = harness("buckets", "--model", "resnet50", *words).out
    line = f"Sent as {sent_as}: {sent:.0f} bytes.\n"
    expect_equal(line in shown if sent_as else sum(buckets("--model", "resnet50", *words)["bytes"]), bool(sent_as) or sent, "bytes", shown)
    expect("Sent" not in shown or sent_as, "a line only if the types differ", shown)


@cases([(policy, policy) for policy in ("zero1", "zero2", "zero3", "fsdp")])
def mixed_precision_halves_the_buckets_of(policy):
    words = ("--model", "resnet50", "--policy", policy)
    expect_equal([2 * size for size in buckets(*words, "--mixed-precision")["bytes"]], buckets(*words)["bytes"], policy)


@cases([(model, model, order) for model, order in (("resnet18", "exact reverse"), ("resnet50", "exact reverse"), ("inception_v3", "exact reverse"),
                                                    ("bert_base", "another than reverse"))])
def the_order_in_which_gradients_become_ready_is_printed(model, order):
    result = harness("buckets", "--model", model)
    expect(f"Gradients become ready in {order} order of registration" in result.out, f"expected {order}", result)


@test
def every_policy_is_listed_with_its_source():
    result = harness("policies")
    for policy in POLICIES:
        expect(f"ring  {policy} " in result.out, f"{policy} is not listed", result)
    expect_equal(result.out.count("    source: "), result.out.count("\n    source: "), "sources", result)


# ---- agreement ---------------------------------------------------------------------------------

def trained(words, limit=60):
    result = harness(*words, "--json", "-", "--quiet", limit=limit)
    expect_equal(result.code, 0, "exit code", result)
    job = result.json()["jobs"][0]
    return job["parameter_hash"], job["losses"]


def expect_same_bits(ranks, steps, divide):
    base = [*LENET, "--data", few_clothes(), "--batch", "4", "--gpus", ranks, "--steps", steps, "--warmup", "0", "--divide", divide]
    ends = {"ps": trained([*base, "--mode", "ps", "--policy", "sync"])}
    for policy in POLICIES:
        ends[policy] = trained([*base, *RING, "--policy", policy, "--algorithm", "two-shot"])
    for policy, end in ends.items():
        expect_equal(end, ends["ps"], f"{policy} compared with ps, divide {divide}")


@cases([("3 ranks, divide after", 3, 6, "after")])
@long_cases([("3 ranks, divide before", 3, 6, "before"), ("5 ranks", 5, 4, "after")])
def every_policy_is_bit_identical_where_sums_are_in_rank_order(ranks, steps, divide):
    expect_same_bits(ranks, steps, divide)


@long_cases([(f"{ranks} ranks, divide {divide}", ranks, divide) for ranks in (2, 3, 4, 5) for divide in ("before", "after")])
def fifty_steps_on_real_data_are_bit_identical(ranks, divide):
    expect_same_bits(ranks, 50, divide)


@cases([(policy, policy) for policy in POLICIES])
def sums_around_a_ring_differ_only_by_rounding(policy):
    """Losses of a few steps: a wrong gradient would be far off."""
    base = [*LENET, "--data", few_clothes(), "--batch", "4", "--gpus", 3, "--steps", 4, "--warmup", "0"]
    _, right = trained([*base, *RING, "--policy", policy, "--algorithm", "two-shot"])
    _, found = trained([*base, *RING, "--policy", policy, "--algorithm", "ring"])
    for step, (a, b) in enumerate(zip(found, right)):
        expect(abs(a - b) < 1e-5, f"{policy}, step {step}: found {a}, expected {b}")


# ---- options -----------------------------------------------------------------------------------

@cases([(f"{engine}, {k} batches of {8 // k}", engine, k) for engine in ("none", "ps=sync", "ring") for k in (2, 4)])
def accumulated_batches_equal_one_large_batch(engine, k):
    mode = engine.split("=")[0]
    base = ["--mode", mode, "--model", "wine_mlp", "--data", "wine", "--steps", 6, "--warmup", 0]
    base += ["--policy", engine] if "=" in engine else []
    base += [] if mode == "none" else ["--gpus", 2]
    jobs = []
    for words in (["--batch", 8], ["--batch", 8 // k, "--accumulate", k]):
        result = harness(*base, *words, "--json", "-", "--quiet")
        expect_equal(result.code, 0, "exit code", result)
        jobs.append(result.json()["jobs"][0])
    for step, (a, b) in enumerate(zip(jobs[1]["losses"], jobs[0]["losses"])):
        expect(abs(a - b) < 1e-6, f"step {step}: found {a}, expected {b}")
    for key in ("bytes_sent_per_step", "messages_sent_per_step"):  # At the end of the measurement some messages may still be under way.
        found, right = (job["traffic"]["per_rank"][0][key] for job in (jobs[1], jobs[0]))
        expect(abs(found - right) <= right / 4, f"{key}: found {found}, expected {right}")
    expect_equal(jobs[1]["ranks"][0]["samples"], jobs[0]["ranks"][0]["samples"], "samples")


UNEVEN = ["--gpus", 3, "--model", "wine_mlp", "--data", "wine", "--batch", 46, "--sampler", "global", "--epochs", 3,
          "--warmup", 0, "--divide", "after"]


@test
def a_rank_without_data_is_named_unless_it_may_join():
    result = harness(*RING, *UNEVEN)
    expect_equal(result.code, 78, "exit code", result)
    expect("rank 2 has no data in step 1: --join lets a rank take part without data" in result.err, "the rank is not named", result)


@test
def a_rank_without_data_takes_part_with_zeros():
    ring = trained([*RING, *UNEVEN, "--join", "world", "--algorithm", "two-shot"])
    ps = trained(["--mode", "ps", "--policy", "sync", *UNEVEN])
    expect_equal(ring, ps, "ring, and ps")
    active = trained([*RING, *UNEVEN, "--join", "active", "--algorithm", "two-shot"])
    expect(active[0] != ring[0], "the mean over the active ranks is that over all")


@cases([("bucket cap", ["--bucket-cap-mb", "0.05"]), ("first bucket", ["--first-bucket-mb", "0.01"]),
        ("message size", ["--policy", "apex", "--message-size", "1000"]), ("order", ["--order", "reverse"]),
        ("launch", ["--launch", "after-backward"]), ("buffers", ["--broadcast-buffers", "no"]), ("view", ["--bucket-view"]),
        ("fp32", ["--allreduce-fp32"]), ("unused", ["--find-unused-parameters"]), ("static", ["--static-graph"])])
def options_that_change_only_communication_keep_the_results(words):
    base = [*RING, *LENET, "--data", few_clothes(), "--batch", "4", "--gpus", 3, "--steps", 4, "--warmup", "0", "--algorithm",
            "two-shot", "--divide", "after"]
    expect_equal(trained([*base, *words]), trained(base), " ".join(words))


@cases([("fp16", ["--comm-hook", "fp16"], 1e-3), ("bf16", ["--comm-hook", "bf16"], 1e-2),
        ("PowerSGD", ["--comm-hook", "powersgd", "--powersgd-rank", "4", "--powersgd-start", "0"], 0.5),
        ("predivide", ["--policy", "apex", "--predivide", "3"], 1e-5), ("predivide and ddp", ["--policy", "ddp", "--predivide", "3"], 1e-5)])
def compression_changes_values_only_a_little(words, bound):
    base = [*RING, *LENET, "--data", few_clothes(), "--batch", "4", "--gpus", 3, "--steps", 4, "--warmup", "0", "--divide", "after"]
    _, right = trained(base)
    _, found = trained([*base, *words])
    expect(abs(found[-1] - right[-1]) < bound, f"found {found[-1]}, expected {right[-1]}")


@test
def reductions_in_every_micro_batch_give_the_same_means_with_more_messages():
    base = [*RING, *LENET, "--data", few_clothes(), "--batch", "4", "--gpus", 3, "--steps", 4, "--warmup", "0", "--accumulate", "3"]
    (_, once), (_, thrice) = trained(base), trained([*base, "--reduce-micro-batches"])
    expect(all(abs(x - y) < 1e-5 for x, y in zip(once, thrice)), "losses", once, thrice)
    sent = [harness("run", *base, *words, "--quiet", "--json", "-").json()["jobs"][0]["traffic"]["per_rank"][0]["messages_sent_per_step"]
            for words in ([], ["--reduce-micro-batches"])]
    start = 1  # messages of the first step, divided by the number of steps
    expect_equal(sent[1] - start, 3 * (sent[0] - start), "messages per step")


@cases([("sharded state", ["--policy", "zero1"]), ("parameters without a gradient", ["--find-unused-parameters"]), ("ranks without data", ["--join", "world"]),
        ("stages", ["--stages", "2"])])
def reductions_in_every_micro_batch_are_refused_with(words):
    result = harness(*RING, *LENET, "--data", "synthetic:1x28x28:10", "--gpus", 2, "--accumulate", "2", "--reduce-micro-batches", *words)
    expect_equal((result.code, len(result.lines())), (64, 1), "exit code and lines", result)
    expect("--reduce-micro-batches" in result.err, "the option", result)


# In an earlier version the option that the message advises was refused with the same message.
@cases([("as the policy", [], 64), ("before", ["--divide", "before"], 64), ("after", ["--divide", "after"], 0)])
def what_the_message_on_predivide_advises_is_taken(words, code):
    result = harness(*RING, "--model", "toy", "--data", "synthetic", "--gpus", 3, "--steps", 1, "--policy", "ddp", "--predivide", "3", *words)
    expect_equal(result.code, code, "exit code", result)
    expect(code == 0 or "add --divide after" in result.err, "the advice", result)


# ---- ranks that differ -------------------------------------------------------------------------

@cases([("another seed", ["--seed", "2"], ["seed = 1", "seed = 2"]),
        ("another model", ["--model", "toy"], ["model = wine_mlp", "model = toy"]),
        ("another bucket plan", ["--bucket-cap-mb", "1"], ["bucket-cap-mb = 0", "bucket-cap-mb = 1"]),
        ("another policy", ["--policy", "ring=apex"], ["policy = ring=apex"]),
        ("another algorithm", ["--algorithm", "two-shot"], ["algorithm = auto", "algorithm = two-shot"]),
        ("another hook", ["--comm-hook", "fp16"], ["comm-hook = none", "comm-hook = fp16"]),
        ("another element type", ["--device", "reference"], ["device = cpu", "device = reference"])])
def ranks_that_differ_are_refused_before_the_first_step(words, names):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    base = [*RING, "--model", "wine_mlp", "--data", "synthetic", "--steps", "5", "--rendezvous", f"tcp://127.0.0.1:{port}"]
    watch, runs = Watch(), []
    for rank in range(2):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "HARNESS_KEY": "0123456789abcdef" * 4}
        runs.append(Run(*base, *(words if rank == 1 else []), env=env))
    results = [run.wait(60) for run in runs]
    watch.check(*runs)
    for run in runs:
        run.__exit__()
    for rank, result in enumerate(results):
        expect(result.code in (76, 78), f"rank {rank}: exit code {result.code}, expected 76 or 78", result)
        expect_equal(result.out, "", f"rank {rank}: stdout", result)
    for word in names:
        expect(any(word in result.err for result in results), f"{word!r} is not named", *results)


main()
