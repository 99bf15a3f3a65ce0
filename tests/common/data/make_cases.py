#!/usr/bin/env python3
"""Writes cases.h: what PyTorch's samplers and normalization give, and an independent computation of the
project's permutations and synthetic data. Needs PyTorch: make_cases.py > cases.h"""
import os
import sys

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "support"))
from numbers_of_seeds import MASK, below, bits, mix, permutation, start, uniform  # noqa: E402

# samples, ranks, samples per rank and step
SIZES = [(1, 1, 1), (7, 2, 3), (8, 2, 4), (10, 3, 2), (13, 4, 5), (16, 4, 2), (9, 8, 1), (5, 5, 4), (23, 4, 3),
         (17, 6, 2), (11, 2, 16)]


def words(values):
    return " ".join(str(int(v)) for v in values)


def distributed(n, world, batch, drop_last):
    for rank in range(world):
        sampler = DistributedSampler(range(n), world, rank, shuffle=False, drop_last=drop_last)
        yield rank, "|".join(words(b) for b in DataLoader(range(n), batch, sampler=sampler, drop_last=drop_last))


def chunked(n, world, batch, drop_last):
    steps = list(DataLoader(range(n), world * batch, drop_last=drop_last))
    for rank in range(world):
        chunks = [step.chunk(world) for step in steps]
        yield rank, "|".join(words(c[rank]) if rank < len(c) else "" for c in chunks)


def print_samplers():
    print("static const struct sampler_case {\n    sampler_mode mode;\n    int samples, world, batch;\n"
          "    bool drop_last;\n    int rank;\n    const char *steps; /* positions, steps divided by | */\n"
          "} sampler_cases[] = {")
    for mode, cut in (("SAMPLER_DISTRIBUTED", distributed), ("SAMPLER_GLOBAL", chunked)):
        for n, world, batch in SIZES:
            for drop_last in (False, True):
                for rank, steps in cut(n, world, batch, drop_last):
                    if drop_last and not steps.replace("|", ""):
                        continue  # no step at all: refused
                    print(f'    {{{mode}, {n}, {world}, {batch}, {str(drop_last).lower()}, {rank}, "{steps}"}},')
    print("};\n")


def print_permutations():
    print("static const struct order_case {\n    int samples;\n    uint64_t seed;\n    int epoch;\n"
          "    const char *order;\n} order_cases[] = {")
    for n, seed, epoch in ((1, 0, 0), (2, 0, 0), (10, 0, 0), (10, 0, 1), (10, 1, 0), (10, 2**64 - 1, 0), (25, 7, 3)):
        order = permutation(start(seed + epoch & MASK, "data.order"), n)
        print(f'    {{{n}, UINT64_C({seed}), {epoch}, "{words(order)}"}},')
    print("};\n")


def print_normalization():
    print("/* torchvision's ToTensor and Normalize: uint8 / 255, minus mean, divided by deviation, in float32. */")
    print("static const struct normalization_case {\n    const char *set;\n    int channel, x;\n    float value;\n"
          "} normalization_cases[] = {")
    for name, mean, deviation in (("mnist", [0.1307], [0.3081]), ("fashion-mnist", [0.2860], [0.3530]),
                                  ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])):
        x = torch.tensor([0, 1, 2, 31, 77, 127, 128, 200, 254, 255], dtype=torch.uint8)
        for c, (m, d) in enumerate(zip(mean, deviation)):
            y = x.float().div(255).sub_(torch.tensor(m)).div_(torch.tensor(d))
            for a, b in zip(x.tolist(), y.tolist()):
                print(f'    {{"{name}", {c}, {a}, {b.hex()}f}},')
    print("};\n")


def print_synthetic():
    seed, sample = 5, 3
    pixels = [bits(start(seed, "data.train.input"), sample * 4 + i // 8) >> 8 * (i % 8) & 255 for i in range(27)]
    print(f'static const char synthetic_pixels[] = "{words(pixels)}"; /* 3x3x3, seed 5, training sample 3 */')
    tokens = [below(start(seed, "data.test.input"), sample * 7 + i, 50) for i in range(7)]
    print(f'static const char synthetic_tokens[] = "{words(tokens)}"; /* 6 of 50, seed 5, test sample 3, and next */')
    print("/* 12 of 50, seed 5, training samples 0 to 2 */")
    print("static const char *const synthetic_masked[] = {")
    for n in range(3):
        drawn = [below(start(seed, "data.train.target"), n * 12 + i, 50) for i in range(12)]
        kept = [uniform(start(seed, "data.train.mask"), n * 12 + i) < 0.15 for i in range(12)]
        if not any(kept):
            kept[below(mix(start(seed, "data.train.mask")), n, 12)] = True
        print(f'    "{words(t if k else -100 for t, k in zip(drawn, kept))}",')
    print("};")
    label = below(start(seed, "data.train.target"), sample, 10)
    print(f"enum {{ SYNTHETIC_CLASS = {label} }}; /* of 10, seed 5, training sample 3 */")
    values = [2 * uniform(start(seed, "data.train.target"), sample * 2 + i) - 1 for i in range(2)]
    print(f"static const float synthetic_values[] = {{{', '.join(v.hex() + 'f' for v in values)}}};")


def main():
    print(f"/* Written by make_cases.py with PyTorch {torch.__version__}. */\n#include \"common/data/sampler.h\"\n")
    print_samplers()
    print_permutations()
    print_normalization()
    print_synthetic()


if __name__ == "__main__":
    sys.exit(main())
