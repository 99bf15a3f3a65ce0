"""`harness reproduce training`: efficiencies of published trainings, and how near the predicted ones are."""
import csv
import functools
import json
import math
import os
import re

from program import harness
from tap import cases, expect, expect_equal, long_cases, main, more_test, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
KEPT = os.path.join(ROOT, "results/reproduce/training.json")


@functools.cache
def kept():
    with open(KEPT, encoding="utf-8") as file:
        return json.load(file)


@functools.cache
def found():
    return harness("reproduce", "training", "--draws", "0", "--json", "-", limit=120).json()


@functools.cache
def published():
    """The rows of the published table by their labels."""
    with open(os.path.join(ROOT, "results/published/training.csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {(row["row"], row["precision"], int(row["gpus"])): row for row in rows}


def row_of(cell):
    parts = cell["row"].split(", ")
    return published()[parts[0], parts[-2], int(parts[-1].split()[0])]


def scored(result):
    return [c for c in result["cells"] if c["obtained"] == "predicted" and c["ours"] is not None]


def efficiency(cell, key):
    return cell[key] / cell["null"]


def rule(cell, a):
    return 1 / (1 + a * math.log2(int(row_of(cell)["gpus"])))


def loss(cell, predicted):
    return max(0, abs(math.log(predicted / efficiency(cell, "published"))) - cell["uncertainty"])


def fitted(chosen):
    return min((i / 1000 for i in range(501)), key=lambda a: sum(loss(c, rule(c, a)) for c in chosen))


def chosen_by(name, result):
    link = {"NVLink": False, "network": True}.get(name)
    return [c for c in scored(result) if name == "all" or (link is not None and (int(row_of(c)["nodes"]) > 1) == link)
            or row_of(c)["source"] == name or (name.startswith("without ") and row_of(c)["source"] != name[8:])]


@test
def every_row_of_several_gpus_is_predicted_or_says_why_not():
    several = [c for c in found()["cells"] if c["obtained"] == "predicted"]
    expect_equal(len(several), sum(int(row["gpus"]) > 1 for row in published().values()), "cells of several GPUs")
    reasons = {c["note"] for c in several if c["ours"] is None}
    expect(all(re.search("no profile has|expected precision", reason) for reason in reasons), reasons)


@test
def the_score_is_that_of_the_cells():
    result = kept()
    rules = {source: fitted([c for c in scored(result) if row_of(c)["source"] != source]) for source in {row_of(c)["source"] for c in scored(result)}}
    sources = list(dict.fromkeys(row_of(c)["source"] for c in scored(result)))
    expect_equal([row["cells_of"] for row in result["score"]], ["all", "NVLink", "network", *sources, *(f"without {s}" for s in sources)], "rows")
    for row in result["score"]:
        chosen = chosen_by(row["cells_of"], result)
        lost = [c for c in chosen if abs(math.log(1 / efficiency(c, "published"))) > 2 * c["uncertainty"]]
        errors = [100 * abs(efficiency(c, "ours") - efficiency(c, "published")) for c in chosen]
        width = sum(100 * (efficiency(c, "high") - efficiency(c, "low")) for c in chosen) / len(chosen)
        want = {
            "cells": len(chosen),
            "skill": 1 - sum(loss(c, efficiency(c, "ours")) for c in lost) / sum(loss(c, 1) for c in lost),
            "against_rule": 1 - sum(loss(c, efficiency(c, "ours")) for c in chosen)
                            / sum(loss(c, rule(c, rules[row_of(c)["source"]])) for c in chosen),
            "error_points": sum(errors) / len(errors), "near": sum(e <= 5 for e in errors) / len(errors),
            "in_range": sum(c["low"] <= c["published"] <= c["high"] for c in chosen) / len(chosen), "range_points": width}
        for key, value in want.items():
            expect(abs(row[key] - value) < 1e-6, f"{row['cells_of']}: {key} {row[key]}, from the cells {value}")


@test
def the_program_still_prints_the_snapshot():
    without = [[{k: v for k, v in c.items() if k not in ("low", "high")} for c in result["cells"]] for result in (found(), kept())]
    expect_equal(*without, "cells")


@long_cases([("limits", KEPT)])
def the_program_still_prints_the_limits_of_the_snapshot(path):
    result = harness("reproduce", "training", "--json", "-", limit=600).json()
    expect_equal((result["cells"], result["score"]), (kept()["cells"], kept()["score"]), path)


@cases([(row, row) for row in ("all", "NVLink", "network", "without DLPerf PyTorch ResNet-50")])
def the_page_states_the_score(name):
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        cells = next([cell.strip() for cell in line.strip(" |\n").split("|")] for line in file if line.startswith(f"| {name} | ") and line.count("|") == 9)
    row = next(row for row in kept()["score"] if row["cells_of"] == name)
    want = [name, str(row["cells"]), f"{row['skill']:.2f}", f"{row['against_rule']:.2f}", f"{row['error_points']:.1f}", f"{100 * row['near']:.0f} %",
            f"{100 * row['in_range']:.0f} %", f"{row['range_points']:.1f}"]
    expect_equal(cells, want, "row")


def predicted_from_one_and_eight(cell):
    """The efficiency that whatif gives the job of a cell, if its rows of one GPU and of eight GPUs were measured."""
    row, words = row_of(cell), cell["command"].split()[2:]
    same = [r for r in published().values() if all(r[key] == row[key] for key in ("source", "hardware", "model", "precision", "batch_per_gpu", "scheme"))]
    below = [r for r in same if r["row"][:9] == row["row"][:9] and 0 <= int(row["row"][9:]) - int(r["row"][9:]) <= 4]
    rates = {int(r["gpus"]): r["value"] for r in below}
    of_run = ("--device", "--mode", "--gpus", "--nodes", "--efficiency", "--warmup", "--steps")
    options = [word for i, word in enumerate(words) if word not in of_run and (i == 0 or words[i - 1] not in of_run)]
    profile = words[words.index("--device") + 1].removeprefix("sim:")
    point, = harness("whatif", "--profile", profile, *options, "--gpus", row["gpus"], "--measured", f"1:{rates[1]},8:{rates[8]}", "--draws", "0",
                     "--json", "-", "--quiet").json()["points"]
    return point["samples_per_s"] / float(rates[1]) / int(row["gpus"])


@more_test
def sixteen_and_thirty_two_gpus_are_predicted_from_one_and_eight_as_the_page_says():
    cells = [c for c in scored(kept()) if int(row_of(c)["gpus"]) >= 16]
    errors = [100 * abs(predicted_from_one_and_eight(c) - efficiency(c, "published")) for c in cells]
    mean, near = sum(errors) / len(errors), 100 * sum(e <= 5 for e in errors) / len(errors)
    expect(mean <= 4 and near >= 80, f"mean error {mean}, {near} % within 5 points")
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        page = " ".join(file.read().split())
    expect(f"{len(cells)} rows of 16 and 32 GPUs with a mean error of {mean:.1f} points, {near:.0f} % of them within 5" in page, f"{len(cells)}, {mean}, {near}")


@test
def a_line_has_at_most_80_columns():
    shown = harness("reproduce", "training", "--draws", "0", limit=120).out
    expect(all(len(line) <= 80 for line in shown.splitlines()), "80 columns", max(shown.splitlines(), key=len))
    expect("Predicted efficiencies" in shown, "the score", shown)


def quantile(values, at):
    values = sorted(values)
    place = at * (len(values) - 1)
    below = int(place)
    return values[below] + (place - below) * (values[min(below + 1, len(values) - 1)] - values[below])


@test
def the_error_in_the_profile_is_that_of_the_recorded_cells():
    with open(os.path.join(ROOT, "common/sim/profiles/cuda.json"), encoding="utf-8") as file:
        constants = json.load(file)["constants"]
    for name, link in (("several_gpus", "NVLink"), ("several_hosts", "network")):
        ratios = [c["ours"] / c["published"] for c in chosen_by(link, kept())]
        ends = [quantile(ratios, at) for at in (0.025, 0.975)]
        expect(all(abs(a - b) < 0.005 for a, b in zip(constants[name]["range"], ends)), f"{name}: {constants[name]['range']}, of the cells {ends}")


main()
