"""Ranks that stand still: for a while, they are waited for; for good, they are named."""
import functools
import signal
import time

from program import Run, Watch, harness
from struck import GONE, LENET, RESNET, cause, held, reach, strike
from tap import cases, expect, expect_equal, long_test, main, test

JOB = ["--gpus", "3", *LENET]
STALL = 12  # seconds: ranks on a slow and busy processor stand still for less


@functools.lru_cache(maxsize=None)
def parameters_of(*words):
    """Their hash at the end of a run that is not stopped."""
    job, = harness(*words, limit=300).jobs().values()
    return job["parameter_hash"]


@cases([(f"{engine} rank {rank} in {operation}{', ' + words[-1] if words else ''}", engine, rank, operation, words)
        for engine, rank, operation, words in (
            ("ps", 0, "backward", []), ("ps", 2, "push", []), ("ps", 2, "backward", ["--policy", "async"]), ("ring", 0, "backward", []),
            ("ring", 1, "all_reduce", []), ("ps", 1, "forward", []), ("ps", 1, "backward", ["--policy", "sync"]), ("ring", 2, "forward", ["--progress", "inline"]),
            ("ring", 1, "backward", ["--policy", "zero1"]), ("ring", 2, "forward", ["--policy", "zero3"]),
            ("ring", 0, "backward", ["--policy", "zero2"]), ("ring", 1, "forward", ["--policy", "fsdp"]),
            ("ring", 2, "backward", ["--policy", "zero3:group=1"]),
            ("ring", 1, "backward", ["--eval-every", "-1", "--remote-stage", "local"]))], at_once=3, at_check=5)
def a_rank_stopped_for_good_is_named_at_the_stall_limit(engine, rank, operation, words):
    watch = Watch()
    with Run("--mode", engine, *JOB, *words, "--stall-timeout", f"{STALL}s") as run:
        pid, where = strike(run, engine, rank, operation, 20, signal.SIGSTOP)
        begin = time.monotonic()
        result = run.wait(STALL + GONE)
        waited = time.monotonic() - begin
        watch.check(run)
    line = cause(result)
    for part in (f"{engine} rank {rank} (host ", f"process {pid})", where.split(",")[0], f"no progress within the stall limit of {STALL}",
                 "stopped by a signal"):
        expect(part in line, f"expected {part!r} in the line", result)
    expect(waited >= STALL / 2, f"ended {waited:.2f} s after this test went on, before the limit", result)
    expect_equal(result.code, 75, "exit code", result)


# In an earlier version a rank that waited for the server was named.
@test
def a_server_stopped_for_good_is_named_at_the_stall_limit():
    watch = Watch()
    with Run("--mode", "ps", "--gpus", "2", *LENET, "--policy", "sync", "--servers", "2", "--server-placement", "own", "--stall-timeout",
             f"{STALL}s") as run:
        reach(run, "ps", 0, 5)
        server = run.wait_for_rank("ps", 3)  # ranks 2 and 3 are the servers
        run.kill(server, signal.SIGSTOP)
        result = run.wait(STALL + GONE)
        watch.check(run)
    line = cause(result)
    for part in ("ps server 1 (host ", f"process {server})", f"no progress within the stall limit of {STALL}", "stopped by a signal"):
        expect(part in line, f"expected {part!r} in the line", result)
    expect_equal(result.code, 75, "exit code", result)


@test
def a_remote_stage_stopped_for_good_is_named_by_a_rank():
    watch = Watch()
    with Run("--mode", "ring", "--gpus", "2", *LENET, "--eval-every", "-1", "--remote-stage", "local", "--stall-timeout", f"{STALL}s") as run:
        reach(run, "ring", 0, 5)
        run.kill(run.wait_for_rank("ring", 2), signal.SIGSTOP)
        result = run.wait(STALL + GONE)
        watch.check(run)
    expect(f"remote stage: nothing received for {STALL // 2} s" in cause(result), "the cause", result)
    expect_equal(result.code, 75, "exit code", result)


@cases([("ps, the server's", "ps", 0, []), ("ps", "ps", 1, []), ("ring", "ring", 1, [])] +
       [(policy, "ring", 1, ["--policy", policy]) for policy in ("zero1", "zero2", "zero3", "fsdp", "zero3:group=1")], at_once=4, at_check=4)
def a_rank_stopped_for_a_while_is_waited_for(engine, rank, policy):
    words = ["--mode", engine, *JOB, *policy, "--steps", "1000", "--json", "-"]
    watch = Watch()
    with Run(*words, env=held(engine, rank)) as run:  # 1,000 steps take seconds: on a busy machine 200 were over before one was seen
        pid, _ = strike(run, engine, rank, "backward", 20, signal.SIGSTOP)
        run.wait_for_line("stopped by a signal")  # a busy machine may have held the same rank up before
        run.kill(pid, signal.SIGCONT)
        result = run.wait(300)
        watch.check(run)
    expect_equal(result.code, 0, "exit code", result)
    warnings = [line for line in result.lines() if " warning: " in line]
    stopped = [line for line in warnings if "stopped by a signal" in line]
    expect(len(stopped) == 1 and f" rank {rank} " in stopped[0], "one warning that names the rank", result)
    expect(all(" is behind" in line for line in warnings), "warnings of something else", result)  # a busy machine holds others up, too
    expect_equal(result.jobs()[engine]["parameter_hash"], parameters_of(*words), "parameters, and those of a run that was not stopped")


@test
def a_rank_that_was_behind_before_is_named_again_when_a_signal_stops_it():
    # A step of rank 1 takes several seconds on any machine. A step of LeNet ended before the launcher called the rank late.
    with Run("--mode", "ring", "--gpus", "3", *RESNET, "--slow", "1:1000", "--eval-every", "-1", "--stall-timeout", "600s") as run:
        run.wait_for_line(") is behind: ")
        run.kill(run.wait_for_rank("ring", 1), signal.SIGSTOP)
        run.wait_for_line("stopped by a signal")


@cases([("ps", "ps"), ("ring", "ring")], at_once=2)
def a_rank_that_does_not_arrive_is_named(engine):
    watch = Watch()
    with Run("--mode", engine, *JOB, "--connect-timeout", "2s", env=held(engine, 2)) as run:
        result = run.wait(2 + GONE)
        watch.check(run)
    expect_equal(result.code, 75, "exit code", result)
    expect("2" in cause(result), "names the rank that is missing", result)


@test
def before_the_first_step_ranks_have_the_time_that_they_have_to_connect():
    with Run("--mode", "ring", *JOB[:-2], "--steps", "5", "--stall-timeout", "1s", env=held("ring", 2)) as run:
        run.wait_for_line("stopped by a signal")  # the launcher says so after 2 s
        time.sleep(2)
        run.kill(run.wait_for_rank("ring", 2), signal.SIGCONT)
        result = run.wait(300)
    expect_equal(result.code, 0, "exit code", result)


@long_test
def ranks_that_wait_for_their_turn_are_not_stalled():
    result = harness("--gpus", "2", *LENET, "--steps", "24000", "--stall-timeout", "2s", "--quiet", limit=300)
    expect_equal(result.code, 0, "exit code", result)


main()
