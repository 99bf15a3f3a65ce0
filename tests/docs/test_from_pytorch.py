#!/usr/bin/env python3
"""The commands of docs/from-pytorch.md work, and print the lines that the page shows. TAP."""
import os
import re
import shlex
import tempfile

from program import PROGRAM, harness
from tap import cases, expect, expect_equal, main

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())

with open(os.path.join(ROOT, "docs/from-pytorch.md"), encoding="utf-8") as file:
    PARTS = re.findall(r"^(?:## (.+?)|\*\*(.+?)\.\*\*.*?|```sh\n(.*?)^```\n```text\n(.*?)^```)$", file.read(), re.S | re.M)


def blocks():
    """(heading, commands, lines) of every block of commands."""
    heading = ""
    for section, part, commands, lines in PARTS:
        heading = section or part or heading
        if commands:
            yield heading, commands, lines


@cases(list(blocks()))
def the_commands_print_what_the_page_shows(block, quote):
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        printed = ""
        for line in block.splitlines():
            program, *words = shlex.split(line)
            fails = words[-2:] == ["||", "true"]
            words = words[:-2] if fails else words
            expect(program in ("build/bin/harness", "build/bin/example_all_reduce"), f"the program is {program}")
            result = harness(*words, program=[os.path.join(os.path.dirname(PROGRAM), os.path.basename(program))], cwd=folder, allowed=("toy.safetensors", "final.safetensors", "wine_50.safetensors", "wine_100.safetensors"), limit=120)
            expect_equal(result.code != 0, fails, "whether the command fails", result)
            printed += " ".join((result.out + (result.err if fails else "")).split()) + " "
    for line in quote.splitlines():
        pattern = re.escape(" ".join(line.split())).replace(r"\.\.\.", r"[\d.]+")  # a figure that differs from machine to machine
        other = re.sub(r"ring\\ \\\(ddp\\\)(.*)ps\\ \\\(dp\\\)", r"ps\\ \\(dp\\)\1ring\\ \\(ddp\\)", pattern)  # neighbors decide which engine is faster
        expect(re.search(pattern, printed) or re.search(other, printed), f"the page shows {line!r}", printed)


if __name__ == "__main__":
    main()
