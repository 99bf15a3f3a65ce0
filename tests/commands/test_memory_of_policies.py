"""harness memory: what every policy holds, as a table of plans."""
import json

from program import harness
from tap import cases, expect, expect_equal, main, test

XL = ["--model", "gpt2-xl", "--gpus", "64", "--batch", "1", "--optimizer", "adam"]
PARAMETERS = 1557611200
GIB = 1 << 30


def rows(text):
    """{label: figures} of the table."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("GiB at the peak"))
    return {line[:18].rstrip(): line[18:].split() for line in lines[head + 1:] if line[18:].strip() and line[18:].split()[0][0].isdigit()}


@test
def every_row_is_the_plan_of_that_policy():
    result = harness("memory", *XL, "--policy", "dp,sync,ddp", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    found = {job["policy"]: job for job in json.loads(result.out)["jobs"]}
    for policy, mode in (("dp", "ps"), ("sync", "ps"), ("ddp", "ring")):
        plan = harness("run", "--plan", *XL, "--mode", mode, "--policy", policy, "--device", "sim:v100-pcie-32g", "--json", "-")
        expect_equal(found[policy], json.loads(plan.out)["jobs"][0], f"the job of {policy}", plan)


@test
def parameters_gradients_and_moments_of_ddp_are_4_4_and_8_bytes_each_on_every_rank():
    result = harness("memory", *XL, "--policy", "ddp")
    figures = rows(result.out)["ddp"]
    for column, each in enumerate((4, 4, 8)):
        gib = each * PARAMETERS / GIB
        expect(abs(float(figures[column]) - gib) < 0.01 * gib, f"column {column}: {figures[column]}, expected {gib:.3f}", result)


@test
def state_that_is_cut_among_64_ranks_is_a_64th_of_it():
    figures = rows(harness("memory", *XL).out)
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
    smallest = min(size for size in sizes if size >= total)
    expect_equal(rows(harness("memory", *XL, "--policy", "ddp").out)["ddp"][-1], f"{smallest / GIB:.0f}", "the GPU")


@test
def the_table_fits_80_columns():
    result = harness("memory", *XL)
    expect_equal(result.code, 0, "exit code", result)
    expect(all(len(line) <= 80 for line in result.out.splitlines()), "a line is longer than 80 columns", result)


@cases([
    ("an option of one job", ["--mode", "ps"], "harness: --mode: unexpected with memory, whose rows are those of --policy\n"),
    ("a word", ["gpt2"], "harness: memory: unexpected argument 'gpt2'; see harness memory --help\n"),
    ("no policy", ["--policy", ""], "harness: --policy: expected a name, got none\n"),
])
def wrong_words_are_refused(words, message):
    result = harness("memory", *words)
    expect_equal((result.code, result.err), (64, message), "exit code and stderr", result)


main()
