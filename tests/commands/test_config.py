"""--config FILE: options from a file, and a run's JSON as the file from which it runs again."""
import json
import os
import resource
import signal
import subprocess
import tempfile
import time

from program import BUILD, Run, harness
from tap import Skip, cases, expect, expect_equal, main, test

SIM = {"mode": "ring", "device": "sim:dgx1-v100", "gpus": 4, "model": "resnet18", "steps": 2, "bucket-cap-mb": 5.5, "bucket_view": True}


def with_file(content, *words, name="config.json"):
    with tempfile.TemporaryDirectory() as folder:
        data = content if isinstance(content, (str, bytes)) else json.dumps(content)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
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


# A result with words that look like keys before and after its options, and inside of them.
RESULT = """{"jobs": [{"steps": 1, "name": "\\"options\\": {"}], "note": "\\\\",
 "list": ["options", {"options": {"steps": 3}}],
 "options":
 {"mode": "\\"gpus\\": 2", "steps" : "2",
   "gpuz": "4"},
 "after": {"gpuz": 1}}"""


@cases([("a wrong name", {"bukcet-cap-mb": 5}, 64, "config.json:1:2: unknown option '--bukcet-cap-mb'; did you mean --bucket-cap-mb?"),
        ("a wrong name on the third line", '{\n "steps": 2,\n  "bukcet-cap-mb": 5\n}', 64, "config.json:3:3: unknown option '--bukcet-cap-mb'; did you mean --bucket-cap-mb?"),
        ("a wrong name in a result", RESULT.replace('"\\"gpus\\": 2"', '"ring"'), 64, "config.json:5:4: unknown option '--gpuz'; did you mean --gpus?"),
        ("a wrong value in a result", RESULT, 64, "config.json:4:3: --mode: expected one of"),
        ("a wrong value", {"steps": -1}, 64, "config.json:1:2: --steps: expected"), ("a wrong word", {"mode": "rang"}, 64, "config.json:1:2: --mode: expected one of"),
        ("a list", {"steps": 1, "mode": ["ps"]}, 65, "config.json:1:14: mode: expected a text, a number, true or false"),
        ("a list of lists", {"vary": [["gpus=1"]]}, 65, "config.json:1:2: vary: expected a text, a number, true or false"),
        ("an object", '{\n"mode":\n {"steps": 1}}', 65, "config.json:2:1: mode: expected a text, a number, true or false"),
        ("a file in the file", {"config": "x"}, 64, "config.json:1:2: --config: expected no option of that name"),
        ("no JSON", "steps = 3", 65, "--config: config.json:1:"), ("twice", '{"steps": 1, "steps": 2}', 65, "config.json:1:"),
        ("no object", "[]", 65, "expected an object of options"), ("an old result", {"jobs": [], "configuration": {}}, 65, "an older program wrote it"),
        ("a zero byte", b'{"mode": "ri\0ng"}', 65, "config.json: expected text, got a zero byte"), ("nothing", "", 65, "--config: config.json:1:")])
def a_file_that_is_wrong_is_refused_with_its_line(content, code, message):
    result = with_file(content)
    expect_equal(result.code, code, "exit code", result)
    expect(message in result.err and len(result.lines()) == 1, f"expected {message!r}", result)


TOML = """# the same in TOML
mode = "ring"
device = 'sim:dgx1-v100'
gpus = 0x4
model = "resnet18"
steps = 2
bucket-cap-mb = 5.5
bucket_view = true
"""


@test
def toml_gives_the_same_options_as_json():
    result, json_result = with_file(TOML, name="config.toml"), with_file(SIM)
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(result.json()["options"], json_result.json()["options"], "options")
    expect_equal(result.json()["jobs"], json_result.json()["jobs"], "jobs")


@cases([("a wrong name", "bukcet-cap-mb = 5", 64, "config.toml:1:1: unknown option '--bukcet-cap-mb'; did you mean --bucket-cap-mb?"),
        ("a wrong name on the third line", "# options\nmode = 'ring'\n  bukcet-cap-mb = 5\n", 64,
         "config.toml:3:3: unknown option '--bukcet-cap-mb'; did you mean --bucket-cap-mb?"),
        ("a wrong value", "mode = 'ring'\nsteps = -1", 64, "config.toml:2:1: --steps: expected"), ("a name twice", "mode = 'ring'\nsteps = 1\nsteps = 2", 65, "config.toml:3:"),
        ("no value", "mode = 'ring'\nsteps =", 65, "config.toml:2:"), ("no TOML", "{\"steps\": 3}", 65, "config.toml:1:"),
        ("a date", "mode = 'ring'\nsteps = 1979-05-27", 65, "config.toml:2:9: steps: expected a text, a number, true or false"),
        ("a time", "seed = 07:32:00", 65, "config.toml:1:8: seed: expected a text"),
        ("a list", "mode = ['ps']", 65, "config.toml:1:1: mode: expected a text"), ("a list of numbers", "mode = [1]", 65, "config.toml:1:8: mode: expected a text"),
        ("an empty list", "mode = []", 65, "config.toml:1:8: mode: expected a text"), ("a table", "[ring]\nsteps = 1", 65, "config.toml:1:1: ring: expected a text"),
        ("a name with a dot", "ring.steps = 1", 65, "ring: expected a text"), ("infinity", "lr = inf", 64, "--lr"), ("a file in the file", "config = 'x'", 64, "no option of that name"),
        ("a number that is too large", "steps = 99999999999999999999", 65, "config.toml:1:"), ("not UTF-8", b"mode = \"\xff\xfe\"", 65, "config.toml:1:"),
        ("a zero byte", b"mode = \"ri\0ng\"", 65, "config.toml: expected text, got a zero byte"), ("an escaped zero", 'mode = "ri\\u0000ng"', 65, "config.toml: "),
        ("a string without end", "mode = 'ring", 65, "config.toml:1:"), ("deep nesting", "a = " + "[" * 100000, 65, "config.toml:1:"),
        ("quotes and controls", 'mode = "\\"\\t\\u001b\\U0001F600"', 64, "--mode: expected one of"), ("a long line", "mode = '" + "x" * 1000000 + "'", 64, "--mode"),
        ("a long key", "x" * 1000000 + " = 1", 64, "unknown option")])
def a_toml_file_that_is_wrong_is_refused_with_its_line(content, code, message):
    result = with_file(content, name="config.toml")
    expect_equal(result.code, code, "exit code", result)
    expect(message in result.err and len(result.lines()) == 1, f"expected {message!r}", result)


@test
def a_file_that_is_missing_is_refused():
    result = harness("--config", "missing.json")
    expect_equal(result.code, 65, "exit code", result)
    expect("--config: missing.json: cannot be opened: No such file" in result.err, "message", result)


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


# ---- reproduce FILE.json -----------------------------------------------------------------------

@cases([("real", ["--mode", "ring", "--model", "wine_mlp", "--data", "wine", "--gpus", "2", "--steps", "6"], True,
         "no verdict: at least 5 runs per side are needed"),
        ("virtual", ["--device", "sim:dgx1-v100", "--model", "resnet18", "--gpus", "4", "--steps", "2"], None, "SIMULATED")])
def a_recorded_result_is_run_again_and_compared(words, identical, part):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        expect_equal(harness(*words, "--json", path, "--quiet").code, 0, "exit code")
        again = harness("reproduce", path, "--repeat", "2", "--json", os.path.join(folder, "again.json"), limit=120)
        expect_equal(again.code, 0, "exit code", again)
        with open(os.path.join(folder, "again.json"), encoding="utf-8") as file:
            found = json.load(file)
    expect(part in again.out and ("no verdict" in again.out) == bool(identical), part, again)
    expect_equal({row["bit_identical"] for row in found["parameters"]}, {identical}, "parameters", found["parameters"])
    expect_equal("bit-identical" in again.out, identical is True, "the report", again)
    for job in found["comparisons"]:
        step = next(row for row in job["metrics"] if row["metric"] == "step time, median")
        expect_equal((step["a_runs"], step["b_runs"]), (1, 1 if identical is None else 2), job["name"])
        expect(identical or step["ratio"] == 1, "virtual time is the same again", step)


@test
def runs_of_repeat_count_as_runs_of_a_comparison():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        expect_equal(harness("--mode", "none", "--model", "toy", "--steps", "3", "--repeat", "5", "--json", path, "--quiet").code, 0, "exit code")
        found = harness("compare", path, path, "--json", "-").json()
        step = found["comparisons"][0]["metrics"][0]
        expect_equal((step["a_runs"], step["b_runs"], step["verdict"]), (5, 5, "not shown"), "a result against itself")


@cases([("a table", ["reproduce", "throughput", "--repeat", "2"], 64, "--repeat: expected the JSON of a run"), ("no file", ["reproduce", "./none.json"], 65, "No such file"),
        ("a device", ["reproduce", "./none.json", "--device", "sim"], 64, "expected only --repeat and --json")])
def what_cannot_be_run_again_is_refused(words, code, message):
    result = harness(*words)
    expect_equal(result.code, code, "exit code", result)
    expect(message in result.err, "message", result)


# ---- files that are written --------------------------------------------------------------------

RUN = ["--mode", "none", "--model", "toy", "--steps", "3", "--quiet"]


def old_file(folder):
    path = os.path.join(folder, "result.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("old")
    return path


def holds_old(path):
    with open(path, encoding="utf-8") as file:
        return file.read() == "old"


@cases([("run", [*RUN, "--device", "sim"]), ("sweep", ["sweep", "--vary", "batch=2,4", *RUN[:-1]]), ("whatif", ["whatif", "--model", "lenet", "--gpus", "2"])])
def a_limit_of_the_file_size_leaves_the_old_file(words):
    """Like a full disk, the kernel refuses a part of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = old_file(folder)
        where = ["-o", folder + "/s"] if words[0] == "sweep" else ["--json", path]
        result = harness(*words, *where, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)))
        expect(result.code in (1, 73, 74), "exit code", result)
        expect(holds_old(path), "the old file", result)
        expect_equal([name for name in os.listdir(folder) if name not in ("result.json", "s")], [], "other files")
        expect_equal(len([line for line in result.lines() if ": sweep: " not in line]), 0 if words[0] == "sweep" and result.code == 1 else 1, "lines", result)


def with_small_disk(check):
    """Calls check(folder, options of mount) in a file system of 16 KiB."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            raise Skip("a file system of its own needs mount(2)")
        try:
            check(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@test
def a_full_disk_leaves_the_old_file():
    def check(folder):
        path = old_file(folder)
        result = harness(*RUN, "--json", path)
        expect(result.code in (73, 74), "exit code", result)
        expect(holds_old(path) and os.listdir(folder) == ["result.json"], "the old file", os.listdir(folder), result)
        expect(len(result.lines()) == 1 and "result.json" in result.err and "No space left" in result.err, "one line", result)
        expect("none" in result.out, "what was measured is not lost", result)

    with_small_disk(check)


@cases([("two replicas", 8, []), ("two stages", 8, ["--stages", "2"]), ("before the last step", 6, ["--save-every", "6"]), ("two stages, before the last step", 6, ["--stages", "2", "--save-every", "6"]),
        ("parameter server", 8, ["--mode", "ps"]), ("servers that do not wait, before the last step", 7, ["--mode", "ps", "--policy", "async", "--save-every", "7"])])
def a_full_disk_under_a_checkpoint_leaves_the_other_results(steps, words):
    def check(small):
        with tempfile.TemporaryDirectory() as folder:
            outputs = ["--json", folder + "/r.json", "--report", folder + "/r.html"]
            result = harness("--mode", "ring", "--gpus", "2", "--model", "lenet", "--steps", "3", "--quiet", "--save", small + "/c.st", *outputs, *words)
            expect_equal((result.code, len(result.lines()), os.listdir(small)), (74, 1, []), "exit code, lines, files on the full disk", result)
            expect("c.st: cannot be written: No space left" in result.err, "the cause", result)
            expect("saved" not in result.out and ("stopped early" in result.out) == (steps < 8), "the report", result)
            with open(folder + "/r.json", encoding="utf-8") as file:
                job = json.load(file)["jobs"][0]
            expect_equal((job["trained_steps"], job["stopped_early"], job["checkpoints"], os.path.exists(folder + "/r.html")), (steps, steps < 8, 0, True), "steps, stopped, checkpoints, page", result)

    with_small_disk(check)


@test
def a_disk_that_is_read_only_is_found_before_the_run():
    def check(folder):
        path = old_file(folder)
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        result = harness(*RUN, "--json", path)
        expect_equal((result.code, result.out, len(result.lines()), holds_old(path)), (73, "", 1, True), "one line, no run, and the old file", result)

    with_small_disk(check)


@cases([("a folder that is missing", None), ("a folder that is read-only", 0o500)])
def a_folder_that_cannot_be_written_is_found_before_the_run(mode):
    if mode and os.geteuid() == 0:
        raise Skip("the superuser may write everywhere")
    with tempfile.TemporaryDirectory() as folder:
        path = old_file(folder) if mode else os.path.join(folder, "none", "result.json")
        os.chmod(folder, mode or 0o700)
        result = harness(*RUN, "--json", path)
        os.chmod(folder, 0o700)
        expect_equal((result.code, result.out, len(result.lines())), (73, "", 1), "one line, and no run", result)
        expect(not mode or holds_old(path), "the old file")


@test
def a_run_that_is_killed_leaves_the_old_file_or_a_whole_one():
    with tempfile.TemporaryDirectory() as folder:
        for delay in range(0, 400, 40):
            path = old_file(folder)
            with Run(*RUN, "--json", path) as run:
                until = time.monotonic() + delay / 1000  # The signal may come at any moment of the run.
                while time.monotonic() < until and run.process.poll() is None:
                    pass
                run.kill(run.pid, signal.SIGKILL)
                run.process.wait()
            with open(path, encoding="utf-8") as file:
                text = file.read()
            expect(text == "old" or json.loads(text)["jobs"], f"after {delay} ms: {text[:80]}")


KILL_AT_CALL = os.path.abspath(os.path.join(BUILD, "tests", "kill_at_call.so"))
PAGE = ["--model", "toy", "--gpus", "2", "--steps", "3", "--quiet"]


def is_whole(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".json"):
        return bool(json.loads(text))
    return text.endswith({"html": "</html>\n", "svg": "</svg>\n", "csv": "\n"}[path.rsplit(".", 1)[1]]) and len(text) > 100


@cases([("report, a page", ["report", "in.json", "-o", "page.html"], ["page.html"], 5),
        ("run, JSON and page", ["run", *PAGE, "--json", "result.json", "--report", "page.html"], ["result.json", "page.html"], 15),
        ("report, figures and numbers", ["report", "in.json", "--svg", ".", "--csv", "."], ["throughput.svg", "memory.svg", "throughput.csv", "memory.csv"], 20),
        ("compare", ["compare", "in.json", "in.json", "--json", "result.json"], ["result.json"], 5)], at_check=1)
def a_kill_at_any_call_leaves_old_files_or_whole_ones(words, outputs, least):
    """Kills the command once at each of its calls that write; then runs the same command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        expect_equal(harness(*PAGE, "--json", os.path.join(folder, "in.json")).code, 0, "exit code")
        states, number = set(), 0
        while True:
            number += 1
            for name in outputs:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write("old")
            with Run(*words, cwd=folder, env={"LD_PRELOAD": KILL_AT_CALL, "KILL_AT": str(number)}) as run:
                result = run.wait(120)
            if result.code == 0:
                break
            expect_equal(result.code, 128 + signal.SIGKILL, f"exit code of a run that is killed at call {number}", result)
            for name in outputs:
                old = holds_old(os.path.join(folder, name))
                expect(old or is_whole(os.path.join(folder, name)), f"{name} after a kill at call {number}")
                states.add((name, old))
        expect(number > least, f"calls that were the last one: {number - 1}")
        expect_equal(states, {(name, old) for name in outputs for old in (True, False)}, "old and new files")
        left = [name for name in os.listdir(folder) if name.endswith(".partial")]
        expect_equal(left, [], "partial files after a run to the end")
        expect(all(is_whole(os.path.join(folder, name)) for name in outputs), "new files")


main()
