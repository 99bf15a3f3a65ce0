"""`harness verify` over the golden files: on both devices, one rank through every engine, several ranks
through both."""
import os
import re

from program import harness
from tap import cases, expect, expect_equal, long_cases, main

FOLDER = os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "tests/golden")
SMALL = ["toy_w1", "toy_w4", "wine_mlp_w1", "wine_mlp_w2", "wine_mlp_w4"]
TRANSFORMERS = ["bert_tiny_w1", "bert_tiny_w2", "gpt2_tiny_w2"]
RESNET18 = ["resnet18_32_w1", "resnet18_32_w1_silu", "resnet18_32_w2", "resnet18_32_w2_silu", "resnet18_32_w3_silu",
            "resnet18_32_w4_silu", "resnet18_32_w2_syncbn", "resnet18_32_w2_syncbn_silu"]
ALEXNET = ["alexnet_w1"]
INCEPTION = ["inception_v3_107_w2_silu"]
LARGE = ["bert_base_w1", "bert_large_w1", "gpt2_w1", "inception_v3_299_w1", "resnet50_224_w1", "resnet50_224_w1_silu", "resnet50_96_w2_silu"]


def rows(names, device, *words):
    return [(" ".join([name, "on", device, *words]), name, device, words) for name in names]


def engines_of(name, words):
    if "--mode" in words:
        return [words[words.index("--mode") + 1]]
    return ["none"] if "_w1" in name else ["ps", "ring"]


def agrees(name, device, words, limit):
    path = os.path.join(FOLDER, f"{name}.json")
    result = harness("verify", "--device", device, *words, path, limit=limit)
    expect_equal(result.code, 0, "exit code", result)
    expect(result.out.startswith(f"agrees    {path} "), "the line begins with 'agrees'", result)
    for engine in engines_of(name, words):
        share = re.search(rf"  {engine} (\S+) of the limit \(", result.out)
        expect(share, f"a figure for {engine}", result)
        expect(0 <= float(share[1]) <= 1, f"{engine}: {share[1]}", result)
    unchecked, tensors = re.search(r"; (\d+) of (\d+) tensors not checked", result.out).groups()
    expect(int(tensors) > 0, "tensors were compared", result)
    expect(device == "cpu" or unchecked == "0", "in float64 every tensor is checked", result)


def sync(servers):
    return "--mode", "ps", "--policy", "sync", "--servers", str(servers)


SEVERAL = [name for name in RESNET18 if "_w1" not in name]


@cases(rows(SMALL + TRANSFORMERS, "reference") + rows(SMALL + TRANSFORMERS, "cpu") +
       rows(["toy_w1", "wine_mlp_w1"], "cpu", "--mode", "ps") + rows(["toy_w1", "wine_mlp_w1"], "cpu", "--mode", "ring") +
       rows(["toy_w4", "wine_mlp_w4"], "reference", *sync(2)) + rows(["toy_w4", "wine_mlp_w4"], "reference", *sync(4)) +
       rows(["wine_mlp_w2", "bert_tiny_w2", "gpt2_tiny_w2"], "reference", *sync(1)) +
       rows(["wine_mlp_w2", "bert_tiny_w2", "gpt2_tiny_w2"], "reference", *sync(2)) +
       rows(["bert_tiny_w2_global_loss"], "reference", "--mode", "ps") + rows(RESNET18 + ALEXNET + INCEPTION, "cpu") + rows(RESNET18[:1], "reference"))
def runs_agree_with_pytorch(name, device, words):
    agrees(name, device, words, 120)


@long_cases(rows(SEVERAL, "cpu", *sync(1)) + rows(SEVERAL, "cpu", *sync(2)) + rows(RESNET18 + ALEXNET + INCEPTION + LARGE, "reference") + rows(LARGE, "cpu"))
def long_runs_agree_with_pytorch(name, device, words):
    agrees(name, device, words, 1800)


main()
