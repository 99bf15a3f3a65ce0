#!/usr/bin/env python3
"""Training steps of PyTorch on one GPU: the peer of speed.py.

    pytorch_step.py MODEL BATCH STEPS [--precision float32|tf32|bf16] [--compile] [--channels-last]
                    [--prefetch] [--device cuda|cpu]

Prints one JSON object: the median step time in ms (forward, loss, backward, optimizer; data are on the GPU before, or with
--prefetch copied from pinned memory, non_blocking, one step ahead on a stream of its own, as prefetchers do),
versions and the GPU's name. Models are those of tests/bench/pytorch_train.py, and bert_large with its classifier;
optimizers are the fused ones. Steps are timed by events, and nothing waits between them. `--device cpu` is for
rehearsals.
"""
import argparse
import contextlib
import json
import os
import statistics
import sys

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
    """The batch of every step; the next one is on its way when it is handed out."""
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
    """Times of `count` steps in ms."""
    import time
    import torch
    if device == "cpu":
        times = [time.perf_counter()]
        for _ in range(count):
            step()
            times.append(time.perf_counter())
        return [1e3 * (b - a) for a, b in zip(times, times[1:])]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--prefetch", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    import torch
    tf32 = args.precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    model, x, y = models.build(args.model, args.batch)
    model, x, y = model.to(args.device), x.to(args.device), y.to(args.device)
    if args.channels_last and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    opt = fused_optimizer(args.model, list(model.parameters()))
    net = torch.compile(model) if args.compile else model
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

    times = timed_steps(step, args.steps + WARM_UP, args.device)[WARM_UP:]
    print(json.dumps({"step_ms": statistics.median(times), "steps": args.steps, "torch": torch.__version__,
                      "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                      "gpu": torch.cuda.get_device_name(0) if args.device == "cuda" else "none"}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
