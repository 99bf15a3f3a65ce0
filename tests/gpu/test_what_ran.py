#!/usr/bin/env python3
"""The table of docs/cuda.md that says what ran where is what what_ran.py writes: a stage has a card's name if a record of
results/gpu has it, and not otherwise."""
import json
import os
import tempfile

import what_ran
from tap import expect, expect_equal, main, test


@test
def the_table_is_current():
    with open(os.path.join(what_ran.ROOT, "docs/cuda.md"), encoding="utf-8") as file:
        text = file.read()
    expect_equal(what_ran.replaced(text, os.path.join(what_ran.ROOT, "results/gpu")), text, "run tests/gpu/what_ran.py")
    expect(len(text.splitlines()) <= 200, "the page has more than 200 lines", len(text.splitlines()))


def record(folder, day, stages):
    with open(os.path.join(folder, f"checks-{day}.json"), "w", encoding="utf-8") as file:
        json.dump({"provenance": {"date": day + "T00:00:00Z"}, "machine": {"GPU 0": "Card, 80 GiB"}, "stages": stages}, file)


@test
def a_stage_has_the_card_of_its_newest_record():
    with tempfile.TemporaryDirectory() as folder:
        record(folder, "2027-01-02", [{"stage": "ps", "exit_code": 0}, {"stage": "golden", "exit_code": 1},
                                      {"stage": "nccl", "skipped": "no NCCL"}])
        record(folder, "2027-01-01", [{"stage": "ps", "exit_code": 1}, {"stage": "step", "exit_code": 0}])
        rows = {line.split("`")[1]: line.split("|")[-2].strip() for line in what_ran.table(folder).splitlines()[2:]}
    found = {stage: where for stage, where in rows.items() if where != "never"}
    expect_equal(found, {"ps": "Card, 2027-01-02", "golden": "Card, 2027-01-02: failed", "step": "Card, 2027-01-01"}, "rows")


if __name__ == "__main__":
    main()
