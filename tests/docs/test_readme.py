"""README.md's example is a snapshot of this program's output: the report that `harness report` renders from
results/readme.json."""
import atexit
import json
import os
import re
import shutil
import sys
import tempfile

from program import PROGRAM, harness
from tap import cases, expect, expect_equal, main, test

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
def it_has_at_most_80_lines_and_its_simulated_figures_are_those_of_the_program():
    with open(readme.README, encoding="utf-8") as file:
        text = file.read()
    expect(len(text.splitlines()) <= 80, f"{len(text.splitlines())} lines")

    def points(*words):
        return {point["policy"]: point for point in harness("whatif", *words, "--json", "-").json()["points"]}

    of = points("--profile", "dgx1-v100", "--model", "resnet50", "--batch", "32", "--gpus", "8", "--policy", "ddp,dp,sync")
    expect(f"`ddp`: {1e3 * of['ddp']['step_s']:.1f} ms per step" in text, "ddp", of)
    expect(f"`sync`: {1e3 * of['sync']['step_s']:.1f} ms per step" in text, "sync", of)
    expect(f"`dp`: {1e3 * of['dp']['step_s']:.0f} ms, of which {1e3 * of['dp']['lost']['python_s']:.0f} are spent" in text, "dp", of)
    slow = points("--profile", "v100-pcie-32g", "--model", "vgg16", "--gpus", "8", "--momentum", "0.9", "--accumulate", "2", "--slow", "3:2",
                  "--policy", "async,sync,ddp", "--draws", "0")
    for policy in ("ddp", "sync", "async"):
        expect(f"`{policy}`: {slow[policy]['samples_per_s']:.0f} samples/s" in text, "a slow GPU", slow)
    with open(readme.RESULT, encoding="utf-8") as file:
        rates = {job["name"]: job["throughput"]["samples_per_s"] for job in json.load(file)["jobs"]}
    expect(f"`ddp`: {rates['ring']:.0f} samples/s | `sync`: {rates['ps']:.0f} samples/s; one process on both cores: {rates['all-cores']:.0f} |" in text,
           "the run below", rates)


def rows(path, begin):
    """The cells of the rows of a document's tables that begin with one of these words: {word: [cells, ...]}"""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        cells = [[cell.strip() for cell in line.strip(" |\n").split("|")] for line in file if line.startswith("| ")]
    return {word: [row[1:] for row in cells if re.match(word + "(:|$)", row[0])] for word in begin}


TABLES = ("throughput", "ddp-benchmark", "torch-vs-apex", "tf-benchmarks", "dp-vs-ddp")


@cases([(name, name) for name in TABLES])
def errors_and_skill_are_those_of_the_page_on_published_tables(name):
    error, skill, _ = rows("README.md", TABLES)[name][0]
    (_, mean, *_), (value, *_), *_ = rows("docs/reproduction.md", TABLES)[name]
    expect_equal((error, skill.replace("too few figures", "no verdict")), (mean, value), "mean error, skill")


@test
def error_and_skill_of_the_training_table_are_those_of_all_its_cells():
    found = rows("README.md", ["training"])["training"][0]
    _, skill, _, error, *_ = rows("docs/reproduction.md", ["all"])["all"][0]
    expect_equal(found[:2], [f"{error} points of efficiency", skill], "mean error, skill")


@test
def every_question_of_the_page_is_answered():
    with open(readme.README, encoding="utf-8") as file:
        commands = re.findall(r"^    build/bin/harness ((?:whatif|memory) .*?)  *#", file.read(), re.M)
    expect(len(commands) >= 3, "commands", commands)
    for command in commands:
        result = harness(*command.split())
        expect(result.code == 0 and "cannot run" not in result.out and "does not fit" not in result.out, command, result)


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
