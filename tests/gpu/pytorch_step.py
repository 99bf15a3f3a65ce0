#!/usr/bin/env python3
"""Training steps of PyTorch on one GPU: the peer of speed.py.

    pytorch_step.py MODEL BATCH STEPS [--precision float32|tf32|bf16] [--compile [MODE]] [--channels-last]
                    [--sequence TOKENS] [--prefetch] [--device cuda|cpu]

Prints one JSON object: the wall time of STEPS steps divided by their number (`step_ms`) and the median of their times by the
GPU's clock, in ms, versions and the GPU's name. A step is forward, loss, backward and optimizer, and nothing waits between
steps. With --compile reduce-overhead PyTorch also records CUDA graphs. Data are on the GPU before; with --prefetch each batch is copied from pinned memory one step ahead, on a stream of
its own. Models are those of tests/bench/pytorch_train.py, and bert_large with its classifier; optimizers are the fused
ones. `--device cpu` is for rehearsals.
"""
import argparse
import contextlib
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench"))
import pytorch_train as models  # noqa: E402

models.SIZES["bert_large"] = (24, 1024, 16, 30522, 512)
WARM_UP = 10


def fused_optimizer(name, params):
    import torch
    if name in models.SIZES:
        return torch.optim.Adam(params, lr=1e-4, fused=True)
    return torch.optim.SGD(params, lr=0.01, momentum=0.9, fused=True)


def resident(tensors):
    while True:
        yield tensors


def prefetched(tensors):
    """Returns the batch of a step. The copy of the next batch is under way when a batch is returned."""
    import torch
    side, pinned = torch.cuda.Stream(), [t.cpu().pin_memory() for t in tensors]

    def copy():
        with torch.cuda.stream(side):
            return [t.to("cuda", non_blocking=True) for t in pinned]

    coming = copy()
    while True:
        torch.cuda.current_stream().wait_stream(side)
        here = coming
        for t in here:
            t.record_stream(torch.cuda.current_stream())
        coming = copy()
        yield here


def timed_steps(step, count, device):
    """The time of a step in ms: (mean by the wall clock, median by the device's clock)."""
    import torch
    if device == "cpu":
        begin = time.perf_counter()
        for _ in range(count):
            step()
        each = 1e3 * (time.perf_counter() - begin) / count
        return each, each
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - begin) / count
    return wall, statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--compile", nargs="?", const="default", choices=["default", "reduce-overhead"])
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--sequence", type=int, default=models.SEQUENCE)
    parser.add_argument("--prefetch", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    import torch
    tf32 = args.precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    models.SEQUENCE = args.sequence
    model, x, y = models.build(args.model, args.batch)
    model, x, y = model.to(args.device), x.to(args.device), y.to(args.device)
    if args.channels_last and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    opt = fused_optimizer(args.model, list(model.parameters()))
    net = torch.compile(model, mode=args.compile) if args.compile else model
    batches = (prefetched if args.prefetch and args.device == "cuda" else resident)([x, y])

    def step():
        x, y = next(batches)
        cast = torch.autocast(args.device, torch.bfloat16) if args.precision == "bf16" else contextlib.nullcontext()
        opt.zero_grad(set_to_none=True)
        with cast:
            out = net(x)
            loss = torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        loss.backward()
        opt.step()

    timed_steps(step, WARM_UP, args.device)
    wall, median = timed_steps(step, args.steps, args.device)
    print(json.dumps({"step_ms": wall, "median_ms": median, "steps": args.steps, "torch": torch.__version__,
                      "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                      "gpu": torch.cuda.get_device_name(0) if args.device == "cuda" else "none"}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
