"""`harness explain` shows the parts of a step, its collectives, and those faults that a trace proves."""
import gzip
import json
import os
import re
import tempfile

from program import harness
from tap import Skip, cases, expect, expect_equal, main, test

TRACES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "traces")
FOLDER = tempfile.TemporaryDirectory(prefix="explain-")  # removed when the program ends
SINGLE, MICRO, COMPILED, LOADER, LATE, HOST = (
    "single_unit", "reductions_per_micro_batch", "gradients_at_the_end", "data_wait", "late_rank", "gpu_waits_for_host")
PAIR = ("causes/slow-rank", "causes/slow-rank.rank1")
# The facts of all committed traces. A trace that is not in the table has none.
FACTS = {"accumulation-eager": [MICRO], "fsdp-one-unit": [SINGLE], "causes/one-unit": [SINGLE], "causes/compiled": [COMPILED],
         "causes/reduction-per-micro-batch": [MICRO], "causes/slow-loader": [LOADER]}


def path_of(name):
    return os.path.join(TRACES, name + ".json.gz")


def names():
    files = [os.path.join(folder, name) for folder in ("", "causes") for name in sorted(os.listdir(os.path.join(TRACES, folder)))]
    return [name[:-len(".json.gz")] for name in files if name.endswith(".json.gz")]


def figures(*paths):
    result = harness("explain", *paths, "--json", "-", limit=60)
    expect_equal((result.code, result.err), (0, ""), "exit code and stderr", result)
    return result.json()


def facts(*paths):
    return [fact["fact"] for fact in figures(*paths)["facts"]]


def shown(*paths):
    """Returns the report in one line."""
    result = harness("explain", *paths, limit=60)
    expect_equal((result.code, result.err), (0, ""), "exit code and stderr", result)
    return " ".join(result.out.split())


def ns(seconds):
    return round(seconds * 1e9)


def written(trace):
    path = os.path.join(tempfile.mkdtemp(dir=FOLDER.name), "trace.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace, file)
    return path


# ---- jobs of PyTorch on CPUs ----

@cases([(name, name) for name in names()])
def a_trace_of_one_rank_shows_its_faults_and_no_others(name):
    expect_equal(facts(path_of(name)), FACTS.get(name, []), "facts")


@cases([(name, name) for name in names()])
def parts_add_up_to_the_step_and_are_those_of_import(name):
    rank = figures(path_of(name))["ranks"][0]
    expect_equal(sum(map(ns, rank["parts_s"].values())), ns(rank["step_s"]), "sum of the parts, ns")
    result = harness("import", path_of(name), "-o", "-", limit=60)
    if result.code == 0:  # a trace without shapes has no workload
        expect_equal({part: ns(time) for part, time in rank["parts_s"].items()}, result.json()["parts_ns"], "parts, ns")


@test
def exchanges_of_several_optimizers_are_no_fault():
    """A GAN updates the discriminator before the pass of the generator."""
    with gzip.open(path_of("accumulation-eager")) as file:
        trace = json.load(file)
    passes = [e for e in trace["traceEvents"] if e["name"].startswith("DistributedDataParallel.forward")]
    trace["traceEvents"] += [{**e, "name": "Optimizer.step#SGD.step", "ts": e["ts"] - 0.002, "dur": 0.001} for e in passes]
    expect_equal(facts(written(trace)), [], "facts")


@test
def the_late_rank_is_the_one_that_the_others_wait_for():
    found = figures(*map(path_of, PAIR))
    expect_equal([fact["fact"] for fact in found["facts"]], [LATE], "facts")
    later = re.search(r"Rank 1 is later than the other ranks by ([\d.]+) of", found["facts"][0]["text"])
    expect(later and 100 <= float(later[1]) <= 130, "rank 1 is 100 ms late", found["facts"])
    expect_equal(facts(*map(path_of, reversed(PAIR))), [LATE], "facts with the traces in another order")


@test
def ranks_that_wait_alike_are_not_late():
    expect_equal(facts(path_of("unused-parameters"), path_of("unused-parameters.rank1")), [], "facts")


@test
def the_least_duration_over_the_ranks_is_the_transfer_and_the_rest_is_waiting():
    found = figures(*map(path_of, PAIR))
    expect_equal([c["transfer_s"] for c in found["collectives"]], [min(c["duration_s"]) for c in found["collectives"]], "transfers")
    waiting = [max(c["duration_s"][rank] - c["transfer_s"] for c in found["collectives"]) for rank in (0, 1)]
    for rank in (0, 1):
        expect(found["ranks"][rank]["waiting_s"] >= waiting[rank] - 1e-9, f"rank {rank} waits as long as in its longest wait", found["ranks"])
    expect("transfer" in shown(*map(path_of, PAIR)), "expected a column of transfers")


@test
def one_rank_does_not_tell_transfer_from_waiting():
    found = figures(path_of(PAIR[0]))
    expect_equal({c["transfer_s"] for c in found["collectives"]} | {found["ranks"][0]["waiting_s"]}, {None}, "transfers and waiting")
    text = shown(path_of(PAIR[0]))
    expect("One rank does not tell transfer from waiting" in text and "No known fault is found." in text, text)
    expect("ProfilerStep#4, one of 3 recorded steps: " in text, "the step", text)
    expect("One rank" not in shown(path_of("resnet18")), "a job of one rank has no others")


@test
def collectives_have_the_sizes_of_the_buckets():
    with open(os.path.join(TRACES, "truth.json"), encoding="utf-8") as file:
        ddp = json.load(file)["jobs"]["nanogpt"]["ddp"]
    found = figures(path_of("nanogpt"))
    expect_equal([c["bytes"] for c in found["collectives"] if c["micro_batch"]], ddp["rebuilt_bucket_sizes"], "bytes of the buckets")


@cases([(name, name) for name in names()])
def the_largest_exposed_collective_is_exposed_no_longer_than_it_takes(name):
    found = figures(path_of(name))
    exposed = [c["exposed_s"] for c in found["collectives"]]
    expect(all(0 <= c["exposed_s"] <= c["duration_s"][0] for c in found["collectives"]), found["collectives"])
    if max(exposed, default=0) == 0:
        expect_equal(found["largest_exposed"], None, "largest exposed collective")
        return
    expect_equal(exposed[found["largest_exposed"]], max(exposed), "longest exposed time")
    expect(f"Largest exposed collective: {found['largest_exposed'] + 1}," in shown(path_of(name)), "the report names it")


# ---- a GPU with known times ----

def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, launch, begin, end, number, stream=7):
    return [event("cudaLaunchKernel", launch, 3, "cuda_runtime", 2, correlation=number),
            event(name, begin, end - begin, "kernel", stream, correlation=number)]


def gpu_step(number, idle, reduction):
    """A step in which the GPU computes for 800 us, idles, and reduces 2048 elements. The last 50 us of this are exposed."""
    t, k = 10000 + 2000 * number, 10 * number
    last = t + 800 + idle + reduction
    return [event(f"ProfilerStep#{number}", t, 1999, "user_annotation"),
            event("aten::linear", t + 10, 5, **{"Sequence number": number, "Fwd thread id": 0}),
            *kernel("sm80_xmma_gemm_f32", t + 11, t + 20, t + 420, k + 1),
            event("autograd::engine::evaluate_function: AddmmBackward0", t + 40, 10, tid=2, **{"Sequence number": number, "Fwd thread id": 1}),
            *kernel("cutlass_80_gemm", t + 410 + idle, t + 420 + idle, t + 770 + idle, k + 2),
            event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t + 411 + idle, 20, tid=2),
            event("torch::autograd::AccumulateGrad", t + 412 + idle, 2, tid=2, **{"Input Dims": [[64, 32]], "Input type": ["float"]}),
            event("c10d::allreduce_", t + 420 + idle, 8, tid=2, **{"Input Dims": [[[2048]], [], []], "Input type": ["TensorList"]}),
            *kernel("ncclDevKernel_AllReduce", t + 422 + idle, last - 30 - reduction, last + 20, k + 3, 9),
            event("Optimizer.step#SGD.step", t + 440 + idle, 20, "user_annotation"),
            *kernel("multi_tensor_apply", t + 445 + idle, last + 20, last + 70, k + 4)]


def gpu_trace(idle, reduction=0, rank=0, steps=3):
    return written({"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "distributedInfo": {"rank": rank, "world_size": 2},
                    "traceEvents": [e for n in range(1, steps + 1) for e in gpu_step(n, idle, reduction)]})


@cases([("a ninth of the step", 100, []), ("a third of the step", 430, [HOST])])
def a_gpu_waits_for_its_host_if_it_idles_for_more_than_a_fifth_of(idle, wanted):
    found = figures(gpu_trace(idle))
    expect_equal([fact["fact"] for fact in found["facts"]], wanted, "facts", *found["facts"])
    for fact in found["facts"]:
        expect(f"for 0.{idle:03d} of " in fact["text"], fact["text"])


@test
def communication_of_a_gpu_is_exposed_while_no_kernel_computes():
    collective = figures(gpu_trace(100, 300))["collectives"][0]
    expect_equal((ns(collective["duration_s"][0]), ns(collective["exposed_s"])), (350000, 350000), "ns")


@test
def a_gpu_whose_collectives_end_at_once_is_the_late_rank():
    found = figures(gpu_trace(0, 700), gpu_trace(0, 0, rank=1))
    expect_equal([fact["fact"] for fact in found["facts"]], [LATE], "facts")
    expect("Rank 1" in found["facts"][0]["text"] and "by 0.700 of" in found["facts"][0]["text"], found["facts"])
    expect_equal([ns(rank["waiting_s"]) for rank in found["ranks"]], [700000, 0], "waiting, ns")


# ---- files that do not fit ----

def refused(code, part, *paths):
    result = harness("explain", *paths, limit=60)
    expect_equal((result.code, result.out, len(result.err.splitlines())), (code, "", 1), "exit code, stdout and lines of stderr", result)
    expect(part in result.err, f"expected {part!r}", result)


@test
def no_trace_is_a_wrong_command():
    refused(64, "expected a trace of torch.profiler")


@cases([("no file", os.path.join(FOLDER.name, "none"), 71, "none"), ("another JSON", written({"a": 1}), 65, "traceEvents"),
        ("a trace without a backward pass", written({"traceEvents": [event("ProfilerStep#1", 1, 5, "user_annotation")]}), 65, "backward pass")])
def a_wrong_file_is_refused_in_one_line(path, code, part):
    result = harness("explain", path)
    if code == 65:
        refused(65, part, path)
    else:
        expect(result.code != 0 and part in result.err and len(result.err.splitlines()) == 1, "one line", result)


@cases([("the same rank", [path_of(PAIR[0])] * 2, "expected another rank"),
        ("ranks with other collectives", [path_of("nanogpt"), path_of("unused-parameters.rank1")], "expected the collectives"),
        ("ranks without a common step", [gpu_trace(0), gpu_trace(0, rank=1, steps=1)], "expected ProfilerStep#")])
def traces_that_do_not_belong_together_are_refused(paths, part):
    refused(65, part, *paths)


# ---- traces of others ----

@test
def the_gpu_of_resnet50_waits_for_its_host():
    folder = os.environ.get("PSRING_TRACES")
    if not folder:
        raise Skip("PSRING_TRACES is not set to the folder of the public traces")
    path = os.path.join(folder, "resnet50-ddp-2xa100-rank0.json.gz")
    expect_equal(facts(path), [HOST], "facts")
    expect("The GPU waits for its host for 163.804 of 213.533 ms (77 %)" in shown(path), "expected the times")


main()
