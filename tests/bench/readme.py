#!/usr/bin/env python3
"""The example in README.md is a recorded run: its JSON is results/readme.json, its text what `harness report` renders from
it. `make readme-example` runs it again; after a change of the report alone --render is enough. Its figures (docs/figures) are of this run, and of ResNet-50 on eight
virtual GPUs, which is run each time: virtual time is the same everywhere.

    readme.py [--harness build/bin/harness] [--render]
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import provenance  # noqa: E402

RESULT, README = os.path.join(ROOT, "results", "readme.json"), os.path.join(ROOT, "README.md")
BEGIN, END = "<!-- rendered from results/readme.json by tests/bench/readme.py -->\n", "<!-- end of the example -->\n"
COMMAND = ["--model", "resnet18", "--data", "fashion-mnist", "--batch", "16", "--steps", "40", "--optimizer",
           "sgd", "--lr", "0.01", "--momentum", "0.5", "--policy", "ps=sync"]
FIGURES = os.path.join(ROOT, "docs", "figures")
VIRTUAL = ["run", "--device", "sim:dgx1-v100", "--gpus", "8", "--model", "resnet50", "--batch", "32", "--steps", "8", "--quiet"]


def record(harness):
    done = subprocess.run([harness, *COMMAND, "--quiet", "--json", "-"], check=True, stdout=subprocess.PIPE)
    result = json.loads(done.stdout)
    where = {**provenance.of_run(result, 1, None), "command": shlex.join(["build/bin/harness", *COMMAND])}
    provenance.write(RESULT, {"provenance": where, **result})


def wrapped(command):
    """The command in lines of at most 100 columns; an option stays with its value."""
    lines = [""]
    for words in command.replace(" --", "\n--").split("\n"):
        if lines[-1] and len(lines[-1]) + len(words) > 98:
            lines.append("   ")
        lines[-1] += (" " if lines[-1] else "") + words
    return " \\\n".join(lines).split("\n")


def rendered(harness):
    """README's example: the command, and what the run shows."""
    with open(RESULT, encoding="utf-8") as file:
        where = json.load(file)["provenance"]
    out = subprocess.run([harness, "report", RESULT], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    lines = [*wrapped(where["command"]), "", *out.rstrip("\n").split("\n")]
    return BEGIN + "\n" + "".join("    " + line + "\n" if line else "\n" for line in lines) + textwrap.dedent(f"""
        A single measurement of {where["date"][:10]}, commit {where["commit"]}; `make readme-example` makes it again.

        """) + END


def figures(harness):
    """{file in docs/figures: its text}"""
    with tempfile.TemporaryDirectory() as folder:
        both, sharded = os.path.join(folder, "both.json"), os.path.join(folder, "sharded.json")
        for words in (["--policy", "ps=dp,ring=ddp", "--json", both],
                      ["--mode", "ps", "--policy", "sync", "--servers", "8", "--json", sharded]):
            subprocess.run([harness, *VIRTUAL, *words], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([harness, "report", RESULT, "--svg", os.path.join(folder, "real")], check=True)
        subprocess.run([harness, "report", both, sharded, "--svg", os.path.join(folder, "virtual")], check=True)
        found = {}
        for name, path in (("step-parts.svg", "real/step-parts.svg"), ("memory.svg", "virtual/memory.svg")):
            with open(os.path.join(folder, path), encoding="utf-8") as file:
                found[name] = file.read()
        return found


def parts():
    """README before the example, the example, and what follows it."""
    with open(README, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    example, after = rest.split(END)
    return before, BEGIN + example + END, after


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--harness", default=os.path.join(ROOT, "build", "bin", "harness"))
    parser.add_argument("--render", action="store_true", help="do not run: render results/readme.json again")
    options = parser.parse_args()
    if not options.render:
        record(options.harness)
    before, _, after = parts()
    text = before + rendered(options.harness) + after
    with open(README, "w", encoding="utf-8") as file:
        file.write(text)
    os.makedirs(FIGURES, exist_ok=True)
    for name, figure in figures(options.harness).items():
        with open(os.path.join(FIGURES, name), "w", encoding="utf-8") as file:
            file.write(figure)


if __name__ == "__main__":
    main()
