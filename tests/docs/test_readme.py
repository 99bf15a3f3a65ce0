"""README.md's example is a snapshot of this program's output: the report that `harness report` renders from
results/readme.json."""
import atexit
import os
import shutil
import sys
import tempfile

from program import PROGRAM, harness
from tap import expect, expect_equal, main, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import readme  # noqa: E402

FOLDER = tempfile.mkdtemp(prefix="readme-")
atexit.register(shutil.rmtree, FOLDER)


@test
def the_snapshot_in_readme_is_what_the_program_renders():
    found, expected = readme.parts()[1], readme.rendered(PROGRAM)
    expect(found == expected, "README.md has another example: tests/bench/readme.py --render writes this one, "
           "`make readme-example` runs it again", expected)


@test
def the_figures_are_what_the_program_draws():
    for name, expected in readme.figures(PROGRAM).items():
        with open(os.path.join(readme.FIGURES, name), encoding="utf-8") as file:
            expect(file.read() == expected, f"docs/figures/{name} differs: tests/bench/readme.py --render writes it again")


@test
def the_report_of_a_file_is_the_one_that_the_run_printed():
    words = ["--mode", "both", "--gpus", "2", "--model", "toy", "--data", "synthetic", "--steps", "3", "--quiet"]
    for more in ([], ["--verbose"]):
        printed = harness(*words, *more, "--json", "run.json", allowed=("run.json",), cwd=FOLDER)
        shown = harness("report", *more, os.path.join(FOLDER, "run.json"))
        expect_equal(shown.code, 0, "exit code", shown)
        expect(printed.out and printed.out == shown.out, printed, shown)
    planned = harness("run", "--plan", *words, "--json", "plan.json", allowed=("plan.json", "run.json"), cwd=FOLDER)
    shown = harness("report", os.path.join(FOLDER, "plan.json"))
    expect(planned.out and planned.out == shown.out, planned, shown)


main()
