#!/usr/bin/env python3
"""The provenance of a measurement: who measured what, when, where and how often. Every file of results/ has it;
results/README.md describes it and tests/docs/test_provenance.py reads it.

    provenance.py FILE.json [--virtual] -- COMMAND...

As a program it runs the command, shows what it prints, and writes it to the file with its provenance. The command ends with
a line that says how often it measured: "5 rounds, spread 3.1 %" or "a single measurement". With --virtual it prints JSON
about virtual time, which repeats exactly: one round, spread 0.
"""
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time

FIELDS = ("command", "date", "commit", "host", "versions", "rounds", "spread")
HOST_FIELDS = ("name", "system", "processor", "processors")


# ---- rounds --------------------------------------------------------------------------------------

def spread(values):
    """(largest - smallest) / median, or None for a single measurement."""
    return (max(values) - min(values)) / abs(statistics.median(values)) if len(values) > 1 else None


def largest_spread(rows):
    """The largest spread of the figures of a table, each of which is a list of its rounds."""
    found = [spread(row) for row in rows if len(row) > 1]
    return max(found) if found else None


def closing_line(rounds, fraction):
    """The line that a benchmark prints at its end."""
    return "a single measurement" if rounds == 1 else f"{rounds} rounds, spread {100 * fraction:.1f} %"


def verdict(values, limit, at_least=False):
    """"met" if every round is within the limit, "missed" if none is, else "undecided". One round decides nothing."""
    within = [value >= limit if at_least else value <= limit for value in values]
    if len(values) == 1:
        return "a single measurement, " + ("within" if within[0] else "beyond")
    return "met" if all(within) else "undecided" if any(within) else "missed"


def is_met(words):
    """Whether a benchmark may end with 0: nothing that it measured is beyond its limit."""
    return words in ("met", "a single measurement, within")


# ---- where ---------------------------------------------------------------------------------------

def first_line(*command):
    try:
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, check=False)
    except OSError:
        return ""
    return out.stdout.strip().split("\n")[0] if out.returncode == 0 else ""


def commit():
    """The commit of the working tree, in which only results and documents may differ; "" if git does not know it."""
    name = first_line("git", "rev-parse", "--short=12", "HEAD")
    changes = first_line("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results", ":!docs", ":!README.md")
    return name and name + (" with changes" if changes else "")


def host():
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {"name": platform.node(), "system": " ".join((platform.system(), platform.release(), platform.machine())),
            "processor": names[0] if names else platform.machine(), "processors": len(os.sched_getaffinity(0))}


def versions_of(harness):
    """The versions of the program, its libraries and the compiler."""
    found = {"harness": first_line(harness, "--version").replace("harness ", ""),
             "gcc": first_line("gcc", "-dumpfullversion")}
    doctor = subprocess.run([harness, "doctor"], stdout=subprocess.PIPE, universal_newlines=True, check=False).stdout
    for name in ("oneDNN", "libzmq"):
        match = re.search(rf"^{name}\s+([0-9.]+)", doctor, re.MULTILINE)
        if match:
            found[name] = match.group(1)
    return found


def here(command, versions, rounds, fraction):
    """The provenance of a measurement that was made on this machine just now. `fraction` is as spread() gives it."""
    return {"command": command, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit(), "host": host(),
            "versions": versions, "rounds": rounds, "spread": fraction}


def of_run(result, rounds, fraction):
    """The provenance of a run of the program, from its JSON."""
    program = result["program"]
    return {"command": shlex.join(["harness", *result["command"]]), "date": result["started_at"], "commit": program["commit"],
            "host": {name: result["host"][name] for name in HOST_FIELDS},
            "versions": {"harness": program["version"], **result["libraries"]}, "rounds": rounds, "spread": fraction}


def write(path, content):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    print(f"written to {path}", file=sys.stderr)


# ---- the program ---------------------------------------------------------------------------------

def rounds_in(lines):
    """(rounds, spread) from the closing lines: the smallest number of rounds, and the largest spread."""
    found = [re.search(r"(\d+) rounds, spread ([0-9.]+) %$", line) for line in lines]
    rounds = [int(match.group(1)) for match in found if match] + [1 for line in lines if line == closing_line(1, None)]
    if not rounds:
        sys.exit("provenance.py: expected a last line with rounds and their spread")
    return min(rounds), max((float(match.group(2)) / 100 for match in found if match), default=None)


def main():
    at = sys.argv.index("--")
    path, virtual, command = sys.argv[1], "--virtual" in sys.argv[:at], sys.argv[at + 1:]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True) as running:
        for line in running.stdout:
            if not virtual:
                print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    versions = versions_of(os.path.join(os.environ.get("BUILD", "build"), "bin", "harness"))
    rounds = (1, 0) if virtual else rounds_in(lines)
    content = json.loads("\n".join(lines)) if virtual else {"output": lines}
    write(path, {"provenance": here(shlex.join(command), versions, *rounds), **content})
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
