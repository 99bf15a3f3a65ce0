#!/usr/bin/env python3
"""What the host does in a step of torch.nn.DataParallel, part by part on this machine's processor: JPEG decoding and
transformations, collation, the pinning thread's copy, wiring of replicas, calls of modules on tensors so small that
nothing but their overhead counts, and the same calls from several threads under the interpreter's lock. No GPU is needed:
replicas are on the CPU, and launches are not measured. Times are processor times (of the thread, or of the process where
threads are several), so a machine that does other work disturbs them little; the wall-clock columns need two free cores.
Shown are the smallest, the median and the largest of all rounds; docs/simulation.md says which constants they become. The published ImageNet files have 108 KB and 469 x 387 pixels on average: the pictures here are noise
of falling spectrum, compressed to that size.
usage: dp_host.py [--rounds N] [--json FILE]    (needs torch and torchvision)"""
import argparse
import gc
import importlib
import io
import json
import os
import statistics
import sys
import tempfile
import threading
import time

import numpy
import torch
import torchvision
from PIL import Image
from torchvision import transforms

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

replicate_module = importlib.import_module("torch.nn.parallel.replicate")

PIXELS, FILE_BYTES = (387, 469), 107_600
IMAGE_BYTES = 3 * 224 * 224 * 4
BATCH = 128  # images, for copies
NARROW = 32  # of ResNet-50's channels, one in so many is left


# ---- what is measured --------------------------------------------------------------------------

def picture(random):
    """A JPEG file of the published average size."""
    height, width = PIXELS
    y, x = numpy.meshgrid(numpy.fft.fftfreq(height), numpy.fft.fftfreq(width), indexing="ij")
    falling = 1 / numpy.maximum(numpy.hypot(y, x), 1 / width) ** 1.2
    noise = numpy.stack([numpy.fft.ifft2(numpy.fft.fft2(random.standard_normal(PIXELS)) * falling).real for _ in range(3)], -1)
    grey = noise.mean(-1, keepdims=True)
    colors = grey + 0.3 * (noise - grey)
    image = Image.fromarray(numpy.clip(128 + 50 * (colors - colors.mean()) / colors.std(), 0, 255).astype("uint8"))
    best = None
    for quality in range(60, 100):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        if best is None or abs(len(file.getvalue()) - FILE_BYTES) < abs(len(best) - FILE_BYTES):
            best = file.getvalue()
    return best


def usual_transform():
    """ImageNet's, as torchvision's and PyTorch's examples train with it."""
    return transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                               transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])


def narrowed(module):
    """The same modules, with so few channels that computation takes no time."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Conv2d):
            channels = [n if n == 3 else max(1, n // NARROW) for n in (child.in_channels, child.out_channels)]
            setattr(module, name, torch.nn.Conv2d(*channels, child.kernel_size, child.stride, child.padding, bias=False))
        elif isinstance(child, torch.nn.BatchNorm2d):
            setattr(module, name, torch.nn.BatchNorm2d(max(1, child.num_features // NARROW)))
        elif isinstance(child, torch.nn.Linear):
            setattr(module, name, torch.nn.Linear(child.in_features // NARROW, 8))
        else:
            narrowed(child)
    return module


class Copies(torch.autograd.Function):
    """In place of torch.nn.parallel's Broadcast: as many tensors, without copying any."""

    @staticmethod
    def forward(ctx, count, *tensors):
        ctx.count = count
        return tuple(t.detach() for _ in range(count) for t in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        return (None, *gradients[:len(gradients) // ctx.count])  # never called


def broadcast(tensors, devices, detach=False):
    if detach:
        return [[t.detach() for t in tensors] for _ in devices]
    copies = Copies.apply(len(devices), *tensors) if tensors else ()
    return [list(copies[i * len(tensors):(i + 1) * len(tensors)]) for i in range(len(devices))]


def wire(model, count):
    """torch.nn.parallel.replicate, for devices that do not exist."""
    kept = replicate_module._broadcast_coalesced_reshape, replicate_module._get_device_index
    replicate_module._broadcast_coalesced_reshape = broadcast
    replicate_module._get_device_index = lambda device, *_: device
    try:
        return replicate_module.replicate(model, list(range(count)))
    finally:
        replicate_module._broadcast_coalesced_reshape, replicate_module._get_device_index = kept


def in_threads(models, x):
    """Calls all modules at the same time, each in a thread of its own, as parallel_apply does; returns processor and
    wall seconds."""
    barrier = threading.Barrier(len(models) + 1)

    def run(model):
        barrier.wait()
        model(x)
    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    barrier.wait()
    begin = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    return time.process_time() - begin[1], time.perf_counter() - begin[0]


# ---- one round ---------------------------------------------------------------------------------

def spent(work, times=1):
    """Seconds of this thread for one call of `work`."""
    begin = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - begin) / times


def loader_round(files, found):
    transform = usual_transform()
    transform(Image.open(io.BytesIO(files[0])).convert("RGB"))
    images = [Image.open(io.BytesIO(f)).convert("RGB") for f in files]
    found["decode, ms per image"] = 1e3 * spent(lambda: [Image.open(io.BytesIO(f)).convert("RGB") for f in files]) / len(files)
    found["transform, ms per image"] = 1e3 * spent(lambda: [transform(i) for i in images]) / len(files)
    found["both, images per s per worker"] = len(files) / spent(
        lambda: [transform(Image.open(io.BytesIO(f)).convert("RGB")) for f in files])


def copy_round(found):
    """A worker stacks images into new shared memory; a thread of another process copies them into memory that it has
    already."""
    samples = [torch.rand(3, 224, 224) for _ in range(BATCH)]
    warm = torch.zeros(BATCH, 3, 224, 224)

    def collate():
        storage = samples[0].untyped_storage()._new_shared(BATCH * IMAGE_BYTES)
        out = samples[0].new(storage).resize_(BATCH, 3, 224, 224)
        torch.stack(samples, 0, out=out)
    found["collation into new shared memory, GB/s"] = BATCH * IMAGE_BYTES / spent(collate) / 1e9
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(warm.numpy().tobytes())
        file.flush()

        def pin():
            seen = torch.from_file(file.name, shared=True, size=warm.numel()).view_as(warm)
            warm.copy_(seen)
        found["pinning: copy from a new mapping, GB/s"] = BATCH * IMAGE_BYTES / spent(pin) / 1e9
    other = torch.ones_like(warm)
    found["copy between memory in use, GB/s"] = BATCH * IMAGE_BYTES / spent(lambda: warm.copy_(other)) / 1e9


def host_round(found):
    whole = torchvision.models.resnet50()
    modules, tensors = len(list(whole.modules())), len(list(whole.parameters())) + len(list(whole.buffers()))
    wire(whole, 2)
    gc.collect()
    found["wiring, ms per ResNet-50 replica"] = 1e3 * spent(lambda: wire(whole, 8)) / 8
    found["wiring, us per module and tensor"] = 1e3 * found["wiring, ms per ResNet-50 replica"] / (modules + tensors)
    model, x = narrowed(torchvision.models.resnet50()), torch.rand(2, 3, 32, 32)
    operations = 174  # of the forward pass
    traced = torch.jit.trace(model, x, check_trace=False)
    for _ in range(5):
        model(x), traced(x)
    eager, compiled = spent(lambda: model(x), 20), spent(lambda: traced(x), 20)
    found["call of a module, us per operation"] = 1e6 * eager / operations
    found["of it without Python (traced), us"] = 1e6 * compiled / operations
    found["share under the lock by that"] = 1 - compiled / eager
    loss = [model(x).sum() for _ in range(10)]
    found["backward, us per operation of forward"] = 1e6 * spent(lambda: loss.pop().backward(), 10) / operations
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    optimizer.step()
    found["update, us per parameter (a loop)"] = 1e6 * spent(optimizer.step, 10) / len(list(model.parameters()))
    for count in (1, 2, 4, 8):
        replicas = wire(model, count)
        in_threads(replicas, x)
        pairs = [in_threads(replicas, x) for _ in range(5)]
        found[f"{count} thread{'s' * (count > 1)}: processor ms per forward"] = 1e3 * min(p[0] for p in pairs) / count
        found[f"{count} thread{'s' * (count > 1)}: wall ms per forward"] = 1e3 * min(p[1] for p in pairs) / count


def show(rounds):
    print("torch %s, torchvision %s, Pillow %s, Python %s; %d rounds; %d processors" % (
        torch.__version__, torchvision.__version__, Image.__version__, sys.version.split()[0], len(rounds), os.cpu_count()))
    print("%-44s %10s %10s %10s" % ("", "least", "median", "most"))
    for name in rounds[0]:
        values = [r[name] for r in rounds]
        print("%-44s %10.3f %10.3f %10.3f" % (name, min(values), statistics.median(values), max(values)))
    print(provenance.closing_line(len(rounds), provenance.largest_spread([r[name] for r in rounds] for name in rounds[0])))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    random = numpy.random.default_rng(1)
    files = [picture(random) for _ in range(24)]
    rounds = []
    for _ in range(options.rounds):
        rounds.append({})
        loader_round(files, rounds[-1])
        copy_round(rounds[-1])
        host_round(rounds[-1])
    show(rounds)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rounds, file, indent=1)


main()
