#!/usr/bin/env python3
"""Write op_vectors.json: what PyTorch computes, in float64, for single operations at odd shapes.

Usage: make_op_vectors.py [OUTPUT]     (needs torch, CPU builds do; OUTPUT defaults to op_vectors.json here)

No input is stored: element i of a tensor is a function of (seed, name, i), see common/base/random.h, and
the fills below are those of op_case.h. Of each result only its L2 norm, its sum and a few elements are
kept. Images are NHWC in indices and results; parameters are in PyTorch's layout.
"""
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

SEED = 1
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SAMPLES = 5


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def uniform(name, shape, seed=SEED):
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        start = mix(np.array([seed], dtype=np.uint64) + GOLDEN)[0] ^ np.uint64(fnv1a64(name))
        z = start + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        return ((mix(z) >> np.uint64(40)).astype(np.float64) / (1 << 24)).reshape(shape)


def signed(name, *shape):
    return torch.from_numpy(2 * uniform(name, shape) - 1).requires_grad_()


def positive(name, *shape):
    return torch.from_numpy(0.5 + uniform(name, shape)).requires_grad_()


def index(name, bound, *shape):
    return torch.from_numpy(np.floor(uniform(name, shape) * bound).astype(np.int64))


def nchw(t):
    return t.permute(0, 3, 1, 2)


def nhwc(t):
    return t.permute(0, 2, 3, 1)


def gradients(objective, **inputs):
    """name of the gradient -> value, for inputs that are not None."""
    named = {k: v for k, v in inputs.items() if v is not None}
    return dict(zip(named, torch.autograd.grad(objective, list(named.values()))))


def activate(act, x):
    if act == "gelu_tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    return {"none": lambda t: t, "relu": F.relu, "silu": F.silu, "gelu": F.gelu}[act](x)


# ---- families: attributes -> results by the tensor's name in op_families.h ---------------------


def conv2d(n, h, w, c, k, r, s, stride, pad_h, pad_w, bias):
    x, weight = signed("x", n, h, w, c), signed("w", k, c, r, s)
    b = signed("b", k) if bias else None
    y = nhwc(F.conv2d(nchw(x), weight, b, stride, (pad_h, pad_w)))
    dy = signed("dy", *y.shape)
    return {"y": y, **gradients((y * dy).sum(), dx=x, dw=weight, db=b)}


def linear(m, out, bias, act, **input):
    flat = "flat_c" in input
    c, h, w = (input["flat_c"], input["flat_h"], input["flat_w"]) if flat else (input["in"], 1, 1)
    x, weight = signed("x", m, h, w, c), signed("w", out, c * h * w)
    b = signed("b", out) if bias else None
    pre = F.linear(nchw(x).reshape(m, -1), weight, b)
    y = activate(act, pre)
    dy = signed("dy", m, out)
    return {"y": y, **gradients((y * dy).sum(), dx=x, dw=weight, db=b)}


def batchnorm(n, h, w, c, eps, momentum, act, residual, dy2):
    x, gamma, beta = signed("x", n, h, w, c), positive("gamma", c), signed("beta", c)
    res = signed("residual", n, h, w, c) if residual else None
    mean, var = signed("running_mean", c).detach(), positive("running_var", c).detach()
    y = nhwc(F.batch_norm(nchw(x), mean, var, gamma, beta, True, momentum, eps))
    y = activate(act, y + res if residual else y)
    dy = signed("dy", *y.shape) + (signed("dy2", *y.shape) if dy2 else 0)
    flat = x.reshape(-1, c)
    results = {"y": y, "running_mean": mean, "running_var": var, "mean": flat.mean(0),
               "invstd": 1 / torch.sqrt(flat.var(0, unbiased=False) + eps)}
    found = gradients((y * dy).sum(), dx=x, dgamma=gamma, dbeta=beta, dresidual=res)
    if act == "none" and not dy2:
        found.pop("dresidual", None)  # it is dy itself
    return {**results, **found}


def batchnorm_inference(n, h, w, c, eps, act, residual):
    x, gamma, beta = signed("x", n, h, w, c), positive("gamma", c), signed("beta", c)
    mean, var = signed("running_mean", c).detach(), positive("running_var", c).detach()
    y = nhwc(F.batch_norm(nchw(x), mean, var, gamma, beta, False, 0, eps))
    return {"y": activate(act, y + signed("residual", n, h, w, c) if residual else y)}


def layernorm(m, c, eps, residual, dsum):
    x, gamma, beta = signed("x", m, c), positive("gamma", c), signed("beta", c)
    total = x + signed("residual", m, c) if residual else x
    y = F.layer_norm(total, (c,), gamma, beta, eps)
    objective = (y * signed("dy", m, c)).sum() + ((total * signed("dsum", m, c)).sum() if dsum else 0)
    return {"y": y, "mean": total.mean(1), "invstd": 1 / torch.sqrt(total.var(1, unbiased=False) + eps),
            **gradients(objective, dx=x, dgamma=gamma, dbeta=beta)}


def activation(count, act):
    x = signed("x", count)
    y = activate(act, x)
    return {"y": y, **gradients((y * signed("dy", count)).sum(), dx=x)}


def pool(function, n, h, w, c, **kwargs):
    x = signed("x", n, h, w, c)
    y = nhwc(function(nchw(x), **kwargs))
    return {"y": y, **gradients((y * signed("dy", *y.shape)).sum(), dx=x)}


def maxpool(n, h, w, c, r, s, stride, pad):
    return pool(F.max_pool2d, n, h, w, c, kernel_size=(r, s), stride=stride, padding=pad)


def avgpool(n, h, w, c, r, s, stride, pad):
    return pool(F.avg_pool2d, n, h, w, c, kernel_size=(r, s), stride=stride, padding=pad)


def concat(rows, channels):
    parts = {"x%d" % i: signed("x%d" % i, rows, c) for i, c in enumerate(channels)}
    y = torch.cat(list(parts.values()), 1)
    return {"y": y, **gradients((y * signed("dy", *y.shape)).sum(), **{"d" + name: x for name, x in parts.items()})}


def embedding(batch, sequence, hidden, vocabulary, positions, position_table, type_table):
    tokens, table = index("tokens", vocabulary, batch, sequence), signed("table", vocabulary, hidden)
    position = signed("position", positions, hidden) if position_table else None
    kind = signed("type", 2, hidden) if type_table else None
    y = F.embedding(tokens, table)
    if position_table:
        y = y + F.embedding(torch.arange(sequence), position)
    if type_table:
        y = y + F.embedding(torch.zeros_like(tokens), kind)
    dy = signed("dy", *y.shape)
    return {"y": y, **gradients((y * dy).sum(), dtable=table, dposition=position, dtype=kind)}


def attention(batch, sequence, heads, width, causal, packed):
    hidden = heads * width
    if packed:
        qkv = signed("qkv", batch, sequence, 3 * hidden)
        q, k, v = qkv.split(hidden, -1)
    else:
        q, k, v = (signed(name, batch, sequence, hidden) for name in "qkv")
    split = lambda t: t.reshape(batch, sequence, heads, width).transpose(1, 2)
    scores = split(q) @ split(k).transpose(-1, -2) / math.sqrt(width)
    if causal:
        scores = scores.masked_fill(torch.ones(sequence, sequence, dtype=torch.bool).triu(1), -math.inf)
    out = (torch.softmax(scores, -1) @ split(v)).transpose(1, 2).reshape(batch, sequence, hidden)
    objective = (out * signed("dout", *out.shape)).sum()
    found = gradients(objective, dqkv=qkv) if packed else gradients(objective, dq=q, dk=k, dv=v)
    return {"out": out, "lse": torch.logsumexp(scores, -1), **found}


def cross_entropy(rows, classes, normalizer):
    logits, targets = signed("logits", rows, classes), index("targets", classes, rows)
    targets[1::4] = -100
    loss = F.cross_entropy(logits, targets, reduction="sum")
    right = (logits.argmax(1) == targets).sum().double()
    return {"sums": torch.stack([loss, right]), **gradients(loss / normalizer, dlogits=logits)}


def mean_squared_error(rows, classes, normalizer):
    y, targets = signed("y", rows, classes), signed("targets", rows, classes)
    loss = F.mse_loss(y, targets, reduction="sum")
    return {"sums": torch.stack([loss, torch.zeros((), dtype=torch.float64)]), **gradients(loss / normalizer, dy=y)}


def optimizer(kind, count, steps, **options):
    """`steps` updates; the gradient of step i is the stream "grad.stepI", halved from the second on."""
    param = signed("param", count)
    types = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    o = types[kind]([param], **options)
    for step in range(steps):
        param.grad = signed("grad.step%d" % step, count).detach() * (0.5 if step else 1)
        o.step()
    state = o.state[param]
    names = {"momentum_buffer": "state1", "exp_avg": "state1", "exp_avg_sq": "state2"}
    return {"param": param, **{names[k]: v for k, v in state.items() if k in names and v is not None}}


# ---- cases ---------------------------------------------------------------------------------------

CASES = [
    (conv2d, dict(n=2, h=7, w=5, c=3, k=5, r=3, s=3, stride=1, pad_h=1, pad_w=1, bias=True)),
    (conv2d, dict(n=1, h=9, w=10, c=4, k=7, r=5, s=3, stride=2, pad_h=1, pad_w=1, bias=False)),
    (conv2d, dict(n=3, h=5, w=7, c=17, k=13, r=1, s=1, stride=2, pad_h=0, pad_w=0, bias=False)),
    (conv2d, dict(n=1, h=19, w=19, c=3, k=16, r=7, s=7, stride=2, pad_h=3, pad_w=3, bias=False)),
    (conv2d, dict(n=2, h=5, w=9, c=4, k=6, r=1, s=7, stride=1, pad_h=0, pad_w=3, bias=False)),
    (conv2d, dict(n=2, h=9, w=5, c=4, k=6, r=7, s=1, stride=2, pad_h=3, pad_w=0, bias=True)),
    (linear, {"m": 7, "in": 13, "out": 11, "bias": True, "act": "relu"}),
    (linear, {"m": 5, "in": 17, "out": 33, "bias": True, "act": "gelu"}),
    (linear, {"m": 4, "in": 19, "out": 23, "bias": False, "act": "gelu_tanh"}),
    (linear, {"m": 9, "in": 130, "out": 131, "bias": True, "act": "none"}),
    (linear, {"m": 2, "in": 1030, "out": 70, "bias": True, "act": "none"}),
    (linear, {"m": 3, "in": 30, "flat_c": 5, "flat_h": 2, "flat_w": 3, "out": 7, "bias": True, "act": "silu"}),
    (batchnorm, dict(n=3, h=2, w=5, c=7, eps=1e-5, momentum=0.1, act="none", residual=False, dy2=False)),
    (batchnorm, dict(n=3, h=2, w=5, c=7, eps=1e-5, momentum=0.1, act="none", residual=True, dy2=False)),
    (batchnorm, dict(n=3, h=2, w=5, c=7, eps=1e-3, momentum=0.3, act="relu", residual=True, dy2=True)),
    (batchnorm, dict(n=2, h=3, w=3, c=33, eps=1e-5, momentum=0.1, act="silu", residual=True, dy2=False)),
    (batchnorm, dict(n=6, h=1, w=1, c=1, eps=1e-5, momentum=0.1, act="relu", residual=False, dy2=True)),
    (batchnorm_inference, dict(n=2, h=3, w=1, c=5, eps=1e-5, act="relu", residual=True)),
    (batchnorm_inference, dict(n=1, h=2, w=3, c=9, eps=1e-3, act="none", residual=False)),
    (layernorm, dict(m=5, c=13, eps=1e-5, residual=True, dsum=False)),
    (layernorm, dict(m=3, c=771, eps=1e-12, residual=True, dsum=True)),
    (layernorm, dict(m=1, c=3, eps=1e-5, residual=False, dsum=False)),
    *[(activation, dict(count=101, act=act)) for act in ("relu", "silu", "gelu", "gelu_tanh")],
    (maxpool, dict(n=2, h=7, w=7, c=3, r=3, s=3, stride=2, pad=1)),
    (maxpool, dict(n=1, h=5, w=9, c=17, r=3, s=2, stride=1, pad=1)),
    (avgpool, dict(n=2, h=7, w=7, c=5, r=7, s=7, stride=1, pad=0)),
    (avgpool, dict(n=1, h=5, w=8, c=3, r=3, s=2, stride=1, pad=0)),
    (avgpool, dict(n=2, h=5, w=6, c=7, r=3, s=3, stride=1, pad=1)),
    (avgpool, dict(n=1, h=8, w=7, c=19, r=4, s=3, stride=2, pad=1)),
    (concat, dict(rows=10, channels=[3, 17, 1, 5, 64, 7])),
    (concat, dict(rows=7, channels=[33, 2])),
    (embedding, dict(batch=2, sequence=7, hidden=13, vocabulary=11, positions=9, position_table=True, type_table=True)),
    (embedding, dict(batch=3, sequence=5, hidden=3, vocabulary=101, positions=5, position_table=False,
                     type_table=False)),
    (attention, dict(batch=2, sequence=7, heads=3, width=5, causal=False, packed=False)),
    (attention, dict(batch=1, sequence=13, heads=2, width=8, causal=True, packed=True)),
    (cross_entropy, dict(rows=7, classes=11, normalizer=3)),
    (cross_entropy, dict(rows=5, classes=1009, normalizer=3)),
    (mean_squared_error, dict(rows=7, classes=3, normalizer=3)),
    *[(optimizer, dict(kind="sgd", count=37, steps=3, lr=0.1, momentum=m, dampening=d, weight_decay=w, nesterov=n))
      for m, d, w, n in [(0.0, 0.0, 0.0, False), (0.0, 0.0, 0.05, False), (0.9, 0.0, 0.05, False),
                         (0.9, 0.2, 0.0, False), (0.9, 0.0, 0.05, True)]],
    *[(optimizer, dict(kind=kind, count=37, steps=4, lr=0.01, betas=betas, eps=eps, weight_decay=w))
      for kind, betas, eps, w in [("adam", [0.9, 0.999], 1e-8, 0.0), ("adam", [0.8, 0.95], 1e-4, 0.05),
                                  ("adamw", [0.9, 0.999], 1e-8, 0.01), ("adamw", [0.9, 0.95], 1e-8, 0.1)]],
]


def digest(name, t):
    flat = t.detach().double().contiguous().reshape(-1)
    at = sorted({int(u * flat.numel()) for u in uniform("sample." + name, (SAMPLES,), 0)})
    return {"count": flat.numel(), "l2": float(flat.norm()), "sum": float(flat.sum()),
            "samples": [[i, float(flat[i])] for i in at]}


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "op_vectors.json")
    lines = []
    for function, attributes in CASES:
        results = ",\n  ".join(json.dumps(k) + ": " + json.dumps(digest(k, v)) for k, v in function(**attributes).items())
        lines.append('{"family": "%s", "attributes": %s, "results": {\n  %s}}'
                     % (function.__name__, json.dumps(attributes), results))
    with open(path, "w") as file:
        file.write('{"library": "PyTorch %s, CPU, float64", "seed": %d, "cases": [\n' % (torch.__version__, SEED))
        file.write(",\n".join(lines) + "\n]}\n")
    print("%s: %d cases" % (path, len(lines)))


if __name__ == "__main__":
    main()
