"""Every file of results/ says who measured what, where and how often, as results/README.md describes it; documents and the
program name only files that are there."""
import csv
import fnmatch
import glob
import json
import os
import re
import subprocess
import sys

import ledger
import provenance
from tap import Skip, cases, expect, expect_equal, main, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
sys.path.append(os.path.join(ROOT, "tests", "bench"))
import sharded  # noqa: E402
import train  # noqa: E402

RESULTS = os.path.join(ROOT, "results")


def names():
    for folder, _, files in os.walk(RESULTS):
        for file in files:
            yield os.path.relpath(os.path.join(folder, file), RESULTS)


def recorded():
    return sorted(name for name in names() if name.endswith(".json"))


def load(name):
    with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
        return json.load(file)


def check(where):
    """Fails if a provenance is incomplete."""
    expect_equal(sorted(set(where) - {"note"}), sorted(provenance.FIELDS), "keys")
    expect(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", where["date"]), f"date: {where['date']}")
    expect(re.fullmatch(r"[0-9a-f]{7,40}( with changes)?", where["commit"]), f"commit: {where['commit']}")
    expect_equal(sorted(where["host"]), ["name", "processor", "processors", "system"], "keys of the host")
    expect(where["host"]["processors"] >= 1, f"processors: {where['host']['processors']}")
    for key, text in (("command", where["command"]), *where["host"].items(), *where["versions"].items()):
        expect(text, f"{key} is empty")
    expect("harness" in where["versions"], f"versions: {where['versions']}")
    expect(isinstance(where["rounds"], int) and where["rounds"] >= 1, f"rounds: {where['rounds']}")
    if where["rounds"] > 1:
        expect(where["spread"] is not None and where["spread"] >= 0, f"spread of {where['rounds']} rounds: {where['spread']}")


@cases([(name, name) for name in recorded()])
def a_recorded_file_has_its_provenance(name):
    check(load(name)["provenance"])


@test
def commits_of_recorded_files_are_in_the_history():
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        raise Skip("no history")
    for name in recorded():
        commit = load(name)["provenance"]["commit"].split()[0]
        expect_equal(git("merge-base", "--is-ancestor", commit, "HEAD").returncode, 0, f"{name}: {commit} is an ancestor of HEAD")


@test
def a_provenance_that_lacks_something_is_refused():
    whole = load("allreduce.json")["provenance"]
    check(whole)
    host = whole["host"]
    broken = [{k: v for k, v in whole.items() if k != key} for key in provenance.FIELDS]
    broken += [{**whole, "date": "2026-11-20"}, {**whole, "commit": ""}, {**whole, "host": {**host, "processor": ""}},
               {**whole, "versions": {}}, {**whole, "rounds": 0}, {**whole, "rounds": 3, "spread": None}]
    for where in broken:
        try:
            check(where)
        except Exception:  # check() says what is wrong
            continue
        expect(False, "passes", where)


# For a file that was measured in several rounds: the quantity of its spread, and for each figure the values of all
# rounds.
FIGURES = {
    "allreduce.json": lambda result: [target["ratios"] for target in result["targets"]],
    "ddp-over-network.json": lambda result: [[ddp - alone for alone, ddp in zip(row["alone"], row["ddp"])] for row in result["cases"]],
    "dp-host.json": lambda result: [[float(value) for value in line.split()[-3:]] for line in result["output"] if re.search(r"( +\d+\.\d{3}){3}$", line)],
    "link-overlap.json": lambda result: [saved(row) for row in result["rows"]],
    "sharded.json": lambda result: [ratios for row in result["rows"] for ratios in sharded.ratios_of(row).values()],
    "speed.json": lambda result: [train.ratios_of(row) or row["ours_ms"] for row in result["rows"]],
}
FIGURES["speed-avx2.json"] = FIGURES["speed.json"]
FEWEST = {"dp-host.json": lambda result: min(int(n) for line in result["output"] for n in re.findall(r"(\d+) rounds", line))}  # which keeps least, median, most


def saved(row):
    """For each round: the part of torch-0.4.1's exposed communication that ddp does not expose."""
    return [1 - ddp["exposed_communication_s"] / late["exposed_communication_s"]
            for ddp, late in zip(row["rounds"]["ddp"], row["rounds"]["torch-0.4.1"])]


@cases([(name, name) for name in recorded() if load(name)["provenance"]["spread"]])
def rounds_and_spread_are_those_of_the_recorded_values(name):
    result = load(name)
    where = result["provenance"]
    if name not in FIGURES:  # a benchmark's output
        expect_equal((where["rounds"], where["spread"]), provenance.rounds_in(result["output"]), "rounds and spread of the closing line")
        return
    figures = FIGURES[name](result)
    fewest = FEWEST[name](result) if name in FEWEST else min(len(values) for values in figures)
    expect_equal(where["rounds"], fewest, "rounds")
    found = provenance.largest_spread(figures)
    expect(abs(where["spread"] - found) < 1e-3, f"the largest spread is {found}, the provenance has {where['spread']}")


@test
def recorded_verdicts_are_those_of_all_rounds():
    result = load("allreduce.json")
    for target in result["targets"]:
        times = [row["median_us"] for row in result["rows"] if all(row[key] == target[key] for key in ("ranks", "size_bytes"))]
        ratios = [of["MPI"] / of[target["algorithm"]] for of in times]
        expect_equal([round(r, 9) for r in target["ratios"]], [round(r, 9) for r in ratios], "ratios of the recorded times", target)
        expect_equal(target["verdict"], provenance.verdict(ratios, target["least_ratio"], at_least=True), "verdict", target)
    for row in load("link-overlap.json")["rows"]:
        expect_equal(row["verdict"], provenance.verdict(saved(row), row["least_saved"], at_least=True), "verdict", row["link"])


@test
def a_measured_table_has_its_provenance_in_comments():
    for name in names():
        if name.endswith(".csv") and not name.startswith(("published/", "predictions/")):
            with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
                found = dict(re.findall(r"^# (\w+): (.+)$", file.read(), re.MULTILINE))
            missing = {*provenance.FIELDS, "processor"} - set(found)
            expect(not missing, f"{name} has no comment on {', '.join(sorted(missing))}")


@test
def predictions_are_older_than_what_was_published():
    """The first version of the ledger that has a row has no published value in it."""
    if subprocess.run(["git", "cat-file", "-e", "HEAD"], cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Skip("no history of the repository")
    first = {}
    for commit in reversed(ledger.git("log", "--format=%H", "--", ledger.LEDGER).split()):
        for row in ledger.rows_of(ledger.git("show", f"{commit}:{ledger.LEDGER}")):
            first.setdefault(ledger.key(row), row)
    rows = ledger.read()
    expect(len(rows) > 100, f"{len(rows)} rows")
    for row in rows:
        expect_equal(list(row), list(ledger.FIELDS), "fields")
        expect(0 < float(row["low"]) <= float(row["value"]) <= float(row["high"]), "low, value and high", row)
        expect_equal((first[ledger.key(row)]["published"], first[ledger.key(row)]["value"]), ("", row["value"]), "the first version of a row", row)
        expect(not ledger.is_older("HEAD", row["commit"]), "the commit of the prediction is in the history", row)


@test
def the_score_of_the_ledger_counts_rows_in_points_of_efficiency():
    command = "harness whatif --measured 1:100 --gpus 8,16"
    rows = [{"gpus": "8", "low": "700", "value": "780", "high": "790", "published": "760", "command": command},
            {"gpus": "16", "low": "1300", "value": "1500", "high": "1550", "published": "1200", "command": command},
            {"gpus": "16", "low": "1300", "value": "1500", "high": "1550", "published": "", "command": command}]
    found = {name: (cells, round(error, 3), near, inside, round(width, 3)) for name, cells, error, near, inside, width in ledger.score(rows)}
    expect_equal(found["one point, one host"], (1, 2.5, 1.0, 1.0, 11.25), "8 GPUs")
    expect_equal(found["one point, several hosts"], (1, 18.75, 0.0, 0.0, 15.625), "16 GPUs")


@test
def a_published_table_names_source_hardware_software_and_rounds():
    tables = sorted(name for name in names() if name.startswith("published/"))
    expect(tables, "no table found")
    for name in tables:
        with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
            lines = file.read().splitlines()
        keys = [line[2:].partition(":")[0] for line in lines[:4]]
        expect_equal(keys, ["source", "hardware", "software", "rounds"], f"first lines of {name}")
        columns = next(csv.reader([line for line in lines if not line.startswith("#")]))
        for line in lines[:4]:
            key, _, text = line[2:].partition(": ")
            expect(text, f"{name}: {key} is empty")
            if text == "per row":
                expect(key in columns, f"{name} has no column {key}")


@test
def nothing_else_is_in_results():
    expect_equal(sorted(n for n in names() if not n.endswith((".json", ".csv"))), ["README.md"], "files")


@test
def documents_and_programs_name_results_that_are_there():
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, text=True, check=True).stdout.split("\n")
    there = set(names())
    for path in tracked:
        if not path.endswith((".md", ".c", ".h", ".json")) or path.startswith(("results/", "tests/")) or not os.path.exists(os.path.join(ROOT, path)):
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
            for name in re.findall(r"\bresults/([a-z0-9/-]+\.(?:json|csv|md|txt|py))", file.read()):
                expect(name in there or name == "README.md", f"{path} names results/{name}, which is not there")


@test
def the_list_of_files_is_that_of_the_folder():
    with open(os.path.join(RESULTS, "README.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| (`.*?`) \|", file.read().partition("## Provenance")[0], re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    expect(listed, "no row found")
    there = [name for name in names() if name != "README.md"]
    for pattern in listed:
        expect(fnmatch.filter(there, pattern), f"results/README.md lists {pattern}, which is not there")
    for name in there:
        expect(any(fnmatch.fnmatch(name, pattern) for pattern in listed), f"results/README.md does not list {name}")


# A paragraph that says on which processor, or with which quartiles, and has a rate, a time or a ratio.
MEASURED = re.compile(r"\b(Xeon|EPYC|quartiles|Recorded,)")
FIGURE = re.compile(r"\d ?(?:ms|us|ns|s|[GM]B/s|GFLOP/s|%)(?!\w)|\d times as|\d of the (?:time|rate)")


def unsourced(text):
    """Paragraphs with measured figures, if neither they nor one of the two paragraphs before them names a file of
    results/."""
    parts = re.split(r"\n\s*\n", text)
    return [part for at, part in enumerate(parts)
            if MEASURED.search(part) and FIGURE.search(part) and "results/" not in "\n".join(parts[max(0, at - 2):at + 1])]


@test
def measured_figures_of_documents_name_the_file_that_they_are_from():
    for path in [os.path.join(ROOT, "README.md"), *glob.glob(os.path.join(ROOT, "docs/*.md"))]:
        with open(path, encoding="utf-8") as file:
            found = unsourced(file.read())
        expect(not found, f"{os.path.relpath(path, ROOT)} has figures that are in no file of results/", *found)
    lines = "A step took 3.34 times as long (quartiles 3.25 to 3.64)."
    expect_equal(unsourced(lines), [lines], "figures without a file")
    expect_equal(unsourced(f"{lines} They are in `results/curve.json`."), [], "figures with a file")


@cases([("every round is within", [0.5, 0.6], "met"), ("no round is within", [0.8, 0.9], "missed"),
        ("some rounds are within", [0.5, 0.9], "undecided"), ("the median is within, a round is not", [0.5, 0.6, 0.71], "undecided"),
        ("one round is within", [0.5], "a single measurement, within"), ("one round is not", [0.9], "a single measurement, beyond")])
def a_target_is_met_if_every_round_is_within_it(values, expected):
    expect_equal(provenance.verdict(values, 0.7), expected, "at most 0.7")
    expect_equal(provenance.verdict([-v for v in values], -0.7, at_least=True), expected, "at least -0.7")


@test
def rounds_and_their_spread_are_read_from_closing_lines():
    lines = ["a table", provenance.closing_line(5, 0.031), "another", provenance.closing_line(3, 0.2)]
    expect_equal(provenance.rounds_in(lines), (3, 0.2), "of two tables")
    expect_equal(provenance.rounds_in([provenance.closing_line(1, None)]), (1, None), "of one round")
    expect_equal(provenance.spread([2.0, 1.0, 4.0]), 1.5, "(largest - smallest) / median")


main()
