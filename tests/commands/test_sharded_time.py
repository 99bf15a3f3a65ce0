"""State that is cut among ranks, in virtual time: bytes, overlap, and the recorded table of GPT-2 XL."""
import json
import os
import subprocess
import sys
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test
from timeline import TRACKS, slices

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
GPT2 = ["run", "--mode", "ring", "--device", "sim:dgx-a100-80g", "--model", "gpt2", "--batch", "2", "--steps", "2", "--warmup", "1",
        "--eval-every", "-1", "--quiet", "--json", "-"]
PARAMETERS = 124439808


def sent(policy, gpus, *words):
    result = harness(*GPT2, "--policy", policy, "--gpus", str(gpus), *words)
    expect_equal(result.code, 0, f"{policy}: exit code", result)
    return result.jobs()["ring"]["traffic"]["per_rank"][0]["bytes_sent_per_step"]


def expect_near(found, expected, what, within=0.002):
    expect(abs(found - expected) <= within * expected, f"{what}: {found:.0f} bytes, expected {expected:.0f}")


@test
def zero3_moves_one_and_a_half_times_the_bytes_of_ddp():
    ddp = sent("ddp", 8)
    expect_near(ddp, 2 * 7 / 8 * 4 * PARAMETERS, "ddp")
    for policy, times in (("zero3", 1.5), ("zero3:reshard=no", 1)):
        expect_near(sent(policy, 8), times * ddp, policy)
    expect_near(sent("zero3", 8, "--mixed-precision"), 0.75 * ddp, "zero3 with mixed precision")


@test
def fsdp_moves_more_where_ranks_do_not_divide_rows():
    expect_near(sent("fsdp", 8), sent("zero3", 8) * 50264 / 50257, "50,257 rows in 8 chunks", 0.001)  # the table is a third of the model


@test
def groups_move_shards_between_machines_and_the_rest_within():
    whole = 4 * PARAMETERS
    expect_near(sent("zero3:group=8", 32), 3 * 7 / 8 * whole + 2 * 3 / 4 * whole / 8, "groups of 8 of 32")


@test
def less_between_machines_makes_a_step_shorter():
    def step(policy):
        return harness(*GPT2, "--policy", policy, "--gpus", "64").jobs()["ring"]["step_time"]["mean_s"]

    expect(step("zero3:group=8") < step("zero3"), "steps with groups and without")


def overlap(found, others):
    """Time of `found` during which one of `others` is in progress. The `others` do not overlap each other."""
    return sum(max(0, min(end, e) - max(begin, b)) for begin, end, _ in found for b, e, _ in others)


@cases([(policy, policy) for policy in ("zero3", "fsdp", "zero3:group=4")])
def all_gathers_run_during_computation_as_the_trace_shows(policy):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        result = harness(*GPT2, "--policy", policy, "--gpus", "8", "--trace", path)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    mine = [e for e in events if e.get("pid") == events[0]["pid"] and e.get("tid") in TRACKS]
    gathers = [s for s in slices(mine, "communication") if s[2].startswith("all_gather")]
    compute = [s for s in slices(mine, "compute") if s[2] in ("forward", "backward")]
    took, hidden = sum(end - begin for begin, end, _ in gathers), overlap(gathers, compute)
    expect(len(gathers) >= 2 * 12, f"{len(gathers)} all-gathers, of 12 blocks in two passes")
    expect(hidden > 0.5 * took, f"{hidden} ns of {took} during computation")


@test
def the_recorded_table_is_what_the_program_predicts():
    with open(os.path.join(ROOT, "results", "sharded-virtual.json"), encoding="utf-8") as file:
        result = json.load(file)
    recorded = {row["policy"]: row for row in result["rows"] if row["gpus"] == 8}
    for policy in ("ddp", "zero3"):
        words = ["8" if word == "8,64,512" else word for word in result["words"]]
        point, = harness(*words, "--policy", policy).json()["points"]
        shared = recorded[policy].keys() & point.keys()
        expect(len(shared) >= 14, f"{policy}: both have only {shared}")
        for name in shared:
            expect_equal(point[name], recorded[policy][name], f"{policy}: {name}")


@test
def groups_are_faster_than_all_ranks_in_the_recorded_table():
    with open(os.path.join(ROOT, "results", "sharded-virtual.json"), encoding="utf-8") as file:
        steps = {(row["policy"], row["gpus"]): row["step_s"] for row in json.load(file)["rows"]}
    for gpus in (64, 512):
        expect(steps["zero3:group=8", gpus] < steps["zero3", gpus], f"{gpus} GPUs: {steps}")


@test
def the_document_counts_what_groups_send():
    """NCCL's constants of Simple: 8.4 us a call, a hop 3.4 us over NVLink, 6 in a ring that crosses, 14 between machines; 1.4 times as
    much for large all-reduces."""
    whole, calls = 4 * 1557611200, 3 * 49
    rows = [(3 * 63 / 64 * whole / 192e9, calls, 8.4 + 56 * 6 + 7 * 14), (3 * 7 / 8 * whole / 240e9, calls, 8.4 + 7 * 3.4),
            (2 * 7 / 8 * whole / 8 / 24e9, 49, 1.4 * (8.4 + 14 * 14))]
    with open(os.path.join(ROOT, "docs", "sharding.md"), encoding="utf-8") as file:
        document = file.read()
    for seconds, count, us in rows:
        text = f" = {1e3 * seconds:.0f} ms | {count} of {us / 1e3:.2f} ms = {count * us / 1e3:.0f} ms |"
        expect(text in document, f"docs/sharding.md lacks {text}")
    sums = [1e3 * seconds + count * us / 1e3 for seconds, count, us in rows]
    for total in (sums[0], sums[1] + sums[2]):
        expect(f"| {total:.0f} ms |" in document, f"docs/sharding.md lacks {total:.0f} ms")


@test
def the_document_shows_the_recorded_table():
    script = os.path.join(ROOT, "tests", "bench", "sharded_virtual.py")
    shown = subprocess.run([sys.executable, "-B", script, "--show", os.path.join(ROOT, "results", "sharded-virtual.json")],
                           stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    with open(os.path.join(ROOT, "docs", "sharding.md"), encoding="utf-8") as file:
        document = file.read()
    for line in shown.splitlines():
        expect("    " + line + "\n" in document, f"docs/sharding.md lacks: {line}")


main()
