"""Another user of the machine at a job's sockets: he is refused, and the run ends as if he had not been there."""
import os
import signal
import subprocess

from program import BUILD, Run, Watch, _variables, harness
from struck import LENET, reach
from tap import Skip, cases, expect, expect_equal, main

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
    """The result of a run that the intruder visits: rank 1 is stopped until he is there, so that the run is, too."""
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


@cases([("ps", "ps", ["--payload", "zmq"]), ("ps, shared memory", "ps", []), ("ring", "ring", [])])
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


main()
