"""Traces of torch.profiler: the recorded ones of tests/traces, a small one of a GPU, and what `harness import` makes of them."""
import gzip
import json
import os
import resource
import tempfile

from program import harness
from tap import expect, expect_equal

TRACES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "traces")
MOST_KIB = 256 << 10
FOLDER = tempfile.TemporaryDirectory(prefix="import-")  # removed when the program ends


def truth():
    path = os.path.join(TRACES, "truth.json")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)["jobs"]


JOBS = truth()


def rows(wanted):
    return [(name, name) for name, job in JOBS.items() if wanted(name, job)]


def in_folder(text_or_trace, name="trace.json"):
    """Writes a file into a new folder and returns the path."""
    path = os.path.join(tempfile.mkdtemp(dir=FOLDER.name), name)
    with (gzip.open if name.endswith(".gz") else open)(path, "wb") as file:
        file.write(text_or_trace if isinstance(text_or_trace, bytes) else json.dumps(text_or_trace).encode())
    return path


def imported(*words):
    result = harness("import", *words, "-o", "-", limit=60)
    expect_equal((result.code, result.err), (0, ""), "exit code and stderr", result)
    return result.json()


def table(*words):
    """Returns the report in one line."""
    result = harness("import", *words, "-o", in_folder(b"", "job.json"), limit=60)
    expect_equal(result.code, 0, "exit code", result)
    return " ".join(result.out.split())


def refused(path, *parts, code=65):
    result = harness("import", path, limit=120)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.err.splitlines()), 1, "lines on stderr", result)
    expect(all(part in result.err for part in parts), f"expected {parts}", result)
    expect(result.err.rstrip("\n").isprintable(), "control characters on stderr", repr(result.err))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    expect(memory <= MOST_KIB, f"expected at most {MOST_KIB} KiB, the largest command used {memory}")


def segments(workload, *passes):
    return [s for name in passes or ("forward", "backward") for s in workload[name]]


def ready_names(workload):
    return [workload["parameters"][i]["name"] for s in segments(workload) for i in s["ready"]]


def ready_sizes(workload):
    """Elements of the gradients in the order in which they become ready."""
    return [elements(workload["parameters"][i]["shape"]) for s in segments(workload) for i in s["ready"]]


def parts(workload):
    """Time and idle time of each part, in ns."""
    return {name: (ns, workload["parts_idle_ns"][name]) for name, ns in workload["parts_ns"].items()}


def elements(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def step_ns(workload):
    return workload["step_ns"]


def expect_sum(workload, step):
    expect_equal((step_ns(workload), sum(workload["parts_ns"].values())), (step, step), "the step, and the sum of the parts, ns")
    for part in ("forward", "backward"):
        found = sum(s["kernel_ns"] + s["idle_ns"] for s in segments(workload, part))
        expect_equal(found, workload["parts_ns"][part], f"sum of the segments of {part}, ns")
    expect(all(0 <= idle <= ns for ns, idle in parts(workload).values()), parts(workload))


# ---- a small trace of a GPU ----

def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, launch, begin, end, number, stream=7):
    return [event("cudaLaunchKernel", launch, 3, "cuda_runtime", 2, correlation=number),
            event(name, begin, end - begin, "kernel", stream, correlation=number, stream=stream)]


def gpu_step(number):
    """A step of 1000 us: the GPU idles 700 us, computes 200 us, and waits 100 us for an all-reduce."""
    t, seq, k = 10000 + 1000 * number, 50 + number, 10 * number
    gradient = {"Input Dims": [[64, 32]], "Input type": ["float"]}
    return [event(f"ProfilerStep#{number}", t, 999, "user_annotation"),
            event("Optimizer.zero_grad#AdamW.zero_grad", t + 5, 5, "user_annotation"),
            event("aten::linear", t + 100, 50, **{"Sequence number": seq, "Fwd thread id": 0}),
            *kernel("sm80_xmma_gemm_f32", t + 110, t + 120, t + 220, k + 1),
            event("autograd::engine::evaluate_function: AddmmBackward0", t + 400, 50, tid=2,
                  **{"Sequence number": seq, "Fwd thread id": 1}),
            *kernel("cutlass_80_gemm", t + 410, t + 420, t + 500, k + 2),
            event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t + 460, 25, tid=2),
            event("torch::autograd::AccumulateGrad", t + 461, 10, tid=2, **gradient),
            event("c10d::allreduce_", t + 473, 8, tid=2, **{"Input Dims": [[[2048]], [], []], "Input type": ["TensorList"]}),
            event("record_param_comms", t + 474, 6, tid=2, **{
                "Collective name": "allreduce", "In msg nelems": 2048, "dtype": "Float", "Group size": 4}),
            *kernel("ncclDevKernel_AllReduce", t + 475, t + 510, t + 610, k + 3, 9),
            event("Optimizer.step#AdamW.step", t + 490, 50, "user_annotation"),
            *kernel("multi_tensor_apply", t + 495, t + 640, t + 660, k + 4)]


METADATA = {"parameters": [["layers.0.weight", [64, 32], "float32", True]], "buffers": [], "optimizer": "AdamW", "batch": 8,
            "step_ms": None, "peak_bytes": None, "gradient_type": "float32"}


def gpu_trace(rank=0, metadata=None, steps=3):
    top = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "record_shapes": 1,
           "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4}}
    if metadata is not None:
        top["harness"] = {**METADATA, **metadata}
    return {**top, "traceEvents": [e for n in range(steps) for e in gpu_step(n)]}


def microseconds(workload):
    return {name: (ns // 1000, idle // 1000) for name, (ns, idle) in parts(workload).items()}
