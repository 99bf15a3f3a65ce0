#!/usr/bin/env python3
"""The program under the address sanitizer: each engine trains, and each command answers, without an error of memory. TAP.

Its units are tested under the sanitizer, too, but a fault may be in what calls them."""
import os
import tempfile

from program import Run
from tap import cases, expect, expect_equal, main

FOLDER = tempfile.mkdtemp(prefix="run-")
SHORT = ["--model", "lenet", "--steps", "3", "--warmup", "1", "--quiet"]
ON_2 = [*SHORT, "--gpus", "2", "--threads", "1"]
RUNS = [
    ("both engines", ["run", *ON_2, "--json", "both.json", "--report", "both.html", "--trace", "both.trace"]),
    ("epochs of data, saved", ["run", "--mode", "ring", "--gpus", "2", "--model", "wine_mlp", "--data", "wine", "--epochs", "3", "--eval-every", "1ep", "--optimizer", "adam",
                               "--save", "wine", "--save-every", "1ep", "--quiet"]),
    ("a resumed run", ["run", "--mode", "ps", "--gpus", "2", "--model", "wine_mlp", "--data", "wine", "--epochs", "4", "--optimizer", "adam", "--load", "wine", "--quiet"]),
    ("asynchronous servers", ["run", "--mode", "ps", *ON_2, "--policy", "async", "--servers", "2", "--payload", "zmq"]),
    ("servers in separate processes", ["run", "--mode", "ps", *ON_2, "--policy", "sync", "--server-placement", "own"]),
    ("dataparallel", ["run", "--mode", "ps", *ON_2, "--policy", "dp"]),
    ("shards", ["run", "--mode", "ring", *ON_2, "--policy", "zero3", "--accumulate", "2", "--clip-norm", "1"]),
    ("a hook", ["run", "--mode", "ring", *ON_2, "--comm-hook", "powersgd", "--powersgd-start", "1"]),
    ("a pipeline", ["run", "--mode", "ring", *ON_2, "--stages", "2", "--accumulate", "2"]),
    ("the oracle", ["run", "--mode", "ring", *ON_2, "--device", "reference"]),
    ("virtual time", ["run", *SHORT, "--gpus", "8", "--device", "sim:dgx1-v100", "--verbose", "--json", "virtual.json"]),
    ("whatif", ["whatif", "--profile", "dgx1-v100", "--model", "lenet", "--gpus", "1,8", "--policy", "all", "--draws", "2", "--why"]),
    ("memory", ["memory", "--model", "gpt2", "--sequence", "64", "--gpus", "8"]),
    ("buckets", ["buckets", "--model", "resnet18"]),
    ("a sweep", ["sweep", "--vary", "batch=8,16", "-o", "sweep", "--mode", "ring", "--device", "sim", *SHORT[:-1]]),
    ("a report", ["report", "both.json"]),
    ("a comparison", ["compare", "virtual.json", "virtual.json"]),
    ("a trace of pytorch", ["import", os.path.abspath("tests/traces/resnet18.json.gz"), "-o", "job.json"]),
    ("a recorded job", ["whatif", "--profile", "dgx-a100-80g", "--workload", "job.json", "--gpus", "8", "--policy", "ddp,sync", "--draws", "0"]),
    ("profiles", ["profiles"]),
    ("policies", ["policies"]),
    ("doctor", ["doctor"]),
]


@cases(RUNS)
def a_command_ends_without_an_error_of_memory(words):
    with Run(*words, cwd=FOLDER) as run:
        result = run.wait(60)
    expect("Sanitizer" not in result.err and "runtime error" not in result.err, "what the sanitizer says", result)
    expect_equal(result.code, 0, "exit code", result)


main()
