#!/usr/bin/env python3
"""The ledger of predictions, results/predictions/ledger.csv: what the program predicted before the published value was known.

    ledger.py predict SOURCE -- harness whatif ... --measured 1:RATE   adds a row for each number of GPUs
    ledger.py publish SOURCE GPUS SAMPLES_PER_S                         adds the published value to the rows of a source
    ledger.py score                                                     compares predictions and published values

A prediction needs a committed tree, because its commit says which constants were used. A published value is accepted
only for a row that is committed. Rows that are older than the last change of the constants do not count: `score` refuses them,
and shows apart what they were worth at their time.
"""
import csv
import functools
import io
import json
import os
import shlex
import subprocess
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LEDGER = "results/predictions/ledger.csv"
FIELDS = ("date", "commit", "source", "gpus", "low", "value", "high", "published", "command")
CONSTANTS = ("common/sim/profiles", "common/sim/constants.h")
NEAR = 5  # points of efficiency


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()


@functools.lru_cache
def is_older(commit, than):
    done = subprocess.run(["git", "merge-base", "--is-ancestor", than, commit], cwd=ROOT, check=False)
    return done.returncode != 0


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def read():
    with open(os.path.join(ROOT, LEDGER), encoding="utf-8") as file:
        return rows_of(file.read())


def write(rows):
    with open(os.path.join(ROOT, LEDGER), "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def key(row):
    return row["source"], row["gpus"], row["command"]


def constants_commit():
    return git("log", "-1", "--format=%H", "--", *CONSTANTS)


def one_gpu(row):
    words = shlex.split(row["command"])
    points = dict(point.split(":") for point in words[words.index("--measured") + 1].split(","))
    return float(points["1"])


def efficiency(row, field):
    """In points: samples/s over those of as many GPUs alone."""
    return 100 * float(row[field]) / (int(row["gpus"]) * one_gpu(row))


def predict(source, words):
    if git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{LEDGER}"):
        sys.exit("ledger: expected a committed tree, because the commit of a prediction says which constants it used")
    done = subprocess.run([*words, "--json", "-"], check=True, stdout=subprocess.PIPE, universal_newlines=True)
    command = shlex.join(["harness", *words[1:]])
    rows = read()
    for point in json.loads(done.stdout)["points"]:
        rate = point["samples_per_s"]
        rows.append({"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": git("rev-parse", "--short=12", "HEAD"), "source": source,
                     "gpus": point["gpus"], "low": f"{rate * point['step_s'] / point['step_high_s']:.1f}", "value": f"{rate:.1f}",
                     "high": f"{rate * point['step_s'] / point['step_low_s']:.1f}", "published": "", "command": command})
    write(rows)


def publish(source, gpus, value):
    committed = {key(row) for row in rows_of(git("show", f"HEAD:{LEDGER}"))}
    rows = read()
    found = [row for row in rows if row["source"] == source and row["gpus"] == gpus and not row["published"]]
    if not found:
        sys.exit(f"ledger: no row without a published value for {source!r} on {gpus} GPUs")
    for row in found:
        if key(row) not in committed:
            sys.exit("ledger: expected a committed prediction, so that it is older than the published value")
        row["published"] = value
    write(rows)


def score(rows):
    """Returns rows of a table: what is counted, cells, mean error, share that is near, share in the range, mean width."""
    groups = {}
    for row in rows:
        if row["published"]:
            points = "two points" if "," in row["command"].split("--measured ")[1].split(" ")[0] else "one point"
            hosts = "several hosts" if int(row["gpus"]) > 8 else "one host"
            for group in (points, f"{points}, {hosts}"):
                groups.setdefault(group, []).append(row)
    found = []
    for name, group in sorted(groups.items()):
        errors = [abs(efficiency(row, "value") - efficiency(row, "published")) for row in group]
        inside = [float(row["low"]) <= float(row["published"]) <= float(row["high"]) for row in group]
        width = [efficiency(row, "high") - efficiency(row, "low") for row in group]
        found.append((name, len(group), sum(errors) / len(group), sum(e <= NEAR for e in errors) / len(group),
                      sum(inside) / len(group), sum(width) / len(group)))
    return found


def print_table(title, rows):
    print(f"{title:32} {'rows':>5} {'error':>6} {'near':>5} {'in':>5} {'width':>6}")
    for name, cells, error, near, inside, width in score(rows):
        print(f"  {name:30} {cells:5} {error:6.1f} {near:5.0%} {inside:5.0%} {width:6.1f}")


def print_score():
    since = constants_commit()
    rows = read()
    refused = [row for row in rows if is_older(row["commit"], since)]
    print_table("predictions with these constants", [row for row in rows if row not in refused])
    print(f"{len(refused)} of {len(rows)} rows are refused, because they are older than the constants, commit {since[:12]}")
    print_table("refused rows, at their time", refused)
    print("error: mean, in points of efficiency. near: within 5 points. in: between low and high, whose mean distance is width.")


def main(words):
    if len(words) > 3 and words[0] == "predict" and words[2] == "--":
        predict(words[1], words[3:])
    elif len(words) == 4 and words[0] == "publish":
        publish(*words[1:])
    elif words == ["score"]:
        print_score()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
