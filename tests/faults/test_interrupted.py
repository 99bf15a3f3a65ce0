"""Signals to the launcher: it ends the run in order, reports what there is, and leaves nothing."""
import json
import os
import re
import signal
import tempfile
import time

from program import BUILD, Run, Watch, harness
from struck import GONE, LENET, RESNET, errors, reach, strike
from tap import cases, expect, expect_equal, main, more_test, test

BOTH = ["--gpus", "2", *LENET]
BESIDE = [*BOTH, "--steps", "3000"]  # a turn of 500
JOBS = [("none", ["--mode", "none", *LENET], "none"), ("ps", ["--mode", "ps", *BOTH], "ps"), ("ring", ["--mode", "ring", *BOTH], "ring"),
        ("ps, sync", ["--mode", "ps", "--policy", "sync", *BOTH], "ps"),
        ("zero1", ["--mode", "ring", "--policy", "zero1", *BOTH], "ring"),
        ("zero3", ["--mode", "ring", "--policy", "zero3", *BOTH], "ring"),
        ("zero2", ["--mode", "ring", "--policy", "zero2", *BOTH], "ring"), ("fsdp", ["--mode", "ring", "--policy", "fsdp", *BOTH], "ring"),
        ("hybrid", ["--mode", "ring", "--policy", "zero3:group=2", "--gpus", "4", *LENET], "ring"),
        ("a remote stage", ["--mode", "ring", "--remote-stage", "local", "--eval-every", "-1", *BOTH], "ring"),
        ("ps, async", ["--mode", "ps", "--policy", "async", *BOTH], "ps"), ("side by side", BESIDE, "ring")]


def ends_in_order(run, watch, code, allowed=()):
    result = run.wait(GONE)
    watch.check(run, allowed=allowed)
    expect_equal(result.code, code, "exit code", result)
    expect_equal([line for line in errors(result) if "ending after this step" not in line and ": stopped: " not in line], [], "lines of errors", result)
    return result


@cases([(f"{name} ({what})", words, engine, number, code)
        for name, words, engine in JOBS
        for what, number, code in (("Ctrl-C", signal.SIGINT, 130), ("SIGTERM", signal.SIGTERM, 143))] +
       [("ring (SIGHUP)", *JOBS[2][1:], signal.SIGHUP, 129), ("ring (SIGUSR1)", *JOBS[2][1:], signal.SIGUSR1, 138)])
def a_signal_ends_the_run_after_the_step_and_prints_the_report(words, engine, number, code):
    watch = Watch()
    with Run(*words, "--json", "-") as run:
        reach(run, engine, 0, 30)
        run.kill(run.pid, number)
        result = ends_in_order(run, watch, code)
    for job in result.json()["jobs"]:
        expect_equal(job["stopped_early"], True, f"{job['engine']} was stopped early")
        expect(job["step_time"]["count"] > 0 or job["engine"] != engine, "steps were measured", job["step_time"])
        for rank in job["ranks"]:
            expect_equal(len(rank["step_s"]), rank["measured_steps"], f"{job['engine']} rank {rank['rank']}: steps")


@test
def the_report_of_a_stopped_run_is_marked():
    watch = Watch()
    with Run("--mode", "ring", "--verbose", *BOTH) as run:
        reach(run, "ring", 0, 30)
        run.kill(run.pid, signal.SIGINT)
        result = ends_in_order(run, watch, 130)
    for part in ("step time, mean", "Memory of ring", "Stopped before its last step."):
        expect(part in result.out, f"expected {part!r} in the report", result)


@cases([("ps", ["--mode", "ps", *BOTH], "ps"), ("ring", ["--mode", "ring", *BOTH], "ring"), ("side by side", BESIDE, "none")])
def a_signal_to_the_process_group_ends_the_run_in_order(words, engine):
    watch = Watch()
    with Run(*words) as run:
        reach(run, engine, 0, 10)
        os.killpg(run.pid, signal.SIGINT)
        ends_in_order(run, watch, 130)


@cases([("ps", ["--mode", "ps", *BOTH], "ps"), ("ring", ["--mode", "ring", *BOTH], "ring"), ("side by side", BESIDE, "ps")])
def a_second_signal_stops_the_run_at_once(words, engine):
    watch = Watch()
    with Run(*words) as run:
        pid = strike(run, engine, 1, "forward", 10, signal.SIGSTOP)[0]  # so that no step ends
        run.kill(run.pid, signal.SIGINT)
        run.wait_for_line("a second signal after 2 s ends the run at once")
        run.kill(run.pid, signal.SIGTERM)  # counts as the first one's
        time.sleep(2)
        expect(run.process.poll() is None, "the first one waits for the step", run.peek())
        expect(pid in run.processes(), "the stopped rank is there", run.peek())
        run.kill(run.pid, signal.SIGINT)
        result = run.wait(GONE)
        watch.check(run)
    expect_equal(result.code, 130, "exit code", result)


@cases([("none", ["--mode", "none", *LENET], "none"), ("ring", ["--mode", "ring", *BOTH], "ring"), ("side by side", BESIDE, "ring")])
def a_signal_during_setup_ends_the_run(words, engine):
    watch = Watch()
    with Run(*words) as run:
        run.wait_for_rank(engine, 0)
        run.kill(run.pid, signal.SIGINT)
        result = run.wait(GONE)
        watch.check(run)
    expect_equal(result.code, 130, "exit code", result)


@cases([("the last stage of two", ["--stages", "2"], 1), ("ring", [], 0), ("the first stage of two", ["--stages", "2"], 0)], at_check=1)
def a_signal_ends_an_evaluation_without_a_result(words, rank):
    watch = Watch()
    with Run("--mode", "ring", "--gpus", "2", *RESNET, "--data", "synthetic:3x96x96:10", "--steps", "3", *words, "--json", "-") as run:
        strike(run, "ring", rank, "evaluate", 3, 0)
        run.kill(run.pid, signal.SIGTERM)
        result = ends_in_order(run, watch, 143)
    job = result.json()["jobs"][0]
    expect_equal(job["step_time"]["count"], 3, "measured steps")
    for rank in job["ranks"]:
        expect_equal(rank["evaluations"], [], f"evaluations of rank {rank['rank']}")


@test
def a_checkpoint_is_written_before_the_end():
    watch = Watch()
    with Run("--mode", "ring", *BOTH, "--save", "last.safetensors", "--json", "-") as run:
        reach(run, "ring", 0, 20)
        run.kill(run.pid, signal.SIGTERM)
        result = ends_in_order(run, watch, 143, allowed=("last.safetensors",))
        with open(os.path.join(run.cwd, "last.safetensors"), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    steps = result.json()["jobs"][0]["steps"]
    expect(steps > 20, "steps were done", result)
    expect(str(steps) in header["__metadata__"].values(), f"step {steps} in the checkpoint", header["__metadata__"])


# ---- before and after the ranks ----------------------------------------------------------------

TOY = ["--mode", "ring", "--gpus", "2", "--model", "toy", "--steps", "5", "--quiet"]
OUTPUTS = {"r.json": "--json", "r.html": "--report", "t.json": "--trace"}


def signaled_at(call, number, *words, cwd, **variables):
    """Runs the program, which gets the signal at its call with this number (kill_at_call.c)."""
    library = os.path.abspath(os.path.join(BUILD, "tests", "kill_at_call.so"))
    with Run(*words, cwd=cwd, env={"LD_PRELOAD": library, "KILL_AT": str(call), "KILL_WITH": str(int(number)), **variables}) as run:
        return run.wait(60)


def ends_without_loss_at(call):
    """Whether a signal at this call came before the end of the program. It leaves all outputs, or none and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        words = [word for name, option in OUTPUTS.items() for word in (option, name)]
        result = signaled_at(call, signal.SIGTERM, *TOY, *words, cwd=folder)
        if result.code == 0:
            return False
        expect_equal(result.code, 143, "exit code", result)
        files = sorted(os.listdir(folder))
        if files or result.out:
            expect_equal(files, sorted(OUTPUTS), f"files after a signal at call {call}", result)
            expect("ring (ddp) trains " in result.out, "the report", result)
            expect(len(result.lines()) == 1 and "after the end of the run" in result.lines()[0], "one line", result)
        expect(files or call <= 2 * len(OUTPUTS), f"call {call} is one of a test of the outputs before the run", result)
    return True


@cases([("the test of an output before the run", 2), ("the trace", 8), ("the page", 13), ("the JSON", 18)])
def a_signal_while_outputs_are_made_loses_none_and_leaves_no_partial_file(call):
    expect(ends_without_loss_at(call), "the signal came")


@more_test
def a_signal_at_any_call_for_an_output_loses_none():
    call = 1
    while ends_without_loss_at(call):
        call += 1
    expect(call > 20, f"calls that were the last one: {call - 1}")


@test
def a_signal_between_the_rounds_keeps_the_finished_ones():
    with tempfile.TemporaryDirectory() as folder:
        result = signaled_at(16, signal.SIGINT, *TOY, "--repeat", "5", "--json", "r.json", cwd=folder, KILL_MEMORY="1")
        with open(os.path.join(folder, "r.json"), encoding="utf-8") as file:
            found = json.load(file)["repetitions"]["count"]
    expect(result.code == 130 and 1 < found < 5, f"{found} rounds", result)
    expect_equal(result.lines()[-1], f"harness: the results are of {found} of 5 runs", "line", result)


@cases([("after two rounds", "5", 18, True), ("in the first round", "5", 6, False)])
def a_run_again_that_is_stopped_compares_the_rounds_that_ended(rounds, call, compared):
    with tempfile.TemporaryDirectory() as folder:
        expect_equal(harness(*TOY, "--json", os.path.join(folder, "r.json")).code, 0, "exit code")
        result = signaled_at(call, signal.SIGINT, "reproduce", "r.json", "--repeat", rounds, "--json", "again.json", cwd=folder, KILL_MEMORY="1")
        files = sorted(os.listdir(folder))
    expect_equal((result.code, files), (130, ["again.json", "r.json"] if compared else ["r.json"]), "exit code and files", result)
    expect(("parameters of ring at the end: bit-identical" in result.out) == compared, "the comparison", result)
    expect(("of 5 runs" if compared else "no run ended, so nothing is compared with r.json") in result.lines()[-1], "line", result)


# ------------------------------------------------------------------------------------------------

@test
def an_ignored_signal_stays_ignored():
    watch = Watch()
    with Run("--mode", "ring", *BOTH, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as run:
        _, where = strike(run, "ring", 0, "forward", 10, 0)
        run.kill(run.pid, signal.SIGHUP)
        reach(run, "ring", 0, int(re.search(r"at step (\d+)", where)[1]) + 100)
        run.kill(run.pid, signal.SIGINT)
        ends_in_order(run, watch, 130)


SIGNALS = [("Ctrl-C", signal.SIGINT, 130), ("SIGTERM", signal.SIGTERM, 143)]


@cases(SIGNALS)
def a_signal_ends_a_benchmark_after_the_call_and_shows_the_rows_of_finished_sizes(number, code):
    watch = Watch()
    words = ["bench", "--begin", "4K", "--factor", "128", "--end", "64M", "--iters", "2000", "--fit"]  # 64 MiB take minutes.
    with Run(*words, "--json", "rows.json") as run:
        until = time.monotonic() + 60
        while " 4096 " not in run.peek().out:
            expect(time.monotonic() < until, "expected the row of 4096 bytes", run.peek())
            time.sleep(0.01)
        run.kill(run.pid, number)
        result = run.wait(GONE)
        with open(os.path.join(run.cwd, "rows.json"), encoding="utf-8") as file:
            kept = json.load(file)
        watch.check(run, allowed=("rows.json",))
    expect_equal(result.code, code, "exit code", result)
    expect("ending after this call" in result.err, "what ends", result)
    expect("# Stopped early on request." in result.out and "# Avg bus bandwidth" in result.out, "the end of the table", result)
    expect_equal((kept["stopped_early"], "fits" in kept, kept["rows"][0]["size_bytes"]), (True, False, 4096), "JSON", result)
    expect(kept["rows"][-1]["size_bytes"] < 64 << 20, "only finished sizes", result)


@cases(SIGNALS)
def a_signal_ends_the_search_for_the_fastest_algorithms_on_all_ranks(number, code):
    watch = Watch()
    with Run("bench", "--tune", "--gpus", "16") as run:  # Few ranks of the 16 take part in the first measurements.
        run.wait_for_rank("bench", 15)
        run.kill(run.pid, number)
        result = run.wait(GONE)
        watch.check(run)
    expect_equal(result.code, code, "exit code", result)
    expect("# Stopped early on request." in result.out, "the end of the table", result)


main()
