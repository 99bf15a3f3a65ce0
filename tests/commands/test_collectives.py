"""`harness collectives` shows the values of every rank before and after each operation, and what happens after three
mistakes with groups."""
import os
import re
import shutil
import subprocess
import tempfile

from program import PROGRAM, Run, harness
from tap import Skip, cases, expect, expect_equal, main, test

# name, ranks, lines of the ranks
SHOWN = [
    ("all_reduce", 2, ["1 -> 3", "2 -> 3"]),
    ("mean", 2, ["1 -> 1.5", "2 -> 1.5"]),
    ("max", 2, ["1 -> 2", "2 -> 2"]),
    ("ones", 16, ["1 -> 16"] * 16),
    ("reduce", 3, ["1 -> 6", "2 -> nothing", "3 -> nothing"]),
    ("broadcast", 3, ["1 -> 1", "nothing -> 1", "nothing -> 1"]),
    ("all_gather", 3, ["1 -> 1 2 3", "2 -> 1 2 3", "3 -> 1 2 3"]),
    ("reduce_scatter", 2, ["0 1 -> 10", "10 11 -> 12"]),
    ("gather", 3, ["1 -> 1 2 3", "2 -> nothing", "3 -> nothing"]),
    ("scatter", 3, ["0 1 2 -> 0", "nothing -> 1", "nothing -> 2"]),
    ("all_to_all", 3, ["0 1 2 -> 0 10 20", "10 11 12 -> 1 11 21", "20 21 22 -> 2 12 22"]),
    ("send", 5, ["999 -> 999, sent to rank 1", "0 -> 999, from rank 0", "999 -> 999, sent to rank 3", "0 -> 999, from rank 2", "999 -> 999, sent to nobody"]),
    ("shape", 3, ["a matrix of [2, 3] -> [2, 3]: 1 2 3 4 5 6", *["nothing -> [2, 3]: 1 2 3 4 5 6"] * 2]),
    ("groups", 4, ["1 -> 3", "2 -> 3", "3 -> 7", "4 -> 7"]),
    ("groups", 5, ["1 -> 3", "2 -> 3", "3 -> 7", "4 -> 7", "5 -> 5"]),
]


def lines(result):
    expect_equal((result.code, result.err), (0, ""), "exit code and stderr", result)
    return re.findall(r"^  rank (\d+): (.*)$", result.out, re.M)


@cases([(f"{name} on {ranks} ranks", name, ranks, shown) for name, ranks, shown in SHOWN])
def each_rank_shows_its_values_before_and_after(name, ranks, shown):
    expect_equal(lines(harness("collectives", name, "--gpus", ranks)), [(str(r), text) for r, text in enumerate(shown)], "lines")


@test
def nobody_leaves_a_barrier_before_the_last_rank_has_come():
    for rank, text in lines(harness("collectives", "barrier")):
        found = re.fullmatch(r"(comes 0\.2 s late|waits for rank 0) -> leaves when rank 0 has come, after ([0-9.]+) s", text)
        expect(found and float(found.group(2)) >= 0.2 and (found.group(1)[0] == "c") == (rank == "0"), f"rank {rank}: {text}")


@test
def halves_of_the_ranks_have_barriers_of_their_own():
    for rank, text in lines(harness("collectives", "group_barrier")):
        first = "0" if rank in "01" else "2"
        before = {"0": "comes 0.2 s late", "2": "comes"}.get(rank, f"waits for rank {first}")
        found = re.fullmatch(before + rf" -> leaves when rank {first} has come, after ([0-9.]+) s", text)
        expect(found and (first == "2" or float(found.group(1)) >= 0.2), f"rank {rank}: {text}")


@test
def ranks_that_torchrun_has_started_run_one_demonstration_together():
    started = {"TORCHELASTIC_RUN_ID": "run", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with Run("collectives", "all_reduce", env={**started, "RANK": "1", "LOCAL_RANK": "1"}) as other:
        shown = lines(harness("collectives", "all_reduce", env={**started, "RANK": "0", "LOCAL_RANK": "0"}))
        expect_equal(other.wait(60).code, 0, "exit code of rank 1")
    expect_equal(shown, [("0", "1 -> 3"), ("1", "2 -> 3")], "lines")
    result = harness("collectives", "--gpus", "2", env={**started, "RANK": "0", "LOCAL_RANK": "0"})
    expect_equal((result.code, result.err.strip()), (64, "harness: --gpus: unexpected if another program has started the ranks"), "refusal")


@test
def without_names_every_demonstration_of_the_list_runs():
    titles = [line.split(maxsplit=1)[1] for line in harness("collectives", "--list").out.splitlines()]
    shown = harness("collectives", "--gpus", 2)
    expect_equal([line for line in shown.out.splitlines() if not line.startswith(" ")], titles, "titles")
    expect_equal(len(lines(shown)), 2 * len(titles), "lines of ranks")


@cases([("a rank opens a group of which it is not a member", "outside", 70, "group 'first half': rank 3 is not a member, and must not open it"),
        ("a rank opens two groups in another order", "order", 75, "group 'A': no answer from rank 3 in time; all its ranks must open it, "
         "and open their common groups in the same order"),
        ("a rank does not open a group", "missing", 75, "group 'A': no answer from rank 3 in time; all its ranks must open it, and "
         "open their common groups in the same order")])
def a_mistake_with_groups_ends_with_the_rank_and_the_group(mistake, code, message):
    result = harness("collectives", "--mistake", mistake, "--timeout", "500ms", limit=30)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    named = message if mistake != "order" else r"group '(A': no answer from rank 3|B': no answer from ranks? [0-2, ]+) in time; all its ranks must open it"
    expect(re.search(named, result.err) if mistake == "order" else message in result.err, result)


@cases([("a name that is unknown", ["somme"], "collectives: expected one of ones, all_reduce,"),
        ("MPI without mpirun", ["--collective", "mpi"], "--collective: expected mpirun to start the ranks of 'mpi': mpirun -n 4 harness"),
        ("a name with a mistake", ["ones", "--mistake", "order"], "collectives: unexpected argument 'ones' with --mistake"),
        ("more names than there are demonstrations", ["ones"] * 17, "collectives: unexpected argument 'ones'"),
        ("one rank", ["--gpus", "1"], "--gpus: expected an integer from 2 to 64, got '1'")])
def what_cannot_run_is_refused(words, message):
    result = harness("collectives", *words)
    expect_equal((result.code, len(result.lines())), (64, 1), "exit code and lines", result)
    expect(message in result.err, result)


# Two hosts: network namespaces with names of their own, between which mpirun starts ranks by a script in place of ssh.
HOSTS = """
mount -t tmpfs tmpfs /run && ip netns add b && ip link add veth0 type veth peer name veth1 netns b &&
ip addr add 10.78.0.1/24 dev veth0 && ip link set veth0 up && ip link set lo up && hostname host-a &&
ip -n b addr add 10.78.0.2/24 dev veth1 && ip -n b link set veth1 up && ip -n b link set lo up || exit 99
printf '#!/bin/sh\nshift\nexec ip netns exec b unshare --uts sh -c "hostname host-b; $*"\n' >agent && chmod +x agent
mpirun --mca plm_rsh_agent "$PWD/agent" --host 10.78.0.1:8,10.78.0.2:8 --oversubscribe -n 16 sh -c 'hostname; exec "$@"' sh "$@"
"""


@test
def ones_on_two_hosts_of_eight_ranks_give_16():
    if not all(shutil.which(name) for name in ("mpirun", "ip", "unshare")):
        raise Skip("needs mpirun, ip and unshare (openmpi-bin, iproute2, util-linux)")
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        done = subprocess.run(["unshare", "--map-root-user", "--net", "--mount", "--uts", "sh", "-c", HOSTS, "sh", os.path.abspath(PROGRAM),
                               "collectives", "ones", "--collective", "mpi"], capture_output=True, text=True, timeout=120, check=False,
                              cwd=folder, env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                               "TMPDIR": folder})
    if done.returncode in (1, 99) and "rank" not in done.stdout + done.stderr:
        raise Skip(f"network namespaces are not permitted here: {done.stderr.strip()}")
    expect_equal(done.returncode, 0, f"exit code; {done.stderr}")
    names = [line for line in done.stdout.splitlines() if line.startswith("host-")]
    expect_equal(sorted(names), ["host-a"] * 8 + ["host-b"] * 8, "hosts of the ranks")
    expect_equal(re.findall(r"^  rank (\d+): 1 -> 16$", done.stdout, re.M), [str(r) for r in range(16)], "ranks")


main()
