"""`make_golden.py` makes trajectories of other configurations, and `harness verify` passes on them. Needs PyTorch:
$PSRING_PYTHON, or a python3 that has torch and torchvision."""
import json
import os
import subprocess
import tempfile

from program import harness
from tap import Skip, cases, expect, expect_equal, main

SCRIPT = os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "tests/golden/make_golden.py")
CANDIDATES = [os.environ.get("PSRING_PYTHON") or "python3", "/usr/bin/python3"]


def has_torch(python):
    try:
        return subprocess.run([python, "-c", "import torch, torchvision, numpy"], stderr=subprocess.DEVNULL,
                              check=False).returncode == 0
    except OSError:
        return False


PYTHON = next((p for p in CANDIDATES if has_torch(p)), None)
SGD = {"name": "sgd", "lr": 0.01}
WINE = {"model": "wine_mlp", "input": [13], "classes": 3, "loss": "cross_entropy"}
RESNET = {"input": [3, 32, 32], "classes": 7, "loss": "cross_entropy", "activation": "silu", "batch_per_rank": 5}
TOKENS = {"loss": "cross_entropy", "positions": 19, "sequence": 11, "batch_per_rank": 3}


@cases([
    ("another seed and Nesterov's momentum, 3 ranks",
     {"model": "toy", "input": [10], "classes": 5, "loss": "mse", "batch_per_rank": 7, "world_size": 3, "steps": 6,
      "seed": 99, "optimizer": {**SGD, "momentum": 0.8, "nesterov": True, "weight_decay": 0.03}}),
    ("a batch of one, AdamW with other betas, 5 ranks",
     {**WINE, "batch_per_rank": 1, "world_size": 5, "steps": 7, "seed": 12345678901,
      "optimizer": {"name": "adamw", "lr": 0.003, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.2}}),
    ("Adam with an L2 penalty, dampening's opposite",
     {**WINE, "batch_per_rank": 17, "world_size": 1, "steps": 9, "seed": 3,
      "optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.1}}),
    ("ResNet-34, odd batch, dampening",
     {**RESNET, "model": "resnet34", "world_size": 1, "steps": 2, "seed": 5,
      "optimizer": {"name": "sgd", "lr": 0.002, "momentum": 0.7, "dampening": 0.3, "weight_decay": 0.02}}),
    ("ResNet-18, SyncBatchNorm over 3 ranks",
     {**RESNET, "model": "resnet18", "sync_batchnorm": True, "world_size": 3, "steps": 2, "seed": 6,
      "optimizer": {"name": "sgd", "lr": 0.002, "momentum": 0.9}}),
    ("BERT of 3 layers, widths that no vector divides, 3 ranks",
     {**TOKENS, "model": "bert", "layers": 3, "hidden": 44, "heads": 2, "vocab": 101, "world_size": 3, "steps": 4,
      "seed": 7, "optimizer": {"name": "adam", "lr": 0.001}}),
    ("GPT-2 of one layer and one head",
     {**TOKENS, "model": "gpt2", "layers": 1, "hidden": 20, "heads": 1, "vocab": 57, "world_size": 1, "steps": 5,
      "seed": 8, "optimizer": {"name": "adamw", "lr": 0.002, "weight_decay": 0.05}}),
])
def another_configuration_agrees(case):
    if not PYTHON:
        raise Skip("no python3 with torch and torchvision; PSRING_PYTHON names another")
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        path = os.path.join(folder, "case.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"case": case}, file)
        made = subprocess.run([PYTHON, SCRIPT, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        expect_equal(made.returncode, 0, "exit code of make_golden.py", made.stdout.decode())
        for device in ("reference", "cpu"):
            result = harness("verify", "--device", device, path, limit=120)
            expect_equal(result.code, 0, f"exit code on {device}", result)
            expect(result.out.startswith("agrees "), f"the line begins with 'agrees' on {device}", result)


main()
