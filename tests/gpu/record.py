#!/usr/bin/env python3
"""record.py LOGS OUT [COMMIT]: what the stages of run.sh did, as one JSON file: the machine, and for each stage its seconds
and how many of its tests passed, failed and were skipped. OUT is FOLDER/checks-STAMP.json; every file of that stamp gets its
provenance, with the commit that is named or git's, and text becomes JSON (results/README.md)."""
import glob
import json
import os
import re
import sys

import provenance


def machine(logs):
    """What `harness doctor` said, by name."""
    found = {}
    with open(os.path.join(logs, "doctor.txt"), encoding="utf-8") as file:
        for line in file:
            name, _, text = line.rstrip("\n").partition("  ")
            if text.strip():
                found[name.strip()] = text.strip()
    return found


def where(found, commit):
    """The provenance of single measurements on the machine that `harness doctor` found."""
    here = provenance.here("tests/gpu/run.sh", {"harness": found.pop("harness", "unknown"), **found}, 1, None)
    here["host"]["processor"] += " with " + found.get("GPU 0", "no GPU")
    return {**here, "commit": commit or here["commit"] or "unknown"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file) if path.endswith(".json") else {"output": file.read().rstrip("\n").split("\n")}


def counts(path):
    """Counts the TAP lines of a log; None for a command that prints none."""
    found = {"passed": 0, "failed": 0, "skipped": 0}
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not re.match(r"(not )?ok \d+", line):
                continue
            if re.search(r"# *skip", line, re.IGNORECASE):
                found["skipped"] += 1
            else:
                found["failed" if line.startswith("not") else "passed"] += 1
    return found if any(found.values()) else None


def stages(logs):
    with open(os.path.join(logs, "stages.tsv"), encoding="utf-8") as file:
        for line in file:
            name, limit, seconds, code = line.rstrip("\n").split("\t")
            row = {"stage": name, "limit_s": int(limit), "seconds": int(seconds)}
            if code.startswith("skipped"):
                yield {**row, "skipped": code.partition(": ")[2]}
            else:
                yield {**row, "exit_code": int(code), "tests": counts(os.path.join(logs, name + ".log"))}


def main():
    logs, out, *named = sys.argv[1:]
    rows, found = list(stages(logs)), machine(logs)
    about = where(dict(found), " ".join(named))
    for path in glob.glob(out.replace("checks-", "*-").replace(".json", ".*")):
        if path.endswith(".tar.gz"):  # Skips the logs of a call that began in the same second.
            continue
        content = {k: v for k, v in read(path).items() if k != "provenance"}
        os.remove(path)
        provenance.write(os.path.splitext(path)[0] + ".json", {"provenance": about, **content})
    provenance.write(out, {"provenance": about, "machine": found, "stages": rows})
    print(f"{sum(row['seconds'] for row in rows)} s total: {out}")


if __name__ == "__main__":
    main()
