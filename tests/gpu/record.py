#!/usr/bin/env python3
"""record.py LOGS OUT [COMMIT]: what the stages of run.sh did, as one JSON file: the machine, the commit (git's, where
none is named), and for each stage its seconds and how many of its tests passed, failed and were skipped."""
import json
import os
import re
import subprocess
import sys
import time


def machine(logs):
    """What `harness doctor` said, by name."""
    found = {}
    with open(os.path.join(logs, "doctor.txt"), encoding="utf-8") as file:
        for line in file:
            name, _, text = line.rstrip("\n").partition("  ")
            if text.strip():
                found[name.strip()] = text.strip()
    return found


def git(*words):
    """Its output; "" where it or its repository is missing."""
    try:
        return subprocess.run(["git", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                              universal_newlines=True).stdout.strip()
    except OSError:
        return ""


def commit():
    name = git("rev-parse", "HEAD")
    return (name or "unknown") + (" with changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def counts(path):
    """Of the TAP lines of a log; none for a command that prints none."""
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
    rows = list(stages(logs))
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": " ".join(named) or commit(),
                   "machine": machine(logs), "stages": rows}, file, indent=1)
        file.write("\n")
    print(f"{sum(row['seconds'] for row in rows)} s total: {out}")


if __name__ == "__main__":
    main()
