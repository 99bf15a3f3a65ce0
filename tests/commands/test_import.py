"""`harness import` turns a trace of torch.profiler into a workload: gradients, parts of the step, units, and what is missing."""
import json
import os

from program import harness
from tap import Skip, cases, expect, expect_equal, main, test
from torch_traces import (JOBS, METADATA, TRACES, elements, event, expect_sum, gpu_step, gpu_trace, imported, in_folder, microseconds, parts,
                          ready_names, ready_sizes, refused, rows, segments, table)


@test
def idle_time_of_a_gpu_and_exposed_communication_are_kept_apart_from_kernels():
    workload = imported(in_folder(gpu_trace()))
    expect_equal(microseconds(workload), {"data": (0, 0), "forward": (560, 460), "backward": (280, 200),
                                          "communication": (100, 0), "optimizer": (60, 40), "other": (0, 0)}, "parts, us")
    expect_sum(workload, 1000000)


@test
def kernels_of_other_runtimes_than_cuda_belong_to_the_step():
    trace = json.dumps(gpu_trace()).replace("cuda_runtime", "xpu_runtime").encode()
    expect_equal(parts(imported(in_folder(trace))), parts(imported(in_folder(gpu_trace()))), "parts")


@test
def a_gradient_is_ready_when_the_last_kernel_launched_before_it_ends():
    workload = imported(in_folder(gpu_trace()))
    backward = segments(workload, "backward")
    expect_equal([(s["kernel_ns"], s["idle_ns"], s["ready"]) for s in backward], [(80000, 200000, [0])], "segments")
    expect_equal([s["uses"] for s in segments(workload, "forward")], [[0]], "uses")


@test
def a_collective_has_its_elements_its_ranks_and_its_time_on_the_gpu():
    found = imported(in_folder(gpu_trace()))["source"]["collectives"]
    expect_equal(found, [{"name": "all_reduce", "elements": 2048, "element_bytes": 4, "ranks": 4, "ns": 100000, "transfer_ns": 100000}], "collectives")


@test
def scale_changes_only_kernels():
    workload = imported(in_folder(gpu_trace()), "--scale", "0.5")
    expect_equal(microseconds(workload), {"data": (0, 0), "forward": (510, 460), "backward": (240, 200),
                                          "communication": (100, 0), "optimizer": (50, 40), "other": (0, 0)}, "parts, us")
    expect_sum(workload, 900000)


@test
def the_profilers_time_is_taken_from_the_idle_times_of_a_gpu():
    workload = imported(in_folder(gpu_trace(metadata={"step_ms": 0.912345})))
    expect_sum(workload, 912345)
    kernels = {name: ns - idle for name, (ns, idle) in parts(workload).items()}
    expect_equal(kernels, {"data": 0, "forward": 100000, "backward": 80000, "communication": 100000, "optimizer": 20000,
                           "other": 0}, "kernels")
    expect("step_ms\" is below" in table(in_folder(gpu_trace(metadata={"step_ms": 0.2}))), "expected a word on a step below the kernels")


@test
def activations_grow_in_the_forward_pass_and_shrink_in_the_backward_pass():
    workload = imported(in_folder(gpu_trace(metadata={"peak_bytes": 4 * 4 * 2048 + 100000})))
    expect_equal([(s["live_bytes"], s["peak_bytes"]) for s in segments(workload)], [(100000, 100000), (0, 100000)], "memory")


@test
def the_lowest_of_several_ranks_is_imported():
    paths = [in_folder(gpu_trace(rank=1), "b.json.gz"), in_folder(gpu_trace(rank=0), "a.json")]
    source = imported(*paths)["source"]
    expect_equal((source["rank"], source["ranks"], source["files"]), (0, 4, paths), "rank, ranks and files")
    refused_twice = harness("import", paths[0], paths[0])
    expect_equal((refused_twice.code, len(refused_twice.err.splitlines())), (65, 1), "two traces of one rank", refused_twice)


@test
def a_file_without_steps_is_one_step_if_the_optimizer_steps_once():
    one = gpu_trace(steps=1)
    expect("ProfilerStep#0, one of 1 recorded step: " in table(in_folder(one)), "the step")
    one["traceEvents"] = [e for e in one["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    expect_sum(imported(in_folder(one)), 540000)
    two = gpu_trace(steps=2)
    two["traceEvents"] = [e for e in two["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    refused(in_folder(two), "schedule=", "prof.step()", "got 2 optimizer steps")


def edited(change, metadata=None):
    """A trace whose events `change` has replaced, with the begin of their step."""
    trace = gpu_trace(metadata=metadata)
    trace["traceEvents"] = [new for n in range(3) for e in gpu_step(n) for new in change(e, 10000 + 1000 * n)]
    return in_folder(trace)


def accumulated(ts, *shape, kind="float"):
    evaluate = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    return [event(evaluate, ts, 3, tid=2), event("torch::autograd::AccumulateGrad", ts + 1, 1, tid=2, **{
        "Input Dims": [list(shape)], "Input type": [kind]})]


@test
def a_step_of_the_optimizer_that_calls_a_closure_begins_after_the_passes():
    def with_closure(e, begin):
        if e["name"].startswith("Optimizer.step"):
            e = {**e, "ts": begin + 50, "dur": 490}
        return [e]
    expect_equal(parts(imported(edited(with_closure))), parts(imported(in_folder(gpu_trace()))), "parts")


@test
def gradients_of_other_tensors_and_of_a_parameter_again_are_left_out_if_names_are_known():
    """A reentrant checkpoint accumulates the gradients of its inputs, and those of a shared parameter several times."""
    def checkpointed(e, begin):
        return [e] + (accumulated(begin + 440, 8, 32) + accumulated(begin + 445, 64, 32) if e["name"].startswith("ProfilerStep") else [])
    path = edited(checkpointed, METADATA)
    expect_equal([p["shape"] for p in imported(path)["parameters"]], [[64, 32]], "parameters")
    expect("gradients 1 of 3, 2048 elements, 1 with names" in table(path) and "left out 2 gradients" in table(path), table(path))
    expect_equal(len(imported(edited(checkpointed))["parameters"]), 3, "parameters without names")
    unused = {"parameters": METADATA["parameters"] + [["head.weight", [5, 5], "float32", True]]}
    expect_equal(len(imported(edited(checkpointed, unused))["parameters"]), 3, "parameters if a gradient may be that of a described one")


@test
def gradients_of_a_pass_of_another_optimizer_are_kept_if_names_are_known():
    """A GAN: the discriminator has its passes and its update before those of the generator."""
    def adversarial(e, begin):
        if not e["name"].startswith("ProfilerStep"):
            return [e]
        return [e, event("aten::linear", begin + 12, 5, **{"Sequence number": 7, "Fwd thread id": 0}),
                event("autograd::engine::evaluate_function: AddmmBackward0", begin + 20, 5, tid=2, **{"Sequence number": 7, "Fwd thread id": 1}),
                *accumulated(begin + 26, 1, 64), event("Optimizer.step#AdamW.step", begin + 40, 20, "user_annotation")]
    names = {"parameters": METADATA["parameters"] + [["layers.1.weight", [1, 64], "float32", True]]}
    path = edited(adversarial, names)
    expect_equal(ready_names(imported(path)), ["layers.1.weight", "layers.0.weight"], "gradients")
    expect("2 backward passes, of which all but the last count as forward" in table(path), table(path))
    expect_equal(imported(path)["source"]["micro_batches"], 1, "micro-batches")


@test
def parameters_and_buffers_without_elements_are_left_out():
    """FSDP shards parameters so, if it keeps the original ones."""
    empty = {"parameters": [["layers.0.shard", [0], "float32", True]] + METADATA["parameters"], "buffers": [["layers.0.none", 0, "float32"]]}
    found = imported(in_folder(gpu_trace(metadata=empty)))
    expect_equal([p["name"] for p in found["parameters"]], ["layers.0.weight"], "parameters")


@cases([(name, name, size) for name, size in (("bfloat16", 2), ("float32", 4), ("uint8", 1), ("complex64", 8))])
def frozen_parameters_and_buffers_have_the_bytes_of_their_type(name, size):
    frozen = {"parameters": METADATA["parameters"] + [["base", [100, 50], name, False]], "buffers": [["mask", 400, name]]}
    found = imported(in_folder(gpu_trace(metadata=frozen)))
    expect_equal({s["live_bytes"] for s in segments(found)}, {5000 * size}, "memory of frozen parameters")
    expect_equal([4 * b["elements"] for b in found["buffers"]], [400 * size], "bytes of buffers")


@test
def a_batch_that_is_no_number_is_missing_and_parameters_that_are_not_trained_take_no_gradient():
    expect("samples" not in table(in_folder(gpu_trace(metadata={"batch": 32}))), "a number is no text")
    expect('samples (a number as "batch" in' in table(in_folder(gpu_trace(metadata={"batch": "32"}))), "expected a word on the batch")
    frozen = {"parameters": [["layers.0.weight", [64, 32], "float32", False]]}
    expect_equal(len(imported(in_folder(gpu_trace(metadata=frozen)))["parameters"]), 1, "parameters")


@test
def a_complex_gradient_has_two_numbers_per_element():
    def with_complex(e, begin):
        return [e] + (accumulated(begin + 440, 8, 8, kind="c10::complex<float>") if e["name"].startswith("ProfilerStep") else [])
    expect_equal([p["bytes"] for p in imported(edited(with_complex))["parameters"]], [512, 8192], "bytes")


@test
def a_step_that_accumulates_no_gradients_is_refused_with_its_reason():
    trace = gpu_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if "AccumulateGrad" not in e["name"]]
    refused(in_folder(trace), "loss.backward()", "torch.autograd.grad()")


@test
def a_compiled_model_is_recognized():
    trace = gpu_trace()
    for e in trace["traceEvents"]:
        e["name"] = e["name"].replace("AddmmBackward0", "CompiledFunctionBackward")
    path = in_folder(trace)
    expect("compiled model: gradients are ready when their graph ends" in table(path), "expected a word on the compiled model")
    expect(imported(path)["source"]["compiled"], "expected the field compiled")


@test
def the_activity_that_records_kernels_is_named_if_there_are_none():
    trace = gpu_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["cat"] != "kernel"]
    expect("kernels (ProfilerActivity.CUDA)" in table(in_folder(trace)), "expected a word on kernels")
    trace["traceEvents"] = [e for e in gpu_trace()["traceEvents"] if e["cat"] == "kernel"]
    refused(in_folder(trace), "ProfilerActivity.CPU")


# ---- jobs of PyTorch on CPUs ----

@cases(rows(lambda name, job: not name.endswith("-no-shapes")))
def gradients_are_those_of_the_job_in_the_order_in_which_they_are_ready(name):
    job, workload = JOBS[name], imported(os.path.join(TRACES, name + ".json.gz"))
    sizes = {n: elements(shape) for n, shape, _, _ in job["parameters"]}
    found = ready_sizes(workload)
    expect_equal(found, [sizes[n] for n in job["ready_order"]], "elements of the ready gradients")
    if job.get("ddp") and "no-metadata" not in name:
        names = job["ddp"]["parameter_names"]
        expect_equal(ready_names(workload), [names[i] for i in job["ddp"]["prev_iteration_grad_ready_order_indices"]], "DDP's order")


@cases(rows(lambda name, job: "no-" not in name))
def parameters_have_the_names_and_the_order_of_the_model(name):
    workload = imported(os.path.join(TRACES, name + ".json.gz"))
    expect_equal([p["name"] for p in workload["parameters"]],
                 [n for n, _, _, _ in JOBS[name]["parameters"] if n in JOBS[name]["ready_order"]], "names")
    expect_equal(ready_names(workload), JOBS[name]["ready_order"], "ready names")


@cases(rows(lambda name, job: job.get("metadata", True) and "no-" not in name))
def parts_add_up_to_the_step_without_the_profiler(name):
    expect_sum(imported(os.path.join(TRACES, name + ".json.gz")), round(JOBS[name]["step_ms"] * 1e6))


@cases(rows(lambda name, job: name.endswith("-no-metadata")))
def parts_add_up_to_the_recorded_step(name):
    workload = imported(os.path.join(TRACES, name + ".json.gz"))
    source = workload["source"]
    expect(source["recorded_step_ns"] in source["step_times_ns"], source)
    expect_sum(workload, source["recorded_step_ns"])
    expect_equal(source["missing"], ["names, samples, peak memory and the step without profiler (add_metadata_json)"], "missing")


@cases(rows(lambda name, job: bool(job.get("fully_shard"))))
def units_are_the_blocks_that_fsdp_shards(name):
    blocks = sorted({n.split(".")[1] for n, _, _, _ in JOBS[name]["parameters"] if n.startswith("layers.")})
    expect_equal(imported(os.path.join(TRACES, name + ".json.gz"))["units"], [f"layers.{i}." for i in blocks], "units")


@cases(rows(lambda name, job: name.endswith("-no-shapes")))
def without_shapes_and_sizes_of_reductions_the_argument_is_named(name):
    refused(os.path.join(TRACES, name + ".json.gz"), "record_shapes=True")


@cases(rows(lambda name, job: job["micro_batches"] > 1))
def the_last_micro_batch_has_the_gradients(name):
    path = os.path.join(TRACES, name + ".json.gz")
    expect_equal(imported(path)["source"]["micro_batches"], JOBS[name]["micro_batches"], "micro-batches")
    expect(f"{JOBS[name]['micro_batches']} backward passes, of which all but the last count as forward" in table(path), "the word in the table")


@cases(rows(lambda name, job: job.get("ddp", {}).get("rebuilt_bucket_sizes") and "no-" not in name))
def buckets_are_those_that_ddp_rebuilds(name):
    """Without bucket_cap_mb DDP's first bucket has a cap of 1 MiB. A cap that is given holds for the first bucket, too."""
    path = in_folder(b"", "job.json")
    expect_equal(harness("import", os.path.join(TRACES, name + ".json.gz"), "-o", path).code, 0, "exit code")
    for cap, wanted in JOBS[name]["ddp"]["buckets_by_cap_mib"].items():
        words = [] if cap == "default" else ["--bucket-cap-mb", cap, "--first-bucket-mb", cap]
        found = harness("buckets", "--workload", path, *words, "--json", "-").json()["bytes"]
        expect_equal(found, wanted["rebuilt_bucket_sizes"], f"buckets of a cap of {cap} MiB")


# ---- traces of others ----

def public(name):
    folder = os.environ.get("PSRING_TRACES")
    if not folder:
        raise Skip("PSRING_TRACES is not set to the folder of the public traces")
    return os.path.join(folder, name)


@test
def resnet50_on_two_gpus_is_imported_with_its_reductions():
    path = public("resnet50-ddp-2xa100-rank0.json.gz")
    workload, shown = imported(path), table(path)
    sizes = ready_sizes(workload)
    expect_equal(sizes, [2049000, 7875584, 6563840, 6637568, 2431040], "elements of the reductions")
    expect_sum(workload, workload["source"]["recorded_step_ns"])
    expect("213.533 ms: 39.297 computation, 10.432 only communication, 163.804 idle" in shown, shown)
    expect("shapes of gradients (record_shapes=True)" in shown, shown)


@cases([(name, name) for name in ("16xa100-rank0.json.gz", "mi250-toy.json.gz")])
def a_public_trace_is_imported_and_its_parts_add_up(name):
    workload = imported(public(name))
    expect_sum(workload, workload["source"]["recorded_step_ns"])


@cases([(f"rank {rank}", f"128-ranks-rank{rank}.json.gz") for rank in (0, 1)])
def a_sampled_trace_is_refused_with_its_reason(name):
    refused(public(name), "the trace is sampled")


main()
