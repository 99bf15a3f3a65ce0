"""Commands that state the same figure agree: memory, run --plan, run, whatif and sweep, on drawn configurations of virtual GPUs."""
import json
import os
import random
import tempfile

from profiles import length
from program import harness, in_ns
from tap import cases, expect, expect_equal, main, test

POLICIES = {"dp": "ps", "sync": "ps", "ssp": "ps", "async": "ps", "ddp": "ring", "zero1": "ring", "zero2": "ring", "zero3": "ring",
            "fsdp": "ring"}
MODELS = (["--model", "lenet"], ["--model", "resnet18", "--data", "synthetic:3x32x32:10"], ["--model", "wine_mlp", "--data", "wine"],
          ["--model", "gpt", "--layers", "2", "--hidden", "64", "--heads", "4", "--vocabulary", "512", "--sequence", "32", "--data", "synthetic"])
PROFILES = ("dgx-a100-40g", "dgx1-v100", "dgx1-v100-4xib100", "v100-pcie-32g", "titan-rtx-x2", "gce-k80")
PRECISIONS = ([], [], ["--bf16"], ["--tf32"])


def drawn(seed):
    """Its policy, and the options that all commands share."""
    draw = random.Random(seed)
    words = [*draw.choice(MODELS), "--device", "sim:" + draw.choice(PROFILES), "--gpus", str(draw.choice((1, 2, 4, 8, 16))),
             "--batch", str(draw.choice((1, 4, 7))), "--optimizer", draw.choice(("sgd", "adam")), *draw.choice(PRECISIONS)]
    if draw.random() < 0.3:
        words += ["--accumulate", "2"]
    if draw.random() < 0.3:
        words += ["--momentum", "0.9"] if "sgd" in words else ["--weight-decay", "0.01"]
    policy = draw.choice(list(POLICIES))
    if POLICIES[policy] == "ring" and draw.random() < 0.2:
        words.append("--mixed-precision")
    return policy, words


def outcome(*words):
    """The JSON, or the exit code and the reason."""
    result = harness(*words, "--json", "-")
    reason = [line for line in result.err.splitlines() if not line.startswith("harness: note: ")][-1:]
    return json.loads(result.out) if result.code == 0 else (result.code, reason)


def totals(answer):
    """The peaks of all ranks, in all classes."""
    return [{"total": rank["memory"]["total"]["peak_bytes"], **rank["memory"]["peak_classes"]} for rank in answer["jobs"][0]["ranks"]]


@cases([(f"draw {seed}", seed) for seed in range(200)], at_check=40)
def memory_a_plan_and_a_run_agree_to_the_byte(seed):
    policy, words = drawn(seed)
    of_one = ["--mode", POLICIES[policy], "--policy", policy]
    plan = outcome("run", "--plan", *words, *of_one)
    run = outcome("run", *words, *of_one, "--steps", "2", "--warmup", "1", "--quiet")
    row = outcome("memory", *words, "--policy", policy)
    if isinstance(run, tuple):
        expect_equal(plan, run, "refusal of the plan", words, policy)
        expect_equal(row, run, "refusal of memory", words, policy)
        return
    expect(not isinstance(plan, tuple) and not isinstance(row, tuple), f"refused: {plan} {row}", words, policy)
    expect_equal(totals(plan), totals(run), "bytes of the plan", words, policy)
    expect_equal(totals(row), totals(run), "bytes of memory", words, policy)


@cases([(f"draw {seed}", seed) for seed in range(200, 240)], at_check=8)
def whatif_and_a_run_agree_to_the_byte_and_nanosecond(seed):
    policy, words = drawn(seed)
    device, gpus = words.index("--device"), words.index("--gpus")
    shared = [word for at, word in enumerate(words) if at not in (device, device + 1, gpus, gpus + 1)]
    run = outcome("run", *words, "--mode", POLICIES[policy], "--policy", policy, *length(policy), "--quiet")
    table = outcome("whatif", "--profile", words[device + 1][len("sim:"):], "--gpus", words[gpus + 1], "--policy", policy, *shared, "--quiet")
    if isinstance(run, tuple):
        expect_equal(table, run, "refusal", words, policy)
        return
    point, job = table["points"][0], run["jobs"][0]
    if words[gpus + 1] != "1":
        expect_equal(in_ns(point["step_s"]), in_ns(job["phases"]["step_s"]["mean_s"]), "the step", words, policy)
        expect_equal(point["samples_per_s"], job["throughput"]["samples_per_s"], "samples per second", words, policy)
        expect_equal(point["memory_peak_bytes"], job["memory_imbalance"]["maximum_bytes"], "bytes", words, policy)


@cases([(f"draw {seed}", seed) for seed in range(240, 260)], at_check=4)
def a_sweep_and_a_run_agree_to_the_byte_and_nanosecond(seed):
    policy, words = drawn(seed)
    shared = [*words, "--mode", POLICIES[policy], "--steps", "3", "--warmup", "2"]
    run = outcome("run", *shared, "--policy", policy, "--quiet")
    with tempfile.TemporaryDirectory() as folder:
        done = harness("sweep", *shared, "--vary", f"policy={policy}", "-o", folder)
        with open(os.path.join(folder, "table.json"), encoding="utf-8") as file:
            point, = json.load(file)["points"]
    if isinstance(run, tuple):
        expect_equal((point["failure"]["exit_code"], point["failure"]["message"]), (run[0], run[1][0].removeprefix("harness: ")), "refusal", words, policy)
        return
    job = run["jobs"][0]
    expect_equal(point["samples_per_s"]["median"], job["throughput"]["samples_per_s"], "samples per second", words, policy, done)
    expect_equal(in_ns(point["step_s"]["median"]), in_ns(job["step_time"]["median_s"]), "the step", words, policy)


@cases([("ssp", ["--policy", "ssp"]), ("ssp with a slow rank", ["--policy", "ssp", "--slow", "3:2"]), ("ddp with a slow rank", ["--policy", "ddp", "--slow", "3:2"])])
def efficiency_is_the_samples_per_second_over_those_of_as_many_gpus_alone(words):
    shared = ["--model", "vgg16", "--momentum", "0.9", "--accumulate", "2", "--warmup", "2", "--steps", "3"]
    table = outcome("whatif", "--profile", "v100-pcie-32g", "--gpus", "8", *words, *shared)
    alone = outcome("run", "--mode", "none", "--device", "sim:v100-pcie-32g", *shared, "--quiet")
    point, one = table["points"][0], alone["jobs"][0]["throughput"]["samples_per_s"]
    expect(abs(point["weak_scaling_efficiency"] - point["samples_per_s"] / (8 * one)) < 1e-12, "efficiency", point, one)


@cases([("one machine", ["--profile", "dgx1-v100", "--model", "resnet50", "--batch", "32", "--gpus", "2,8", "--policy", "ddp,dp,sync,zero3"]),
        ("several", ["--profile", "dgx1-v100-4xib100", "--model", "vgg16", "--batch", "16", "--gpus", "16", "--policy", "ddp,zero1"])])
def lost_time_has_columns_that_add_up(words):
    table = outcome("whatif", *words)
    for point in table["points"]:
        lost = point["lost"]
        causes = sum(value for key, value in lost.items() if key not in ("step_s", "alone_s", "total_s"))
        expect(abs(causes - lost["total_s"]) < 1e-9, "the sum", lost)
        expect_equal((in_ns(lost["step_s"]), in_ns(lost["alone_s"])), (in_ns(point["step_s"]), in_ns(table["one_gpu_step_s"])), "steps")


@test
def a_policy_that_does_not_fit_has_a_row_in_whatif_with_the_bytes_of_memory():
    words = ["--model", "gpt2-xl", "--sequence", "1024", "--batch", "4", "--optimizer", "adam"]
    table = outcome("whatif", "--profile", "dgx-a100-40g", "--gpus", "8", "--policy", "ddp,zero3", *words)
    memory = outcome("memory", "--device", "sim:dgx-a100-40g", "--gpus", "8", "--policy", "ddp,zero3", *words)
    expect_equal([table["one_gpu_fits"], *(point["fits"] for point in table["points"])], [False, False, True], "what fits")
    expect_equal([point["memory_peak_bytes"] for point in table["points"]],
                 [job["memory_imbalance"]["maximum_bytes"] for job in memory["jobs"]], "bytes")
    run = harness("run", "--device", "sim:dgx-a100-40g", "--gpus", "8", "--mode", "ring", "--policy", "ddp", *words, "--steps", "2", "--quiet")
    expect(run.code != 0 and "no memory" in run.err, "the run fits", run)


@test
def fewer_adapters_make_a_step_longer_and_outputs_name_their_number_and_rate():
    words = ["run", "--device", "sim:dgx-a100-40g", "--gpus", "16", "--model", "gpt2", "--batch", "4", "--mode", "ring", "--steps", "3", "--warmup", "2", "--quiet"]
    steps = []
    for adapters, note in (("8", "8 network adapters of 192 Gbit/s"), ("2", "2 network adapters of 192 Gbit/s"), ("1", "1 network adapter of 192 Gbit/s")):
        result = outcome(*words, "--adapters", adapters)
        expect(f"16 GPUs on 2 machines of 8, with {note}" in result["hardware_note"], result["hardware_note"])
        steps.append(result["jobs"][0]["step_time"]["median_s"])
    expect(steps[0] < steps[1] < steps[2], "a step with 8, 2 and 1 adapters", steps)
    refused = harness(*words, "--adapters", "9")
    expect_equal((refused.code, refused.err), (78, "harness: --adapters: expected at most 8 for profile dgx-a100-40g, got 9\n"), "more than there are", refused)


@test
def an_option_of_the_ring_is_refused_without_a_policy_of_the_ring():
    result = harness("memory", "--policy", "dp,sync", "--mixed-precision")
    expect_equal((result.code, result.err), (64, "harness: --mixed-precision: expected a policy of ring, got none\n"), "memory", result)


@test
def a_policy_that_cannot_run_has_a_row_with_the_reason():
    words = ["--model", "gpt2", "--gpus", "8", "--bf16", "--device", "sim:dgx-a100-40g"]
    result = harness("memory", *words, "--policy", "ddp,zero3")
    expect_equal(result.code, 0, "exit code", result)
    expect("zero3               --bf16: expected --mixed-precision as well with zero3" in result.out, "the reason", result)
    alone = harness("memory", *words, "--policy", "zero3")
    expect_equal((alone.code, alone.err), (78, "harness: --bf16: expected --mixed-precision as well with zero3\n"),
                 "without another policy", alone)
    for_whatif = ["whatif", "--model", "gpt2", "--gpus", "8", "--bf16", "--profile", "dgx-a100-40g"]
    table = harness(*for_whatif, "--policy", "zero3,ddp", "--json", "-").json()["points"]
    expect_equal([(point["refused"], point["step_s"] is None, point["fits"]) for point in table],
                 [("--bf16: expected --mixed-precision as well with zero3", True, False), (None, False, True)], "rows of whatif")
    shown = harness(*for_whatif, "--policy", "zero3,ddp")
    expect("cannot run" in shown.out and "Best on 8 GPUs: ddp" in shown.out, "the table", shown)
    alone = harness(*for_whatif, "--policy", "zero3")
    expect_equal(alone.code, 78, "whatif without another policy", alone)


@test
def an_evaluation_has_a_column_of_its_own():
    """Under zero3 an evaluation gathers more than a step. A GPU must hold both."""
    words = ["--model", "gpt2-xl", "--gpus", "64", "--batch", "1", "--device", "sim:dgx-a100-80g"]
    job = outcome("memory", *words, "--policy", "zero3")["jobs"][0]
    run = outcome("run", *words, "--mode", "ring", "--policy", "zero3", "--steps", "2", "--warmup", "1", "--quiet")
    expect_equal(totals({"jobs": [job]})[0], totals(run)[0], "bytes of a step")
    expect(job["ranks"][0]["evaluation_peak_bytes"] > 0, "an evaluation", job["ranks"][0])


main()
