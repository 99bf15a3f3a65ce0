"""--config FILE: options from a file, and a run's JSON as the file from which it runs again."""
import json
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

SIM = {"mode": "ring", "device": "sim:dgx1-v100", "gpus": 4, "model": "resnet18", "steps": 2, "bucket-cap-mb": 5.5, "bucket_view": True}


def with_file(content, *words, name="config.json"):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return harness(*words, "--config", name, "--json", "-", "--quiet", cwd=folder, allowed=(name,))


@test
def options_of_a_file_are_those_of_the_command_line():
    result = with_file(SIM)
    expect_equal(result.code, 0, "exit code", result)
    words = ["--mode", "ring", "--device", "sim:dgx1-v100", "--gpus", "4", "--model", "resnet18", "--steps", "2", "--bucket-cap-mb", "5.5", "--bucket-view"]
    given = harness(*words, "--json", "-", "--quiet").json()
    expect_equal(result.json()["jobs"], given["jobs"], "jobs")
    expect_equal(result.json()["options"], given["options"], "options")


@test
def the_command_line_comes_after_the_file():
    found = with_file(SIM, "--gpus", "2", "--no-bucket-view").json()["options"]
    expect_equal((found["gpus"], found["bucket-view"], found["steps"]), ("2", "no", "2"), "options")


@cases([("a wrong name", {"bukcet-cap-mb": 5}, 64, "config.json: unknown option '--bukcet-cap-mb'; did you mean --bucket-cap-mb?"),
        ("a wrong value", {"steps": -1}, 64, "config.json: --steps: expected"), ("a wrong word", {"mode": "rang"}, 64, "config.json: --mode: expected one of"),
        ("a list", {"mode": ["ps"]}, 65, "--config: config.json: mode: expected a text, a number, true or false"),
        ("a file in the file", {"config": "x"}, 64, "config.json: --config: expected no option of that name"),
        ("no JSON", "steps = 3", 65, "--config: config.json:1:"), ("twice", '{"steps": 1, "steps": 2}', 65, "config.json:1:"),
        ("no object", "[]", 65, "expected an object of options"), ("an old result", {"jobs": [], "configuration": {}}, 65, "an older program wrote it")])
def a_file_that_is_wrong_is_refused_with_its_name(content, code, message):
    result = with_file(content)
    expect_equal(result.code, code, "exit code", result)
    expect(message in result.err and len(result.lines()) == 1, f"expected {message!r}", result)


@test
def a_file_that_is_missing_is_refused():
    result = harness("--config", "missing.json")
    expect_equal(result.code, 65, "exit code", result)
    expect("--config: missing.json: No such file" in result.err, "message", result)


@cases([("policies with keys", ["--mode", "both", "--policy", "ps=sync:priority=fifo,ring=ddp:order=ready"]), ("adam", ["--mode", "ring", "--optimizer", "adam"]),
        ("epochs", ["--mode", "ring", "--epochs", "1", "--data", "wine"]), ("no steps", ["--mode", "ring", "--steps", "0"]), ("none", ["--mode", "none"])])
def a_result_runs_the_same_again(words):
    words = ["--model", "wine_mlp", *words, *(["--gpus", "2"] if "none" not in words else [])]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        first = harness(*words, "--json", path, "--quiet", limit=120)
        expect_equal(first.code, 0, "exit code", first)
        again = harness("--config", path, "--json", "-", "--quiet", limit=120)
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
    expect_equal(again.code, 0, "exit code", again)
    after = again.json()
    expect_equal(after["options"], before["options"], "options")
    differing = {key for key in before["configuration"] if before["configuration"][key] != after["configuration"][key]}
    expect(differing <= {"config", "json", "quiet"}, f"configuration: {differing}")
    for a, b in zip(before["jobs"], after["jobs"]):
        expect_equal((b["steps"], b["parameter_hash"]), (a["steps"], a["parameter_hash"]), a["name"])


main()
