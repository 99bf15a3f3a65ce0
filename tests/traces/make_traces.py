"""Records the traces of PyTorch training jobs that the tests of `harness import` read, and the facts about the jobs.

    python3 tests/traces/make_traces.py [JOB...]

Needs PyTorch with Gloo, and torchvision. Every job runs on processors. Writes JOB.json.gz next to this file, exactly as
torch.profiler writes the trace, and updates truth.json. JOB.json.gz is the trace of rank 0. JOB.rank1.json.gz is the trace
of rank 1, if the job writes both. The jobs in causes/ have one planted cause of a slow step each. They need root, since
their ranks are in two network namespaces, and a quiet machine with a processor per rank.
"""
import contextlib
import gzip
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
from two_hosts import TwoHosts, enter_host

BUCKET_CAPS_MIB = [None, 1, 10, 25, 100]  # None: DDP's default, whose first bucket has a cap of its own.
ABOUT = ("Made by make_traces.py. Sizes are in bytes. DDP's indices count only the parameters that need a gradient, and "
         "tied parameters once: ddp.parameter_names lists them.")
WARM_STEPS = 6  # Steps before the profiler starts: DDP rebuilds its buckets in the second one.


def describe(prof, model, optimizer, batch, step_ms=None):
    for wrapper in "_orig_mod", "module", "_orig_mod":  # torch.compile's and DistributedDataParallel's
        model = getattr(model, wrapper, model)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    prof.add_metadata_json("harness", json.dumps({
        "parameters": [[name, list(p.shape), str(p.dtype).removeprefix("torch."), p.requires_grad]
                       for name, p in model.named_parameters()],
        "buffers": [[name, b.numel(), str(b.dtype).removeprefix("torch.")] for name, b in model.named_buffers()],
        "gradient_type": str(gradients[0].dtype).removeprefix("torch.") if gradients else None,
        "optimizer": type(optimizer).__name__,
        "batch": batch,      # Samples per rank and step.
        "step_ms": step_ms,  # Median time of a step without the profiler.
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None}))


class GPT(nn.Module):
    """GPT-2's structure as nanoGPT writes it: the head's weight is the token embedding's."""

    def __init__(self, vocab=2048, positions=32, layers=4, heads=6, width=384):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, width), "wpe": nn.Embedding(positions, width),
            "h": nn.ModuleList(GPTBlock(width, heads) for _ in range(layers)), "ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


class GPTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        q, k, v = (split_heads(t, self.heads) for t in self.attn.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        x = x + self.attn.c_proj(join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class Llama(nn.Module):
    """Llama's structure: RMSNorm, rotary positions, grouped keys and values, SwiGLU, a head of its own."""

    def __init__(self, vocab=2048, positions=32, layers=3, heads=6, kv_heads=2, width=384, hidden=1024):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(positions), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * size, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x, cos, sin):
        h = self.input_layernorm(x)
        q = rotate(split_heads(self.q_proj(h), self.heads), cos, sin)
        k = rotate(split_heads(self.k_proj(h), self.kv_heads), cos, sin)
        v = split_heads(self.v_proj(h), self.kv_heads)
        x = x + self.o_proj(join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).flatten(2)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Branches(nn.Module):
    """Two branches and a frozen stem. The forward pass uses only one branch, so the other one has no gradients."""

    def __init__(self, width=1024):
        super().__init__()
        self.stem = nn.Linear(64, width).requires_grad_(False)
        self.used = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.unused = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.norm(self.used(self.stem(x))))


class Layers(nn.Module):
    """The model of the jobs with a planted cause."""

    def __init__(self, width=384, layers=12, checkpointed=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
        self.head = nn.Linear(width, 10)
        self.checkpointed = checkpointed

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(x)


class SlowRows(Dataset):
    """Rows of data, of which each takes milliseconds to read."""

    def __init__(self, width, milliseconds):
        self.row, self.milliseconds = torch.randn(width), milliseconds

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(self.milliseconds / 1e3)
        return self.row, index % 10


def images(size, batch=2, classes=1000):
    return lambda: (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,)))


def tokens(batch=2, length=32, vocab=2048):
    return lambda: (torch.randint(vocab, (batch, length)), torch.randint(vocab, (batch, length)))


def vectors(batch=8, width=64, classes=10):
    return lambda: (torch.randn(batch, width), torch.randint(classes, (batch,)))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def fused_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)


def fused_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def slow_loader(batch, width, milliseconds):
    return lambda: DataLoader(SlowRows(width, milliseconds), batch_size=batch)


@dataclass
class Job:
    model: object
    inputs: object                 # Returns a batch that every step repeats, or a DataLoader.
    optimizer: object = fused_adamw
    ranks: int = 1
    active: int = 2
    both_ranks: bool = False       # Writes the trace of rank 1 as well.
    ddp: dict = field(default_factory=dict)
    shard: object = None           # Returns the modules that fully_shard wraps, besides the model. None selects DDP.
    micro_batches: int = 1
    reduce_every: bool = False     # Reduces the gradients of each micro-batch: no_sync() is missing.
    cap_mib: object = None         # Cap of DDP's buckets. None selects DDP's default.
    compiled: bool = False
    half: bool = False             # Sends gradients as float16.
    link: str = ""                 # Rate of the link between the ranks' hosts. Empty puts both ranks on one host.
    late_ms: int = 0               # Time that rank 1 sleeps in every step.
    busy_processes: int = 0        # Processes that keep the processors busy meanwhile.
    metadata: bool = True
    shapes: bool = True
    cause: str = ""                # The planted cause.
    reference: str = ""            # The job that lacks the cause, else equal.


RESNET18 = {"model": torchvision.models.resnet18, "inputs": images(32)}
UNUSED = {"model": Branches, "inputs": vectors(), "optimizer": sgd, "ranks": 2, "ddp": {"find_unused_parameters": True}}
JOBS = {
    "resnet18": Job(**RESNET18, optimizer=sgd),
    "resnet18-no-shapes": Job(**RESNET18, optimizer=fused_sgd, shapes=False),
    "mobilenet-v3-small": Job(torchvision.models.mobilenet_v3_small, images(32), fused_sgd),
    "vit-b-16": Job(torchvision.models.vit_b_16, images(224, batch=1), ddp={"gradient_as_bucket_view": True}),
    "nanogpt": Job(GPT, tokens(), ranks=2),
    "nanogpt-no-metadata": Job(lambda: GPT(layers=1), tokens(), ranks=2, metadata=False),
    "llama": Job(Llama, tokens(), ranks=2),
    "unused-parameters": Job(**UNUSED, active=3, both_ranks=True),
    "unused-parameters-no-metadata": Job(**UNUSED, metadata=False),
    "accumulation": Job(lambda: GPT(layers=1), tokens(), ranks=2, micro_batches=4),
    "accumulation-eager": Job(lambda: GPT(layers=1), tokens(), ranks=2, micro_batches=4, reduce_every=True),
    "fsdp": Job(Llama, tokens(), ranks=2, shard=lambda model: list(model.layers)),
    "fsdp-one-unit": Job(Llama, tokens(), ranks=2, shard=lambda model: []),
}


def planted(cause, reference, link="1gbit", model=Layers, inputs=vectors(batch=1024, width=384), optimizer=fused_sgd,
            cap_mib=1, active=3, **changes):
    return Job(model, inputs, optimizer, ranks=2, active=active, cause=cause, reference=reference, link=link,
               cap_mib=cap_mib, **changes)


MANY = {"model": lambda: Layers(128, 48), "inputs": vectors(batch=128, width=128), "active": 1}
FEW = {"model": lambda: Layers(768, 3), "inputs": vectors(batch=512, width=768)}
FSDP = {"model": lambda: Layers(1024, 6), "inputs": vectors(batch=256, width=1024), "optimizer": fused_adamw}
CAUSES = {
    "reference": planted("", "", both_ranks=True),
    "again": planted("", "reference"),
    "slow-link": planted("the link has a fifth of the rate", "reference", "200mbit"),
    "half": planted("", "", "200mbit", half=True),
    "float32": planted("gradients are sent as float32, not as float16", "half", "200mbit"),
    "reduction-per-step": planted("", "", "200mbit", **FEW, micro_batches=4),
    "reduction-per-micro-batch": planted("the gradients of each micro-batch are reduced", "reduction-per-step", "200mbit",
                                         **FEW, micro_batches=4, reduce_every=True),
    "large-buckets": planted("", "", **MANY),
    "small-buckets": planted("a bucket per parameter", "large-buckets", **MANY, cap_mib=0.001),
    "compiled": planted("one compiled graph, without DDP's optimization", "reference", compiled=True),
    "slow-rank": planted("rank 1 is 100 ms late in each step", "reference", late_ms=100, both_ranks=True),
    "slow-loader": planted("the data loader takes more than 100 ms per batch", "reference",
                           inputs=slow_loader(batch=1024, width=384, milliseconds=0.1)),
    "busy-host": planted("4 other processes keep the processors busy", "reference", busy_processes=4),
    "checkpointing": planted("activations are computed again", "reference", model=lambda: Layers(checkpointed=True)),
    "unit-per-layer": planted("", "", **FSDP, shard=lambda model: list(model.layers)),
    "one-unit": planted("one unit holds all parameters", "unit-per-layer", **FSDP, shard=lambda model: []),
}


def wrap(job, model, cap_mib=None):
    if job.shard is None:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=cap_mib or job.cap_mib, **job.ddp)
        if job.half:
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return wrapped
    mesh = init_device_mesh("cpu", (job.ranks,))
    for module in job.shard(model):
        fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def batches(job):
    """Yields batches without an end."""
    source = job.inputs()
    return iter(source) if isinstance(source, DataLoader) else itertools.repeat(source)


def train_step(job, model, optimizer, source):
    optimizer.zero_grad()
    if job.late_ms and dist.get_rank() == 1:
        time.sleep(job.late_ms / 1e3)
    for index in range(job.micro_batches):
        x, y = next(source)
        last = index + 1 == job.micro_batches
        with contextlib.nullcontext() if last or job.reduce_every else model.no_sync():
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
    optimizer.step()


def run(job, rank, trace):
    """Trains one model, records its trace if `trace` is set, and returns the facts that the tests compare."""
    torch.manual_seed(rank)
    module = job.model()
    torch._dynamo.config.optimize_ddp = False  # else a graph is split at the buckets, and gradients are ready earlier
    model = wrap(job, torch.compile(module) if job.compiled else module)
    optimizer = job.optimizer(model)
    source = batches(job)
    times = []
    for _ in range(WARM_STEPS):
        start = time.perf_counter()
        train_step(job, model, optimizer, source)
        times.append((time.perf_counter() - start) * 1e3)
    step_ms = round(statistics.median(times[2:]), 3)
    batch = job.micro_batches * len(next(source)[0])

    def save(prof):
        if trace:
            prof.export_chrome_trace(trace)

    steps = schedule(wait=1, warmup=1, active=job.active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=job.shapes, schedule=steps,
                 on_trace_ready=save) as prof:
        for index in range(2 + job.active):
            train_step(job, model, optimizer, source)
            if job.metadata and index == 2:
                describe(prof, model, optimizer, batch, step_ms)
            prof.step()
    facts = {"ranks": job.ranks, "active_steps": job.active, "micro_batches": job.micro_batches,
             "reduces_every_micro_batch": job.reduce_every or job.micro_batches == 1, "batch": batch,
             "optimizer": type(optimizer).__name__, "step_ms": step_ms}
    if job in CAUSES.values():
        return {"cause": job.cause, "reference": job.reference} | facts
    facts |= {"parameters": [[n, list(p.shape), str(p.dtype).removeprefix("torch."), p.requires_grad]
                             for n, p in module.named_parameters()],
              "tied": tied_names(module), "ready_order": ready_order(job)}
    if job.shard is None:
        facts["ddp"] = ddp_facts(model)
    else:
        facts["fully_shard"] = fsdp_units(module)
    return facts


def ready_order(job):
    """Lists the names of the parameters as autograd finishes their gradients, on a model that nothing wraps."""
    module, names = job.model(), []
    for name, p in module.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _, name=name: names.append(name))
    x, y = next(batches(job))
    F.cross_entropy(module(x).flatten(0, -2), y.flatten()).backward()
    return names


def tied_names(module):
    """Lists the second and later names of parameters that have several names, each with the first name."""
    first = {id(p): n for n, p in module.named_parameters()}
    return [[n, first[id(p)]] for n, p in module.named_parameters(remove_duplicate=False) if first[id(p)] != n]


def numbers(text):
    return [int(word) for word in str(text).replace(",", " ").split()]


def ddp_facts(model):
    data = model._get_ddp_logging_data()
    facts = {key: numbers(data.get(key, "")) for key in
             ("bucket_sizes", "rebuilt_bucket_sizes", "rebuilt_per_bucket_param_indices",
              "prev_iteration_grad_ready_order_indices")}
    if os.environ.get("SHOW"):
        print(json.dumps(data, indent=1))
    facts["has_rebuilt_buckets"] = bool(data.get("has_rebuilt_buckets"))
    facts["parameter_names"] = [n for n, p in model.module.named_parameters() if p.requires_grad]
    return facts


def buckets(job, cap_mib):
    torch.manual_seed(0)
    model = wrap(job, job.model(), cap_mib)
    optimizer = job.optimizer(model)
    source = batches(job)
    for _ in range(3):
        train_step(job, model, optimizer, source)
    facts = ddp_facts(model)
    return {key: facts[key] for key in ("bucket_sizes", "rebuilt_bucket_sizes")}


def fsdp_units(model):
    """Lists each module that fully_shard wraps, with the parameters that the module gathers."""
    units = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    owner = lambda name: max((u for u in units if u == "" or name.startswith(u + ".")), key=len)
    return [{"unit": unit, "parameters": [n for n, _ in model.named_parameters() if owner(n) == unit]}
            for unit in units]


@contextlib.contextmanager
def busy_processors(processes):
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def work(rank, name, port, folder, hosts):
    os.chdir(folder)  # The trace holds the path that it is exported to, so the path is relative.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCH_DISTRIBUTED_DEBUG="INFO")
    job = JOBS.get(name) or CAUSES[name]
    torch.set_num_threads(1)
    if hosts:
        enter_host(hosts.names[rank])
        os.environ.update(MASTER_ADDR=hosts.addresses[0], GLOO_SOCKET_IFNAME=hosts.interfaces[rank])
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo", rank=rank, world_size=job.ranks)
    trace = f"{name}.json" if rank == 0 else f"{name}.rank{rank}.json" if job.both_ranks else None
    with busy_processors(job.busy_processes if rank == 0 else 0):
        facts = run(job, rank, trace)
    if "ddp" in facts and job.metadata and job.shapes:
        facts["ddp"]["buckets_by_cap_mib"] = {str(cap or "default"): buckets(job, cap) for cap in BUCKET_CAPS_MIB}
    if rank == 0:
        with open("facts.json", "w", encoding="utf-8") as file:
            json.dump(facts, file)
    dist.destroy_process_group()


def record(name, job, target):
    """Runs the job in one process per rank, packs its traces into the folder `target`, and returns its facts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trace-"))
        hosts = stack.enter_context(TwoHosts(job.link)) if job.link else None
        torch.multiprocessing.spawn(work, args=(name, port, folder, hosts), nprocs=job.ranks)
        with open(os.path.join(folder, "facts.json"), encoding="utf-8") as file:
            facts = json.load(file)
        for entry in sorted(set(os.listdir(folder)) - {"facts.json"}):
            with open(os.path.join(folder, entry), "rb") as file:
                packed = gzip.compress(file.read(), 9, mtime=0)
            with open(os.path.join(target, entry + ".gz"), "wb") as file:
                file.write(packed)
            print(f"{entry}.gz: {len(packed) / 1e3:.1f} kB", flush=True)
    return facts


def update(path, name, facts):
    """Replaces the facts of one job in the file, which has a line per fact."""
    truth = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            truth = json.load(file)
    jobs = truth.get("jobs", {}) | {name: facts}
    lines = [f"  {json.dumps(job)}: {{\n" + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in jobs[job].items())
             + "\n  }" for job in jobs]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{{\n "about": {json.dumps(ABOUT)},\n "torch": "{torch.__version__}",\n'
                   f' "torchvision": "{torchvision.__version__}",\n "jobs": {{\n' + ",\n".join(lines) + "\n }\n}\n")


def main():
    for name in sys.argv[1:] or [*JOBS, *CAUSES]:
        target = HERE if name in JOBS else os.path.join(HERE, "causes")
        os.makedirs(target, exist_ok=True)
        update(os.path.join(target, "truth.json"), name, record(name, JOBS.get(name) or CAUSES[name], target))


if __name__ == "__main__":
    main()
