#!/usr/bin/env python3
"""A parameter server's exchange compared with one written with torch.distributed, interleaved.

    ps_exchange.py [--build build] [--rounds N] [--workers N] [--python PYTHON]

The peer has one process in addition to the workers, which holds ResNet-18's parameters. It receives every
worker's flattened gradients over Gloo, averages them, runs SGD with momentum, and sends the parameters back.
The peer's time is measured on a worker: from flattening the gradients until the parameters are in place, the
median over the steps after the first three. Ours is tests/bench/ps_exchange.c. In every round each runs once,
in turn; printed is the ratio of a round, ours / the peer's, for ZeroMQ carrying all (target: at most 0.6) and
for shared memory (0.18). A target is met if the ratios of all rounds are within it; exits with 1 where one is
not.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402

TARGETS = {"zmq": 0.6, "shm": 0.18}
STEPS, WARM = 15, 3


def peer_member(rank, workers, store):
    import torch
    import torch.distributed as dist
    import torchvision
    from torch._utils import _flatten_dense_tensors as flatten, _unflatten_dense_tensors as unflatten

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=workers + 1)
    params = [p for p in torchvision.models.resnet18(num_classes=10).parameters()]
    for p in params:
        p.grad = torch.randn_like(p)
    flat = flatten([p.detach() for p in params])
    times = []
    if rank == workers:
        optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9)
        pushed = [torch.empty_like(flat) for _ in range(workers)]
    for _ in range(STEPS + WARM):
        dist.barrier()
        begin = time.perf_counter()
        if rank == workers:
            for request in [dist.irecv(pushed[w], src=w) for w in range(workers)]:
                request.wait()
            for other in pushed[1:]:
                pushed[0] += other
            pushed[0] /= workers
            for p, g in zip(params, unflatten(pushed[0], params)):
                p.grad.copy_(g)
            optimizer.step()
            flat = flatten([p.detach() for p in params])
            for request in [dist.isend(flat, dst=w) for w in range(workers)]:
                request.wait()
        else:
            dist.send(flatten([p.grad for p in params]), dst=workers)
            dist.recv(flat, src=workers)
            with torch.no_grad():
                for p, value in zip(params, unflatten(flat, params)):
                    p.copy_(value)
        times.append(time.perf_counter() - begin)
    if rank == 0:
        print("%.3f" % (statistics.median(times[WARM:]) * 1e3), flush=True)


def peer_ms(python, workers):
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, "--member"]
        members = [subprocess.Popen(command + [str(r), str(workers), os.path.join(folder, "store")],
                                    stdout=subprocess.PIPE, universal_newlines=True,
                                    env=dict(os.environ, OMP_NUM_THREADS="1")) for r in range(workers + 1)]
        out = [m.communicate()[0] for m in members]
    if any(m.returncode for m in members):
        sys.exit("the peer needs torch and torchvision; see --python")
    return float(out[0])


def ours_ms(build, workers, payload):
    command = [os.path.join(build, "bin", "ps_exchange"), "--ranks", str(workers), "--steps", str(STEPS), "--payload", payload]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    return float(re.search(r"median ([0-9.]+) ms", out).group(1))


def main():
    if sys.argv[1:2] == ["--member"]:
        return peer_member(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    ratios = {payload: [] for payload in TARGETS}
    print("# ms: peer  " + "  ".join("%s (ratio)" % payload for payload in TARGETS))
    for _ in range(options.rounds):
        peer = peer_ms(options.python, options.workers)
        line = "%10.1f" % peer
        for payload in TARGETS:
            ours = ours_ms(options.build, options.workers, payload)
            ratios[payload].append(ours / peer)
            line += "  %6.1f (%.3f)" % (ours, ours / peer)
        print(line, flush=True)
    code = 0
    for payload, target in TARGETS.items():
        outcome = provenance.verdict(ratios[payload], target)
        code |= not provenance.is_met(outcome)
        print("%s: median ratio %.3f, from %.3f to %.3f, target %.2f: %s" %
              (payload, statistics.median(ratios[payload]), min(ratios[payload]), max(ratios[payload]), target, outcome))
    print(provenance.closing_line(options.rounds, provenance.largest_spread(ratios.values())))
    return code


if __name__ == "__main__":
    sys.exit(main())
