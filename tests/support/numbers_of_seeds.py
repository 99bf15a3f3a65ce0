"""The random numbers of the program (common/base/random.h) and its permutations (common/data/sampler.h), computed without it."""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def start(seed, name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    return mix(seed + GOLDEN & MASK) ^ h


def bits(begin, index):
    return mix(begin + (index + 1) * GOLDEN & MASK)


def below(begin, index, bound):
    return bits(begin, index) * bound >> 64


def uniform(begin, index):
    return (bits(begin, index) >> 40) / 2**24


def permutation(begin, count):
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = below(begin, i, i + 1)
        order[i], order[j] = order[j], order[i]
    return order
