#!/usr/bin/env python3
"""Writes wine_epochs.json: the loss of each epoch that PyTorch's DistributedDataParallel prints for Wine, with Adam, as in
tutorials: the mean over the batches of the epoch, and over the ranks. Parameters, split and order of the data are this
project's (README.md, common/data/sampler.h), computed here without its code. Needs PyTorch and CUDA in no form:

    make_wine_epochs.py > wine_epochs.json
"""
import csv
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from wine import initial_parameters, order_of, split  # noqa: E402

EPOCHS, CASES = 100, [{"ranks": 1, "batch": 32}, {"ranks": 2, "batch": 16}]


def training_data():
    with open(os.path.join(ROOT, "common/data/sets/wine_data.csv"), encoding="utf-8") as file:
        rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
    labels = [int(row[-1]) for row in rows]
    training = split(labels)
    x = torch.tensor([rows[i][:-1] for i in training], dtype=torch.float64)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    return TensorDataset(x.float(), torch.tensor([labels[i] for i in training]))


def model():
    m = torch.nn.Sequential()
    m.add_module("fc1", torch.nn.Linear(13, 64))
    m.add_module("relu", torch.nn.ReLU())
    m.add_module("fc2", torch.nn.Linear(64, 3))
    values = {name: torch.tensor(v, dtype=torch.float32) for name, v in initial_parameters().items()}
    m.load_state_dict({name: values[name].reshape(p.shape) for name, p in m.state_dict().items()})
    return m


def train(rank, case, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=case["ranks"])
    torch.set_num_threads(1)
    data, m, losses = training_data(), DistributedDataParallel(model()), []
    optimizer = torch.optim.Adam(m.parameters(), lr=0.001)
    for epoch in range(EPOCHS):
        ordered = Subset(data, order_of(epoch, len(data)))
        sampler = DistributedSampler(ordered, shuffle=False)
        of_batches = []
        for inputs, targets in DataLoader(ordered, batch_size=case["batch"], sampler=sampler):
            optimizer.zero_grad()
            loss = F.cross_entropy(m(inputs), targets)
            loss.backward()
            optimizer.step()
            of_batches.append(loss.item())
        mean = torch.tensor(sum(of_batches) / len(of_batches), dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(round(mean.item() / case["ranks"], 6))
    if rank == 0:
        with open(f"{folder}/losses", "w", encoding="utf-8") as file:
            json.dump(losses, file)
    dist.destroy_process_group()


def main():
    out = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(train, args=(case, folder), nprocs=case["ranks"])
            with open(f"{folder}/losses", encoding="utf-8") as file:
                out.append({**case, "losses": json.load(file)})
    print(json.dumps({"torch": torch.__version__, "epochs": EPOCHS, "cases": out}, indent=1))


if __name__ == "__main__":
    main()
