"""The commands of docs/tutorial.md work, shortened to a few steps, and its table names rows of the report."""
import json
import os
import re
import shlex
import subprocess
import tempfile

from images import fashion_mnist, few_clothes
from program import harness
from tap import expect, expect_equal, long_test, main, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
PROGRAM = "build/bin/harness"
SHORT = ["--batch", "2", "--warmup", "1", "--eval-every", "-1"]

with open(os.path.join(ROOT, "docs/tutorial.md"), encoding="utf-8") as file:
    TEXT = file.read()


def commands():
    """The lines of all ```sh blocks, as words, with the variable `run` replaced."""
    variable = ""
    for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("run="):
                variable = shlex.split(line)[0][len("run="):]
                continue
            yield shlex.split(line.replace("$run", variable))


def demo():
    """The words of the program's command in `make demo`."""
    done = subprocess.run(["make", "-s", "-n", "demo"], cwd=ROOT, stdout=subprocess.PIPE, universal_newlines=True, check=True)
    line = next(line for line in done.stdout.replace("\\\n", " ").splitlines() if line.startswith(PROGRAM + " --"))
    words = shlex.split(line)
    return words[:words.index("--json")]  # whose file is in the build's folder


def run(words, folder, steps=2, data=None):
    """`data` replaces the whole data set, which takes as long to read as these steps take."""
    expect_equal(words[0], PROGRAM, "program of a command")
    words = [data or word if word == "fashion-mnist" else word for word in words]
    result = harness(*words[1:], *SHORT, "--steps", steps, cwd=folder, allowed=("trace.json", "result.json", "step.html", "buckets", "buckets.html"), limit=120)
    expect_equal(result.code, 0, "exit code", result)
    return result


def row_of(result, name):
    return next((line for line in result.out.splitlines() if line.strip().startswith(name)), None)


@test
def the_table_explains_rows_of_the_report_of_make_demo():
    fashion_mnist()
    expect(["make", "demo"] in commands(), "the tutorial begins with make demo")
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        result = run([*demo(), "--verbose"], folder, data=few_clothes(2400))
    for first in re.findall(r"^\| (`.*?) \|", TEXT, re.M):
        for name in re.findall(r"`([^`]+)`", first):
            expect(row_of(result, name), f"no row {name!r}", result)
    expect("Parameters of ps and ring at the end" in result.out, "the comparison of parameters", result)
    quote = re.search(r"^```text\n(.*?)^```$", TEXT, re.S | re.M)[1].splitlines()
    expect(len(quote) <= 12, "the quoted verdict has at most ten lines after the workload", quote)
    for label in ("resnet18: images", "In this run ", "One process on all cores", "A step of ", "Memory: ps rank 0", "Next: "):
        expect(any(line.startswith(label) for line in quote) and row_of(result, label), f"{label!r} in the tutorial and the verdict", result)


@long_test
def every_command_works_and_servers_on_all_ranks_send_less_than_one():
    fashion_mnist()
    sent, data = {}, None
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        for words in commands():
            if words[0] == "make":
                continue
            if words[1] in ("sweep", "report"):  # in virtual time nothing needs to be shortened
                done = harness(*words[1:], cwd=folder, allowed=("buckets", "buckets.html", "trace.json", "result.json", "step.html"))
                expect_equal(done.code, 0, "exit code", done)
                continue
            servers = "--servers" in words
            result = run(words, folder, 10 if servers else 2, data)  # messages of the last step may leave after its end
            data = few_clothes(2400)  # of all but the first command
            if servers:
                row = row_of(result, "bytes sent per step, max")
                sent[words[words.index("--servers") + 1]] = float(re.search(r"([\d.]+) MiB", row)[1])
        expect_equal(sorted(os.listdir(folder)), ["buckets", "buckets.html", "result.json", "step.html", "trace.json"], "files")
        with open(os.path.join(folder, "buckets", "table.json"), encoding="utf-8") as file:
            points = json.load(file)["points"]
    rates = {(p["values"]["link"], float(p["values"]["bucket-cap-mb"])): p["samples_per_s"]["median"] for p in points}
    expect(abs(rates["10Gbit/s", 5] / rates["10Gbit/s", 25] - 1) < 0.03, "the line is not flat", rates)
    expect(rates["10Gbit/s", 100] < 0.9 * rates["10Gbit/s", 50] < 0.9 * 0.97 * rates["10Gbit/s", 25], "50 or 100 MiB are as fast", rates)
    expect(all(1.8 < rates["100Gbit/s", size] / rates["10Gbit/s", size] < 2.3 for size in (5, 25, 50, 100)), "the faster link is not twice as fast", rates)
    expect(sent["3"] < 0.8 * sent["1"], f"MiB sent per step by servers: {sent}")


main()
