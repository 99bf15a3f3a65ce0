"""--bind: on which processors ranks run. Ranks read their own masks; so does the test, of all their threads."""
import json
import os
import re
import socket
import tempfile
import time

from program import SLOWER, Run, Watch, harness
from tap import Skip, cases, expect, expect_equal, main, test

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "4", "--steps", "3", "--threads", "1",
         "--eval-every", "-1"]
MINE = sorted(os.sched_getaffinity(0))


def numbers(text):
    """The numbers of a list: {0, 2, 3} for "0,2-3"."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {n for r in ranges for n in range(int(r[0]), int(r[-1]) + 1)}


def cores():
    """The allowed processors of each core."""
    found = []
    for p in MINE:
        try:
            with open(f"/sys/devices/system/cpu/cpu{p}/topology/thread_siblings_list") as file:
                siblings = numbers(file.read().strip()) & set(MINE)
        except OSError:
            siblings = {p}
        if siblings not in found:
            found.append(siblings)
    return found


def masks(result, engine):
    job = result.jobs()[engine]
    return job["binding"], [numbers(rank["processors"]) for rank in job["ranks"]]


@cases([(f"{engine}, {ranks} ranks", engine, ranks) for engine in ("ring", "ps") for ranks in (1, 2, 4)])
def bound_ranks_of_one_thread_get_a_core_each_in_turn(engine, ranks):
    result = harness(*LENET, "--mode", engine, "--gpus", ranks, "--bind", "core", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    binding, found = masks(result, engine)
    machine = cores()
    expect_equal(binding, "core", "binding")
    for rank, mask in enumerate(found):
        expect(mask in machine, f"rank {rank}: found {mask}, expected one of {machine}")
        expect_equal(mask, found[rank % len(machine)], f"rank {rank}")
    for rank in range(min(ranks, len(machine))):
        expect(not any(found[rank] & found[other] for other in range(rank)), f"rank {rank} shares a core: {found}")
    expect(", bound to cores" in result.json()["hardware_note"], result.json()["hardware_note"])


@test
def unbound_ranks_may_use_every_processor():
    result = harness(*LENET, "--mode", "ring", "--gpus", 2, "--bind", "none", "--json", "-")
    expect_equal(masks(result, "ring"), ("none", [set(MINE)] * 2), "masks")


@test
def ranks_share_the_processors_of_the_harness():
    taken = MINE[-1]
    result = harness(*LENET, "--mode", "ring", "--gpus", 2, "--bind", "core", "--json", "-",
                     preexec_fn=lambda: os.sched_setaffinity(0, {taken}))
    expect_equal(masks(result, "ring"), ("core", [{taken}] * 2), "masks")


def threads_of(pid):
    """The threads of a process, after the agent and ZeroMQ have started theirs."""
    until = time.monotonic() + 10 * SLOWER
    while len(os.listdir(f"/proc/{pid}/task")) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    return os.listdir(f"/proc/{pid}/task")


def mask_of(pid, task):
    """The processors of a thread, or None if the thread has ended since it was listed."""
    try:
        with open(f"/proc/{pid}/task/{task}/status") as file:
            return numbers(re.search(r"Cpus_allowed_list:\s*(\S+)", file.read()).group(1))
    except (FileNotFoundError, ProcessLookupError):
        return None


@cases([("of the ring", ["--mode", "ring"]), ("of parameter servers", ["--mode", "ps", "--policy", "sync", "--servers", "2"]),
        ("of servers of their own", ["--mode", "ps", "--policy", "sync", "--servers", "1", "--server-placement", "own"])])
def all_threads_of_a_rank_stay_on_its_processors(words):
    engine = words[1]
    with Run(*LENET[:-4], "--steps", "100000", "--threads", "1", "--gpus", 2, "--bind", "core",
             "--progress", "thread", *words) as run:
        run.wait_for_rank(engine, 1)
        for rank, pid in run.ranks(engine).items():
            expected, names = set(os.sched_getaffinity(pid)), threads_of(pid)
            expect(len(names) > 2, f"rank {rank} has {len(names)} threads")
            expect(expected in cores(), f"rank {rank} is on {expected}")
            found = {task: mask_of(pid, task) for task in names}
            alive = {task: mask for task, mask in found.items() if mask is not None}
            expect(len(alive) > 1, f"rank {rank} has {len(alive)} threads left")
            for task, mask in alive.items():
                expect_equal(mask, expected, f"rank {rank}, thread {task}")


@cases([("true", "true", 1), ("close", "close", 1), ("false", "false", 0)])
def a_launcher_bound_by_openmp_prints_a_warning(value, lines):
    if len(cores()) < 2:
        raise Skip("one core")
    result = harness(*LENET, "--mode", "ring", "--gpus", 2, env={"OMP_PROC_BIND": value})
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(len(result.lines()), lines, "lines", result)
    expect(lines == 0 or f"OMP_PROC_BIND={value} has bound this program to processors " in result.err, result)


# In an earlier version a kernel waited for a thread that OpenMP had not started, until the stall limit.
@cases([("the limit", "OMP_THREAD_LIMIT", "1", "OMP_THREAD_LIMIT: expected at least 2, the --threads of this rank, got 1"),
        ("the levels", "OMP_MAX_ACTIVE_LEVELS", "0", "OMP_MAX_ACTIVE_LEVELS: expected at least 1 with 2 threads, got 0")], at_once=2)
def a_variable_of_openmp_that_forbids_threads_is_named(variable, value, text):
    result = harness("--mode", "none", *LENET, "--threads", "2", "--quiet", env={variable: value})
    expect_equal(result.code, 78, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines", result)
    expect(text in result.lines()[0], f"expected {text!r}", result)


# In an earlier version OpenMP started fewer threads on a busy machine, and a kernel waited for the missing ones.
@test
def openmp_does_not_choose_the_number_of_threads():
    result = harness("--mode", "none", *LENET, "--threads", "8", "--quiet", env={"OMP_DYNAMIC": "true"})
    expect_equal(result.code, 0, "exit code", result)


@test
def binding_changes_neither_default_threads_nor_results():
    runs = {bind: harness(*[w for w in LENET if w not in ("--threads", "1")], "--mode", "both", "--gpus", 2, "--bind", bind,
                          "--json", "-") for bind in ("none", "core")}
    for engine in ("none", "ps", "ring"):
        jobs = [runs[bind].jobs()[engine] for bind in runs]
        expect_equal(jobs[1]["threads_per_rank"], jobs[0]["threads_per_rank"], f"threads of {engine}")
        expect_equal(jobs[1]["parameter_hash"], jobs[0]["parameter_hash"], f"parameters of {engine}")


def by_hand(bind, processors):
    """Masks of two ranks that something else starts, each allowed `processors[rank]`."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    watch, runs = Watch(), []
    for rank in range(2):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HARNESS_KEY": "0123456789abcdef" * 4}
        runs.append(Run(*LENET, "--mode", "ring", "--rendezvous", "env://", "--json", "-", "--bind", bind, env=env,
                        preexec_fn=lambda r=rank: os.sched_setaffinity(0, processors[r])))
    results = [run.wait(60) for run in runs]
    watch.check(*runs)
    for run in runs:
        run.__exit__()
    expect_equal(results[0].code, 0, "exit code", results[0])
    report = results[0].json()
    binding = report["jobs"][0]["binding"]
    expect_equal(report["host"]["processors"], len(MINE if binding == "core" else processors[0]), "processors of the host")
    expect(report["hardware_note"].endswith({"core": "bound to cores", "starter": "bound by what started them"}[binding]),
           report["hardware_note"])
    return masks(results[0], "ring")


@test
def ranks_of_other_starters_bind_themselves_by_local_rank():
    if len(cores()) < 2:
        raise Skip("one core")
    machine = cores()
    expect_equal(by_hand("core", [MINE, MINE]), ("core", machine[:2]), "masks")


@cases([("core", "core"), ("none", "none")])
def a_binding_by_the_starter_is_kept(bind):
    if len(MINE) < 2:
        raise Skip("one processor")
    swapped = [{MINE[1]}, {MINE[0]}]
    expect_equal(by_hand(bind, swapped), ("starter", swapped), "masks")


@cases([("a word", ["--bind", "socket"], 64, "--bind: expected one of none, core"),
        ("nothing", ["--bind"], 64, "--bind"),
        ("virtual time", ["--bind", "core", "--device", "sim", "--model", "resnet50"], 78,
         "--bind: expected a real device, got --device sim")])
def a_binding_that_is_impossible_is_refused(words, code, expected):
    result = harness("run", *words)
    expect_equal(result.code, code, "exit code", result)
    expect(len(result.lines()) == 1 and expected in result.err, result)


@cases([(f"calibrated {'bound' if calibrated else 'unbound'}, run {bind}", calibrated, bind)
        for calibrated in (False, True) for bind in ("none", "core")])
def a_prediction_for_other_binding_is_marked(calibrated, bind):
    constant = {"value": 1, "unit": "1", "tag": "assumed", "source": "a test"}
    profile = {"profile": "this-machine", "summary": "a test", "base": "cpu", "constants": {}}
    if calibrated:
        profile["constants"]["rank_processors"] = constant
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/psring/profiles")
        with open(f"{folder}/psring/profiles/this-machine.json", "w") as file:
            json.dump(profile, file)
        result = harness(*LENET, "--mode", "ring", "--gpus", 2, "--bind", bind, "--json", f"{folder}/result.json", "--verbose",
                         env={"XDG_DATA_HOME": folder})
        expect_equal(result.code, 0, "exit code", result)
        with open(f"{folder}/result.json") as file:
            prediction = json.load(file)["jobs"][0]["prediction"]
    other = calibrated != (bind == "core")
    expect_equal(prediction["other_binding"], other, "other_binding")
    expect_equal(f"calibrate anew with --bind {bind}." in result.out, other, "a line in the report", result)


@test
def doctor_prints_where_ranks_would_be_bound():
    result = harness("doctor")
    expect(re.search(r"^cores +\d+ of \d+ hardware threads?, processors [\d,-]+", result.out, re.M), result)
    expect(re.search(r"^run --bind core +2 ranks of 1 thread: rank 0 on [\d,-]+, rank 1 on [\d,-]+$", result.out, re.M), result)


if __name__ == "__main__":
    main()
