"""What DataParallel's host and the loader cost in virtual time."""
from profiles import profile
from program import harness
from tap import cases, expect, expect_equal, main, test


def eight_gpus(*words, device="sim:dgx-a100-40g"):
    """A job of eight virtual A100, small images, and the parts of its host."""
    words = ("run", "--device", device, "--gpus", "8", "--model", "resnet18", "--image", "64", "--batch", "64", "--prefetch", "off",
             "--warmup", "2", "--steps", "2", "--quiet", *words, "--json", "-")
    job = harness(*words).json()["jobs"][0]
    return job, {part["name"].strip(): part["time_s"] for part in job.get("host_costs", {}).get("parts", [])}


DP, DDP = ("--mode", "ps", "--policy", "dp"), ("--mode", "ring", "--policy", "ddp")


@test
def a_steady_step_of_dataparallel_is_the_slowest_part_of_its_host():
    slow = {"loader_pin": {"value": 0.01, "unit": "GB/s", "tag": "assumed", "source": "a test"}}
    slow_pin = "sim:" + profile("slow-pin", base="dgx-a100-40g", constants=slow)
    for workers, slowest, device in (("1", "loader workers", "sim:dgx-a100-40g"), ("4096", "main thread", "sim:dgx-a100-40g"),
                                     ("4096", "pinning thread", slow_pin)):
        job, parts = eight_gpus(*DP, "--loader-workers", workers, device=device)
        expect_equal(job["host_costs"]["slowest"], slowest, f"{workers} workers", parts)
        expect(abs(job["step_time"]["median_s"] / parts[slowest] - 1) < 1e-3, f"a step of {job['step_time']['median_s']} s", parts)
        whole = ("loader workers", "pinning thread", "main thread", "of replicate: wiring")
        main_parts = [parts[name] for name in parts if name not in (*whole, "decode and transform", "collate")]
        expect(abs(sum(main_parts) - parts["main thread"]) < 1e-9, "the main thread is the sum of its parts", parts)
        expect(abs(parts["decode and transform"] + parts["collate"] - parts["loader workers"]) < 1e-9, "so are the workers", parts)


@test
def loader_workers_are_those_of_each_process():
    dp, of_dp = eight_gpus(*DP, "--loader-workers", "8")
    ddp, of_ddp = eight_gpus(*DDP, "--loader-workers", "1")
    expect(abs(of_dp["loader workers"] / of_ddp["loader workers"] - 1) < 1e-9, "8 workers of one process, 1 of each of eight", of_dp, of_ddp)
    expect(abs(dp["step_time"]["median_s"] / ddp["step_time"]["median_s"] - 1) < 1e-3, "both wait for their loaders", dp["step_time"], ddp["step_time"])
    expect(ddp["phases"]["data_s"]["median_s"] > 0.5 * ddp["step_time"]["median_s"], "the wait is in the step's data", ddp["phases"]["data_s"])
    none, parts = eight_gpus(*DDP)
    expect(none["step_time"]["median_s"] < ddp["step_time"]["median_s"] / 2 and not parts, "without a loader", none["step_time"])


def loader(gpus, *words):
    """The job of ResNet-18 on so many V100 with hosts of 8 and a PyTorch loader, and the time in which the workers of a process make a batch of 16."""
    job = harness("run", "--device", "sim:v100-sxm2-ib100", "--gpus", gpus, "--model", "resnet18", "--image", "64", "--batch", "16", "--warmup", "2",
                  "--steps", "2", "--quiet", *words, "--json", "-").json()["jobs"][0]
    return job, next(part["time_s"] for part in job["host_costs"]["parts"] if part["name"].strip() == "loader workers")


@cases([("8 of 8 ranks on a host: 1 each", "8", DDP, "host:8", "1"), ("8 of 3 ranks: 3 each, rounded up", "3", DDP, "host:8", "3"),
        ("7 of 8 ranks: 1 each, rounded up", "8", DDP, "host:7", "1"), ("8 of each of two hosts of 8 ranks: 1 each", "16", DDP, "host:8", "1"),
        ("8 of each of two hosts of 4 ranks: 2 each", "8", (*DDP, "--nodes", "2"), "host:8", "2"), ("8 of each of 3 hosts of 1 rank: 8 each", "3", (*DDP, "--nodes", "3"), "host:8", "8"),
        ("8 of each of two hosts of 2 ranks and 1: 4 each", "3", (*DDP, "--nodes", "2"), "host:8", "4"),
        ("8 of the process of dp: all", "8", DP, "host:8", "8"), ("8 of the process of one GPU: all", "1", ("--mode", "none"), "host:8", "8"),
        ("8 of 4 ranks with two devices each: 2 each", "4", (*DDP, "--stages", "2", "--stages-on", "devices"), "host:8", "2")])
def processes_of_a_host_share_its_loader_workers(gpus, words, host, each):
    shared, batch = loader(gpus, *words, "--loader-workers", host)
    own, expected = loader(gpus, *words, "--loader-workers", each)
    expect_equal((batch, shared["step_time"]), (expected, own["step_time"]), f"--loader-workers {host} and {each}")
    _, other = loader(gpus, *words, "--loader-workers", int(each) + 1)
    expect(other < batch, f"one more worker per process shortens a batch of {batch} s", other)


@test
def no_workers_of_a_host_are_no_loader():
    words = ("whatif", "--profile", "dgx1-v100", "--model", "bert", "--gpus", "2", "--draws", "0", "--json", "-")
    without, none, loaded = (harness(*words, *more).json()["points"] for more in ((), ("--loader-workers", "host:0"), ("--loader-workers", "host:1", "--loader-rate", "9")))
    expect(none == without != loaded, "points without a loader, with host:0 and with host:1", without, none, loaded)


@cases([("images", ("--model", "resnet18", "--image", "64", "--batch", "32"), "4", "50", 32 / (4 * 50)), ("tokens", ("--model", "bert", "--batch", "8"), "2", "10", 8 / (2 * 10)),
        ("half of the workers of a host", ("--model", "bert", "--batch", "8"), "host:4", "10", 8 / (2 * 10))])
def a_loader_s_rate_and_workers_set_the_time_of_a_batch(words, workers, rate, seconds):
    words = ("run", "--device", "sim:dgx1-v100", *DDP, "--gpus", "2", *words, "--warmup", "4", "--steps", "4", "--quiet", "--json", "-")
    job = harness(*words, "--loader-workers", workers, "--loader-rate", rate).json()["jobs"][0]
    parts = {part["name"].strip(): part["time_s"] for part in job["host_costs"]["parts"]}
    expect_equal(parts["loader workers"], seconds, "the time of a batch", parts)
    expect(abs(job["step_time"]["median_s"] / seconds - 1) < 1e-6, "a step waits for its loader", job["step_time"])
    none = harness(*words).json()["jobs"][0]["step_time"]["median_s"]
    data = job["phases"]["data_s"]["median_s"]
    expect(abs(data / (seconds - none) - 1) < 0.02 and data > 0.5 * seconds, f"the loader's time but {none} s of a step without loader", job["phases"])


@cases([("letters", ("--loader-workers", "host:x"), "--loader-workers: expected an integer from 0 to 4096, got 'x'"),
        ("a host without a number", ("--loader-workers", "host:"), "--loader-workers: expected an integer from 0 to 4096, got ''"),
        ("letters after a number", ("--loader-workers", "4x"), "--loader-workers: expected an integer from 0 to 4096, got '4x'"),
        ("too many", ("--loader-workers", "host:4097"), "--loader-workers: expected an integer from 0 to 4096, got '4097'"),
        ("a rate without workers", ("--loader-rate", "100"), "--loader-rate: expected --loader-workers"),
        ("a rate without workers of a host", ("--loader-rate", "100", "--loader-workers", "host:0"), "--loader-rate: expected --loader-workers")])
def options_of_a_loader_are_refused_in_one_line(words, reason):
    for command in (("run", "--device", "sim:dgx1-v100", "--mode", "ring"), ("whatif", "--profile", "dgx1-v100")):
        result = harness(*command, "--model", "resnet18", "--gpus", "2", *words)
        expect_equal((result.code, result.out, result.err), (64, "", f"harness: {reason}\n"), "exit code, stdout and stderr", result)


@test
def a_python_host_costs_wiring_and_calls_and_an_exchange_by_nccl_sends_once():
    steps = {name: eight_gpus(*DP, *words) for name, words in (
        ("python", ("--payload", "zmq")), ("none", ("--payload", "zmq", "--dp-host", "none")), ("nccl", ()))}
    python, none, nccl = (steps[name][0] for name in ("python", "none", "nccl"))
    expect(python["step_time"]["median_s"] > none["step_time"]["median_s"] + 0.9 * steps["python"][1]["of replicate: wiring"],
           "wiring is in the step", steps["python"][1], steps["none"][1])
    expect("of replicate: wiring" not in steps["none"][1], "no interpreter, no wiring", steps["none"][1])
    expect(steps["python"][1]["forward"] > steps["none"][1]["forward"], "calls under the lock", steps["python"][1], steps["none"][1])
    sent, m = [job["ranks"][0]["bytes_sent"] for job in (python, nccl)], python["dataparallel_memory"]
    replica = m["parameters_bytes"] + m["buffers_bytes"]
    expect(abs((sent[0] - sent[1]) / (2 * 5 * replica) - 1) < 0.01,
           f"in each of two steps 7 replicas, or a broadcast and a reduction: {sent}, of {replica} bytes")
    expect(nccl["step_time"]["median_s"] <= python["step_time"]["median_s"], "rings are no slower than a star", steps["nccl"][1])


@cases([("tokens", ("--mode", "none", "--device", "sim", "--model", "bert", "--loader-workers", "4"), 78, "--loader-workers: expected a model of images"),
        ("a processor", ("--mode", "none", "--device", "sim:cpu", "--model", "lenet", "--loader-workers", "4"), 78, "expected a profile with loader_decode")])
def loaders_that_nothing_is_known_of_are_refused(words, code, reason):
    result = harness("run", *words, "--steps", "1")
    expect_equal(result.code, code, "exit code", result)
    expect(reason in result.err, f"expected '{reason}'", result)


main()
