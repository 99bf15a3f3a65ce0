"""docs/examples/train.sbatch under Slurm: munged, slurmctld and two slurmd of Debian's slurm-wlm run on this machine, in a folder
of the test."""
import contextlib
import getpass
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from program import PROGRAM, harness
from tap import Skip, expect, expect_equal, main, test

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
SCRIPT = os.path.abspath(os.path.join(os.environ.get("SOURCE_DIR", "."), "docs", "examples", "train.sbatch"))
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
# Nodes are called 127.1 and 127.2, since the name of a node must be known to the resolver, and both are addresses of this machine.
NODES = ("127.1", "127.2")


def free_ports(count):
    with contextlib.ExitStack() as taken:
        return [taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def configuration(folder):
    ports = free_ports(3)
    user, host = getpass.getuser(), socket.gethostname()
    nodes = "".join(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"
                    for node, port in zip(NODES, ports[1:]))
    return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
{nodes}PartitionName=all Nodes=ALL Default=YES State=UP
"""


def run(words, env, cwd=None, limit=120):
    return subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=limit, check=False)


@contextlib.contextmanager
def cluster():
    """The environment of a user of a Slurm cluster with two nodes, and a folder that both nodes see."""
    missing = [name for name in DAEMONS if not shutil.which(name, path=PATH)]
    if missing:
        raise Skip(f"needs slurm-wlm (no {missing[0]})")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "HARNESS_", "MASTER_"))}
        env.update(PATH=PATH, SLURM_CONF=f"{folder}/slurm.conf", HARNESS=PROGRAM)
        for name in ("munge", "state", "job", *NODES):
            os.mkdir(os.path.join(folder, name), 0o700)
        with open(f"{folder}/munge/key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(128))
        with open(f"{folder}/slurm.conf", "w", encoding="utf-8") as file:
            file.write(configuration(folder))
        munged = ["munged", "--foreground", "--force"] + [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
        daemons = [[*munged, f"--socket={folder}/munge/socket"], ["slurmctld", "-D", "-i"]] + [["slurmd", "-D", "-N", n] for n in NODES]
        processes = []
        try:
            for words in daemons:
                processes.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                until = time.monotonic() + 30
                while words is daemons[0] and not os.path.exists(f"{folder}/munge/socket") and time.monotonic() < until:
                    time.sleep(0.05)
            wait_for_nodes(folder, env)
            yield env, f"{folder}/job"
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def wait_for_nodes(folder, env):
    for _ in range(120):
        found = run(["sinfo", "--noheader", "--format=%T %D"], env)
        if found.stdout.split() == ["idle", "2"]:
            return
        time.sleep(0.5)
    logs = "".join(open(path, encoding="utf-8").read()[-2000:] for path in glob.glob(f"{folder}/*.log"))
    expect(False, "two idle nodes within 60 s", found.stdout, found.stderr, logs)


def hash_of(path):
    with open(path, encoding="utf-8") as file:
        job = json.load(file)["jobs"][0]
    expect_equal(job["world_size"], 4, "ranks")
    return job["parameter_hash"]


@test
def sbatch_runs_the_script_of_the_documents_on_two_nodes():
    words = ["--mode", "ps", "--policy", "sync", "--model", "wine_mlp", "--data", "wine", "--optimizer", "adam", "--batch", "8", "--epochs", "20",
             "--threads", "1"]
    here = harness(*words, "--gpus", "4", "--json", "-", "--quiet").json()["jobs"][0]["parameter_hash"]
    with cluster() as (env, folder):
        done = run(["sbatch", "--wait", SCRIPT], env, folder)
        texts = "".join(open(path, encoding="utf-8").read() for path in glob.glob(f"{folder}/*.log"))
        expect_equal(done.returncode, 0, "exit code of sbatch", done.stdout, done.stderr, texts)
        expect_equal(sorted(os.listdir(folder)), ["psring-1-10.safetensors", "psring-1-20.safetensors", "psring-1.json", "psring-1.log"], "files of the job, without the key", texts)
        expect_equal(hash_of(f"{folder}/psring-1.json"), here, "hash of two nodes, and of one host")
        # srun outside of a batch job, and a launcher per node.
        env["HARNESS_KEY"] = "0123456789abcdef" * 4
        done = run(["srun", "--nodes=2", "--ntasks=4", PROGRAM, *words, "--json", "tasks.json"], env, folder)
        expect_equal(done.returncode, 0, "exit code of srun", done.stdout, done.stderr)
        expect_equal(hash_of(f"{folder}/tasks.json"), here, "hash of four tasks, and of one host")
        node = ("exec \"$@\" --nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 2 --master-addr 127.0.0.1 --json launchers.json")
        done = run(["srun", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", node, "sh", PROGRAM, *words], env, folder)
        expect_equal(done.returncode, 0, "exit code of srun with a launcher per node", done.stdout, done.stderr)
        expect_equal(hash_of(f"{folder}/launchers.json"), here, "hash of two launchers, and of one host")


main()
