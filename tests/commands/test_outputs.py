"""Outputs that would replace another output or an input, and names of files that are empty."""
import os
import shutil
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

FOLDER = tempfile.TemporaryDirectory(prefix="outputs-test-")
INPUTS = os.path.join(FOLDER.name, "inputs")
RING = ["--mode", "ring", "--gpus", "2", "--model", "toy", "--steps", "2", "--quiet"]
SIM = ["--mode", "ring", "--gpus", "2", "--model", "lenet", "--device", "sim:dgx1-v100", "--steps", "2", "--quiet"]
TABLE = ["reproduce", "dp-vs-ddp", "--draws", "0"]


def run(folder, words, makes=()):
    return harness(*words, cwd=folder, allowed=[*os.listdir(folder), *makes])


def make_inputs():
    """Makes a checkpoint, a result, a workload and files of options, once."""
    if os.path.exists(INPUTS):
        return
    os.mkdir(INPUTS)
    for words, makes in (([*RING, "--save", "c.st", "--json", "r.json"], ["c.st", "r.json"]),
                         (["--mode", "none", "--model", "lenet", "--device", "sim:dgx1-v100", "--steps", "2", "--quiet", "--workload-out", "w.json"], ["w.json"])):
        result = run(INPUTS, words, makes)
        expect_equal(result.code, 0, "exit code", result)
    for name, text in (("k.toml", "steps = 2\n"), ("w.toml", 'workload = "w.json"\n'), ("k.json", '{"steps": 2}\n'), ("table", "ranks<=64 bytes<=64 ring\n"),
                       ("wine", "1,2\n"), ("t.json", "{}\n")):
        with open(os.path.join(INPUTS, name), "w", encoding="utf-8") as file:
            file.write(text)
    os.symlink("r.json", os.path.join(INPUTS, "link"))
    os.symlink("missing", os.path.join(INPUTS, "dangling"))
    os.symlink(".", os.path.join(INPUTS, "here"))


def contents(folder):
    found = {}
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found[name] = file.read()
    return found


def in_copy(function):
    """Calls the function with a folder that has a copy of the inputs."""
    make_inputs()
    with tempfile.TemporaryDirectory(dir=FOLDER.name) as folder:
        copy = os.path.join(folder, "copy")
        shutil.copytree(INPUTS, copy, symlinks=True)
        return function(copy)


def refused(words, *parts):
    def check(folder):
        before = contents(folder)
        result = run(folder, words)
        expect_equal(result.code, 64, "exit code", result)
        expect_equal((result.out, len(result.lines())), ("", 1), "stdout, and lines on stderr", result)
        for part in parts:
            expect(part in result.lines()[0], f"expected {part!r} in the line", result)
        expect_equal(contents(folder), before, "files")
    in_copy(check)


@cases([
    ("a dot", [*RING, "--json", "x.json", "--save", "./x.json"], "json", "save"),
    ("a link", [*RING, "--json", "r.json", "--report", "link"], "json", "report"),
    ("a link to a missing file", [*RING, "--json", "missing", "--trace", "dangling"], "json", "trace"),
    ("a link to the folder", [*RING, "--report", "here/x", "--trace", "x"], "report", "trace"),
    ("a checkpoint of an epoch", [*RING, "--save", "a{epoch}", "--json", "a0"], "json", "save"),
    ("a partial file", [*RING, "--json", "q.json", "--report", "q.json.partial"], "json", "report"),
    ("a partial checkpoint of an epoch", [*RING, "--save", "a{epoch}", "--trace", "./a12.partial"], "trace", "save"),
    ("a workload", [*SIM, "--workload-out", "x", "--json", "x"], "json", "workload-out"),
    ("whatif", ["whatif", "--gpus", "2", "--csv", "a", "--json", "./a"], "json", "csv"),
    ("a table as CSV", [*TABLE, "--json", "y", "--csv", "y"], "json", "csv"),
    ("a table as Markdown", [*TABLE, "--json", "y", "--markdown", "./y"], "json", "markdown"),
])
def an_output_that_would_replace_another_one_is_refused(words, one, other):
    refused(words, f"--{one} and --{other}: expected different files")


@cases([
    ("a checkpoint", [*RING, "--load", "c.st", "--json", "c.st"], "json", "c.st"),
    ("a checkpoint by a time line", [*RING, "--load", "c.st", "--trace", "./c.st"], "trace", "c.st"),
    ("options", [*RING, "--config", "k.toml", "--report", "k.toml"], "report", "k.toml"),
    ("options in JSON", [*RING, "--config", "k.json", "--json", "k.json"], "json", "k.json"),
    ("options by a checkpoint", [*RING, "--config", "k.toml", "--save", "k.toml"], "save", "k.toml"),
    ("a data set", [*RING[:4], "--model", "wine_mlp", "--data", "wine:wine", "--json", "wine"], "json", "wine"),
    ("a table of algorithms", [*RING, "--collective-table", "table", "--json", "table"], "json", "table"),
    ("a table of algorithms of a benchmark", ["bench", "--algorithm", "tuned", "--collective-table", "table", "--json", "table"], "json", "table"),
    ("a profile", ["--device", "sim:./k.json", "--model", "lenet", "--mode", "none", "--json", "k.json"], "json", "./k.json"),
    ("the result of a report", ["report", "r.json", "-o", "r.json"], "out", "r.json"),
    ("one of two results of a report", ["report", "k.json", "link", "-o", "r.json"], "out", "link"),
    ("a result that is compared", ["compare", "k.json", "r.json", "--json", "r.json"], "json", "r.json"),
    ("a result that is explained", ["compare", "--why", "k.json", "r.json", "--json", "./r.json"], "json", "r.json"),
    ("a result that runs again", ["reproduce", "r.json", "--json", "r.json"], "json", "r.json"),
    ("a profile of a table", [*TABLE, "--device", "sim:./k.json", "--csv", "k.json"], "csv", "./k.json"),
    ("a trace that is imported", ["import", "t.json", "-o", "t.json"], "output", "t.json"),
    ("a trace that is explained", ["explain", "t.json", "--json", "t.json"], "json", "t.json"),
    ("a workload of whatif", ["whatif", "--workload", "w.json", "--gpus", "1,2", "--profile", "dgx1-v100", "--json", "w.json"], "json", "w.json"),
    ("a workload of memory", ["memory", "--workload", "w.json", "--gpus", "2", "--json", "w.json"], "json", "w.json"),
    ("a workload from the options of memory", ["memory", "--config", "w.toml", "--gpus", "2", "--json", "w.json"], "json", "w.json"),
    ("a workload of buckets", ["buckets", "--workload", "w.json", "--json", "w.json"], "json", "w.json"),
])
def an_output_that_would_replace_an_input_is_refused(words, option, path):
    refused(words, f"--{option}: expected another file than the input {path}")


@test
def a_job_that_is_resumed_may_save_to_its_checkpoint():
    def check(folder):
        for save in ("c.st", "c{epoch}.st"):
            result = run(folder, [*RING, "--load", "c.st", "--save", save, "--json", "c.json", "--report", "c.html"], ["c.json", "c.html", "c0.st"])
            expect_equal(result.code, 0, "exit code", result)
    in_copy(check)


@test
def names_that_are_alike_are_different_files():
    def check(folder):
        os.mkdir(os.path.join(folder, "a"))
        made = ["a0.st", "a.st", "a0.st2"]
        result = run(folder, [*RING, "--save", "a{epoch}.st", "--json", "a/a0.st", "--report", "a.st", "--trace", "a0.st2"], made)
        expect_equal(result.code, 0, "exit code", result)
        expect(set(made) <= set(contents(folder)), "all files", result)
    in_copy(check)


@cases([(" ".join(words), words) for words in (
    ["--json"], ["--report"], ["--trace"], ["--save"], ["--load"], ["--config"], ["--workload"], ["--workload-out"], ["report", "x", "--out"], ["report", "x", "--svg"],
    ["compare", "x", "y", "--json"], ["import", "x", "--output"], ["explain", "x", "--json"], ["memory", "--json"], ["whatif", "--csv"], ["reproduce", "dp-vs-ddp", "--markdown"],
    ["bench", "--json"], ["buckets", "--json"], ["calibrate", "--out"], ["sweep", "--vary", "batch=8", "--out"], ["sweep", "--vary", "batch=8", "-o", "x", "--config"])], at_once=4)
def an_empty_name_of_a_file_is_refused_with_the_name_of_the_option(words):
    for value in ([*words[:-1], words[-1] + "="], [*words, ""]):
        result = harness(*value)
        expect_equal((result.code, len(result.lines())), (64, 1), "exit code and lines", result)
        expect(f"{words[-1]}: expected " in result.err and "got ''" in result.err, "the option and its value", result)


main()
