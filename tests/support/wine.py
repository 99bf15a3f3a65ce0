"""Wine as this project splits and orders it, and parameters for wine_mlp, computed without the program: the formulas of
tests/golden/README.md and common/data/sampler.h."""
import math

MASK, G = (1 << 64) - 1, 0x9E3779B97F4A7C15
SHAPES = {"fc1.weight": (64, 13), "fc1.bias": (64,), "fc2.weight": (3, 64), "fc2.bias": (3,)}


def _mix(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def _start(seed, name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    return _mix(seed + G & MASK) ^ h


def _bits(start, index):
    return _mix(start + (index + 1) * G & MASK)


def _permutation(start, count):
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = _bits(start, i) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def order_of(epoch, count, seed=1):
    """The order of an epoch's samples."""
    return _permutation(_start(seed + epoch, "data.order"), count)


def split(labels, seed=1):
    """The numbers of the training samples: a fifth of each class is for the test, by largest remainders."""
    held = -(-len(labels) // 5)
    counts = [labels.count(c) for c in range(max(labels) + 1)]
    quota = [held * n // len(labels) for n in counts]
    rest = [held * n % len(labels) for n in counts]
    while sum(quota) < held:
        largest = rest.index(max(rest))
        quota[largest], rest[largest] = quota[largest] + 1, -1
    tested = set()
    for i in _permutation(_start(seed, "data.split"), len(labels)):
        if quota[labels[i]]:
            quota[labels[i]] -= 1
            tested.add(i)
    return [i for i in range(len(labels)) if i not in tested]


def initial_parameters(seed=1):
    """{name: values in PyTorch's order}, float32 values as Python numbers before rounding."""
    out = {}
    for name, shape in SHAPES.items():
        start, count = _start(seed, name), math.prod(shape)
        scale = math.sqrt(3 / (count / shape[0])) if len(shape) > 1 else 0.1
        out[name] = [scale * (2 * ((_bits(start, i) >> 40) / 2**24) - 1) for i in range(count)]
    return out
