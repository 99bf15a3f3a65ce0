"""--save, --load and --save-every from the command line: a resumed run ends with the bits of one that was never
interrupted, and what cannot be saved or loaded ends with one line."""
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

FOLDER = tempfile.TemporaryDirectory(prefix="run-")
WINE = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--warmup", "0", "--threads", "1", "--quiet"]
ONE = [*WINE, "--mode", "none"]
ADAM = ["--optimizer", "adam", "--lr-schedule", "cosine", "--lr-steps", "20"]


def path(name):
    return os.path.join(FOLDER.name, name)


def content(name):
    with open(path(name), "rb") as file:
        return file.read()


def run(*words):
    result = harness("run", *words)
    expect_equal(result.code, 0, "exit code", result)
    return result


@cases([
    ("one rank", [*ONE, *ADAM]),
    ("one rank, momentum", [*ONE, "--lr", "0.01", "--momentum", "0.9", "--dampening", "0.2"]),
    ("ring", [*WINE, "--mode", "ring", "--gpus", "2", *ADAM]),
    ("parameter server", [*WINE, "--mode", "ps", "--policy", "ps=sync", "--servers", "2", "--gpus", "2", *ADAM]),
    ("DataParallel", [*WINE, "--mode", "ps", "--policy", "ps=dp", "--gpus", "2", *ADAM]),
])
def a_resumed_run_is_bit_identical_to_an_uninterrupted_one(words):
    run(*words, "--steps", "17", "--save", path("whole"))
    run(*words, "--steps", "7", "--save", path("part"))
    run(*words, "--steps", "10", "--load", path("part"), "--save", path("resumed"))
    expect(content("whole") == content("resumed"), "the checkpoints differ")


@test
def the_last_of_several_checkpoints_is_the_final_state():
    run(*ONE, "--steps", "9", "--save", path("end"))
    run(*ONE, "--steps", "9", "--save-every", "4", "--save", path("often"))
    expect(content("end") == content("often"), "the checkpoints differ")
    expect_equal([n for n in os.listdir(FOLDER.name) if n.endswith(".partial")], [], "files left behind")


def damaged(name, change):
    run(*ONE, "--steps", "2", "--save", path("good"))
    with open(path(name), "wb") as file:
        file.write(change(content("good")))
    return path(name)


@cases([
    ("no such folder to save in", ["--save", "/nonexistent/file"], 73, "/nonexistent/file"),
    ("--save-every without a file", ["--save-every", "5"], 64, "--save-every"),
    ("no such file", ["--load", "/nonexistent"], 65, "/nonexistent"),
    ("a truncated file", ["--load", damaged("short", lambda b: b[:200])], 65, "at offset"),
    ("an edited file", ["--load", damaged("edited", lambda b: b[:-8] + b"12345678")], 65, "at offset"),
    ("a foreign file", ["--load", os.path.abspath(__file__)], 65, "at offset"),
    ("another model", ["--load", path("good"), "--model", "toy", "--data", "synthetic"], 65, "'wine_mlp'"),
    ("another optimizer", ["--load", path("good"), "--optimizer", "adam"], 65, "'adam'"),
    ("another seed", ["--load", path("good"), "--seed", "7"], 78, "--seed"),
    ("all engines at once", ["--save", path("x"), "--mode", "both"], 64, "--save"),
])
def a_checkpoint_that_cannot_be_used_is_refused_in_one_line(words, code, text):
    result = harness("run", *ONE, "--steps", "1", *words)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect(text in result.err, result)


main()
