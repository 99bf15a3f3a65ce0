"""Another user of the machine at a job's sockets: he is refused, and the run ends as if he had not been there."""
import os
import signal
import socket
import subprocess
import tempfile

from program import BUILD, SANITIZED, Run, Watch, _variables, harness
from struck import LENET, reach
from tap import Skip, cases, expect, expect_equal, main

RECORD_NAMES = os.path.abspath(os.path.join(BUILD, "tests", "record_names.so"))
INTRUDER = os.path.abspath(os.path.join(BUILD, "tests", "intruder"))


def abstract_names(pids):
    """Abstract unix sockets that these processes hold, as anybody reads them in /proc/net/unix."""
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        fields = [line.split() for line in file]
    return sorted({f[7] for f in fields if len(f) == 8 and f[6] in inodes and f[7].startswith("@")})


def disturbed(words):
    """The result of a run that the intruder visits. Rank 1 is stopped until the intruder has connected, so the run
    cannot end before."""
    watch = Watch()
    with Run(*words) as run:
        pid = run.wait_for_rank("ps", 1)
        token = _variables(pid)["HARNESS_TOKEN"]
        reach(run, "ps", 0, 5)
        run.kill(pid, signal.SIGSTOP)
        names = abstract_names(run.ranks("ps").values())
        expect(names, "no abstract sockets", run.peek())
        with subprocess.Popen([INTRUDER, token, "1", *names], stdout=subprocess.PIPE, text=True) as intruder:
            expect_equal(intruder.stdout.readline(), "there\n", "the intruder", run.peek())
            run.kill(pid, signal.SIGCONT)
            result = run.wait(60)
            received = intruder.stdout.read()
        watch.check(run)
    expect_equal((intruder.returncode, received), (0, "received 0\n"), f"the intruder, at {names}", result)
    expect_equal(result.code, 0, "exit code", result)
    return result


@cases([("sync, payload zmq", "sync", "zmq"), ("dp", "dp", "shm"), ("async", "async", "shm")])
def another_user_cannot_take_over_a_rank(policy, payload):
    if os.geteuid() != 0:
        raise Skip("only root can become another user")
    words = ["--mode", "ps", "--gpus", "2", "--policy", policy, "--payload", payload, *LENET[:-2], "--steps", "300",
             "--json", "-"]
    result = disturbed(words)
    if policy != "async":  # whose updates come in any order
        alone = harness(*words)
        expect_equal(result.json()["jobs"][0]["parameter_hash"], alone.json()["jobs"][0]["parameter_hash"], "hash")


@cases([("ps", "ps", ["--payload", "zmq"]), ("ps, shared memory", "ps", []), ("ring", "ring", []),
        ("a remote stage", "ring", ["--remote-stage", "local"])])
def names_that_anybody_can_read_hold_no_secret(engine, words):
    names = set()
    with Run("--mode", engine, "--gpus", "2", *words, *LENET) as run:
        variables = _variables(run.wait_for_rank(engine, 1))
        for _ in range(20):  # those of the set-up are there for a moment
            names |= set(abstract_names(run.processes()))
        reach(run, engine, 0, 5)
        names |= set(abstract_names(run.processes()))
        for pid in run.processes():
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                names.add(file.read())
    expect(any(name.startswith("@psring-") for name in names), f"too few names: {names}")
    for secret in (variables["HARNESS_TOKEN"], variables["HARNESS_KEY"]):
        for name in names:
            expect(secret[:8] not in name and secret[-8:] not in name, f"{name} holds a part of {secret}")


def names_bound(start):
    """[(rank, name)] of the abstract sockets that the processes bind which `start(variables)` runs to their end."""
    if SANITIZED:
        raise Skip("sanitizers want to be loaded before other libraries")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "names")
        for result in start({"LD_PRELOAD": RECORD_NAMES, "RECORD_NAMES": path}):
            expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            return [tuple(line.split(maxsplit=1)) for line in file]


def started_by_another_program(engine):
    """Two ranks whose variables are the same in every run, as torchrun with a fixed job id sets them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

    def start(variables):
        runs = [Run("--mode", engine, "--rendezvous", "env://", *LENET[:-2], "--steps", "3",
                    env={**variables, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                         "TORCHELASTIC_RUN_ID": "known to all", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                         "HARNESS_KEY": "0123456789abcdef" * 4}) for rank in ("0", "1")]
        results = [run.wait(60) for run in runs]
        for run in runs:
            run.__exit__()
        return results
    return start


@cases([("ps", "ps"), ("ring", "ring")])
def names_of_one_run_do_not_give_away_those_of_the_next(engine):
    start = started_by_another_program(engine)
    first, second = ({name for _, name in names_bound(start)} for _ in range(2))
    expect(first and second, f"no names: {first}, {second}")
    expect_equal(first & second, set(), "names in both runs")


@cases([("ring", "ring", []), ("ps", "ps", []), ("ps with own servers", "ps", ["--policy", "sync", "--servers", "2"])])
def the_name_of_one_process_does_not_give_away_that_of_another(engine, words):
    def start(variables):
        return [harness("--mode", engine, "--gpus", "3", *words, *LENET[:-2], "--steps", "3", env=variables)]
    bound = names_bound(start)
    expect(len({rank for rank, _ in bound}) > 1, f"one process alone binds names: {bound}")
    unique = {(rank, name.removeprefix("psring-")[:12]) for rank, name in bound}
    starts = [text for _, text in unique]
    expect_equal(len(set(starts)), len(starts), f"starts of names in {bound}")


main()
