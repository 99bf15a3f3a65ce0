#!/usr/bin/env python3
"""PyTorch's side of test_golden_exchange.c.

    golden_exchange.py FOLDER NAME:STEPS ...    exits with 77 where torch is missing

For every golden trajectory NAME: loads FOLDER/ours-NAME.safetensors, which this program has saved after STEPS
steps, and computes the loss of the next batch; it must be the golden one to 1e-9. Then trains STEPS steps
itself and saves FOLDER/theirs-NAME.safetensors. Prints "ok NAME" or "not ok NAME: why". Files are read and
written with the safetensors package where it is installed, else by the few lines below.
"""
import json
import os
import struct
import sys

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden")
try:
    import numpy as np
    import torch
    sys.path.insert(0, GOLDEN)
    import make_golden
except ImportError as error:
    print(error)
    sys.exit(77)

TYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64}
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64"}


def load_file(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: torch.from_numpy(np.frombuffer(data[slice(*about["data_offsets"])], TYPES[about["dtype"]]).copy()
                                   .reshape(about["shape"])) for name, about in header.items()}


def save_file(tensors, path):
    header, at = {}, 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            file.write(t.contiguous().numpy().tobytes())


try:
    from safetensors.torch import load_file, save_file  # noqa: F811
except ImportError:
    pass


def loss_at(case, model, step):
    x, y = make_golden.batch(case, step, 0)
    return make_golden.loss_of(case, model(x.double() if x.is_floating_point() else x), y)


def check_ours(folder, name, golden, steps):
    case = golden["case"]
    model = make_golden.build(case).double().train()
    tensors = load_file(f"{folder}/ours-{name}.safetensors")
    model.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("optimizer.")}, strict=True)
    found, expected = float(loss_at(case, model, steps).detach()), golden["loss"][steps][0]
    if abs(found - expected) > 1e-9 * abs(expected):
        return f"not ok {name}: loss of step {steps}: found {found!r}, expected {expected!r}"
    return f"ok {name}"


def save_theirs(folder, name, golden, steps):
    case = golden["case"]
    model = make_golden.build(case)
    make_golden.fill(model, case["seed"])
    model = model.double().train()
    optimizer = make_golden.optimizer(case, model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_at(case, model, step).backward()
        optimizer.step()
    save_file(dict(model.state_dict()), f"{folder}/theirs-{name}.safetensors")


for word in sys.argv[2:]:
    NAME, COUNT = word.split(":")
    with open(os.path.join(GOLDEN, NAME + ".json"), encoding="utf-8") as stream:
        trajectory = json.load(stream)
    print(check_ours(sys.argv[1], NAME, trajectory, int(COUNT)))
    save_theirs(sys.argv[1], NAME, trajectory, int(COUNT))
