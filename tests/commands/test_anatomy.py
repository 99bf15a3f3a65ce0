"""The parts of a step: they add up, under every engine, policy and device; a late rank is waited for and named; the
communication of a step is what the link's arithmetic says."""
import os
import re
import resource
import shutil
import socket
import statistics

from anatomy import HIDDEN, PARTS, best_of, executed, expect_all_wait, expect_anatomy, policies, shifted_clock, waiting_and_delay
from program import BUILD, PROGRAM, Run, harness
from tap import Skip, cases, expect, expect_equal, long_cases, main, test

VIRTUAL = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--quiet"]
LENET = [*VIRTUAL, "--threads", "1"]


def job_of(*words, limit=120, env=None):
    result = harness("run", *words, "--json", "-", limit=limit, env=env)
    expect_equal(result.code, 0, "exit code", result)
    job, = result.jobs().values()
    return job


# ---- the parts add up --------------------------------------------------------------------------

RUNS = [("none", [])] + [(engine, ["--mode", engine, "--policy", policy, "--gpus", "3"])
                         for engine in ("ring", "ps") for policy in policies(engine)]
DEVICES = [("cpu", [*LENET, "--batch", "4"]), ("reference", ["--model", "wine_mlp", "--data", "wine", "--quiet"]),
           ("sim:v100-pcie-32g", [*VIRTUAL, "--batch", "4"])]
FURTHER = [("cpu", words) for words in (
    ["--mode", "ring", "--progress", "inline"], ["--mode", "ps", "--policy", "sync", "--progress", "inline"],
    ["--mode", "ps", "--policy", "dp", "--progress", "inline"], ["--mode", "ring", "--accumulate", "3"],
    ["--mode", "ps", "--policy", "sync", "--accumulate", "2"], ["--mode", "ps", "--policy", "dp", "--accumulate", "2"],
    ["--mode", "ps", "--policy", "sync", "--servers", "2", "--clip-norm", "0.5"],
    ["--mode", "ps", "--policy", "sync", "--server-optimizer", "off", "--clip-norm", "0.5"],
    ["--mode", "ps", "--policy", "async", "--server-placement", "own"],
    ["--mode", "ring", "--comm-hook", "powersgd"], ["--mode", "ring", "--link", "100MB/s,100us"],
    ["--mode", "ps", "--policy", "ssp", "--link", "100MB/s,100us"], ["--mode", "ring", "--remote-stage", "local", "--accumulate", "2"])]
STAGES = [(device, model, ["--mode", "ring", "--gpus", "4", "--stages", "2", "--accumulate", "3", *words])
          for device, model in (DEVICES[0], ("sim:dgx-a100-80g", DEVICES[2][1]))
          for words in (["--schedule", "gpipe"], ["--gpus", "2", "--clip-norm", "0.5"], ["--gpus", "2", "--stages-on", "devices"])]


def rows_on(*devices):
    return [(f"{' '.join(words[1:4:2]) or 'none'} on {device}", device, model, words or ["--mode", "none"])
            for device, model in devices for _, words in RUNS]


@cases(rows_on(*DEVICES[::2]) + [(" ".join(words), device, DEVICES[0][1], words + ["--gpus", "2"]) for device, words in FURTHER[::2]] +
       [(f"{' '.join(words[4:])} on {device}", device, model, words) for device, model, words in STAGES])
@long_cases(rows_on(DEVICES[1]) + [(" ".join(words), device, DEVICES[0][1], words + ["--gpus", "2"]) for device, words in FURTHER[1::2]])
def the_parts_of_every_step_add_up(device, model, words):
    expect_anatomy(job_of(*model, "--device", device, "--steps", "6", "--warmup", "1", *words))


MICRO_BATCHES = ["--device", "sim", "--model", "lenet", "--gpus", "2", "--batch", "1", "--steps", "3", "--mode", "ps", "--policy", "dp"]


@test
def all_waits_of_many_micro_batches_are_recorded():
    job = job_of(*MICRO_BATCHES, "--accumulate", "30", "--quiet")
    expect_anatomy(job)
    for rank in job["ranks"]:  # every stage of dp waits for its exchange: nothing is hidden
        expect_equal(rank["exposed_communication_s"], rank["communication_s"], f"rank {rank['rank']}: exposed communication")


@test
def parts_of_a_step_with_more_waits_than_there_is_room_for_are_not_measured():
    shown = harness("run", *MICRO_BATCHES, "--accumulate", "700", "--verbose")
    expect("are not measured" in shown.err, "the warning", shown)
    expect(re.search(r"^  exposed communication +-$", shown.out, re.M) and "Limit" not in shown.out, "the report", shown)
    job = job_of(*MICRO_BATCHES, "--accumulate", "700", "--quiet")
    for rank in job["ranks"]:
        for key in (*PARTS, *HIDDEN, "waited_for"):
            expect_equal(rank[key], [None] * 3, f"rank {rank['rank']}: {key}")
        expect_equal((rank["waited_for_s"], min(rank["step_s"]) > 0), ({}, True), f"rank {rank['rank']}: waits and steps")
    for key in (*PARTS, *HIDDEN):
        expect_equal((job["phases"][key]["count"], job["phases"][key]["mean_s"]), (0, None), key)


# ---- the processor time of the compute thread ---------------------------------------------------

def on_the_cpu(rank):
    return rank["wall_s"] - rank["off_cpu_s"]


def with_cpu_time(*words):
    """Returns the job, and the processor time of all processes of the run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    job = job_of(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return job, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@cases([("ring", ["--mode", "ring", "--progress", "thread"]), ("ps", ["--mode", "ps", "--policy", "sync", "--progress", "thread"]),
        ("between evaluations", ["--mode", "ring", "--progress", "thread", "--eval-every", "1"])])
def a_rank_that_sleeps_is_off_the_cpu(words):
    """--slow makes a rank sleep for 19 of 20 parts of its computation. Agents and compute threads take at most the
    processor time that the processes take."""
    job, used = with_cpu_time(*LENET, "--batch", "32", "--gpus", "2", "--slow", "1:20", "--steps", "6", "--stall-timeout", "300s", *words)
    for rank in job["ranks"]:
        expect(0 < on_the_cpu(rank) < rank["wall_s"], f"rank {rank['rank']}: {rank['off_cpu_s']} s of {rank['wall_s']} s", rank)
        expect(rank["agents_cpu_s"] > 0, f"rank {rank['rank']}: processor time of its agent", rank["agents_cpu_s"])
    slept = 19 / 20 * (sum(job["ranks"][1]["forward_s"]) + sum(job["ranks"][1]["backward_s"]))
    expect(job["ranks"][1]["off_cpu_s"] >= 0.9 * slept, f"off the CPU for {job['ranks'][1]['off_cpu_s']} s, slept for {slept} s")
    counted = sum(on_the_cpu(rank) + rank["agents_cpu_s"] for rank in job["ranks"])
    expect(counted <= used, f"{counted} s of processor time, the processes took {used} s")


@test
def computing_is_on_the_cpu():
    job, used = with_cpu_time(*LENET, "--batch", "128", "--steps", "120", "--mode", "none", "--eval-every", "-1")
    rank, = job["ranks"]
    expect(0.5 * used <= on_the_cpu(rank) <= used, f"{on_the_cpu(rank)} s in steps, the process took {used} s")
    expect_equal(rank["agents_cpu_s"], 0, "processor time of agents")


@test
def in_virtual_time_nothing_is_on_the_cpu():
    expect_equal([rank["off_cpu_s"] for rank in job_of(*MICRO_BATCHES, "--quiet")["ranks"]], [None, None], "off_cpu_s")


@test
def the_table_shows_means_that_add_up():
    job = job_of(*LENET, "--batch", "4", "--mode", "ring", "--gpus", "2", "--steps", "8")
    mean = {key: job["phases"][key]["mean_s"] for key in (*PARTS, "step_s")}
    expect(abs(sum(mean[key] for key in PARTS) - mean["step_s"]) < len(PARTS) * 1e-9, "means of the parts and of the step", mean)


@test
def the_parts_of_a_step_of_dp_are_those_of_rank_0():
    job = job_of(*LENET, "--batch", "16", "--mode", "ps", "--policy", "dp", "--gpus", "3", "--steps", "8", "--loader-threads", "1")
    for key in (*PARTS, *HIDDEN, "step_s"):
        expect(abs(job["phases"][key]["mean_s"] - sum(job["ranks"][0][key]) / 8) < 2e-9, key, job["phases"][key], job["ranks"][0][key])
    expect(min(sum(job["ranks"][0][key]) for key in ("data_s", "optimizer_s")) > 0, "rank 0 loads and updates", job["phases"])


@cases([("ring", ["--mode", "ring"], 2), ("ps", ["--mode", "ps", "--policy", "sync"], 2), ("ps=dp, rank 0", ["--mode", "ps", "--policy", "dp"], 1)])
def slowdown_is_against_the_same_ranks_without_exchange(words, of):
    result = harness("run", *LENET, "--batch", "4", "--gpus", "2", "--steps", "12", *words, "--isolated", "--json", "-")
    jobs = result.jobs()
    alone, job = jobs["isolated"], jobs[words[1]]
    expect_anatomy(job)
    expect_equal((alone["world_size"], alone["engine"], alone["slowdown"]), (2, "none", None), "the isolated ranks")
    expect_equal([rank["bytes_sent"] for rank in alone["ranks"]], [0, 0], "bytes of the isolated ranks")
    expect_equal([rank["step_index"] for rank in alone["ranks"]], [rank["step_index"] for rank in job["ranks"]], "turns")
    computed = [sum(sum(rank["forward_s"]) + sum(rank["backward_s"]) for rank in j["ranks"][:n]) / (12 * n) for j, n in ((job, of), (alone, 2))]
    found = job["slowdown"]
    expect(abs(found["mean_s"] - (computed[0] - computed[1])) < 1e-8, "slowdown", found, computed)
    expect(found["low_s"] <= found["mean_s"] <= found["high_s"], "interval", found)


@test
def slowdown_without_the_isolated_ranks_is_not_measured_and_virtual_time_has_it():
    shown = harness("run", *LENET, "--batch", "4", "--gpus", "2", "--steps", "3", "--mode", "ring", "--verbose")
    expect(re.search(r"slowdown by communication +-$", shown.out, re.M), "the report", shown)
    job = job_of("--model", "resnet18", "--image", "64", "--device", "sim:v100-pcie-32g", "--mode", "ring", "--gpus", "4",
                 "--steps", "3", "--quiet")
    none = job_of("--model", "resnet18", "--image", "64", "--device", "sim:v100-pcie-32g", "--mode", "none", "--steps", "3", "--quiet")
    expect(none["phases"]["batch_copy_s"]["mean_s"] > 0 and none["slowdown"] is None, "a copy of the next batch is no communication", none["slowdown"])
    slowed, hidden = job["slowdown"]["mean_s"], job["phases"]["hidden_communication_s"]["mean_s"]
    expect_equal(slowed, job["phases"]["slowdown_s"]["mean_s"], "slowdown in virtual time")
    expect(0 < slowed <= hidden, f"communication that is hidden slows computation: {slowed} s of {hidden} s")


@cases([("virtual time", ["--device", "sim"], "real device"), ("checkpoints", ["--save", "x.ckpt"], "without --save"),
        ("other starters", ["--rendezvous", "tcp://127.0.0.1:1"], "--rendezvous")])
def isolated_ranks_are_refused_where_they_cannot_run(words, says):
    result = harness("run", "--model", "lenet", "--mode", "ring", "--gpus", "2", "--isolated", *words)
    expect(result.code != 0 and "--isolated" in result.err and says in result.err, "the message", result)


# ---- a late rank -------------------------------------------------------------------------------

SLOW = [*LENET, "--batch", "64", "--gpus", "3", "--slow", "1:80", "--warmup", "0", "--stall-timeout", "300s"]


@cases([("ring", ["--mode", "ring"], True), ("ps=sync", ["--mode", "ps", "--policy", "sync"], True),
        ("ps=dp", ["--mode", "ps", "--policy", "dp"], False)] +
       [(policy, ["--mode", "ring", "--policy", policy], True) for policy in ("zero3", "fsdp")], at_once=3)
@long_cases([(policy, ["--mode", "ring", "--policy", policy], True) for policy in ("zero1", "zero2", "zero3:group=1")])
def all_others_wait_for_a_late_rank(words, by_name):
    best_of(3, lambda: job_of(*SLOW, "--steps", "4", *words), lambda job: expect_all_wait(job, 1, by_name))  # dp: all wait for rank 0, which waits for rank 1


# ---- a rank that computes twice as long ---------------------------------------------------------

V100 = ["--device", "sim:v100-pcie-32g", "--model", "resnet18", "--batch", "32", "--gpus", "3", "--quiet"]
RING, SYNC, DP = ["--mode", "ring"], ["--mode", "ps", "--policy", "sync"], ["--mode", "ps", "--policy", "dp"]
ASYNC, SSP = ["--mode", "ps", "--policy", "async"], ["--mode", "ps", "--policy", "ssp"]


@cases([("ring", RING, True), ("ps=sync", SYNC, True), ("ps=sync, three servers", [*SYNC, "--servers", "3"], True),
        ("ps=dp by messages", [*DP, "--payload", "zmq"], False), ("ps=dp by NCCL", DP, None)])
def in_virtual_time_waiting_grows_by_the_delay(words, by_name):
    usual, slowed = (job_of(*V100, "--steps", "6", *words, *slow) for slow in ([], ["--slow", "1:2"]))
    steps = range(6)
    delay = executed(slowed["ranks"][1], steps) - executed(usual["ranks"][1], steps)
    expect_anatomy(slowed)
    for rank in (0, 2):
        before, after = (sum(job["ranks"][rank]["waiting_s"]) for job in (usual, slowed))
        expect(0.95 * delay <= after - before <= 1.05 * delay > 0,
               f"rank {rank} waited {before:.4f} s and now {after:.4f} s, for a delay of {delay:.4f} s")
        named = slowed["ranks"][rank]["waited_for_s"]
        if by_name is not None:  # dp: all wait for rank 0, which waits for rank 1
            expect_equal(max(named, key=named.get), str(1 if by_name or rank == 0 else 0), f"whom rank {rank} waits for", named)


# Ranks 0 and 1 are a group, in which rank 1 is late; rank 2 waits between the groups for rank 0, rank 3 for rank 1.
@cases([(f"{policy}:group=2", f"{policy}:group=2") for policy in ("zero1", "zero3")])
def in_virtual_time_what_is_waited_for_has_a_name_between_groups_too(policy):
    job = job_of(*V100, "--gpus", "4", "--steps", "6", "--mode", "ring", "--policy", policy, "--slow", "1:2")
    expect_anatomy(job)
    for rank, other in ((0, 1), (2, 0), (3, 1)):
        waited, delay = waiting_and_delay(job, rank, range(6))
        expect(waited >= 0.8 * delay > 0, f"rank {rank} waited {waited:.4f} s for a delay of {delay:.4f} s")
        named = job["ranks"][rank]["waited_for_s"]
        expect_equal(max(named, key=named.get), str(other), f"whom rank {rank} waits for", named)


@test
def in_virtual_time_what_moves_while_a_late_rank_computes_is_hidden_by_waiting():
    usual, slowed = (job_of(*V100, "--steps", "6", *SYNC, *slow) for slow in ([], ["--slow", "1:4"]))
    for job in (usual, slowed):
        expect_anatomy(job)
    for rank in (0, 2):
        usual_s, slowed_s = ([sum(job["ranks"][rank][key]) for key in HIDDEN] for job in (usual, slowed))
        expect(usual_s[1] < 0.01 * usual_s[2] and usual_s[0] > 0, f"rank {rank}: all ranks are as fast", usual_s)
        expect(slowed_s[1] > 0.5 * slowed_s[2] > 0, f"rank {rank}: rank 1 is late", slowed_s)


@test
def in_virtual_time_nobody_waits_under_async():
    job = job_of(*V100, "--steps", "6", "--slow", "1:2", *ASYNC)
    expect_anatomy(job)
    expect_equal([sum(rank["waiting_s"]) for rank in job["ranks"]], [0, 0, 0], "waiting under async")


@test
def in_virtual_time_ssp_waits_only_beyond_its_bound():
    job = job_of(*V100, "--steps", "16", "--warmup", "0", "--slow", "1:2", *SSP, "--staleness", "3")
    expect_anatomy(job)
    for rank in (0, 2):
        expect_equal(job["ranks"][rank]["waiting_s"][:6], [0] * 6, f"waiting of rank {rank} until it is three steps ahead")
        waited, delay = waiting_and_delay(job, rank, range(7, 16), ahead=4)
        expect(waited >= 0.9 * delay > 0, f"rank {rank} waited {waited:.4f} s beyond the bound for a delay of {delay:.4f} s")


TWICE = [*LENET, "--batch", "1024", "--gpus", "3", "--slow", "1:2", "--warmup", "0", "--steps", "4", "--stall-timeout", "300s"]


@cases([("ring", RING, True), ("ps=sync", SYNC, True), ("ps=dp", DP, False)])
def all_others_wait_for_a_rank_that_takes_twice_as_long(words, by_name):
    best_of(3, lambda: job_of(*TWICE, *words), lambda job: expect_all_wait(job, 1, by_name))


def expect_no_waiting(job, steps):
    expect_anatomy(job)
    for rank in (0, 2):
        waited, delay = waiting_and_delay(job, rank, steps)
        expect(waited < 0.1 * delay, f"rank {rank} waited {waited:.3f} s, and the delay is {delay:.3f} s")


@cases([("async", ASYNC, range(1, 4)), ("ssp within its bound", [*SSP, "--staleness", "3"], range(0, 4))])
def nobody_waits_for_a_rank_that_takes_twice_as_long(words, steps):
    best_of(3, lambda: job_of(*TWICE, *words), lambda job: expect_no_waiting(job, steps))


HOUR, HALF_A_MINUTE = 3_600_000_000_000, 30_000_000_000


# In an earlier version times of sending were on the sender's clock: a rank whose clock was ahead waited for nobody,
# and the others waited only for this rank.
@cases([("sync, rank 1 is late", "sync", 1)])
@long_cases([(f"{policy}, rank 0 is late", policy, 0) for policy in ("sync", "dp")], at_once=2)
def waiting_does_not_depend_on_clocks(policy, late):
    def check(job):
        expect_equal(job["ranks"][1]["clock"]["aligned"], True, "another clock", job["ranks"][1]["clock"])
        expect_all_wait(job, late, policy == "sync", 0.5)  # a clock that differs shows nothing or an hour, a busy machine hides some
    env = shifted_clock(HOUR)
    best_of(3, lambda: job_of(*SLOW, "--slow", f"{late}:80", "--steps", "4", "--mode", "ps", "--policy", policy, env=env), check)


def mpi_job(*words, env):
    mpirun = shutil.which("mpirun")
    if not mpirun or not os.path.exists(os.path.join(BUILD, "lib", "libpsring_mpi.so")):
        raise Skip("built or installed without Open MPI")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "HARNESS_KEY": "0123456789abcdef" * 4, **env}
    with Run("run", *words, "--collective", "mpi", "--rendezvous", "env://", "--json", "-", env=env,
             program=[mpirun, "--oversubscribe", "-np", "3", PROGRAM]) as run:
        result = run.wait(120)
    expect_equal(result.code, 0, "exit code", result)
    job, = result.jobs().values()
    return job


# MPI does not report when other ranks began a call, so the whole call counted as communication, or as waiting for
# rank 0.
@cases([("rank 1 has another clock", -HALF_A_MINUTE, 1), ("and waits", -HALF_A_MINUTE, 2)])
@long_cases([("one clock", 0, 1)])
def with_mpi_all_others_wait_for_a_late_rank(shift, late):
    job = mpi_job(*LENET, "--batch", "16", "--slow", f"{late}:80", "--warmup", "0", "--stall-timeout", "300s", "--steps", "4", "--mode",
                  "ring", env=shifted_clock(shift) if shift else {})
    expect(job["collective"] == "mpi" and job["ranks"][0]["merged_calls"] > 0, "calls of MPI", job["ranks"][0]["merged_calls"])
    expect_equal(job["ranks"][1]["clock"]["aligned"], shift != 0, "another clock", job["ranks"][1]["clock"])
    expect_all_wait(job, late)


@test
def under_async_nobody_waits_for_a_late_rank():
    job = job_of(*SLOW, "--steps", "6", "--mode", "ps", "--policy", "async")
    expect_no_waiting(job, range(1, 6))


@test
def under_ssp_ranks_wait_only_beyond_the_bound():
    job = job_of(*SLOW, "--steps", "9", "--mode", "ps", "--policy", "ssp", "--staleness", "3")
    expect_anatomy(job)
    for rank in (0, 2):
        within, delay = waiting_and_delay(job, rank, range(0, 4))  # In these steps no update of another rank is needed.
        expect(within < 0.1 * delay, f"rank {rank} waited {within:.3f} s within the bound; the delay is {delay:.3f} s")
        beyond, delay = waiting_and_delay(job, rank, range(5, 9), ahead=4)
        expect(beyond >= 0.9 * delay > 0, f"rank {rank} waited {beyond:.3f} s beyond the bound for a delay of {delay:.3f} s")


# ---- communication and the link ----------------------------------------------------------------

RATE, LATENCY = 200e3, 0.05
LINK = [*LENET, "--batch", "2", "--gpus", "2", "--steps", "3", "--warmup", "1", "--link", "200KB/s,50ms"]
# In the order in which gradients become ready: fc3, fc2, fc1, conv2, conv1. The bytes of a bias are negligible.
TENSORS = [840, 10080, 48000, 2400, 150]
PARAMETERS = 61706


def there_and_back():
    """Time to send a worker's tensors to a server and back, one after another in each direction: latency, and the
    bytes at the link's rate."""
    out = back = 0.0
    for elements in TENSORS:
        out += 4 * elements / RATE
        back = max(back, out + LATENCY) + 4 * elements / RATE
    return back + LATENCY


@cases([("ring", ["--mode", "ring", "--policy", "flat"], [2 * LATENCY + 4 * PARAMETERS / RATE] * 2, 0)] +
       [(f"ps with one server{', clocks differ' if shift else ''}", ["--mode", "ps", "--policy", "sync", "--servers", "1"],
         [LATENCY + 4 * PARAMETERS / RATE, there_and_back()], shift) for shift in (0, HOUR)], at_once=3, at_more=2)
def communication_is_what_the_link_takes(words, expected, shift):
    job = job_of(*LINK, *words, env=shifted_clock(shift) if shift else None)
    expect_anatomy(job)
    for rank, seconds in zip(job["ranks"], expected):
        found = statistics.median(rank["communication_s"])
        expect(abs(found / seconds - 1) <= 0.05, f"rank {rank['rank']}: {found:.4f} s, the link takes {seconds:.4f} s",
               rank["communication_s"])


main()
