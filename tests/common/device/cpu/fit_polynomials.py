#!/usr/bin/env python3
"""The polynomials of common/device/cpu/isa/vector_math.h: minimax fits by Remez's exchange algorithm.

    fit_polynomials.py            prints each fit and its relative error
    fit_polynomials.py HEADER     and fails unless the header's constants are those

Needs mpmath.
"""
import re
import sys

from mpmath import cos, erf, erfc, exp, log, lu_solve, matrix, mp, mpf, nstr, pi, sqrt

mp.dps = 40
GRID = 1500


def extrema(points, errors, count):
    """The largest error of each run of one sign, `count` of them from where they are largest."""
    found = []
    for x, e in zip(points, errors):
        if found and (e > 0) == (found[-1][1] > 0):
            if abs(e) > abs(found[-1][1]):
                found[-1] = (x, e)
        else:
            found.append((x, e))
    while len(found) > count:
        found.pop(0 if abs(found[0][1]) < abs(found[-1][1]) else -1)
    return [x for x, _ in found]


def remez(f, weight, low, high, degree, rounds=10):
    """Coefficients from the constant up, and the largest weighted error."""
    count = degree + 2
    grid = [low + (high - low) * (1 - cos(pi * mpf(i) / GRID)) / 2 for i in range(GRID + 1)]
    values, weights = [f(x) for x in grid], [weight(x) for x in grid]
    nodes = [low + (high - low) * (1 - cos(pi * mpf(i) / (count - 1))) / 2 for i in range(count)]
    for _ in range(rounds):
        system, right = matrix(count, count), matrix(count, 1)
        for i, x in enumerate(nodes):
            for j in range(degree + 1):
                system[i, j] = x**j
            system[i, degree + 1] = (-1) ** i / weight(x)
            right[i] = f(x)
        solution = lu_solve(system, right)
        coefficients = [solution[j] for j in range(degree + 1)]
        errors = [w * (y - mp.polyval(coefficients[::-1], x)) for x, y, w in zip(grid, values, weights)]
        nodes = extrema(grid, errors, count)
        if len(nodes) < count:
            break
    return coefficients, max(abs(e) for e in errors)


def exponential():
    """(e^r - 1 - r)/r^2 on |r| <= ln 2 / 2, a little beyond; the error is relative to e^r."""
    def f(r):
        return mpf(1) / 2 + r / 6 + r * r / 24 if abs(r) < mpf(10) ** -8 else (exp(r) - 1 - r) / r**2
    bound = log(2) / 2 * mpf("1.005")
    return remez(f, lambda r: max(r * r, mpf(10) ** -12) / exp(r), -bound, bound, 4)


def normal_near():
    """(Phi(x) - 1/2)/x as a polynomial in x^2, |x| <= 1."""
    def f(z):
        return 1 / sqrt(2 * pi) if z < mpf(10) ** -12 else erf(sqrt(z / 2)) / (2 * sqrt(z))
    return remez(f, lambda z: 1 / f(z), mpf(0), mpf(1), 5)


def normal_tail():
    """(t + 3) e^(t^2/2) Phi(-t) as a polynomial in v = (t - 3)/(t + 3), 1 <= t <= 13.5."""
    def f(v):
        t = 3 * (1 + v) / (1 - v)
        return (t + 3) * exp(t * t / 2) * erfc(t / sqrt(2)) / 2
    return remez(f, lambda v: 1 / f(v), mpf(1 - 3) / (1 + 3), (mpf("13.5") - 3) / (mpf("13.5") + 3), 7)


def main():
    header = open(sys.argv[1]).read() if len(sys.argv) > 1 else None
    constants = [mpf(c) for c in re.findall(r"vf_set\((-?[0-9.]+e-[0-9]+)f\)", header)] if header else []
    missing = 0
    for fit in (exponential, normal_near, normal_tail):
        coefficients, error = fit()
        print("%s: error %s" % (fit.__doc__, nstr(error, 3)))
        for c in coefficients:
            present = not header or any(abs(c - k) <= abs(c) * mpf("2e-8") for k in constants)
            missing += not present
            print("    %s%s" % (nstr(c, 12), "" if present else "  is not in the header"))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
