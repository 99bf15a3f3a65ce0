"""Ranks that the harness does not start itself: by hand, by mpirun."""
import os
import shutil
import socket
import tempfile
import time

from program import PROGRAM, Run, Watch, harness
from tap import Skip, cases, expect, expect_equal, main, more_cases, more_test, test

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "4", "--steps", "10", "--threads", "1"]


KEY = "0123456789abcdef" * 4


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def by_hand(words, world, variables, differ=None):
    """Results of all ranks. `differ` gives additional words to some of them."""
    watch, runs = Watch(), []
    for rank in range(world):
        env = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "HARNESS_KEY": KEY, **variables}
        runs.append(Run(*words, *((differ or {}).get(rank, [])), env=env))
    results = [run.wait(60) for run in runs]
    watch.check(*runs)
    for run in runs:
        run.__exit__()
    return results


def hash_of(words):
    result = harness(*words, "--json", "-", "--quiet")
    return result.json()["jobs"][0]["parameter_hash"]


@cases([(f"{engine}, {world} ranks, {kind}", engine, world, kind)
        for engine in ("ps", "ring") for world, kind in ((2, "env"), (3, "tcp"), (4, "file"))])
def ranks_started_by_hand_train_as_ranks_of_the_harness_do(engine, world, kind):
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        url = {"env": "env://", "tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{folder}/meet"}[kind]
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if kind == "env" else {}
        words = [*LENET, "--mode", engine]
        results = by_hand([*words, "--rendezvous", url, "--json", "-"], world, variables)
        expect_equal(os.listdir(folder), [], "files of the rendezvous left behind")
    for rank, result in enumerate(results):
        expect_equal(result.code, 0, f"rank {rank}", result)
        expect(rank == 0 or result.out == "", "rank 0 alone reports", result)
    job = results[0].json()["jobs"][0]
    expect_equal((job["engine"], job["world_size"], len(job["ranks"])), (engine, world, world), "the job")
    expect_equal(job["parameter_hash"], hash_of([*words, "--gpus", world]), "hash, and that of the harness's own ranks")


@more_test
def the_order_in_which_ranks_start_does_not_matter():
    port = free_port()
    words = [*LENET, "--mode", "ring", "--rendezvous", f"tcp://127.0.0.1:{port}"]
    watch = Watch()
    env = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "HARNESS_KEY": KEY}
    with Run(*words, env={"RANK": "1", **env}) as late:
        time.sleep(1)
        with Run(*words, env={"RANK": "0", **env}) as first:
            results = [first.wait(60), late.wait(60)]
            watch.check(first, late)
    for result in results:
        expect_equal(result.code, 0, "exit code", result)


@cases([("ps", "ps", 3), ("ring", "ring", 2)])
def mpirun_starts_ranks(engine, world):
    mpirun = shutil.which("mpirun")
    if not mpirun:
        raise Skip("mpirun is not installed")
    words = [*LENET, "--mode", engine]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMPI_ALLOW_RUN_AS_ROOT": "1",
           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "HARNESS_KEY": KEY}
    with Run(*words, "--json", "-", env=env, program=[mpirun, "--oversubscribe", "-np", str(world), PROGRAM]) as run:
        result = run.wait(90)
        run.wait_until_gone(5)
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(result.json()["jobs"][0]["parameter_hash"], hash_of([*words, "--gpus", world]), "hash")


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}


def slurm_job():
    """A number of a job of Slurm whose port, 10000 + the number, is free."""
    for number in range(os.getpid() % 10000, 20000):
        try:
            with socket.create_server(("127.0.0.1", 10000 + number)):
                return number
        except OSError:
            continue
    raise Skip("no free port")


def by_starter(words, starter):
    """Results of two ranks with the variables of torchrun or srun. `by_hand` sets the rank for torchrun."""
    if starter == "torchrun":
        return by_hand(words, 2, {**TORCHRUN, "MASTER_PORT": str(free_port())})
    job = {**SRUN, "SLURM_JOB_ID": str(slurm_job()), "HARNESS_KEY": KEY}
    watch = Watch()
    runs = [Run(*words, env={**job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in (0, 1)]
    results = [run.wait(60) for run in runs]
    watch.check(*runs)
    for run in runs:
        run.__exit__()
    return results


@cases([("torchrun", "torchrun"), ("srun", "srun")])
def ranks_of_a_starter_need_no_rendezvous(starter):
    words = [*LENET, "--mode", "ring"]
    results = by_starter([*words, "--json", "-"], starter)
    expect_equal([result.code for result in results], [0, 0], "exit codes", *results)
    expect_equal(results[1].out, "", "stdout of rank 1", results[1])
    expect_equal(results[0].json()["jobs"][0]["parameter_hash"], hash_of([*words, "--gpus", 2]), "hash")


@cases([("torchrun", "torchrun"), ("srun", "srun")])
def ranks_of_a_starter_refuse_to_compare_engines(starter):
    for result in by_starter(LENET, starter):
        expect_equal(result.code, 64, "exit code", result)
        expect_equal(result.lines(), ["harness: --mode: expected none, ps or ring if another program starts the ranks, got both"], "lines")


def of_mpi(algorithm, variables, world=3, words=()):
    """The job of the ring engine on ranks that mpirun starts and Open MPI connects: collective, algorithm, hash."""
    words = [*LENET, "--mode", "ring", "--collective", "mpi", "--algorithm", algorithm, *words]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMPI_ALLOW_RUN_AS_ROOT": "1",
           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "HARNESS_KEY": KEY, **variables}
    with Run(*words, "--rendezvous", "env://", "--json", "-", env=env,
             program=["mpirun", "--oversubscribe", "-np", str(world), PROGRAM]) as run:
        result = run.wait(90)
        run.wait_until_gone(5)
    expect_equal(result.code, 0, "exit code", result)
    job = result.json()["jobs"][0]
    return job["collective"], job["algorithm"], job["parameter_hash"]


@more_test
def the_ring_of_open_mpi_is_chosen_by_its_variable():
    if not shutil.which("mpirun") or not os.path.exists(os.path.join(os.environ.get("BUILD_DIR", "build"), "lib", "libpsring_mpi.so")):
        raise Skip("Open MPI is not installed")
    library, ring = of_mpi("library", {}), of_mpi("ring", {})
    by_hand = of_mpi("library", {"OMPI_MCA_coll_libnbc_iallreduce_algorithm": "ring"})
    expect_equal((library[:2], ring[:2]), (("mpi", "library"), ("mpi", "ring")), "library and algorithm")
    expect(ring[2] != library[2], f"three ranks sum in the same order by both algorithms: {ring[2]}")
    expect_equal(by_hand[2], ring[2], "hash where the user sets the variable")


@more_cases([(policy, policy) for policy in ("zero1", "zero2", "zero3", "fsdp")])
def over_mpi_state_that_is_cut_among_ranks_ends_with_the_parameters_of_ddp(policy):
    """Two ranks: one order of summation."""
    if not shutil.which("mpirun") or not os.path.exists(os.path.join(os.environ.get("BUILD_DIR", "build"), "lib", "libpsring_mpi.so")):
        raise Skip("Open MPI is not installed")
    found = of_mpi("library", {}, world=2, words=("--policy", policy))
    expect_equal(found[2], hash_of([*LENET, "--mode", "ring", "--gpus", 2]), f"hash of {policy}, and of ddp in shared memory")


def tried_with(key):
    """Starts rank 1 with `key` and rank 0 with KEY; returns both results."""
    port, watch = free_port(), Watch()
    words = [*LENET, "--mode", "ring", "--rendezvous", f"tcp://127.0.0.1:{port}", "--connect-timeout", "5s"]
    env = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    with Run(*words, env={"RANK": "0", "HARNESS_KEY": KEY, **env}) as first:
        with Run(*words, env={"RANK": "1", **({"HARNESS_KEY": key} if key else {}), **env}) as other:
            results = [first.wait(30), other.wait(4)]  # Rank 1 ends before its connect limit.
            watch.check(first, other)
    return results


@cases([("another key", "fedcba9876543210" * 4, 77, "HARNESS_KEY"),
        ("no key", None, 77, "export HARNESS_KEY=$(openssl rand -hex 32)"),
        ("a key that is none", "secret", 78, "expected 64 hexadecimal digits")], at_once=3, at_check=1)
def a_rank_without_the_key_of_the_job_is_refused(key, code, text):
    first, other = tried_with(key)
    expect_equal(other.code, code, "exit code of the rank without the key", other)
    expect_equal(len(other.lines()), 1, "lines", other)
    expect(text in other.lines()[0], f"expected {text!r}", other)
    expect_equal(first.code, 75, "exit code of rank 0, which waits for its own rank", first)


@test
def a_shell_inside_a_batch_job_starts_its_own_ranks():
    result = harness("--model", "toy", "--steps", "3", "--mode", "ring", "--gpus", "2", "--json", "-",
                     env={"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0", "RANK": "5",
                          "WORLD_SIZE": "9"})
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(result.json()["jobs"][0]["world_size"], 2, "ranks")


main()
