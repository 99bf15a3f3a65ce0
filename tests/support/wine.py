"""Wine as this project splits and orders it, and parameters for wine_mlp, computed without the program: the formulas of
tests/golden/README.md and common/data/sampler.h."""
import math

from numbers_of_seeds import permutation, start, uniform

SHAPES = {"fc1.weight": (64, 13), "fc1.bias": (64,), "fc2.weight": (3, 64), "fc2.bias": (3,)}


def order_of(epoch, count, seed=1):
    """The order of an epoch's samples."""
    return permutation(start(seed + epoch, "data.order"), count)


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
    for i in permutation(start(seed, "data.split"), len(labels)):
        if quota[labels[i]]:
            quota[labels[i]] -= 1
            tested.add(i)
    return [i for i in range(len(labels)) if i not in tested]


def initial_parameters(seed=1):
    """{name: values in PyTorch's order}, float32 values as Python numbers before rounding."""
    out = {}
    for name, shape in SHAPES.items():
        begin, count = start(seed, name), math.prod(shape)
        scale = math.sqrt(3 / (count / shape[0])) if len(shape) > 1 else 0.1
        out[name] = [scale * (2 * uniform(begin, i) - 1) for i in range(count)]
    return out
