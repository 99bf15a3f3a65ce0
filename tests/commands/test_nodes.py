"""Runs on several nodes with --nnodes: one launcher per node, here on one machine, or in two network namespaces."""
import os
import shutil
import signal
import socket
import tempfile

from program import PROGRAM, Run, Watch, ends_within, harness
from tap import Skip, cases, expect, expect_equal, main, more_test, test

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "4", "--threads", "1"]
SYNC = ["--mode", "ps", "--policy", "sync"]
KEY = "0123456789abcdef" * 4
SECOND = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1"]
LONG = 10**7  # steps of a run that something else ends


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def start(words, variables=({}, {}), ranks=2):
    """The launchers of two nodes with two ranks each, or another number, on this machine. The second starts first."""
    port, runs = free_port(), [None, None]
    for node in (1, 0):
        env = {"HARNESS_KEY": KEY, **variables[node]}
        runs[node] = Run("run", *words, "--nnodes", 2, "--node-rank", node, "--nproc-per-node", ranks, "--master-addr", "127.0.0.1",
                         "--master-port", port, env={name: value for name, value in env.items() if value})
    return runs


def end(runs, watch):
    """Results of all launchers."""
    try:
        results = [run.wait(60) for run in runs]
        watch.check(*runs, allowed=("z.st",))
    finally:
        for run in runs:
            run.__exit__()
    return results


def hash_of_one_host(words):
    return harness(*words, "--gpus", 4, "--json", "-", "--quiet").json()["jobs"][0]["parameter_hash"]


@cases([("ps=sync", SYNC), ("ring", ["--mode", "ring"]), ("ps=dp", ["--mode", "ps", "--policy", "dp"])], at_check=1)
def two_nodes_of_two_ranks_train_as_one_host_of_four_does(mode):
    words, watch = [*mode, *LENET, "--steps", "10", "--json", "-"], Watch()
    first, second = end(start(words), watch)
    for result in (first, second):
        expect_equal(result.code, 0, "exit code", first, second)
    expect_equal(second.out, "", "stdout of the second node", second)
    job = first.json()["jobs"][0]
    expect_equal((job["world_size"], len(job["ranks"])), (4, 4), "ranks")
    expect_equal(job["parameter_hash"], hash_of_one_host(words[:-2]), "hash, and that of one host")


@more_test
def a_launcher_per_node_may_be_started_by_srun_and_read_its_key_from_a_file():
    watch = Watch()
    words = [*SYNC, *LENET, "--steps", "3", "--json", "-"]
    with tempfile.NamedTemporaryFile("w") as file:  # only its user can read it
        file.write(f"{KEY}\n")
        file.flush()
        task = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "nowhere[1-2]"}
        variables = [{**task, "SLURM_PROCID": str(node), "HARNESS_KEY": None, "HARNESS_KEY_FILE": file.name} for node in (0, 1)]
        results = end(start(words, variables), watch)
    expect_equal([result.code for result in results], [0, 0], "exit codes", *results)
    expect_equal(results[0].json()["jobs"][0]["world_size"], 4, "ranks")


def start_and_train(words, ranks=2):
    """The launchers of two nodes, once their ranks have trained for some steps."""
    runs = start([*words, *LENET, "--steps", LONG, "--save", "z.st", "--save-every", 3, "--quiet"], ranks=ranks)
    for _ in range(20000):
        if os.path.exists(os.path.join(runs[0].cwd, "z.st")):
            return runs
        expect(not ends_within(runs[0].process, 0.005), "the run has ended", runs[0].peek(), runs[1].peek())
    expect(False, "no step within 100 s", runs[0].peek(), runs[1].peek())


@cases([("ps", SYNC), ("ring", ["--mode", "ring"])], at_check=1)
def a_killed_rank_ends_both_nodes_and_is_named(mode):
    watch = Watch()
    runs, job = start_and_train(mode), mode[1]
    struck = runs[1].wait_for_rank(job, 3)
    Run.kill(struck, signal.SIGKILL)
    first, second = end(runs, watch)
    expect_equal((first.code, second.code), (75, 75), "exit codes", first, second)
    expect("rank 3" in first.err, "the first node names the lost rank", first)
    killed = [line for line in second.lines() if f"{job} rank 3 (host {socket.gethostname()}, process {struck}): killed by signal 9" in line]
    expect_equal(len(killed), 1, "lines that name the killed rank", second)


# In an earlier version the rank and its launcher stayed, although the other node had ended.
@cases([("ps=sync", SYNC), ("ps=dp", ["--mode", "ps", "--policy", "dp"])], at_once=2)
def a_rank_stopped_for_good_ends_both_nodes_and_is_named_by_its_launcher(mode):
    watch = Watch()
    runs = start_and_train([*mode, "--stall-timeout", "6s"], ranks=1)
    struck = runs[1].wait_for_rank("ps", 1)
    Run.kill(struck, signal.SIGSTOP)
    first, second = end(runs, watch)
    expect_equal((first.code, second.code), (75, 75), "exit codes", first, second)
    expect(f"ps rank 1 (host {socket.gethostname()}, process {struck}): no progress within the stall limit of 6.00 s: stopped by a signal"
           in second.err, "the launcher of the stopped rank names it", second)


# In an earlier version a rank that hung stayed with its launcher, although the other node had ended.
@cases([(f"rank {rank}, {' '.join(mode)}", rank, mode) for rank, mode in
        ((1, SYNC), (1, ["--mode", "ps", "--policy", "dp"]), (0, ["--mode", "ps", "--policy", "dp"]))], at_once=3)
def a_rank_that_hangs_ends_both_nodes_and_names_itself(rank, mode):
    watch = Watch()
    # Computing a batch of 1024 a thousand times slower takes minutes.
    runs = start([*mode, *LENET[:4], "--batch", 1024, "--threads", 1, "--steps", 3, "--slow", f"{rank}:1000", "--stall-timeout", "6s", "--quiet"],
                 ranks=1)
    results = end(runs, watch)
    expect_equal([result.code for result in results], [75, 75], "exit codes", *results)
    for part in (f"rank {rank} (host {socket.gethostname()}, process ", ", at step 0 in forward", ": no progress for 6.00 s"):
        expect(part in results[rank].err, f"expected {part!r} of the rank that hangs", *results)


@cases([("INT", signal.SIGINT, 0), ("TERM", signal.SIGTERM, 1)], at_check=1)
def a_signal_to_one_launcher_ends_both_nodes_after_the_same_step(number, node):
    watch = Watch()
    runs = start_and_train([*SYNC, "--json", "-"])
    os.kill(runs[node].pid, number)
    first, second = end(runs, watch)
    expect_equal((first.code, second.code), (128 + number, 128 + number), "exit codes", first, second)
    job = first.json()["jobs"][0]
    expect_equal(job["stopped_early"], True, "stopped early", first)


@more_test
def the_ranks_of_a_dead_launcher_die_and_the_other_node_ends():
    watch = Watch()
    runs = start_and_train(SYNC)
    os.kill(runs[1].pid, signal.SIGKILL)
    first, second = end(runs, watch)
    expect_equal((first.code, second.code), (75, 128 + signal.SIGKILL), "exit codes", first, second)


@more_test
def nodes_with_unequal_numbers_of_ranks_are_refused():
    port, watch, runs = free_port(), Watch(), []
    for node, ranks in ((0, 1), (1, 2)):
        runs.append(Run(*SYNC, *LENET, "--steps", 3, "--nnodes", 2, "--node-rank", node, "--nproc-per-node", ranks, "--master-addr",
                        "127.0.0.1", "--master-port", port, "--connect-timeout", "10s", env={"HARNESS_KEY": KEY}))
    for result in end(runs, watch):
        expect_equal(result.code, 78, "exit code", result)


@cases([
    ("no rank of the node", [*SYNC, "--nnodes", "2"], {}, 64, "--node-rank: expected an integer from 0 to 1 with --nnodes 2, got none"),
    ("a rank beyond the nodes", [*SYNC, "--nnodes", "2", "--node-rank", "2"], {}, 64,
     "--node-rank: expected an integer from 0 to 1 with --nnodes 2, got 2"),
    ("no address", [*SYNC, "--nnodes", "2", "--node-rank", "0"], {}, 64,
     "--master-addr: expected the address of node 0 with --nnodes 2, got none"),
    ("an empty address", [*SYNC, "--nnodes", "2", "--node-rank", "1", "--master-addr", ""], {}, 64,
     "--master-addr: expected the address of node 0 with --nnodes 2, got ''"),
    ("a port alone", [*SYNC, "--master-port", "29501"], {}, 64, "--master-port: expected --nnodes too"),
    ("both engines", SECOND, {}, 64, "--mode: expected ps or ring with --nnodes, got both"),
    ("no engine", [*SECOND, "--mode", "none"], {}, 64, "--nnodes: expected --mode ring or ps, got --mode none"),
    ("a rendezvous", [*SYNC, *SECOND, "--rendezvous", "env://"], {}, 64, "--rendezvous: unexpected with --nnodes, which sets env://"),
    ("repetitions", [*SYNC, *SECOND, "--repeat", "2"], {}, 64, "--repeat: expected 1 with --nnodes, got 2"),
    ("virtual devices", [*SYNC, *SECOND, "--device", "sim"], {}, 78, "--nnodes: expected a real device, got --device sim"),
    ("no key", [*SYNC, *SECOND], {}, 77, "export HARNESS_KEY=$(openssl rand -hex 32) on one node, and the same HARNESS_KEY on the others"),
    ("a file without a key", [*SYNC, *SECOND], {"HARNESS_KEY_FILE": "/dev/null"}, 77, "HARNESS_KEY_FILE: expected a file that only its user"),
    ("a process of torchrun", [*SYNC, *SECOND], {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, 64,
     "--nnodes: expected a process that torchrun has not started: torchrun --nnodes 2 ... harness, without --nnodes after harness"),
], at_once=4)
def a_node_is_refused_with_one_line(words, env, code, text):
    result = harness("run", "--model", "toy", "--steps", "3", *words, env=env)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines", result)
    expect(text in result.lines()[0], f"expected {text!r}", result)


@test
def a_sweep_of_several_nodes_is_refused():
    result = harness("sweep", "--vary", "gpus=1,2", "-o", "never", *SYNC, *LENET, "--steps", "3", "--nnodes", "2")
    expect_equal(result.code, 64, "exit code", result)
    expect("--nnodes: expected harness run" in result.err, "the reason", result)


@test
def one_node_is_a_plain_run():
    words = [*SYNC, *LENET, "--steps", "3", "--json", "-"]
    result = harness(*words, "--nnodes", "1", "--node-rank", "0", "--master-addr", "localhost", "--nproc-per-node", "2")
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(result.json()["jobs"][0]["world_size"], 2, "ranks", result)


# The first node is the namespace of the script, the second one is the namespace b. Both end with the script.
NAMESPACES = """
hostname a && mount -t tmpfs tmpfs /run && ip netns add b && ip link add veth0 type veth peer name veth1 netns b &&
ip addr add 10.77.0.1/24 dev veth0 && ip link set veth0 up && ip link set lo up &&
ip -n b addr add 10.77.0.2/24 dev veth1 && ip -n b link set veth1 up && ip -n b link set lo up || exit 99
"""
LAUNCHERS = """
ip netns exec b "$@" --node-rank 1 >second 2>&1 &
"$@" --node-rank 0
first=$?
wait $!
second=$?
cat second >&2
exit $((first > second ? first : second))
"""
# mpirun starts its daemon on the second node by this script, which takes the place of ssh.
MPIRUN = """
printf '#!/bin/sh\\nshift\\nexec ip netns exec b unshare --uts sh -c "hostname b; $*"\\n' >agent && chmod +x agent
export MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
mpirun --oversubscribe --mca plm_rsh_agent "$PWD/agent" --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \\
    -x HARNESS_KEY -x MASTER_ADDR -x MASTER_PORT --host 10.77.0.1:2,10.77.0.2:2 "$@"
"""
NODES = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "10.77.0.1"]


def in_namespaces(script, words, env=None):
    if not shutil.which("ip") or not shutil.which("unshare"):
        raise Skip("needs unshare and ip (util-linux, iproute2)")
    before = Watch()
    shell = ["unshare", "--map-root-user", "--net", "--mount", "--uts", "sh", "-c", NAMESPACES + script, "sh", PROGRAM]
    with Run(*words, env={"HARNESS_KEY": KEY, **(env or {})}, program=shell) as run:
        result = run.wait(90)
        before.check(run, allowed=("second", "agent"))
    if result.code in (1, 99) and "harness: " not in result.err:
        raise Skip(f"network namespaces are not permitted here: {result.err.strip()}")
    return result


@cases([("ps=sync", SYNC), ("ps=dp", ["--mode", "ps", "--policy", "dp"])], at_check=1)
def two_network_namespaces_train_as_one_host_does(mode):
    words = [*mode, *LENET, "--steps", "10"]
    result = in_namespaces(LAUNCHERS, [*words, *NODES, "--json", "-", "--quiet"])
    expect_equal(result.code, 0, "exit code", result)
    job = result.json()["jobs"][0]
    expect_equal((job["world_size"], job["transport"], job["payload"]), (4, "tcp", "zmq"), "ranks and messages", result)
    expect_equal(job["parameter_hash"], hash_of_one_host(words), "hash, and that of one host")


@test
def a_ring_on_processors_between_hosts_is_refused_with_the_command_of_mpirun():
    result = in_namespaces(LAUNCHERS, [*LENET, *NODES, "--mode", "ring", "--steps", "3", "--quiet"])
    expect_equal(result.code, 78, "exit code", result)
    expect("run on different hosts" in result.err and "mpirun -x HARNESS_KEY -x MASTER_ADDR -x MASTER_PORT --host A:4,B:4 "
           "harness --mode ring --collective mpi" in result.err, "the command", result)


@more_test
def a_ring_on_processors_between_hosts_runs_over_open_mpi():
    if not shutil.which("mpirun") or not os.path.exists(os.path.join(os.environ.get("BUILD_DIR", "build"), "lib", "libpsring_mpi.so")):
        raise Skip("Open MPI is not installed")
    words = [*LENET, "--mode", "ring", "--collective", "mpi", "--algorithm", "ring", "--steps", "10", "--json", "-", "--quiet"]
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    result = in_namespaces(MPIRUN, words, env)
    expect_equal(result.code, 0, "exit code", result)
    job = result.json()["jobs"][0]
    expect_equal((job["world_size"], job["collective"]), (4, "mpi"), "ranks and library", result)
    env.update(HARNESS_KEY=KEY, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    with Run(*words, env=env, program=["mpirun", "--oversubscribe", "-np", "4", PROGRAM]) as run:
        here = run.wait(90)
    expect_equal(here.code, 0, "exit code on one host", here)
    expect_equal(job["parameter_hash"], here.json()["jobs"][0]["parameter_hash"], "hash of two hosts, and of one")


main()
