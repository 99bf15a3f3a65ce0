"""A loss, gradient or parameter that is not finite: --on-nonfinite stop ends the run with exit code 79, names it and keeps
the last checkpoint; skip and warn go on."""
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

FOLDER = tempfile.TemporaryDirectory(prefix="nonfinite-")
WINE = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--warmup", "0", "--threads", "1", "--quiet",
        "--eval-every", "-1"]
RUNAWAY = [*WINE, "--steps", "20", "--lr", "1e30"]  # step 1 begins with parameters of 1e30
ENGINES = [("none", ["--mode", "none"]),
           ("none, reference", ["--mode", "none", "--device", "reference", "--lr", "1e300"]),
           ("dp", ["--mode", "ps", "--policy", "dp"]),
           ("dp, loss on rank 0", ["--mode", "ps", "--policy", "dp", "--dp-loss", "device0"]),
           ("sync", ["--mode", "ps", "--policy", "sync"]),
           ("sync, updates on ranks", ["--mode", "ps", "--policy", "sync", "--server-optimizer", "off"]),
           ("sync, own servers", ["--mode", "ps", "--policy", "sync", "--servers", "2", "--server-placement", "own"]),
           ("ssp", ["--mode", "ps", "--policy", "ssp"]),
           ("async", ["--mode", "ps", "--policy", "async"]),
           ("ddp", ["--mode", "ring"]),
           ("apex", ["--mode", "ring", "--policy", "apex"]),
           ("stages", ["--mode", "ring", "--gpus", "2", "--stages", "2", "--drop-last"]),
           ("stages on devices", ["--mode", "ring", "--stages", "2", "--stages-on", "devices", "--drop-last"]),
           ("torch-0.4.1", ["--mode", "ring", "--policy", "torch-0.4.1"])]


def path(name):
    return os.path.join(FOLDER.name, name)


def content(name):
    with open(path(name), "rb") as file:
        return file.read()


@cases(ENGINES)
def stop_ends_with_79_and_names_step_and_rank(words):
    result = harness("run", *RUNAWAY, *words, "--stall-timeout", "1min")
    expect_equal(result.code, 79, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect("the loss is not finite" in result.err, result)
    for word in (" rank ", " step "):
        expect_equal(result.err.count(word), 1, f"how often the message says '{word}'", result)
    expect_equal(result.out, "", "stdout", result)


@cases([(f"{name}, {rule}", words, rule) for name, words in ENGINES for rule in ("skip", "warn")], at_check=8)
def skip_and_warn_reach_the_end(words, rule):
    result = harness("run", *RUNAWAY, *words, "--on-nonfinite", rule, "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    expect("the loss is not finite" in result.err, result)
    for job in result.jobs().values():
        expect((job["updates_skipped"] > 0) == (rule == "skip"), job["updates_skipped"])


@cases([("none", ["--mode", "none"]), ("dp", ["--mode", "ps"]), ("sync", ["--mode", "ps", "--policy", "sync"]),
        ("async", ["--mode", "ps", "--policy", "async"]), ("ring", ["--mode", "ring"])])
def the_last_good_checkpoint_stays_and_can_be_resumed(words):
    base = [*WINE, *words]
    expect_equal(harness("run", *base, "--steps", "5", "--save", path("good")).code, 0, "exit code of the first run")
    good = content("good")
    result = harness("run", *base, "--load", path("good"), "--steps", "20", "--lr", "1e30", "--save", path("good"),
                     "--save-every", "16")
    expect_equal(result.code, 79, "exit code", result)
    expect(content("good") == good, "the checkpoint has changed", result)
    # The last step makes parameters that are not finite, and no rank computes a loss with them.
    result = harness("run", *base, "--load", path("good"), "--steps", "1", "--lr", "1e300", "--save", path("good"))
    expect_equal(result.code, 79, "exit code", result)
    expect("is not finite" in result.err, result)
    result = harness("run", *base, "--load", path("good"), "--steps", "1", "--lr", "1e300", "--save", path("good"),
                     "--on-nonfinite", "warn")
    expect_equal(result.code, 0, "exit code", result)
    expect("is not finite: " in result.err and "is not written" in result.err, result)
    expect(content("good") == good, "the checkpoint has changed", result)
    result = harness("run", *base, "--load", path("good"), "--steps", "3", "--save", path("resumed"))
    expect_equal(result.code, 0, "exit code", result)


@cases([("none", ["--mode", "none"]), ("dp", ["--mode", "ps"]), ("sync", ["--mode", "ps", "--policy", "sync"]),
        ("sync, own servers", ["--mode", "ps", "--policy", "sync", "--servers", "2", "--server-placement", "own", "--optimizer", "sgd"]),
        ("ring", ["--mode", "ring"])])
def a_checkpoint_keeps_the_number_of_updates_that_were_made(words):
    base = [*WINE, "--optimizer", "adam", "--lr", "1e30", "--on-nonfinite", "skip", *words]
    for steps, more in (("12", ["--save", path("whole")]), ("5", ["--save", path("part")]),
                        ("7", ["--load", path("part"), "--save", path("resumed")])):
        expect_equal(harness("run", *base, "--steps", steps, *more).code, 0, "exit code")
    expect(b'"psring.optimizer_step":"12"' not in content("whole"), "no update was skipped")
    expect(content("whole") == content("resumed"), "the checkpoints differ")


@test
def virtual_time_has_no_values_to_check():
    result = harness("run", "--device", "sim", "--on-nonfinite", "skip", "--steps", "1")
    expect_equal(result.code, 78, "exit code", result)
    expect("--on-nonfinite" in result.err, result)


@test
def help_documents_the_exit_code():
    expect(" 79 " in harness("--help").out, "exit code 79")
    expect("--on-nonfinite" in harness("run", "--help").out, "the option")


main()
