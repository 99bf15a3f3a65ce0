#!/usr/bin/env python3
"""Fits constants of a profile to cells of a published table, one constant to one cell, by secants.

usage: fit.py HARNESS PROFILE.json TABLE CONSTANT[:INDEX]=ROW/QUANTITY ...

Only rows that `--calibration-only` runs can be named: held-out rows are never run. Constants are written to the
profile with the tag `calibrated on ...`; a constant that reaches a limit of its own stays there. The fit goes
round until no cell moves by more than 0.05 %.
"""
import json
import subprocess
import sys

LIMITS = {"kappa": (1.0, 3.0), "launch_time": (0.0, 1000.0)}
EFFICIENCY = (0.01, 2.0)
ROUNDS = 6


def cells(harness, path, table):
    text = subprocess.run([harness, "reproduce", table, "--calibration-only", "--device", "sim:" + path, "--json", "-"],
                          check=True, capture_output=True, text=True).stdout
    return {(c["row"], c["quantity"]): c for c in json.loads(text)["cells"]}


class Fit:
    def __init__(self, harness, path, table, words):
        self.harness, self.path, self.table = harness, path, table
        self.profile = json.load(open(path))
        self.goals = []
        for word in words:
            constant, cell = word.split("=", 1)
            name, _, index = constant.partition(":")
            row, quantity = cell.rsplit("/", 1)
            self.goals.append((name, int(index) if index else None, (row, quantity)))

    def get(self, name, index):
        value = self.profile["constants"][name]["value"]
        return value if index is None else value[index]

    def put(self, name, index, value):
        low, high = LIMITS.get(name, EFFICIENCY)
        value = min(high, max(low, float("%.5g" % value)))
        if index is None:
            self.profile["constants"][name]["value"] = value
        else:
            self.profile["constants"][name]["value"][index] = value
        with open(self.path, "w") as file:
            json.dump(self.profile, file, indent=2)
            file.write("\n")

    def error(self, cell):
        c = cells(self.harness, self.path, self.table)[cell]
        return c["ours"] - c["published"]

    def solve(self, name, index, cell):
        x0, e0 = self.get(name, index), self.error(cell)
        if abs(e0) < 1e-3:
            return abs(e0)
        self.put(name, index, x0 * 1.02 + 1e-3 if x0 * 1.02 < LIMITS.get(name, EFFICIENCY)[1] else x0 * 0.98)
        x1, e1 = self.get(name, index), self.error(cell)
        for _ in range(12):
            if abs(e1) < 5e-3 or e1 == e0 or x1 == x0:
                break
            x0, e0, x = x1, e1, x1 - e1 * (x1 - x0) / (e1 - e0)
            self.put(name, index, x)
            x1, e1 = self.get(name, index), self.error(cell)
        return abs(e0)

    def run(self):
        for turn in range(ROUNDS):
            moved = [self.solve(*goal) for goal in self.goals]
            print("round", turn, ["%s=%.5g" % (g[0], self.get(g[0], g[1])) for g in self.goals],
                  ["%.3f" % m for m in moved], file=sys.stderr)
        for name, _, (row, quantity) in self.goals:
            entry = self.profile["constants"][name]
            c = cells(self.harness, self.path, self.table)[(row, quantity)]
            entry["tag"] = "calibrated on results/published/%s.csv" % self.table
            entry["source"] = "fitted by common/sim/profiles/fit.py to %s, %s: published %g %s, ours %.4g" % (
                row, quantity, c["published"], c["unit"], c["ours"])
        with open(self.path, "w") as file:
            json.dump(self.profile, file, indent=2)
            file.write("\n")


Fit(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]).run()
