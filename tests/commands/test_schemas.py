"""JSON Schemas of docs/schemas: every JSON that a command writes is valid, and none has a key that its schema does not have."""
import glob
import json
import os
import re
import tempfile

from program import harness
from tap import cases, expect, expect_equal, long_test, main, module_or_skip, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "4", "--steps", "6", "--warmup", "1", "--quiet"]
TOY = ["--model", "toy", "--steps", "3", "--quiet"]
SIM = ["--device", "sim:dgx1-v100", "--model", "resnet18", "--steps", "2", "--quiet"]
SCHEMAS = {os.path.basename(path)[:-len(".schema.json")]: path for path in glob.glob(os.path.join(ROOT, "docs/schemas/*.schema.json"))}


def validator():
    return module_or_skip("jsonschema", "python3-jsonschema").Draft202012Validator


def schema(name):
    with open(SCHEMAS[name], encoding="utf-8") as file:
        return json.load(file)


def check(value, name, *lines):
    errors = sorted(validator()(schema(name)).iter_errors(value), key=lambda e: str(list(e.absolute_path)))
    expect(not errors, *[f"{name}: {'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in errors[:5]], *lines)


# ---- the schemas -------------------------------------------------------------------------------

@cases([(name, name) for name in sorted(SCHEMAS)])
def a_schema_is_valid_and_strict(name):
    validator().check_schema(schema(name))

    def objects(value, path):
        if isinstance(value, dict):
            if "properties" in value and "type" in value:
                expect(value.get("additionalProperties") is False, f"{name}: {path}: other keys are let in")
            for key, inner in value.items():
                objects(inner, f"{path}.{key}")

    objects(schema(name), "")


@test
def every_command_that_writes_json_has_one():
    """The commands that --json is an option of, as the program lists them."""
    of = {"run": {"run", "plan"}, "compare": {"compare", "compare-why"}, "reproduce": {"reproduction", "compare"}}
    commands = re.findall(r"^  ([a-z]+) ", harness("--help").out.split("commands:")[1], re.M)
    for command in commands:
        if re.search(r"--json FILE", harness(command, "--help=all").out):
            for name in of.get(command, {command}):
                expect(name in SCHEMAS, f"no schema for {command}: {name}")
    others = {"sweep", "sweep-definition", "sweep-failures", "profile", "trace", "lab", "lab-gradescope", "lab-prairielearn"}  # labs: test_reports.py
    expect(others <= set(SCHEMAS), "files of sweep, calibrate, --trace and lab check")


# ---- what commands write -----------------------------------------------------------------------

@cases([(" ".join([name, *words]), name, words) for name, words in (
    ("run", ["run", *LENET, "--gpus", "2"]), ("run", ["run", *LENET, "--gpus", "2", "--mode", "ps", "--policy", "async", "--link", "1GB/s,10us"]),
    ("run", ["run", *TOY, "--gpus", "2", "--isolated", "--repeat", "3", "--target-loss", "0.1"]), ("run", ["run", *SIM, "--gpus", "8"]),
    ("run", ["run", *SIM, "--mode", "ring", "--gpus", "4", "--stages", "2", "--accumulate", "3"]),
    ("run", ["run", *LENET, "--mode", "ring", "--gpus", "2", "--remote-stage", "local"]),
    ("run", ["run", *LENET, "--mode", "ring", "--gpus", "2", "--stages", "2", "--accumulate", "2", "--repeat", "3"]),
    ("run", ["run", *LENET, "--mode", "ring", "--gpus", "2", "--stages", "2", "--stages-on", "devices"]),
    ("run", ["run", *SIM, "--mode", "ring", "--gpus", "2", "--stages", "2", "--stages-on", "devices"]),
    ("run", ["run", *TOY, "--mode", "none", "--steps", "0"]), ("run", ["run", *TOY, "--gpus", "3", "--policy", "ps=sync", "--servers", "2", "--server-placement", "own"]),
    ("run", ["run", *SIM, "--mode", "ps", "--gpus", "2", "--policy", "sync", "--server-placement", "own"]),
    ("run", ["run", *TOY, "--gpus", "2", "--comm-hook", "fp16"]), ("run", ["run", *TOY, "--gpus", "2", "--mode", "ps", "--policy", "ssp", "--slow", "1:2"]),
    ("run", ["run", *TOY, "--gpus", "8", "--mode", "ring"]), ("plan", ["run", "--plan", "--model", "lenet", "--gpus", "3"]),
    ("whatif", ["whatif", "--model", "resnet18", "--gpus", "2,4", "--policy", "ddp,dp"]),
    ("whatif", ["whatif", "--model", "resnet18", "--gpus", "2,4", "--draws", "0", "--why"]), ("buckets", ["buckets", "--model", "lenet"]),
    ("memory", ["memory", "--model", "lenet", "--gpus", "4", "--device", "sim:dgx1-v100"]),
    ("bench", ["bench", "all-reduce,broadcast", "--gpus", "2", "--begin", "8", "--end", "4K", "--factor", "64", "--iters", "2", "--check"]),
    ("bench", ["bench", "--begin", "8", "--end", "4K", "--factor", "8", "--iters", "2", "--fit"]),
    ("explain", ["explain", os.path.join(ROOT, "tests/traces/causes/one-unit.json.gz")]),
    ("explain", ["explain", *(os.path.join(ROOT, f"tests/traces/causes/slow-rank{rank}.json.gz") for rank in ("", ".rank1"))]),
    ("reproduction", ["reproduce", "reducer-memory"]))])
def what_a_command_writes_is_valid(name, words):
    result = harness(*words, "--json", "-", limit=120)
    expect_equal(result.code, 0, "exit code", result)
    check(result.json(), name)


@test
def results_again_and_comparisons_are_valid():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r.json")
        expect_equal(harness(*TOY, "--gpus", "2", "--mode", "ring", "--repeat", "3", "--json", path).code, 0, "exit code")
        for words in (["compare", path, path], ["reproduce", path], ["reproduce", path, "--repeat", "1"]):
            result = harness(*words, "--json", "-", limit=120)
            expect_equal(result.code, 0, "exit code", result)
            check(result.json(), "compare", *words)


@test
def an_explanation_is_valid():
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("a.json", "b.json")]
        for path, words in zip(paths, ([], ["--slow", "1:2"])):
            expect_equal(harness("run", *SIM, "--mode", "ring", "--gpus", "2", *words, "--json", path).code, 0, "exit code")
        result = harness("compare", "--why", *paths, "--json", "-")
        expect_equal(result.code, 0, "exit code", result)
        check(result.json(), "compare-why")


@cases([("stale", [*TOY, "--gpus", "2", "--mode", "ps", "--policy", "async"]), ("both engines", [*LENET, "--gpus", "2", "--link", "1GB/s,10us"]),
        ("virtual time", [*SIM, "--gpus", "8", "--nodes", "1"]), ("pipeline", [*SIM, "--mode", "ring", "--gpus", "2", "--stages", "2"])], at_check=1)
def a_trace_is_valid(words):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "t.json")
        result = harness("run", *words, "--trace", path, limit=120)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        expect({"M", "X", "C"} <= {event["ph"] for event in found["traceEvents"]}, "kinds of events")
        check(found, "trace")


@cases([("virtual", [*SIM, "--vary", "gpus=2,4,8"]), ("policies", [*TOY, "--vary", "policy=sync,ddp", "--vary", "servers=1,2", "--gpus", "2"]),
        ("rounds", [*TOY, "--vary", "batch=4,8", "--mode", "ring", "--gpus", "2", "--repeat", "2"]), ("a failure", [*SIM, "--vary", "gpus=2,99", "--mode", "ring"]),
        ("one point", [*SIM, "--vary", "gpus=2", "--mode", "ring"])])
def files_of_a_sweep_are_valid(words):
    with tempfile.TemporaryDirectory() as folder:
        done = harness("sweep", *words, "-o", os.path.join(folder, "s"), limit=120)
        expect_equal(os.path.exists(os.path.join(folder, "s/failures.json")), done.code == 1, "a file of failures", done)
        if done.code == 1:
            with open(os.path.join(folder, "s/failures.json"), encoding="utf-8") as file:
                check(json.load(file), "sweep-failures")
        for name, file_name in (("sweep", "table.json"), ("sweep-definition", "sweep.json")):
            with open(os.path.join(folder, "s", file_name), encoding="utf-8") as file:
                check(json.load(file), name)


@long_test
def what_calibrate_writes_is_a_valid_profile_of_virtual_time():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mine.json")
        result = harness("calibrate", "--threads", "1", "--out", path, limit=600)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            check(json.load(file), "profile")
        expect_equal(harness(*SIM[2:], "--device", "sim:" + path, "--gpus", "2").code, 0, "exit code of a run with it")


@cases([(os.path.basename(path), path) for path in sorted(glob.glob(os.path.join(ROOT, "common/sim/profiles/*.json")))])
def a_profile_is_valid(path):
    with open(path, encoding="utf-8") as file:
        check(json.load(file), "profile")


@cases([(os.path.basename(path), path) for path in sorted(glob.glob(os.path.join(ROOT, "results/reproduce/*.json")))])
def a_recorded_reproduction_is_valid(path):
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    check({"checksum": "", **found}, "reproduction")


@test
def a_key_that_is_not_documented_is_found():
    found = harness("buckets", "--model", "lenet", "--json", "-").json()
    try:
        check({**found, "new": 1}, "buckets")
    except Exception as error:
        expect("new" in str(error), "the key", str(error))
        return
    expect(False, "a new key was let in")


main()
