"""Options and values that would be ignored are refused, or a note says so."""
import json
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

FILES = tempfile.TemporaryDirectory(prefix="ignored-test-")
RING = ["--mode", "ring", "--gpus", "2", "--model", "toy", "--steps", "2", "--quiet"]
BOTH = ["--gpus", "2", "--model", "toy", "--steps", "2"]
SWEEP = ["sweep", "--device", "sim", "--model", "lenet", "-o", os.path.join(FILES.name, "never"), "--dry-run"]


def file_of(name, text):
    path = os.path.join(FILES.name, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


OPTIONS = file_of("a.toml", "steps = 2\n")
RESULT = file_of("r.json", "{}")
TRACED = [*RING, "--trace", os.path.join(FILES.name, "never.json")]


@cases([
    ("a varied option", [*SWEEP, "--vary", "batch=8", "--batch", "9"], 64, "--vary: expected batch without an option --batch"),
    ("a varied option by another name", [*SWEEP, "--vary", "gpus=2,4", "--nproc_per_node=3"], 64, "--vary: expected gpus without an option --gpus"),
    ("a varied engine", [*SWEEP, "--vary", "mode=ring", "--mode", "ps"], 64, "--vary: expected mode without an option --mode"),
    ("a varied option of a file", [*SWEEP, "--config", file_of("v.toml", 'vary = "batch=8,16"\nbatch = 9\n')], 64, "v.toml:2:1: --vary: expected batch without an option batch"),
    ("two files of options", [*RING, "--config", OPTIONS, f"--config={OPTIONS}"], 64, "--config: expected one file, got two"),
    ("two files of options of a sweep", [*SWEEP, "--vary", "batch=8", "--config", OPTIONS, "--config", OPTIONS], 64, "--config: expected one file, got two"),
    ("two files of options of a table", ["memory", "--config", OPTIONS, "--config", OPTIONS], 64, "--config: expected one file, got two"),
    ("steps after the run", [*TRACED, "--trace-steps", "100:200"], 64, "--trace-steps: expected steps from 0 to 6, which the job runs, got 100:200"),
    ("steps after the virtual run", [*TRACED, "--device", "sim", "--trace-steps", "7:8"], 64, "--trace-steps: expected steps from 0 to 6, which the job runs, got 7:8"),
    ("a rank twice", [*RING, "--slow", "0:2,1:3,0:3"], 64, "--slow: expected each rank once, got '0:2,1:3,0:3'"),
    ("results of a table of algorithms", ["bench", "--tune", "--json", "x"], 64, "--json: unexpected with --tune"),
    ("sizes of a table of algorithms", ["bench", "--tune", "--begin", "1M"], 64, "--begin: unexpected with --tune"),
    ("an operation of a table of algorithms", ["bench", "broadcast", "--tune"], 64, "bench: unexpected argument 'broadcast' with --tune"),
    ("operations as words and option", ["bench", "all-reduce", "--operations", "broadcast"], 64, "bench: unexpected argument 'all-reduce' with --operations"),
    ("a root of no operation", ["bench", "--root", "1"], 64, "--root: expected an operation with a root, got all_reduce"),
    ("a reduction of no operation", ["bench", "all-gather", "--op", "min"], 64, "--op: expected an operation that reduces, got all_gather"),
    ("results of a list", ["reproduce", "--list", "--json", "x.json"], 64, "--list: expected no other option and no name"),
    ("a table in a list", ["reproduce", "--list", "dp-vs-ddp"], 64, "--list: expected no other option and no name"),
    ("rounds of two results", ["compare", RESULT, RESULT, "--repeat", "3"], 64, "--repeat: expected --builds"),
    ("a model twice", ["models", "lenet", "--model", "toy"], 64, "--model: unexpected with the NAME lenet"),
    ("an empty table of algorithms", [*RING, "--collective-table", file_of("empty", "")], 65, "empty: expected a line for 2 ranks, got none"),
    ("a table of algorithms with comments", [*RING, "--collective-table", file_of("comments", "# none\n")], 65, "comments: expected a line for 2 ranks, got none"),
    ("a table of algorithms for fewer ranks", [*RING, "--collective-table", file_of("one", "ranks<=1 bytes<=64 ring\n")], 65, "one: expected a line for 2 ranks, got none"),
], at_once=2)
def what_would_be_ignored_is_refused(words, code, message):
    result = harness(*words)
    expect_equal((result.code, result.out, len(result.lines())), (code, "", 1), "exit code, stdout, lines on stderr", result)
    expect(message in result.err, f"expected '{message}'", result)


@test
def a_benchmark_without_words_measures_the_operations_of_the_option():
    result = harness("bench", "--operations", "broadcast,gather", "--root", "1", "--begin", "4K", "--end", "4K", "--iters", "2", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    expect_equal([(row["operation"], row["root"]) for row in result.json()["rows"]], [("broadcast", 1), ("gather", 1)], "operations", result)


@cases([("ring", "ring", "sync"), ("ps", "ps", "ddp")])
def a_policy_of_an_engine_that_does_not_run_is_noted(mode, unused):
    """A file of both engines' options runs with one of them, too."""
    for words in (["--policy", "ddp,sync"], ["--config", file_of("both.toml", 'policy = "sync,ddp"\n')]):
        result = harness("--mode", mode, *RING[2:-1], *words)
        expect_equal((result.code, result.lines()), (0, [f"harness: --policy {unused} has no effect here: the mode is {mode}"]), "exit code and notes", result)


@test
def models_take_the_name_as_an_option():
    expect_equal(harness("models", "--model", "toy").out, harness("models", "toy").out, "layers")


@test
def jobs_without_any_of_the_steps_of_the_time_line_are_named():
    result = harness(*BOTH, "--device", "sim", "--trace", os.path.join(FILES.name, "t.json"), "--trace-steps", "9:12")
    expect_equal((result.code, result.err.count("--trace-steps: expected steps from 0 to 6")), (0, 3), "exit code and warnings", result)


@test
def runs_of_a_sweep_take_the_policies_of_their_engine():
    result = harness(*SWEEP, "--vary", "batch=8", "--mode", "ps,ring", "--policy", "ddp,ssp")
    expect_equal(result.code, 0, "exit code", result)
    for engine, policy in (("ps", "ssp"), ("ring", "ddp")):
        line, = [line for line in result.out.splitlines() if f"--mode={engine}" in line]
        expect(f"--policy {policy} " in line, f"--policy {policy}", result)


@test
def an_option_of_the_file_gives_way_to_the_command_line_that_varies_it():
    path = file_of("batch.json", json.dumps({"batch": 9}))
    result = harness(*SWEEP, "--config", path, "--vary", "batch=8,16", "--mode", "ring")
    expect_equal((result.code, len(result.out.splitlines())), (0, 2), "exit code and runs", result)


@test
def a_table_of_memory_notes_options_that_change_no_memory():
    words = ["memory", "--model", "toy", "--gpus", "2", "--steps", "7", "--lr", "3", "--slow", "0:2", "--seed", "9", "--repeat", "4", "--bucket-cap-mb", "3"]
    result = harness(*words)
    expect_equal(result.code, 0, "exit code", result)
    noted = sorted(line.split()[1] for line in result.err.splitlines() if " has no effect here: " in line)
    expect_equal(noted, ["--bucket-cap-mb", "--lr", "--repeat", "--seed", "--slow", "--steps"], "notes", result)
    expect_equal(harness(*words, "--quiet").err, "", "stderr with --quiet", result)
    expect_equal(harness("memory", "--model", "toy", "--gpus", "2", "--optimizer", "adam", "--batch", "3").err, "", "notes on options that change memory")


main()
