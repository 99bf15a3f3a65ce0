"""harness compare A B: what is shown, what is not, and what the exit code says."""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

from program import PROGRAM, Run, harness
from tap import cases, expect, expect_equal, long_test, main, test

RUN = ["--mode", "ring", "--model", "wine_mlp", "--data", "wine", "--gpus", "2", "--threads", "1", "--steps", "10"]


def folder():
    return tempfile.TemporaryDirectory(prefix="compare-test-")


def write(path, steps, memory=1000, **more):
    """Results as harness run writes them, with one job and the figures that are compared. `more` is more of the job."""
    os.makedirs(path, exist_ok=True)
    for i, step in enumerate(steps):
        job = {"engine": "ring", "policy": "ddp", "step_time": {"median_s": step}, "throughput": {"samples_per_s": 32 / step},
               "memory_imbalance": {"maximum_bytes": memory},
               "phases": {"exposed_communication_s": {"median_s": step / 10}, "communication_s": {"median_s": step / 5}}, **more}
        with open(os.path.join(path, f"run-{i:02}.json"), "w", encoding="utf-8") as file:
            json.dump({"schema_version": 3, "jobs": [job]}, file)


def around(middle, count=10):
    """Step times within 1 % of `middle`."""
    return [middle * (1 + 0.002 * (i - count / 2)) for i in range(count)]


def compared(path, *words):
    result = harness("compare", os.path.join(path, "a"), os.path.join(path, "b"), "--json", "-", *words)
    expect(result.code in (0, 1), "exit code", result)
    return result, {row["metric"]: row for row in result.json()["comparisons"][0]["metrics"]}


@test
def both_baselines_are_named():
    with folder() as path:
        job = {"engine": "none", "policy": "none", "step_time": {"median_s": 1}, "throughput": {"samples_per_s": 32}}
        with open(os.path.join(path, "run.json"), "w", encoding="utf-8") as file:
            json.dump({"schema_version": 3, "jobs": [{**job, "name": name} for name in ("none", "all-cores")]}, file)
        words = ["compare", os.path.join(path, "run.json"), os.path.join(path, "run.json")]
        heads = [line.split("  ")[0] for line in harness(*words).out.splitlines() if "B/A" in line]
        expect_equal(heads, ["none", "none (all cores)"], "heads")
        expect_equal([one["name"] for one in harness(*words, "--json", "-").json()["comparisons"]], ["none", "all-cores"], "JSON")


@test
def a_shown_slowdown_decides_the_exit_code():
    with folder() as path:
        write(path + "/a", around(0.1))
        write(path + "/b", around(0.108))
        result, rows = compared(path, "--fail-above", "5%")
        step = rows["step time, median"]
        expect_equal((result.code, step["verdict"]), (1, "more"), "exit code and verdict", result)
        expect(abs(step["ratio"] - 1.08) < 1e-9, "ratio", result)
        expect_equal(rows["samples/s"]["verdict"], "less", "samples/s", result)
        expect_equal(rows["peak memory, max over ranks"]["verdict"], "not shown", "equal memory", result)
        result, rows = compared(path, "--fail-above", "0.1")
        expect_equal(result.code, 0, "8 % is not above 10 %", result)
        text = harness("compare", path + "/a", path + "/b")
        expect("slower" in text.out and "not interleaved" in text.out, "text", text)
        expect(max(map(len, text.out.splitlines()[3:])) <= 80, "80 columns", text)


@test
def more_memory_is_no_slowdown_where_there_is_no_step_time():
    with folder() as path:
        for side, memory in (("a", 1000), ("b", 2000)):
            write(os.path.join(path, side), [0.1] * 8, memory)
            for name in os.listdir(os.path.join(path, side)):
                with open(os.path.join(path, side, name), "r+", encoding="utf-8") as file:
                    run = json.load(file)
                    run["jobs"][0].update(step_time={"median_s": None}, throughput={"samples_per_s": None}, phases={})
                    file.seek(0)
                    file.truncate()
                    json.dump(run, file)
        result, rows = compared(path, "--fail-above", "5%")
        expect_equal({name: row["verdict"] for name, row in rows.items()}, {"peak memory, max over ranks": "more"}, "rows", result)
        expect_equal(result.code, 0, "exit code", result)
        text = harness("compare", path + "/a", path + "/b")
        expect("no verdict: expected a step time on both sides" in text.out, "text", text)


@test
def equal_runs_show_nothing_and_say_what_would_be_shown():
    with folder() as path:
        write(path + "/a", around(0.1))
        write(path + "/b", list(reversed(around(0.1))))
        result, rows = compared(path, "--fail-above", "0%")
        step = rows["step time, median"]
        expect_equal((result.code, step["verdict"]), (0, "not shown"), "exit code and verdict", result)
        expect(0 < step["detectable"] < 0.05, "detectable change", result)
        expect(step["runs_for_5_percent"] <= 10, "runs for 5 %", result)
        text = harness("compare", path + "/a", path + "/b")
        expect("~ not shown" in text.out and "5 % would take" in text.out, "text", text)


@test
def single_files_are_single_measurements_without_a_verdict():
    with folder() as path:
        write(path + "/a", [0.1])
        write(path + "/b", [0.2])
        result = harness("compare", path + "/a/run-00.json", path + "/b/run-00.json", "--fail-above", "5%")
        expect_equal(result.code, 0, "exit code", result)
        expect("no verdict: at least 5 runs per side" in result.out, "text", result)


@test
def results_in_virtual_time_are_compared_exactly_and_decide_the_exit_code():
    with folder() as path:
        files = [os.path.join(path, name) for name in ("a.json", "b.json")]
        for cap, file in zip(("25", "1"), files):
            made = harness("run", "--device", "sim:dgx1-v100", "--mode", "ring", "--gpus", "8", "--model", "resnet50", "--steps", "3", "--bucket-cap-mb", cap,
                           "--json", file)
            expect_equal(made.code, 0, "exit code", made)
        again = harness("reproduce", files[0])
        for words, code, verdict, word in (([*files, "--fail-above", "0.1%"], 1, "more", "slower"), ([*files, "--fail-above", "5%"], 0, "more", "slower"),
                                           ([*files[::-1], "--fail-above", "0%"], 0, "less", "faster"), ([files[0]] * 2, 0, "equal", "equal")):
            text, result = (harness("compare", *words, *more) for more in ([], ["--json", "-"]))
            expect_equal((text.code, result.code), (code, code), "exit code", words, text)
            found, = result.json()["comparisons"]
            step = found["metrics"][0]
            expect_equal((step["verdict"], step["p"], found["a_simulated"], found["b_simulated"]), (verdict, None, True, True), "JSON", result)
            for shown in [text] + [again] * (word == "equal"):
                expect("SIMULATED" in shown.out and re.search(rf"^step time, median .* {word}$", shown.out, re.M), "text", shown)
                expect(not re.search("drift|interleaved|runs|verdict", shown.out), "nothing on drift and runs", shown)


@cases([("A", "a"), ("B", "b")])
def a_simulated_and_a_measured_side_have_no_verdict(side):
    with folder() as path:
        write(path + "/a", around(0.1), simulated=side == "a")
        write(path + "/b", around(0.2), simulated=side == "b")
        result, rows = compared(path, "--fail-above", "5%")
        expect_equal((result.code, {row["verdict"] for row in rows.values()}), (0, {"none"}), "exit code and verdicts", result)
        text = harness("compare", path + "/a", path + "/b").out
        expect(f"{side.upper()} SIMULATED" in text and "no verdict: one side is simulated, so B/A contains the error of the model" in text, "text", text)
        expect("drift" not in text and "needed" not in text, "one line", text)


@test
def other_figures_are_corrected_for_being_several():
    with folder() as path:
        write(path + "/a", around(0.1, 6))
        write(path + "/b", around(0.108, 6))
        _, rows = compared(path)
        # Six runs against six: p = 2 / 924. Four other figures are tested, too: three of them have the same p, and
        # the memory, which is equal, has p = 1.
        expect(abs(rows["step time, median"]["p"] - 2 / 924) < 1e-12, "step time", rows)
        for name in ("samples/s", "exposed communication", "communication"):
            expect(abs(rows[name]["p"] - 4 * 2 / 924) < 1e-12, name, rows)
            expect(rows[name]["verdict"] in ("more", "less"), name, rows)
        os.remove(path + "/b/run-05.json")
        os.remove(path + "/a/run-05.json")
        result, rows = compared(path)
        # Five runs against five: p = 2 / 252 is below 0.01, but not below 0.01 / 4.
        expect_equal({name: (row["verdict"], row["least_runs"]) for name, row in rows.items()},
                     {name: ("more", 5) if name == "step time, median" else ("too few runs", 6) for name in rows}, "verdicts", result)
        text = harness("compare", path + "/a", path + "/b")
        expect("no verdict on the other figures: at least 6 runs per side are needed" in text.out, "text", text)


@test
def every_figure_that_shows_nothing_says_what_would_be_shown():
    with folder() as path:
        write(path + "/a", around(0.1))
        write(path + "/b", list(reversed(around(0.1))))
        _, rows = compared(path)
        text = harness("compare", path + "/a", path + "/b")
        lines = text.out.splitlines()
        for name, row in rows.items():
            expect_equal(row["verdict"], "not shown", name)
            at = next(i for i, line in enumerate(lines) if line.startswith(name + " "))
            said = re.match(r"  ~ not shown, p = [0-9.e-]+; ([0-9.]+) % would be; 5 % would take (\d+) runs per side$", lines[at + 1])
            expect(said, f"{name}: the line after it", text)
            expect_equal((said[1], int(said[2])), (f"{100 * row['detectable']:.1f}", row["runs_for_5_percent"]), name)
        expect(rows["communication"]["detectable"] > rows["step time, median"]["detectable"], "one of four takes a larger change", rows)
        expect(max(map(len, lines[3:])) <= 80, "80 columns", text)


@test
def points_and_jobs_of_one_comparison_are_corrected_together():
    """Of two jobs one is slower. 5 runs per side are enough to decide about one job, but not about two; 6 are."""
    with folder() as path:
        for runs, names, code in ((5, ["ring"], 1), (5, ["ps", "ring"], 0), (6, ["ps", "ring"], 1)):
            for side, factor in (("a", 1), ("b", 1.2)):
                at = os.path.join(path, f"{runs}-{len(names)}", side)
                os.makedirs(at)
                for i in range(runs):
                    jobs = [{"name": name, "engine": name, "policy": "p", "step_time": {"median_s": (factor if name == "ring" else 1) * (1 + i / 1000)}}
                            for name in names]
                    with open(os.path.join(at, f"{i}.json"), "w", encoding="utf-8") as file:
                        json.dump({"jobs": jobs}, file)
            where = os.path.join(path, f"{runs}-{len(names)}")
            result, _ = compared(where, "--fail-above", "5%")
            found = {c["name"]: c["metrics"][0] for c in result.json()["comparisons"]}
            expect_equal((result.code, found["ring"]["verdict"]), (code, "more" if code else "too few runs"), f"{runs} runs, {names}", result)
            expect_equal((result.json()["step_tests"], found["ring"]["least_runs"]), (len(names), 4 + len(names)), "tests and runs", result)
            if code and len(names) == 2:
                expect(abs(found["ring"]["p"] - 2 * 2 / 924) < 1e-12, "p", result)
            if not code:
                text = harness("compare", where + "/a", where + "/b")
                expect("no verdict: at least 6 runs per side are needed, there are 5 and 5" in text.out, "text", text)
                expect("p is corrected (Holm) for 2 step times" in text.out, "text", text)


@test
def jobs_are_paired_by_their_names():
    with folder() as path:
        for side, names in (("a", ["none", "all-cores", "ring"]), ("b", ["none", "ring"])):
            os.makedirs(os.path.join(path, side))
            for i in range(5):
                jobs = [{"name": name, "engine": name.replace("all-cores", "none"), "policy": "p",
                         "step_time": {"median_s": {"none": 0.1, "all-cores": 0.2, "ring": 0.3}[name] + i / 1000}} for name in names]
                with open(os.path.join(path, side, f"{i}.json"), "w", encoding="utf-8") as file:
                    json.dump({"jobs": jobs}, file)
        result = harness("compare", path + "/a", path + "/b", "--json", "-")
        found = {c["name"]: c["metrics"][0]["ratio"] for c in result.json()["comparisons"]}
        expect_equal(found, {"none": 1.0, "ring": 1.0}, "ratios of step times", result)


@test
def sweeps_are_compared_point_by_point():
    with folder() as path:
        words = ["--device", "sim:dgx1-v100", "--model", "resnet18", "--steps", "4", "--vary", "gpus=2,4", "--mode", "ring"]
        for side in ("a", "b"):
            made = harness("sweep", *words, "-o", os.path.join(path, side))
            expect_equal(made.code, 0, "exit code", made)
        result = harness("compare", path + "/a", path + "/b", "--json", "-")
        expect_equal(result.code, 0, "exit code", result)
        comparisons = result.json()["comparisons"]
        expect_equal([c["label"] for c in comparisons], ["gpus=2", "gpus=4"], "points")
        expect_equal({row["ratio"] for c in comparisons for row in c["metrics"]}, {1.0}, "the same program in virtual time")
        other = harness("sweep", *words[:-3], "gpus=2,8", "--mode", "ring", "-o", os.path.join(path, "c"))
        expect_equal(other.code, 0, "exit code", other)
        wrong = harness("compare", path + "/a", path + "/c")
        expect_equal((wrong.code, len(wrong.lines())), (78, 1), "other sweeps", wrong)


def slowed(path):
    """A build that is slower by a factor of 2, on both ranks."""
    program = os.path.join(path, "slow")
    with open(program, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\nexec {PROGRAM} \"$@\" --slow 0:2,1:2\n")
    os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
    return program


def find_the_slow_build(times, runs, *more):
    with folder() as path:
        slow = slowed(path)
        words = ["--mode", "ring", "--gpus", "2", "--model", "lenet", "--data", "synthetic", "--batch", "512", "--warmup", "1",
                 "--eval-every", "-1", *more]
        for attempt in range(times):
            kept = os.path.join(path, f"kept-{attempt}")
            result = harness("compare", "--builds", PROGRAM, slow, "--repeat", runs, "-o", kept, "--fail-above", "5%", "--json", "-",
                             "--", *words, limit=600)
            expect_equal(result.code, 1, "exit code", result)
            row = result.json()["comparisons"][0]["metrics"][0]
            expect_equal((row["verdict"], row["a_runs"], row["b_runs"]), ("more", runs, runs), "verdict and runs", result)
            expect(result.json()["interleaved"], "interleaved", result)
            for name in os.listdir(os.path.join(kept, "runs")):
                with open(os.path.join(kept, "runs", name), encoding="utf-8") as file:
                    factors = [rank["slow_factor"] for rank in json.load(file)["jobs"][0]["ranks"]]
                expect_equal(factors, [1, 1] if name.startswith("point-0000") else [2, 2], f"factors of {name}")


@test
def a_build_that_is_twice_as_slow_is_found():
    find_the_slow_build(1, 10, "--device", "sim:dgx1-v100", "--steps", "4")


@long_test
def a_build_that_is_twice_as_slow_is_found_five_times_of_five():
    find_the_slow_build(5, 10, "--steps", "10", "--threads", "1")  # On real processors a disturbed run can hide the difference.


@test
def a_build_that_was_built_anew_does_not_get_the_old_results():
    with folder() as path:
        slow = slowed(path)
        words = ["compare", "--builds", PROGRAM, slow, "--repeat", "2", "-o", os.path.join(path, "kept"), "--", "--mode", "ring",
                 "--device", "sim:dgx1-v100", "--model", "resnet18", "--steps", "4"]
        expect_equal(harness(*words).code, 0, "exit code")
        expect_equal(harness(*words).code, 0, "the same programs")
        with open(slow, "a", encoding="utf-8") as file:
            file.write("# again\n")
        result = harness(*words)
        expect_equal((result.code, len(result.lines())), (78, 1), "another program", result)


@test
def an_interrupted_comparison_of_builds_says_that_it_goes_on_and_does():
    with folder() as path:
        kept = os.path.join(path, "kept", "runs")
        words = ["compare", "--builds", PROGRAM, slowed(path), "--repeat", "2", "-o", os.path.join(path, "kept"), "--", "--mode", "ring",
                 "--model", "wine_mlp", "--data", "wine", "--gpus", "2", "--threads", "1"]
        until = time.monotonic() + 120
        with Run(*words, "--steps", "1000") as run:
            while not os.path.isdir(kept) or not any(name.endswith(".json") for name in os.listdir(kept)):
                expect(time.monotonic() < until, "expected a run", run.peek())
                time.sleep(0.002)
            run.kill(run.pid, signal.SIGINT)
            result = run.wait(60)
        expect_equal(result.code, 130, "exit code", result)
        expect("the comparison was interrupted: the same command goes on" in result.err, "what to do next", result)
        finished = {name: os.stat(os.path.join(kept, name)).st_mtime_ns for name in os.listdir(kept) if name.endswith(".json")}
        result = harness(*words, "--steps", "1000")
        expect_equal((result.code, len(os.listdir(kept))), (0, 4), "exit code and runs", result)
        expect_equal({name: os.stat(os.path.join(kept, name)).st_mtime_ns for name in finished}, finished, "the finished runs are kept")


@test
def sweeps_of_two_programs_are_compared():
    with folder() as path:
        copy = os.path.join(path, "harness")
        shutil.copy(PROGRAM, copy)
        with open(copy, "ab") as file:
            file.write(b"rebuilt")
        words = ["--device", "sim:dgx1-v100", "--model", "resnet18", "--steps", "4", "--vary", "gpus=2,4", "--mode", "ring"]
        for program, side in ((PROGRAM, "a"), (copy, "b")):
            subprocess.run([program, "sweep", *words, "-o", os.path.join(path, side)], capture_output=True, check=True)
        result = harness("compare", path + "/a", path + "/b", "--json", "-")
        expect_equal(result.code, 0, "exit code", result)


@cases([("one side", ["a.json"], 64, "two files"), ("no such file", ["/no/a.json", "/no/b.json"], 65, "/no/a.json"),
        ("an unknown option", ["a", "b", "--fail-over", "5%"], 64, "--fail-over"),
        ("a build that is none", ["--builds", "/no/harness", PROGRAM, "-o", "x", "--", *RUN], 64, "'/no/harness': No such file"),
        ("a build without its folder", ["--builds", "nosuch", "/bin/true", "-o", "x", "--", *RUN], 64, "'nosuch': No such file or directory"),
        ("builds without a folder", ["--builds", PROGRAM, PROGRAM, "--", *RUN], 64, "-o DIR"),
        ("a share that is none", ["a", "b", "--fail-above", "much"], 64, "much")])
def wrong_words_are_answered_with_one_line(words, code, part):
    result = harness("compare", *words)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect(part in result.err, f"expected {part!r}", result)


if __name__ == "__main__":
    sys.exit(main())
