#!/usr/bin/env python3
"""PyTorch's side of test_pytorch.c.

    pytorch.py FOLDER    exits with 77 where torch or safetensors is missing

Checks the checkpoints that the test has written (FOLDER/ours-*.safetensors) with the safetensors package and
PyTorch's own load_state_dict and optimizers, writes the files of PyTorch that the test will load
(FOLDER/theirs-*.safetensors), and prints one line a check to FOLDER/results: "ok NAME" or "not ok NAME: why".
Values of tensors are functions of their names and indices, here and there.
"""
import json
import os
import random
import struct
import sys

try:
    import numpy as np
    import torch
    import torch.nn as nn
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file, save_model
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden"))
    from make_golden import BertMlm, Gpt2, Mlp, signed
except ImportError as error:
    print(error)
    sys.exit(77)
try:
    import torchvision
except ImportError:
    torchvision = None

SEED = 7
COARSE = 64  # steps a unit: exact in float16 and bfloat16


def value(name, shape, coarse=False):
    v = signed(SEED, name, int(np.prod(shape)))
    if coarse:
        v = np.floor(v * COARSE) / COARSE
    return torch.from_numpy(v.reshape(shape))


# ---- models ---------------------------------------------------------------------------------------

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(5)
        self.conv2 = nn.Conv2d(5, 4, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(4)
        self.fc = nn.Linear(36, 3)


class Lenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)


BUILD = {
    "small": Small,
    "toy": lambda: Mlp(["net1", "net2"], [10, 10, 5]),
    "lenet": Lenet,
    "bert": lambda: BertMlm(2, 32, 4, 97, 16),
    "gpt2": lambda: Gpt2(2, 24, 3, 50, 16),
}
if torchvision:
    BUILD["resnet18"] = lambda: torchvision.models.resnet18(num_classes=10)


# ---- our files in PyTorch -------------------------------------------------------------------------

def load_run(path, model, optimizer):
    """A checkpoint of this program into a model and an optimizer of PyTorch: docs/checkpoints.md."""
    tensors = load_file(path)
    with safe_open(path, "pt") as f:
        about = f.metadata()
    model.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("optimizer.")})
    state = {}
    for i, (name, _) in enumerate(model.named_parameters()):
        kinds = ("momentum_buffer", "exp_avg", "exp_avg_sq")
        state[i] = {k: tensors["optimizer.%s.%s" % (k, name)] for k in kinds if "optimizer.%s.%s" % (k, name) in tensors}
        if "exp_avg" in state[i]:
            state[i]["step"] = torch.tensor(float(about["psring.optimizer_step"]))
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def keys_of_header(path):
    """The header's keys, in its order."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        assert size % 8 == 0, "the data are not aligned"
        return [k for k in json.loads(f.read(size)) if k != "__metadata__"]


def check_ours(folder, name, dtype):
    """Every tensor has the name, type, shape and values that PyTorch's module wants."""
    path = "%s/ours-%s-%s.safetensors" % (folder, name, dtype)
    model = BUILD[name]().to(getattr(torch, dtype))
    tensors = load_file(path)
    weights = {k: v for k, v in tensors.items() if not k.startswith("optimizer.")}
    model.load_state_dict(weights, strict=True)
    order = [k for k in keys_of_header(path) if not k.startswith("optimizer.")]
    assert order == list(model.state_dict()), "the order is %s" % order
    states = {"optimizer.%s.%s" % (s, n) for s in ("exp_avg", "exp_avg_sq") for n, _ in model.named_parameters()}
    assert set(tensors) - set(weights) == states, "the optimizer's tensors are %s" % sorted(set(tensors) - set(weights))[:3]
    for k, v in tensors.items():
        if k.endswith("num_batches_tracked"):
            assert v.dtype == torch.int64 and v.shape == () and int(v) == 1234567890121, k
            continue
        assert v.dtype == getattr(torch, dtype), k
        assert torch.equal(v, value(k, tuple(v.shape)).to(v.dtype)), k
    with safe_open(path, "pt") as f:
        about = f.metadata()
    assert about["format"] == "pt" and about["psring.model"] == name, about
    assert about["psring.step"] == "1234567890123" and about["psring.seed"] == str(2 ** 64 - 6), about


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.25, weight_decay=0.01, nesterov=False),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01),
}


def check_next_step(folder, kind):
    """PyTorch goes on from our checkpoint as this program does."""
    before, after = ("%s/ours-%s-%s.safetensors" % (folder, kind, when) for when in ("before", "after"))
    model, wanted = Small().double(), Small().double()
    optimizer, optimizer_wanted = (OPTIMIZERS[kind](m.parameters()) for m in (model, wanted))
    load_run(before, model, optimizer)
    load_run(after, wanted, optimizer_wanted)
    for name, p in model.named_parameters():
        p.grad = value("gradient." + name, tuple(p.shape))
    optimizer.step()
    for (name, p), (_, q) in zip(model.named_parameters(), wanted.named_parameters()):
        assert torch.allclose(p, q, rtol=1e-12, atol=1e-14), "%s: %s" % (name, (p - q).abs().max())
        for k, v in optimizer.state[p].items():
            w = optimizer_wanted.state[q][k]
            assert torch.allclose(v, w, rtol=1e-12, atol=1e-14), "%s of %s" % (k, name)


# ---- PyTorch's files for us -----------------------------------------------------------------------

def state_of(name, dtype=torch.float32):
    state = BUILD[name]().state_dict()
    return {k: (value(k, tuple(v.shape), True).to(dtype) if v.is_floating_point() else torch.tensor(5)) for k, v in state.items()}


def shuffled(state):
    keys = list(state)
    random.Random(1).shuffle(keys)
    return {k: state[k] for k in keys}


def tied_bert():
    model = BUILD["bert"]()
    head = model.cls.predictions
    head.decoder = nn.Linear(32, 97)
    head.decoder.weight, head.decoder.bias = model.bert.embeddings.word_embeddings.weight, head.bias
    for name, p in model.named_parameters():
        p.data.copy_(value(name, tuple(p.shape), True))
    return model


def tied_gpt2():
    model = BUILD["gpt2"]()
    for name, p in model.named_parameters():
        p.data.copy_(value(name, tuple(p.shape), True))
    model.lm_head = nn.Linear(24, 50, bias=False)
    model.lm_head.weight = model.transformer.wte.weight
    return model


def as_conv1d(state):
    """Hugging Face's GPT-2: matrices [in, out], and masks among the tensors."""
    state = {k: (v.t().contiguous() if k.endswith((".c_attn.weight", ".c_fc.weight", ".c_proj.weight")) else v) for k, v in state.items()}
    for i in range(2):
        state["transformer.h.%d.attn.bias" % i] = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
        state["transformer.h.%d.attn.masked_bias" % i] = torch.tensor(-1e4)
    return state


def write_theirs(folder):
    def path(name):
        return "%s/theirs-%s.safetensors" % (folder, name)

    for name in BUILD:
        save_file(shuffled(state_of(name)), path(name))
    for dtype in ("float64", "float16", "bfloat16"):
        save_file(state_of("small", getattr(torch, dtype)), path("small-" + dtype))
    save_file({k: v for k, v in state_of("small").items() if "num_batches" not in k}, path("small-old"), metadata={"format": "pt"})
    save_model(tied_bert(), path("bert-model"))
    save_model(tied_gpt2(), path("gpt2-model"))
    for model, name in ((tied_bert(), "bert"), (tied_gpt2(), "gpt2")):
        save_file({k: v.clone() for k, v in model.state_dict().items()}, path(name + "-both"))
    untied = {k: v.clone() for k, v in tied_gpt2().state_dict().items()}
    untied["lm_head.weight"][3, 5] += 1
    save_file(untied, path("gpt2-untied"))
    save_file(as_conv1d(state_of("gpt2")), path("gpt2-conv1d"))
    foreign = load_file(folder + "/ours-toy-float32.safetensors")
    save_file(foreign, path("toy-with-state"))
    with safe_open(folder + "/ours-toy-float32.safetensors", "pt") as f:
        save_file(foreign, path("toy-rewritten"), metadata=f.metadata())
    integers = {k: (v.to(torch.int64) if k == "net1.bias" else v) for k, v in state_of("toy").items()}
    save_file(integers, path("toy-integers"))
    save_file(dict(state_of("toy"), **{"net1.weight": torch.zeros(7, 10)}), path("toy-shape"))
    torch.save(state_of("toy"), path("toy-pickle"))


def main():
    folder = sys.argv[1]
    checks = [("%s in %s" % (name, dtype), check_ours, (name, dtype)) for name in BUILD for dtype in ("float64", "float32")
              if (name, dtype) != ("resnet18", "float64")]
    checks += [("next step of " + kind, check_next_step, (kind,)) for kind in OPTIMIZERS]
    checks += [("files for us", lambda folder: write_theirs(folder), ())]
    with open(folder + "/results", "w") as out:
        for title, check, arguments in checks:
            try:
                check(folder, *arguments)
                print("ok " + title, file=out)
            except Exception as error:
                print("not ok %s: %s: %s" % (title, type(error).__name__, str(error).replace("\n", " ")[:300]), file=out)


if __name__ == "__main__":
    main()
