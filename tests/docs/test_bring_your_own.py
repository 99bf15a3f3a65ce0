#!/usr/bin/env python3
"""The commands of docs/bring-your-own.md work, and print the lines that the page shows. TAP."""
import os
import re
import shlex
import tempfile

from program import PROGRAM, harness
from tap import cases, expect, expect_equal, main, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
FOLDER = tempfile.mkdtemp(prefix="run-")
with open(os.path.join(ROOT, "docs/bring-your-own.md"), encoding="utf-8") as file:
    PAGE = file.read()


def words_of(command):
    program, *words = shlex.split(command)
    expect_equal(program, "build/bin/harness", "the program")
    return [os.path.join(ROOT, word) if word.startswith("tests/") else word for word in words]


@cases([(command, command, lines) for command, lines in re.findall(r"^```sh\n(.*?)\n```\n```text\n(.*?)^```$", PAGE, re.S | re.M)])
def the_page_shows_what_its_command_prints(command, lines):
    result = harness(*words_of(command), program=[PROGRAM], cwd=FOLDER, limit=120, allowed=("job.json",))
    expect_equal(result.code, 0, "exit code", result)
    printed = " ".join(result.out.split())
    for line in lines.splitlines():
        pattern = re.escape(" ".join(line.split())).replace(r"\.\.\.", r"[\d.]+")
        expect(re.search(pattern, printed), f"the page shows {line!r}", printed)


@test
def the_page_records_what_the_traces_of_the_tests_were_recorded_with():
    with open(os.path.join(ROOT, "tests/traces/make_traces.py"), encoding="utf-8") as file:
        maker = file.read()
    for key in re.findall(r'^ +"(\w+)":|"(\w+)": ', PAGE.split("```python")[1].split("```")[0], re.M):
        name = next(filter(None, key))
        expect(f'"{name}"' in maker, f"{name} in make_traces.py")


main()
