#!/usr/bin/env python3
"""One measured training run of PyTorch on the CPU: the peer of tests/bench/train.py.

    pytorch_train.py MODEL BATCH STEPS THREADS [single|ddp|fully_shard] [PROCESSES] [--channels-last] [--fused] [--compile]

Prints one JSON object: median step time in ms over the measured steps (forward, loss, backward, optimizer;
data are made before), PyTorch's version, and the peak resident memory. The models are those of this project
with the same head and the same positions in the loss: resnetN of torchvision; bert (encoder with post-LayerNorm
and a classifier on the first token) and gpt2 (decoder with a tied head over all positions) on scaled dot-product
attention where PyTorch has it, so that the peer is not held back.
"""
import argparse
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time

SIZES = {"bert": (4, 256, 4, 8192, 512), "bert_base": (12, 768, 12, 30522, 512), "gpt2": (12, 768, 12, 50257, 1024)}
SEQUENCE = 128


def attention(q, k, v, causal):
    import torch
    import torch.nn.functional as F
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = q.shape[-2]
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(scores, -1) @ v


def transformer(name):
    import torch
    from torch import nn
    import torch.nn.functional as F

    layers, width, heads, words, positions = SIZES[name]
    causal = name == "gpt2"

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

        def attend(self, x):
            b, s, _ = x.shape
            q, k, v = (t.view(b, s, heads, width // heads).transpose(1, 2) for t in self.qkv(x).split(width, -1))
            return self.out(attention(q, k, v, causal).transpose(1, 2).reshape(b, s, width))

        def feed(self, x):
            return self.down(F.gelu(self.up(x), approximate="tanh") if causal else F.gelu(self.up(x)))

        def forward(self, x):
            if causal:
                x = x + self.attend(self.norm1(x))
                return x + self.feed(self.norm2(x))
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.feed(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.place = nn.Embedding(words, width), nn.Embedding(positions, width)
            for table in (self.word, self.place):
                nn.init.normal_(table.weight, std=0.02)  # N(0, 1) saturates a tied head: a step takes twice as long
            self.norm = nn.LayerNorm(width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.head = None if causal else nn.Linear(width, 2)

        def forward(self, t):
            x = self.word(t) + self.place.weight[: t.shape[1]]
            if causal:
                return F.linear(self.norm(self.blocks(x)), self.word.weight)
            return self.head(self.blocks(self.norm(x))[:, 0])

    return Model(), words


def build(name, batch):
    import torch
    from torch import nn
    torch.manual_seed(1)
    if name == "wine_mlp":
        return nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 3)), torch.randn(batch, 13), torch.randint(0, 3, (batch,))
    if name in SIZES:
        model, words = transformer(name)
        tokens = torch.randint(0, words, (batch, SEQUENCE))
        target = tokens.roll(-1, 1) if name == "gpt2" else torch.randint(0, 2, (batch,))
        return model, tokens, target
    import torchvision
    small = name == "resnet18"
    model = getattr(torchvision.models, name)(num_classes=10 if small else 1000)
    side = 32 if small else 224
    return model, torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,))


def optimizer(name, params, fused):
    import torch
    options = {"fused": True} if fused else {}
    if name in SIZES:
        return torch.optim.Adam(params, lr=1e-4, **options)
    return torch.optim.SGD(params, lr=0.01, momentum=0.9, **options)


def shard(model):
    """One unit per block, as our `units` lists do, and one for the rest."""
    import torch
    from torch.distributed.fsdp import fully_shard
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    blocks = list(model.blocks) if hasattr(model, "blocks") else [
        block for name, layer in model.named_children() if name.startswith("layer") for block in layer]
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def run(rank, args, store):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(args.threads)
    if args.mode != "single":
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=args.processes)
    model, x, y = build(args.model, args.batch)
    if args.channels_last and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if args.mode == "fully_shard":
        shard(model)
    opt = optimizer(args.model, list(model.parameters()), args.fused)
    net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if args.mode == "ddp" else model
    if args.compile:
        net = torch.compile(net)
    times = []
    for _ in range(args.steps + 3):
        if args.mode != "single":
            dist.barrier()
        begin = time.perf_counter()
        opt.zero_grad(set_to_none=True)
        out = net(x)
        loss = torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        loss.backward()
        opt.step()
        times.append(1e3 * (time.perf_counter() - begin))
    if rank == 0:
        print(json.dumps({"step_ms": statistics.median(times[3:]), "steps": args.steps, "torch": torch.__version__,
                          "resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)
    if args.mode != "single":
        dist.barrier()
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("mode", nargs="?", default="single", choices=["single", "ddp", "fully_shard"])
    parser.add_argument("processes", nargs="?", type=int, default=2)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--fused", action="store_true", help="the optimizer's fused implementation")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    if args.mode == "single":
        run(0, args, None)
        return
    import torch.multiprocessing as mp
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(args, os.path.join(folder, "store")), nprocs=args.processes)


if __name__ == "__main__":
    sys.exit(main())
