"""Signals to the launcher: it ends the run in order, reports what there is, and leaves nothing."""
import json
import os
import re
import signal
import time

from program import Run, Watch
from struck import GONE, LENET, RESNET, errors, reach, strike
from tap import cases, expect, expect_equal, main, test

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
    for part in ("step time, mean", "Memory of ring", "Stopped early on request."):
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


@test
def an_ignored_signal_stays_ignored():
    watch = Watch()
    with Run("--mode", "ring", *BOTH, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as run:
        _, where = strike(run, "ring", 0, "forward", 10, 0)
        run.kill(run.pid, signal.SIGHUP)
        reach(run, "ring", 0, int(re.search(r"at step (\d+)", where)[1]) + 100)
        run.kill(run.pid, signal.SIGINT)
        ends_in_order(run, watch, 130)


main()
