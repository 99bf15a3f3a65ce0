"""A rank that dies ends the run: one line that names it, exit code 75, nothing left."""
import os
import random
import signal
import time

from program import SLOWER, Run, Watch, harness
from struck import GONE, GONE_WITH_LAUNCHER, LENET, RESNET, cause, held, reach, strike
from tap import cases, expect, expect_equal, long_cases, main, test

COMMUNICATION = {"ps": "push", "ring": "all_reduce"}
KILLS = [(f"{engine} rank {rank} of 3 in {operation}", engine, LENET, rank, operation, 20)
         for engine in ("ps", "ring") for rank in (0, 1, 2)
         for operation in ("forward", "backward", COMMUNICATION[engine])]
KILLS += [("ps rank 2 of 3 in pull", "ps", [*LENET, "--policy", "async"], 2, "pull", 20),
          ("ps rank 0 of 3 in wait", "ps", LENET, 0, "wait", 20),
          ("ring rank 1 of 3 in the first step", "ring", LENET, 1, "backward", 0),
          ("zero1 rank 0 of 3 in all_gather", "ring", [*LENET, "--policy", "zero1"], 0, "all_gather", 20),
          ("zero3 rank 2 of 3 in reduce_scatter", "ring", [*LENET, "--policy", "zero3"], 2, "reduce_scatter", 20),
          ("zero3 rank 1 of 3 in forward", "ring", [*LENET, "--policy", "zero3"], 1, "forward", 20),
          ("zero2 rank 1 of 3 in reduce_scatter", "ring", [*LENET, "--policy", "zero2"], 1, "reduce_scatter", 20),
          ("fsdp rank 2 of 3 in all_gather", "ring", [*LENET, "--policy", "fsdp"], 2, "all_gather", 20),
          ("zero3 with mixed precision rank 0 of 3 in backward", "ring", [*LENET, "--policy", "zero3", "--mixed-precision"], 0,
           "backward", 20),
          ("pipeline stage 1 of 3 in forward", "ring", [*LENET, "--stages", "3", "--accumulate", "4"], 1, "forward", 20),
          ("pipeline stage 0 of 3 in backward", "ring", [*LENET, "--stages", "3", "--accumulate", "4"], 0, "backward", 20),
          ("rank 1 of 3 with a remote stage in forward", "ring", [*LENET, "--eval-every", "-1", "--remote-stage", "local"], 1, "forward", 20),
          ("rank 0 of 3 with a remote stage in wait", "ring", [*LENET, "--eval-every", "-1", "--remote-stage", "local"], 0, "wait", 20),
          ("pipeline stage 1 of 3 in evaluate", "ring", [*RESNET, "--data", "synthetic:3x96x96:10", "--steps", "3", "--stages", "3"], 1, "evaluate", 3),
          ("ps rank 0 of 3, resnet18 in push", "ps", RESNET, 0, "push", 3),
          ("ring rank 2 of 3, resnet18 in all_reduce", "ring", RESNET, 2, "all_reduce", 3)]


def expect_cause(result, engine, rank, pid, where, text):
    line = cause(result)
    for part in (f"{engine} rank {rank} (host ", f"process {pid})", where, text):
        expect(part in line, f"expected {part!r} in the line", result)
    expect_equal(result.code, 75, "exit code", result)
    expect_equal(result.out, "", "stdout", result)


@cases(KILLS)
def a_killed_rank_is_named_and_the_others_end(engine, workload, rank, operation, step):
    watch = Watch()
    with Run("--mode", engine, "--gpus", "3", *workload) as run:
        pid, where = strike(run, engine, rank, operation, step, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run)
    expect(operation in where, where)
    expect_cause(result, engine, rank, pid, where, "killed by signal 9 (Killed)")


@cases([("ps", "ps", "z.st"), ("ring", "ring", "z.st"), ("a name with the epoch", "ring", "{epoch}.st")])
def a_rank_killed_while_it_writes_a_checkpoint_leaves_no_part_of_it(engine, name):
    watch, file = Watch(), name.replace("{epoch}", "0")
    with Run("--mode", engine, "--gpus", "2", *RESNET, "--save", name, "--save-every", "1") as run:
        pid = run.wait_for_rank(engine, 0)
        until = time.monotonic() + 60 * SLOWER
        while not os.path.exists(os.path.join(run.cwd, file + ".partial")):
            expect(time.monotonic() < until and run.process.poll() is None, "no checkpoint is written", run.peek())
        run.kill(pid, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run, allowed=(file,))
    expect_cause(result, engine, 0, pid, "", "killed by signal 9 (Killed)")


@long_cases([(f"{engine}, trial {trial}", engine, trial) for engine in ("ps", "ring") for trial in range(40)])
def a_rank_killed_at_any_time_is_named(engine, trial):
    draw = random.Random(f"{engine} {trial}")
    watch = Watch()
    with Run("--mode", engine, "--gpus", "3", *LENET) as run:
        rank = draw.randrange(3)
        pid = run.wait_for_rank(engine, rank)
        time.sleep(draw.uniform(0, 0.5))
        run.kill(pid, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run)
    expect_cause(result, engine, rank, pid, "", "killed by signal 9 (Killed)")


@cases([("ps, server of its own on every rank", ["--mode", "ps", "--policy", "sync", "--servers", "3"], "ps", 1),
        ("ps, sync", ["--mode", "ps", "--policy", "sync"], "ps", 2),
        ("ps, sync, the server", ["--mode", "ps", "--policy", "sync"], "ps", 0),
        ("ps over tcp", ["--mode", "ps", "--transport", "tcp"], "ps", 2),
        ("ps over tcp, the server", ["--mode", "ps", "--transport", "tcp"], "ps", 0),
        ("ps with messages", ["--mode", "ps", "--payload", "zmq"], "ps", 1),
        ("ps, inline", ["--mode", "ps", "--progress", "inline"], "ps", 0),
        ("ps, ssp", ["--mode", "ps", "--policy", "ssp"], "ps", 1),
        ("ps, async", ["--mode", "ps", "--policy", "async"], "ps", 0),
        ("ring, inline", ["--mode", "ring", "--progress", "inline"], "ring", 1),
        ("ring, after the backward pass", ["--mode", "ring", "--policy", "torch-0.4.1"], "ring", 0),
        ("zero1", ["--mode", "ring", "--policy", "zero1"], "ring", 2),
        ("zero2, inline", ["--mode", "ring", "--policy", "zero2", "--progress", "inline"], "ring", 0),
        ("zero3", ["--mode", "ring", "--policy", "zero3"], "ring", 1),
        ("fsdp, inline", ["--mode", "ring", "--policy", "fsdp", "--progress", "inline"], "ring", 2),
        ("hybrid", ["--mode", "ring", "--policy", "zero3:group=1"], "ring", 1),
        ("pipeline", ["--mode", "ring", "--stages", "3", "--accumulate", "2"], "ring", 2),
        ("stages on devices", ["--mode", "ring", "--stages", "2", "--stages-on", "devices", "--eval-every", "-1"], "ring", 1),
        ("alone", ["--mode", "none"], "none", 0)], at_check=5)
def a_killed_rank_is_named_under_every_setting_of_the_engine(words, engine, rank):
    watch = Watch()
    ranks = [] if engine == "none" else ["--gpus", "3"]
    with Run(*words, *ranks, *LENET) as run:
        pid, where = strike(run, engine, rank, "backward", 20, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run)
    expect_cause(result, engine, rank, pid, where, "killed by signal 9 (Killed)")


OWN_SERVERS = ["--servers", "2", "--server-placement", "own"]


@cases([("sync", "ps", ["--policy", "sync", *OWN_SERVERS], 1), ("async", "ps", ["--policy", "async", *OWN_SERVERS], 1),
        ("a remote stage", "ring", ["--eval-every", "-1", "--remote-stage", "local"], 0)])
def a_killed_server_process_is_named(engine, words, server):
    watch = Watch()
    with Run("--mode", engine, "--gpus", "2", *words, *LENET) as run:
        reach(run, engine, 0, 5)
        pid = run.wait_for_rank(engine, 2 + server)
        run.kill(pid, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run)
    line = cause(result)
    for part in (f"{engine} server {server} (host ", f"process {pid})", "serve", "killed by signal 9 (Killed)"):
        expect(part in line, f"expected {part!r} in the line", result)
    expect_equal(result.code, 75, "exit code", result)


@cases([("none rank 0", "none", 0, "backward"), ("ps rank 0", "ps", 0, "backward"), ("ring rank 1", "ring", 1, "forward"),
        ("a parked rank", "ring", 0, "parked")], at_check=2)
def side_by_side_a_killed_rank_ends_all_three_jobs(engine, rank, operation):
    watch = Watch()
    with Run("--gpus", "2", *LENET, "--steps", "3000") as run:  # a turn of 500, during which the others are parked
        pid, where = strike(run, engine, rank, operation, 3, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run)
    expect_cause(result, engine, rank, pid, where, "killed by signal 9 (Killed)")


@cases([(f"{engine}: {name}", engine, number, text)
        for engine in ("ps", "ring")
        for name, number, text in (("SIGSEGV", signal.SIGSEGV, "killed by signal 11 (Segmentation fault)"),
                                   ("SIGABRT", signal.SIGABRT, "killed by signal 6 (Aborted)"),
                                   ("SIGBUS", signal.SIGBUS, "killed by signal 7 (Bus error)"))])
def the_signal_that_ended_a_rank_is_named(engine, number, text):
    watch = Watch()
    with Run("--mode", engine, "--gpus", "2", *LENET) as run:
        pid, _ = strike(run, engine, 1, "backward", 5, number)
        result = run.wait(GONE)
        watch.check(run)
    expect_cause(result, engine, 1, pid, "", text)


@cases([("rank 0, which writes", 0), ("rank 2", 2)])
def a_rank_killed_while_it_saves_is_named_and_the_checkpoint_is_whole(rank):
    watch = Watch()
    words = [*LENET, "--optimizer", "adam"]
    with Run("--mode", "ring", "--policy", "zero3", "--gpus", "3", *words, "--save", "run", "--save-every", "1") as run:
        pid, where = strike(run, "ring", rank, "checkpoint", 5, signal.SIGKILL)
        result = run.wait(GONE)
        loaded = harness("run", "--mode", "none", *words, "--steps", "1", "--load", os.path.join(run.cwd, "run"))
        watch.check(run, allowed=[file for file in os.listdir(run.cwd) if file.startswith("run")])
    expect_cause(result, "ring", rank, pid, where, "killed by signal 9 (Killed)")
    expect_equal(loaded.code, 0, "exit code of a run that loads it", loaded)


@cases([("ps, the store", "ps", 0), ("ps", "ps", 2), ("ring, the store", "ring", 0), ("ring", "ring", 1)])
def a_rank_killed_in_the_rendezvous_is_named(engine, rank):
    watch = Watch()
    with Run("--mode", engine, "--gpus", "3", *LENET, env=held(engine, 1 if rank != 1 else 2)) as run:
        pid, where = strike(run, engine, rank, "rendezvous", -1, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run)
    expect_cause(result, engine, rank, pid, where, "killed by signal 9 (Killed)")


@cases([("ps", ["--mode", "ps", "--gpus", "4"], "ps"), ("ring", ["--mode", "ring", "--gpus", "4"], "ring"),
        ("side by side", ["--gpus", "2", "--warmup", "1000"], "ps")])
def no_rank_outlives_the_launcher(words, engine):
    watch = Watch()
    with Run(*words, *LENET) as run:
        reach(run, engine, 0, 3)
        run.kill(run.pid, signal.SIGKILL)
        watch.check(run, limit=GONE_WITH_LAUNCHER)


@test
def no_rank_outlives_a_launcher_killed_during_the_rendezvous():
    watch = Watch()
    with Run("--mode", "ring", "--gpus", "4", *RESNET) as run:
        run.wait_for_rank("ring", 3)
        run.kill(run.pid, signal.SIGKILL)
        watch.check(run, limit=GONE_WITH_LAUNCHER)


main()
