"""What every policy holds: harness memory, a table of plans; and a plan of a large model."""
import functools
import json
import resource

from program import harness
from tap import cases, expect, expect_equal, long_test, main, more_cases, more_test, test

XL = ["--model", "gpt2-xl", "--gpus", "64", "--batch", "1", "--optimizer", "adam"]
MACHINES = ["--device", "sim:dgx-a100-80g"]  # of 8 GPUs
PARAMETERS = 1557611200
GIB = 1 << 30


@functools.lru_cache(maxsize=None)
def memory(*words):
    """The result of harness memory. For the same words the command runs only once."""
    return harness("memory", *words)


def rows(text):
    """{label: figures} of the table."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("GiB at the peak"))
    return {line[:18].rstrip(): line[18:].split() for line in lines[head + 1:] if line[18:].strip() and line[18:].split()[0][0].isdigit()}


@test
def every_row_is_the_plan_of_that_policy():
    eight = [*XL, "--gpus", "8"]
    result = harness("memory", *eight, "--policy", "dp,sync,ddp", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    found = {job["policy"]: job for job in json.loads(result.out)["jobs"]}
    for policy, mode in (("dp", "ps"), ("sync", "ps"), ("ddp", "ring")):
        plan = harness("run", "--plan", *eight, "--mode", mode, "--policy", policy, *MACHINES, "--json", "-")
        expect_equal(found[policy], {**json.loads(plan.out)["jobs"][0], "row": policy}, f"the job of {policy}", plan)


@test
def the_head_of_the_table_counts_the_ranks():
    for gpus, ranks in (("1", "1 rank"), ("2", "2 ranks")):
        head = " ".join(harness("memory", "--model", "lenet", "--gpus", gpus).out.partition("GiB at")[0].split())
        expect(head.endswith("; " + ranks), head)


@test
def a_row_of_dataparallel_on_several_machines_says_why_it_cannot_run_as_its_plan_and_its_run_do():
    reason = "DataParallel is one process on one machine: expected at most 8 GPUs of profile dgx-a100-80g, got 64"
    result = memory(*XL, *MACHINES, "--policy", "dp,ddp", "--json", "-")
    answer = json.loads(result.out)
    expect_equal((result.code, answer["refused"]), (0, [{"row": "dp", "reason": reason}]), "exit code and reasons", result)
    expect_equal([job["row"] for job in answer["jobs"]], ["ddp"], "rows with figures", result)
    shown = memory(*XL, *MACHINES, "--policy", "dp,ddp")
    expect(f"dp {reason}" in " ".join(shown.out.split()), "the reason in the table", shown)
    for command in (["run", "--plan", "--mode", "ps"], ["run", "--steps", "1", "--mode", "ps"], ["memory"]):
        alone = harness(*command, *XL, *MACHINES, "--policy", "dp")
        expect_equal((alone.code, alone.err, alone.out), (78, f"harness: {reason}\n", ""), " ".join(command), alone)
    small = harness("memory", "--model", "lenet", "--device", "sim:v100-pcie-10gbe", "--gpus", "2", "--policy", "dp")
    expect(small.err.endswith("expected at most 1 GPU of profile v100-pcie-10gbe, got 2\n"), "one GPU", small)


@test
def parameters_gradients_and_moments_of_ddp_are_4_4_and_8_bytes_each_on_every_rank():
    result = memory(*XL, "--policy", "ddp")
    figures = rows(result.out)["ddp"]
    for column, each in enumerate((4, 4, 8)):
        gib = each * PARAMETERS / GIB
        expect(abs(float(figures[column]) - gib) < 0.01 * gib, f"column {column}: {figures[column]}, expected {gib:.3f}", result)


@more_test
def state_that_is_cut_among_64_ranks_is_a_64th_of_it():
    figures = rows(memory(*XL, *MACHINES).out)
    for policy, columns in (("zero1", [2]), ("zero2", [1, 2])):
        for column in columns:
            gib = (None, 4, 8)[column] * PARAMETERS / 64 / GIB
            expect(abs(float(figures[policy][column]) - gib) < 0.05 * gib, f"{policy}: {figures[policy]}, expected {gib:.3f}")
            expect(float(figures["ddp"][column]) > 60 * gib, f"ddp: {figures['ddp']}")


@test
def the_gpu_is_the_smallest_that_holds_the_total():
    result = harness("memory", *XL, "--policy", "ddp", "--json", "-")
    answer = json.loads(result.out)
    sizes = [gpu["memory_bytes"] for gpu in answer["gpus"]]
    expect_equal(sizes, sorted(set(sizes)), "memory sizes")
    expect(all(gpu["profiles"] for gpu in answer["gpus"]), "a memory size without a profile")
    total = answer["jobs"][0]["memory_imbalance"]["maximum_bytes"]
    most = max(total, answer["jobs"][0]["ranks"][0]["evaluation_peak_bytes"])
    smallest = min(size for size in sizes if size >= most)
    expect_equal(rows(memory(*XL, "--policy", "ddp").out)["ddp"][-1], f"{smallest / GIB:.0f}", "the GPU")


@more_test
def the_table_fits_80_columns():
    result = memory(*XL, *MACHINES)
    expect_equal(result.code, 0, "exit code", result)
    expect(all(len(line) <= 80 for line in result.out.splitlines()), "a line is longer than 80 columns", result)


@cases([
    ("an option of one job", ["--mode", "ps"], "harness: --mode: unexpected with memory, which prints one row per policy of --policy\n"),
    ("a word", ["gpt2"], "harness: memory: unexpected argument 'gpt2'; see harness memory --help\n"),
    ("no policy", ["--policy", ""], "harness: --policy: expected a name, got none\n"),
])
def wrong_words_are_refused(words, message):
    result = harness("memory", *words)
    expect_equal((result.code, result.err), (64, message), "exit code and stderr", result)


@test
def memory_takes_machines_as_whatif_does():
    machines = ("--model", "lenet", "--gpus", "16", "--nodes", "2", "--adapters", "1", "--link", "100Gb/s")
    by_name, by_device = (memory(*machines, *words) for words in (("--profile", "dgx-a100-40g"), ("--device", "sim:dgx-a100-40g")))
    expect_equal((by_name.code, by_name.out), (0, by_device.out), "the table", by_name)
    expect("zero3:group=8" in rows(by_name.out), "shards within each of the two machines", by_name)
    both = memory(*machines, "--profile", "dgx-a100-40g", "--device", "sim")
    expect_equal((both.code, both.err), (64, "harness: --device: unexpected with --profile\n"), "two names", both)


@test
def shards_within_machines_and_replicated_between_them_have_a_row():
    result = memory(*XL, *MACHINES)
    figures = rows(result.out)
    expect("zero3:group=8" in figures, "the row of groups of 8", result)
    for column, each in enumerate((None, 4, 8)):
        if not each: continue # Whole units are held in addition to the parameters.
        gib = each * PARAMETERS / 8 / GIB
        expect(abs(float(figures["zero3:group=8"][column]) - gib) < 0.05 * gib, f"column {column}, expected {gib:.3f}", result)
    expect("zero3:group=8" not in rows(harness("memory", "--model", "gpt2", "--gpus", "8", *XL[4:], *MACHINES).out), "one machine")


LARGE = ["--model", "gpt", "--layers", "36", "--hidden", "4096", "--heads", "32", "--vocabulary", "50304", "--positions", "1024",
         "--sequence", "64", "--batch", "1", "--gpus", "64", "--mode", "ring", "--optimizer", "adam", "--eval-every", "-1"]


@more_cases([("ddp", "ddp", 1, 1, 1), ("zero1", "zero1", 1, 1, 64), ("zero2", "zero2", 1, 64, 64), ("zero3", "zero3", 64, 64, 64)])
def a_plan_of_seven_billion_parameters_divides_what_its_policy_cuts(policy, parameters, gradients, state):
    """Float32 with Adam, 4 + 4 + 8 bytes per parameter: 119.4, 60.6, 31.2 and 1.9 GB. It takes less than a second."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    result = harness("run", *LARGE, "--policy", policy, "--plan", "--json", "-")
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
    expect_equal(result.code, 0, "exit code", result)
    count, classes = result.json()["parameters"], result.jobs()["ring"]["ranks"][0]["memory"]["classes"]
    for name, size, parts in (("parameters", 4, parameters), ("gradients", 4, gradients), ("optimizer_state", 8, state)):
        expect_equal(classes[name]["peak_bytes"] * parts, size * count, name)
    block = 4 * (12 * 4096 * 4096 + 13 * 4096)
    for name, there in (("buckets", policy != "zero1"), ("gathered_units", policy == "zero3")):
        expect((classes[name]["peak_bytes"] > 0) == there, f"{name}: {classes[name]['peak_bytes']}")
    if policy == "zero3": # named: the root unit, and at most three blocks
        root = 4 * (50304 + 1024 + 2) * 4096
        expect(classes["gathered_units"]["peak_bytes"] <= root + 2 * block, f"{classes['gathered_units']['peak_bytes']} gathered")
        expect(classes["buckets"]["peak_bytes"] <= root + 3 * block, f"{classes['buckets']['peak_bytes']} of gradients")
    expect(took < 3, f"it took {took:.1f} s of processor time")


@cases([("ddp", "ddp", 1, 1, 1, 120.0), ("zero1", "zero1", 1, 1, 64, 31.4), ("zero2", "zero2", 1, 64, 64, 16.6),
        ("zero3", "zero3", 64, 64, 64, 1.9), ("fsdp", "fsdp", 64, 64, 64, 1.9)], at_check=2)
def with_mixed_precision_a_parameter_has_2_and_2_and_12_bytes(policy, parameters, gradients, state, gigabytes):
    """The table of ZeRO's figure 1: 7.5 billion parameters, 64 ranks."""
    result = harness("run", *LARGE, "--policy", policy, "--mixed-precision", "--plan", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    count, classes = result.json()["parameters"], result.jobs()["ring"]["ranks"][0]["memory"]["classes"]
    total = 0
    for name, size, parts in (("parameters", 2, parameters), ("gradients", 2, gradients), ("optimizer_state", 12, state)):
        expect_equal(classes[name]["peak_bytes"] * parts, size * count, name)
        total += classes[name]["peak_bytes"]
    expect(abs(total / count * 7.5e9 / 1e9 - gigabytes) < 0.05, f"{total / count} bytes per parameter")


@more_cases([("ddp", "ddp", 1), ("zero1", "zero1", 1), ("zero2", "zero2", 64), ("zero3", "zero3", 64), ("fsdp", "fsdp", 64)])
def with_mixed_precision_and_accumulation_a_gradient_has_2_bytes_and_4_of_the_sum(policy, parts):
    result = harness("run", *LARGE, "--policy", policy, "--mixed-precision", "--accumulate", "2", "--plan", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    classes = result.jobs()["ring"]["ranks"][0]["memory"]["classes"]
    expect_equal(classes["gradients"]["peak_bytes"] * parts, (2 + 4) * result.json()["parameters"], "bytes of gradients")


@cases([(policy, policy) for policy in ("zero1", "zero2", "zero3", "fsdp")])
def a_plan_has_the_memory_of_every_rank_of_a_run(policy):
    """The number of Wine's parameters is no multiple of 3, so the last rank has fewer."""
    words = ["--mode", "ring", "--policy", policy, "--gpus", "3", "--model", "wine_mlp", "--optimizer", "adam", "--steps", "2",
             "--eval-every", "-1", "--json", "-"]
    planned, held = ([rank["memory"]["classes"]["optimizer_state"]["peak_bytes"] for rank in result.jobs()["ring"]["ranks"]]
                     for result in (harness("run", *words, "--plan"), harness("run", *words)))
    expect_equal(planned, held, "bytes of optimizer state, rank by rank")
    expect(held[2] < held[0], f"ranks hold the same: {held}")


@long_test
def processes_hold_what_the_ledger_says_less_under_zero3():
    """GPT-2, 124 million parameters: proportional set size of rank 0 under ddp and zero3, and the ledger's peaks."""
    held, planned = [], []
    for policy in ("ddp", "zero3"):
        result = harness("run", "--mode", "ring", "--gpus", "2", "--model", "gpt2", "--sequence", "32", "--batch", "1", "--optimizer",
                         "adam", "--data", "synthetic", "--steps", "2", "--warmup", "1", "--eval-every", "-1", "--threads", "1",
                         "--stall-timeout", "600s", "--policy", policy, "--json", "-", "--quiet", limit=600)
        expect_equal(result.code, 0, f"{policy}: exit code", result)
        rank = result.jobs()["ring"]["ranks"][0]
        held.append(rank["process"]["proportional_bytes"])
        planned.append(rank["memory"]["total"]["peak_bytes"])
    saved, expected = held[0] - held[1], planned[0] - planned[1]
    expect(abs(saved - expected) <= 0.05 * expected, f"{saved} bytes less in memory, {expected} in the ledger")


main()
