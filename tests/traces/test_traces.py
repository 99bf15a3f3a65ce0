"""The recorded traces of PyTorch jobs hold the facts that truth.json states about the jobs."""
import functools
import gzip
import json
import math
import os

from tap import cases, expect, expect_equal, main, test

HERE = os.path.dirname(os.path.abspath(__file__))
LARGEST_BYTES = 2_000_000
TYPE_BYTES = 4  # Every job trains in float32.
MIB = 1 << 20

with open(os.path.join(HERE, "truth.json"), encoding="utf-8") as truth_file:
    JOBS = json.load(truth_file)["jobs"]


def jobs(wanted=lambda job: True, without=()):
    """Returns a row of a table of cases for each job that has the properties."""
    return [(name, name) for name in JOBS if wanted(JOBS[name]) and not name.endswith(without)]


@functools.cache
def trace(name):
    with gzip.open(os.path.join(HERE, name + ".json.gz")) as file:
        return json.load(file)


@functools.cache
def steps(name):
    """Returns the events of the main thread, a list per ProfilerStep."""
    events = sorted((e for e in trace(name)["traceEvents"] if e["ph"] == "X" and e["pid"] == e["tid"]),
                    key=lambda e: (e["ts"], -e["dur"]))
    spans = [e for e in events if e["name"].startswith("ProfilerStep#")]
    return [[e for e in events if span["ts"] <= e["ts"] < span["ts"] + span["dur"]] for span in spans]


def shapes(job):
    return {name: shape for name, shape, _, _ in job["parameters"]}


@cases(jobs())
def each_step_accumulates_each_gradient_once_per_micro_batch(name):
    job = JOBS[name]
    found = [sum(e["name"] == "torch::autograd::AccumulateGrad" for e in step) for step in steps(name)]
    expect_equal(found, [len(job["ready_order"]) * job["micro_batches"]] * job["active_steps"], "gradients per step")


@cases(jobs(without=("-no-shapes",)))
def gradients_have_the_shapes_of_the_parameters_in_the_order_in_which_they_are_ready(name):
    job = JOBS[name]
    expected = [shapes(job)[parameter] for parameter in job["ready_order"]] * job["micro_batches"]
    for step in steps(name):
        found = [e["args"]["Input Dims"][0] for e in step if e["name"] == "torch::autograd::AccumulateGrad"]
        expect_equal(found, expected, "shapes of gradients")


@cases(jobs(lambda job: "ddp" in job))
def ddp_reports_the_order_in_which_autograd_finishes_gradients(name):
    ddp = JOBS[name]["ddp"]
    order = [ddp["parameter_names"][i] for i in ddp["prev_iteration_grad_ready_order_indices"]]
    expect_equal(order, JOBS[name]["ready_order"], "order of gradients")


@cases(jobs(lambda job: "ddp" in job, without=("-no-shapes",)))
def each_step_reduces_the_buckets_of_ddp(name):
    job, ddp = JOBS[name], JOBS[name]["ddp"]
    buckets = ddp["rebuilt_bucket_sizes"] if ddp["has_rebuilt_buckets"] else ddp["bucket_sizes"]
    expected = buckets * (job["micro_batches"] if job["reduces_every_micro_batch"] else 1)
    for step in steps(name):
        found = [TYPE_BYTES * e["args"]["Input Dims"][0][0][0] for e in step if e["name"] == "c10d::allreduce_"]
        if not ddp["has_rebuilt_buckets"]:  # The last call reduces the map of used parameters.
            expect_equal(found.pop(), TYPE_BYTES * len(ddp["parameter_names"]), "map of used parameters")
        expect_equal(found, expected, "bytes per bucket")


@cases(jobs(lambda job: "buckets_by_cap_mib" in job.get("ddp", ())))
def buckets_follow_from_the_order_and_the_cap(name):
    job, ddp = JOBS[name], JOBS[name]["ddp"]
    for cap, facts in ddp["buckets_by_cap_mib"].items():
        caps = [MIB, 25 * MIB] if cap == "default" else [int(cap) * MIB]
        if ddp["has_rebuilt_buckets"]:
            found, expected = facts["rebuilt_bucket_sizes"], filled_buckets(job, job["ready_order"], caps)
        else:  # DDP fills its first buckets in the order of the parameters, and reduces the last bucket first.
            found, expected = facts["bucket_sizes"], filled_buckets(job, ddp["parameter_names"], caps)[::-1]
        expect_equal(found, expected, f"bytes per bucket with a cap of {cap} MiB")


def filled_buckets(job, order, caps):
    """Returns the bytes of the buckets. The parameter that reaches the cap is the last one of its bucket."""
    buckets, filled = [], 0
    for parameter in order:
        filled += TYPE_BYTES * math.prod(shapes(job)[parameter])
        if filled >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(filled)
            filled = 0
    return buckets + ([filled] if filled else [])


@cases(jobs(lambda job: "fully_shard" in job))
def each_unit_reduces_the_gradients_of_its_parameters(name):
    job = JOBS[name]
    expected = sorted(sum(math.prod(shapes(job)[p]) for p in unit["parameters"]) for unit in job["fully_shard"])
    for step in steps(name):  # Every first dimension is a multiple of the ranks, so no shard is padded.
        found = sorted(e["args"]["Input Dims"][1][0] for e in step if e["name"] == "c10d::_reduce_scatter_base_")
        expect_equal(found, expected, "elements per unit")


@cases(jobs(without=("-no-metadata",)))
def the_metadata_describe_the_job(name):
    found, job = trace(name)["harness"], JOBS[name]
    for key in "parameters", "optimizer", "batch", "step_ms":
        expect_equal(found[key], job[key], key)
    expect_equal(found["gradient_type"], "float32", "gradient type")


@cases([row for row in jobs() if row[0].endswith(("-no-metadata", "-no-shapes"))])
def what_the_recording_left_out_is_absent(name):
    found = trace(name)
    expect_equal("harness" in found, not name.endswith("-no-metadata"), "metadata")
    expect_equal(any("Input Dims" in e.get("args", {}) for e in found["traceEvents"]),
                 not name.endswith("-no-shapes"), "shapes")


@test
def all_traces_have_at_most_2_mb():
    total = sum(os.path.getsize(os.path.join(HERE, f)) for f in os.listdir(HERE) if f.endswith(".json.gz"))
    expect(total <= LARGEST_BYTES, f"{total} bytes")


main()
