"""Each trace in causes/ shows its planted cause, and the trace of its reference does not."""
import functools
import gzip
import json
import os

from tap import cases, expect, expect_equal, main, test

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "causes")
LARGEST_BYTES = 100_000

with open(os.path.join(HERE, "truth.json"), encoding="utf-8") as truth_file:
    JOBS = json.load(truth_file)["jobs"]


@functools.cache
def steps(file_name):
    """Returns the events of a trace, a list per ProfilerStep."""
    with gzip.open(os.path.join(HERE, file_name + ".json.gz")) as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    spans = sorted((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
    return [[e for e in events if span["ts"] <= e["ts"] < span["ts"] + span["dur"]] for span in spans]


def counts(file_name, event):
    return [sum(e["name"].startswith(event) for e in step) for step in steps(file_name)]


@cases([
    ("the gradients of each micro-batch are reduced", "reduction-per-micro-batch", "c10d::allreduce_", 12, 3),
    ("small buckets", "small-buckets", "c10d::allreduce_", 49, 3),
    ("a compiled model", "compiled", "## Call CompiledFxGraph", 2, 0),
    ("a data loader", "slow-loader", "enumerate(DataLoader)", 1, 0),
    ("activations are computed again", "checkpointing", "aten::addmm", 25, 13),
    ("fewer and larger all-gathers", "one-unit", "c10d::_allgather_base_", 1, 13),
])
def events_per_step_differ(name, event, found, in_reference):
    job = JOBS[name]
    expect_equal(counts(name, event), [found] * job["active_steps"], f"{event} in {name}")
    reference = job["reference"]
    expect_equal(counts(reference, event), [in_reference] * job["active_steps"], f"{event} in {reference}")


@test
def the_other_rank_waits_in_the_all_reduce_for_a_slow_rank():
    waits, reduces = (sum(e["dur"] for step in steps(name) for e in step if e["name"] == "gloo:all_reduce")
                      for name in ("slow-rank", "slow-rank.rank1"))
    expect(waits > 2 * reduces, f"{waits} us on rank 0, {reduces} us on rank 1")


@test
def a_slow_data_loader_takes_as_long_as_its_rows():
    for step in steps("slow-loader"):
        taken = sum(e["dur"] for e in step if e["name"].startswith("enumerate(DataLoader)"))
        expect(taken >= 64e3, f"{taken} us")


@cases([(name, name) for name in sorted(os.listdir(HERE)) if name.endswith(".gz")])
def a_trace_has_at_most_100_kb(name):
    size = os.path.getsize(os.path.join(HERE, name))
    expect(size <= LARGEST_BYTES, f"{size} bytes")


main()
