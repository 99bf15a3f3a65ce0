"""Tables of `harness whatif`: of runs in virtual time, with the host of DataParallel."""
import csv
import io
import json
import os
import re
import shlex

from profiles import FILES, profile, without_ranges
from program import harness, in_ns
from tap import cases, expect, expect_equal, long_test, main, more_cases, more_test, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())


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
    expect(abs((sent[0] - sent[1]) / ((2 * 5 + 6) * replica) - 1) < 0.01,
           f"in two steps 7 replicas, or a broadcast and a reduction; after them 7, or a broadcast: {sent}, of {replica} bytes")
    expect(nccl["step_time"]["median_s"] <= python["step_time"]["median_s"], "rings are no slower than a star", steps["nccl"][1])


@cases([("tokens", ("--mode", "none", "--device", "sim", "--model", "bert", "--loader-workers", "4"), 78, "--loader-workers: expected a model of images"),
        ("a processor", ("--mode", "none", "--device", "sim:cpu", "--model", "lenet", "--loader-workers", "4"), 78, "expected a profile with loader_decode")])
def loaders_that_nothing_is_known_of_are_refused(words, code, reason):
    result = harness("run", *words, "--steps", "1")
    expect_equal(result.code, code, "exit code", result)
    expect(reason in result.err, f"expected '{reason}'", result)


@more_test
def more_threads_of_a_server_shorten_what_if_steps():
    def steps(threads):
        words = ("whatif", "--profile", "dgx1-p100", "--model", "vgg16", "--image", "32", "--batch", "4", "--policy", "sync", "--gpus", "8",
                 "--server-placement", "own", "--server-threads", threads, "--json", "-")
        return harness(*words).json()["points"][0]["step_s"]

    one, eight, many = steps("1"), steps("8"), steps("64")
    expect(eight < one, f"{one} s with one thread, {eight} with eight")
    expect_equal(many, eight, "more threads than the memory feeds")


@long_test
def four_thousand_gpus_take_seconds_to_simulate_and_a_tree_beats_the_ring():
    result = harness("whatif", "--model", "resnet50", "--profile", "dgx-a100-80g", "--gpus", "8,64,...,4096", "--json", "-")
    points = result.json()["points"]
    expect_equal([p["gpus"] for p in points], [8, 64, 512, 4096], "GPUs", result)
    by = [{row["algorithm"]: row for row in p["algorithms"]} for p in points]
    expect(list(by[0]) == ["ring"] and points[0]["tree_step_s"] is None, "eight GPUs take rings", result)
    expect("tree" in by[-1] and points[-1]["tree_step_s"] == points[-1]["step_s"], "4,096 GPUs take trees", result)
    rings = harness("whatif", "--model", "resnet50", "--profile", "dgx-a100-80g", "--gpus", "8,4096", "--algorithm", "ring", "--json", "-")
    fixed = rings.json()["points"]
    expect([list(row["algorithm"] for row in p["algorithms"]) for p in fixed] == [["ring"], ["ring"]], "--algorithm ring", rings)
    expect(fixed[0]["step_s"] == points[0]["step_s"] and fixed[1]["step_s"] > points[-1]["step_s"], "a tree is faster", rings)
    expect(all(a["weak_scaling_efficiency"] >= b["weak_scaling_efficiency"] for a, b in zip(points, points[1:])), "efficiency grows", result)


@test
def whatif_writes_the_same_figures_to_csv_and_json():
    words = ("whatif", "--model", "lenet", "--profile", "dgx-a100-80g", "--gpus", "1,8,64", "--policy", "ddp,apex")
    points = harness(*words, "--json", "-").json()["points"]
    rows = list(csv.DictReader(io.StringIO(harness(*words, "--csv", "-").out)))
    expect_equal(len(rows), len(points), "rows")
    for row, point in zip(rows, points):
        expect_equal((row["profile"], row["model"], row["policy"]), ("dgx-a100-80g", "lenet", point["policy"]), "row")
        for key in ("gpus", "step_s", "exposed_communication_s", "weak_scaling_efficiency", "samples_per_s", "memory_peak_bytes"):
            expect(abs(float(row[key]) - point[key]) <= 1e-8 * abs(point[key]), f"{key}: {row[key]}, expected {point[key]}")
        expect_equal(row["tree_step_s"] == "", point["tree_step_s"] is None, "a tree's step")
    path = FILES.name + "/points.csv"
    shown = harness(*words, "--csv", path).out
    for point in points:
        expect(re.search(rf"^ *{point['gpus']} {point['policy']} +[\d.]+ \(", shown, re.M), f"{point['gpus']} GPUs, a blank, the step", shown)
    expect("Efficiency: samples/s over " in shown and len(open(path).read().splitlines()) == 1 + len(points), "a file in addition to the table", shown)


@test
def the_step_of_whatif_is_the_mean_from_which_samples_per_second_follow():
    words = ("whatif", "--model", "lenet", "--profile", "dgx1-v100", "--batch", "4096", "--gpus", "4", "--policy", "ddp", "--jitter", "20")
    point = harness(*words, "--json", "-").json()["points"][0]
    shown = harness(*words).out
    expect(abs(point["step_s"] * point["samples_per_s"] / (4 * 4096) - 1) < 0.01, "a mean step", point)
    row = next(line.split() for line in shown.splitlines() if re.match(r" +4 ", line))
    expect_equal((row[2], row[5]), (f"{1000 * point['step_s']:.2f}", f"{float('%.3g' % point['samples_per_s']):.0f}"), "step and samples per s", shown)


@test
def what_if_tries_settings_after_the_keys_of_the_policy():
    words = ("--model", "vgg16", "--batch", "8", "--policy", "ddp:order=registration", "--gpus", "8")
    mine = harness("whatif", "--profile", "dgx1-v100", *words, "--json", "-").json()["next"]
    path = FILES.name + "/next.json"
    harness("run", "--device", "sim:dgx1-v100", "--mode", "ring", "--steps", "3", *words, "--json", path)
    with open(path, encoding="utf-8") as file:
        run = json.load(file)["next"]
    expect_equal((mine["options"], mine["shorter"]), (run["options"], run["shorter"]), "what shortens a step")


@test
def what_if_tries_groups_of_a_machine_and_names_what_it_tried():
    words = ("--profile", "dgx-a100-40g", "--model", "gpt2", "--sequence", "256", "--batch", "1", "--gpus", "16", "--adapters", "1",
             "--policy", "zero2", "--draws", "0")
    found = harness("whatif", *words, "--json", "-").json()
    expect("--policy zero1:group=8" in found["next"]["settings"] and "group=8" in found["next"]["options"], "the group", found["next"])
    point, = found["points"]
    expect_equal((point["step_low_s"], point["step_high_s"]), (point["step_s"],) * 2, "without draws there are no ranges")
    expect(", ".join(found["next"]["settings"]) in " ".join(harness("whatif", *words).out.split()), "the settings", found["next"])


@test
def the_heading_describes_the_machines_of_the_profile_not_of_a_draw():
    words = ("whatif", "--profile", "dgx-a100-40g", "--model", "lenet", "--gpus", "16")
    heads = [re.search(r"virtual time, .*? each", " ".join(harness(*words, "--draws", draws).out.split()))[0] for draws in ("0", "16")]
    expect_equal(heads[1], heads[0], "the heading")


@test
def if_no_policy_can_run_what_if_says_why():
    words = ("whatif", "--profile", "dgx1-v100", "--model", "resnet50")
    result = harness(*words, "--policy", "zero3:group=3,zero3:group=5", "--gpus", "8")
    one = harness(*words, "--policy", "zero3:group=3", "--gpus", "8")
    expect_equal((result.code, result.err), (one.code, one.err), "the reason of one policy", result)
    expect(one.code in (64, 78) and "group" in one.err, "a reason", one)


@cases([("a learning rate", ("--lr", "0.5")), ("a seed", ("--seed", "2"))])
def what_if_notes_an_option_that_does_nothing(words):
    result = harness("whatif", "--profile", "dgx1-v100", "--model", "lenet", "--gpus", "2", *words)
    expect_equal(result.code, 0, "exit code", result)
    expect(f"{words[0]} has no effect here: virtual devices compute no values" in result.err, "a note", result)


A100 = ("whatif", "--profile", "dgx-a100-80g", "--model", "resnet50", "--batch", "256", "--tf32", "--gpus", "1,2")


@more_cases([("a whole number", ("--measured", "1:938"), 256 / 938), ("a fraction", ("--measured", "1:937.5"), 256 / 937.5)])
def a_measured_step_anchors_what_if_in_every_draw(words, seconds):
    result = harness(*A100, *words, "--json", "-").json()
    for key in ("one_gpu_step_s", "one_gpu_step_low_s", "one_gpu_step_high_s"):
        expect(abs(result[key] / seconds - 1) < 2e-4, f"{key}: {result[key]}, expected {seconds}")
    one, two = result["points"]
    expect(one["step_s"] == result["one_gpu_step_s"] and two["step_s"] > 0.999 * one["step_s"], "steps", result["points"])
    expect(two["step_high_s"] / two["step_low_s"] < 1.5, "the range of one GPU's time is gone", two)
    expect_equal(result["efficiencies_estimated"], False, "estimated")
    expect("is an estimate" not in harness(*A100, *words).out, "no note")


BERT = ("whatif", "--profile", "v100-sxm2-ib100", "--model", "bert_base", "--batch", "32", "--sequence", "128", "--optimizer", "adam", "--policy", "flat")
JOB = ("whatif", "--profile", "v100-sxm2-ib100", "--workload", "params=110M,units=12,step=67ms,peak=12GiB,batch=8")


@cases([("a model", BERT), ("four numbers of a job", (*JOB, "--policy", "flat"))])
def what_several_gpus_lose_beyond_the_model_is_added_to_larger_jobs(words):
    words = (*words, "--gpus", "1,4,8,16,32", "--draws", "2")
    model = harness(*words, "--measured", "1:119.6", "--json", "-").json()["points"]
    expect(abs(model[0]["samples_per_s"] / 119.6 - 1) < 1e-3, "one GPU", model[0])
    result = harness(*words, "--measured", "1:119.6,8:900", "--json", "-").json()
    points, (added,) = result["points"], result["measured"]
    expect(abs(points[2]["samples_per_s"] / 900 - 1) < 1e-9 and abs(added["modeled_samples_per_s"] / model[2]["samples_per_s"] - 1) < 1e-9, "8 GPUs", points[2], added)
    for before, after, part in zip(model, points, (0, 2 / 3, 1, 1, 1)):
        expect(abs(after["step_s"] - before["step_s"] - part * added["added_s"]) < 1e-9, f"{after['gpus']} GPUs", before, after)
        lost = after["lost"]
        causes = sum(value or 0 for key, value in lost.items() if key not in ("step_s", "alone_s", "total_s"))
        expect(abs(causes - (lost["step_s"] - lost["alone_s"])) < 1e-9, "parts add up", lost)
    expect(points[2]["step_low_s"] / points[2]["step_s"] > 0.9999, "the measured point has no range", points[2])
    text = " ".join(harness(*words, "--measured", "1:119.6,8:900").out.split())
    word, rate = "less" if added["added_s"] < 0 else "more", "%.0f" % float("%.3g" % added["modeled_samples_per_s"])
    expect(f"flat on 8 GPUs: 900 samples/s measured, {rate} by the model. From 8 GPUs on a step takes {1e3 * abs(added['added_s']):.3f} ms {word} than the model says."
           in text, "what the point changed", text)


@test
def one_and_eight_gpus_predict_sixteen_and_thirty_two():
    """BERT-base and ResNet-50 on four hosts of 8 V100, as results/published/training.csv has them: efficiencies within 5 points."""
    table = {(1, 32): (119.6, 921.32, 1499.4, 2885.81), (1, 48): (121.94, 928.01, 1584.32, 3039.3)}
    for (_, batch), (one, eight, *rest) in table.items():
        words = [batch if word == "32" else word for word in BERT]
        points = harness(*words, "--gpus", "16,32", "--draws", "0", "--measured", f"1:{one},8:{eight}", "--json", "-").json()["points"]
        for point, published in zip(points, rest):
            found, expected = point["samples_per_s"] / point["gpus"] / one, published / point["gpus"] / one
            expect(abs(found - expected) < 0.05, f"{batch}, {point['gpus']} GPUs: {found:.3f}, published {expected:.3f}")


@test
def what_if_says_that_efficiencies_are_estimates():
    result = harness(*A100, "--json", "-").json()
    expect_equal(result["efficiencies_estimated"], True, "estimated")
    expect(result["one_gpu_step_high_s"] / result["one_gpu_step_low_s"] > 1.5, "a wide range", result)
    expect(result["one_gpu_step_low_s"] < 256 / 938 < result["one_gpu_step_high_s"], "the range holds the published 938 images/s", result)
    expect("is an estimate" in harness(*A100).out.replace("\n", " "), "a note")


@test
def limits_of_whatif_are_those_of_runs_with_drawn_constants():
    words = ("--model", "resnet18", "--image", "64", "--batch", "8", "--warmup", "2", "--steps", "1")
    right = {"several_gpus": {"value": 1, "unit": "1", "tag": "published", "source": "a test"}}  # The model's error is not in a run.
    path = profile("without-error", base="dgx1-v100", constants=right)
    result = harness("whatif", *words, "--profile", path, "--gpus", "4", "--json", "-").json()

    def step(draw, *more):
        return harness("run", *words, *more, "--device", "sim:" + path, "--draw", draw, "--json", "-", "--quiet").json()["jobs"][0]["step_time"]["median_s"]

    draws = range(0, 17)
    four, one = [step(d, "--mode", "ring", "--gpus", "4") for d in draws], [step(d, "--mode", "none") for d in draws]
    point = result["points"][0]
    found = [point["step_s"], point["step_low_s"], point["step_high_s"], result["one_gpu_step_low_s"], result["one_gpu_step_high_s"]]
    expected = [four[0], min(four), max(four), min(one), max(one)]
    expect_equal([in_ns(value) for value in found], [in_ns(value) for value in expected], "steps and their limits")
    scaling = [a / b for a, b in zip(one, four)]
    expect(abs(point["weak_scaling_efficiency_low"] - min(scaling)) < 1e-9, "the ratio is that of one draw", point)
    shown = harness("profiles", "dgx1-v100").out
    expect("collective_share: 0.6 (0.4 to 0.9; range: source)" in shown, "the range of a constant", shown)


TWO_HOSTS = ("--model", "resnet18", "--image", "64", "--batch", "64", "--policy", "ddp")  # 16 GPUs are two hosts of v100-sxm2-ib100
ERRORS = {"several_gpus": {"range": [0.96, 1.096]}, "several_hosts": {"range": [0.917, 1.081]}}


@test
def ranges_contain_the_error_of_the_model_by_the_number_of_hosts():
    path = without_ranges("only-errors", "v100-sxm2-ib100", **ERRORS)
    words = ("whatif", "--profile", path, *TWO_HOSTS, "--gpus", "1,2,8,16")
    result = harness(*words, "--draws", "16", "--json", "-").json()
    expect_equal((result["one_gpu_step_low_s"], result["one_gpu_step_high_s"]), (result["one_gpu_step_s"],) * 2, "one GPU has no range")
    one = harness(*words, "--draws", "0", "--json", "-").json()["points"]
    for point, exact, (low, high) in zip(result["points"], one, ((1, 1), (0.96, 1.096), (0.96, 1.096), (0.917, 1.081))):
        expect_equal(point["step_s"], exact["step_s"], f"the value for {point['gpus']} GPUs")
        found = [point["step_low_s"] / point["step_s"], point["step_high_s"] / point["step_s"],
                 point["weak_scaling_efficiency"] / point["weak_scaling_efficiency_high"], point["weak_scaling_efficiency"] / point["weak_scaling_efficiency_low"]]
        expect(all(abs(a - b) < 1e-9 for a, b in zip(found, (low, high) * 2)), f"{point['gpus']} GPUs: {found}, expected {low} to {high}", point)


@test
def the_range_of_several_gpus_is_at_least_as_wide_as_the_error_of_the_model():
    words = ("whatif", "--profile", "v100-sxm2-ib100", *TWO_HOSTS, "--gpus", "8,16", "--json", "-")
    for anchor in ((), ("--measured", "1:1500")):
        for point, (low, high) in zip(harness(*words, *anchor).json()["points"], (error["range"] for error in ERRORS.values())):
            found = point["step_high_s"] / point["step_low_s"]
            expect(found >= high / low, f"{point['gpus']} GPUs {anchor}: high over low is {found}, expected {high / low}", point)


@test
def the_range_of_an_unknown_stack_reaches_from_full_overlap_to_none():
    def point(share, *more):
        path = without_ranges(f"share-{share}", "v100-sxm2-ib100", collective_share={"value": share})
        return harness("whatif", "--profile", path, *TWO_HOSTS, "--gpus", "16", *more, "--json", "-").json()["points"][0]

    unknown, policy, least, most = point(0.6, "--stack", "unknown"), point(0.6, "--stack", "policy"), point(0), point(0.99)
    expect(least["step_s"] < policy["step_s"] < most["step_s"], "a larger share makes a step longer", least, policy, most)
    expect_equal((policy["step_low_s"], policy["step_high_s"]), (policy["step_s"],) * 2, "the policy has no range in a profile without ranges")
    expect_equal(unknown["step_s"], policy["step_s"], "the value of the policy")
    for end, key, found in ((least, "step_s", "step_low_s"), (most, "step_s", "step_high_s"),
                            (least, "weak_scaling_efficiency", "weak_scaling_efficiency_high"), (most, "weak_scaling_efficiency", "weak_scaling_efficiency_low")):
        expect(abs(unknown[found] / end[key] - 1) < 1e-9, f"{found}: {unknown[found]}, expected {end[key]}", unknown)


@test
def an_unknown_stack_may_lose_much_more_until_a_second_point_is_measured():
    def ratio(measured, stack):
        answer = harness(*BERT, "--gpus", "16", "--measured", measured, "--stack", stack, "--json", "-").json()
        expect_equal(answer["unknown_stack"], stack == "unknown", "the result names the stack")
        return answer["points"][0]["step_high_s"] / answer["points"][0]["step_low_s"]

    one, two, known = ratio("1:119.6", "unknown"), ratio("1:119.6,8:921", "unknown"), ratio("1:119.6", "policy")
    expect(one > 2 > two > known, f"high over low: {one}, {two} with a second point, {known} of the policy")


@test
def an_unknown_stack_needs_a_profile_of_gpus():
    result = harness("whatif", "--profile", "cpu", "--model", "lenet", "--gpus", "2", "--stack", "unknown")
    expect_equal((result.code, result.out, result.err), (78, "", "harness: --stack unknown: expected a profile of GPUs, got cpu\n"), "exit code, stdout and stderr", result)


def table_of_lost(*words):
    """The columns of the table of lost time, {head: [value of each row]}."""
    head, *lines = harness(*words).out.split("Lost per step")[1].split("\n\n")[0].splitlines()[1:]
    columns = [slice(at, at + 8) for at in range(17, len(head), 8)]  # after the policy and the GPUs
    rows = [line for line in lines if re.search(r"\.\d\d", line)]
    return {head[column].strip(): [float(row[column]) for row in rows] for column in columns}


@test
def why_divides_exposed_communication_into_hosts_and_the_network_between_them():
    words = ("whatif", "--profile", "v100-sxm2-ib100", *TWO_HOSTS[:-1], "ddp,flat", "--gpus", "4,8,16", "--draws", "0")
    plain, result = harness(*words, "--json", "-").json(), harness(*words, "--why", "--json", "-").json()
    expect_equal(({p["between_hosts_s"] for p in plain["points"]}, plain["range_depends_on"]), ({None}, None), "without --why")
    by = {(p["policy"], p["gpus"]): p for p in result["points"]}
    for before, (_, gpus), p in zip(plain["points"], by, result["points"]):
        between, exposed = p["between_hosts_s"], p["lost"]["communication_s"]
        expect(between > 0.1 * exposed if gpus == 16 else between == 0, f"{gpus} GPUs: {between} s between hosts", p)
        inside = by[p["policy"], min(gpus, 8)]["lost"]["communication_s"]  # what the GPUs of one host alone lose
        expect(abs(exposed - between - inside) < 1e-12, f"{exposed} s exposed, {inside} s in a host", p)
        causes = sum(value or 0 for key, value in p["lost"].items() if key not in ("step_s", "alone_s", "total_s"))
        expect(abs(causes - p["lost"]["total_s"]) < 1e-9, "parts add up", p["lost"])
        expect_equal({**p, "between_hosts_s": None}, before, "the other figures are those without --why")
    divided, whole = table_of_lost(*words, "--why"), table_of_lost(*words)
    expect_equal("exposed" in divided, False, "the column exposed", divided)
    expect_equal([head for head in divided if head not in whole], ["in host", "between"], "new columns")
    for inside, between, exposed, p in zip(divided["in host"], divided["between"], whole["exposed"], result["points"]):
        expect(abs(inside + between - exposed) < 0.011, f"{inside} + {between} = {exposed}", divided, whole)
        expect(abs(between - 1e3 * p["between_hosts_s"]) < 0.006, "the figure of the JSON", p)


@test
def why_names_the_loader_if_its_rate_decides_the_step():
    words = (*TWO_HOSTS, "--gpus", "16", "--draws", "0", "--loader-workers", "1")
    result = harness("whatif", "--profile", "v100-sxm2-ib100", *words, "--why", "--json", "-").json()
    found = result["range_depends_on"]
    expect_equal(found["constant"], "loader_decode", "the constant", found)
    with open(os.path.join(ROOT, "common/sim/profiles/v100-sxm2-ib100.json"), encoding="utf-8") as file:
        constant = json.load(file)["constants"]["loader_decode"]
    expect_equal([found["low"], found["high"]], constant["range"], "the ends of its range")
    for end in ("low", "high"):
        path = profile(f"decode-{end}", base="v100-sxm2-ib100", constants={"loader_decode": dict(constant, value=found[end])})
        step = harness("whatif", "--profile", path, *words, "--json", "-").json()["points"][0]["step_s"]
        expect(abs(found[f"step_at_{end}_s"] / step - 1) < 1e-9, f"a step with the {end} value: {step}", found)
    expect(found["step_at_low_s"] > result["points"][0]["step_s"] > found["step_at_high_s"], "a slower loader makes a step longer", found)
    shown = " ".join(harness("whatif", "--profile", "v100-sxm2-ib100", *words, "--why").out.split())
    figures = tuple(1e3 * found[f"step_at_{end}_s"] for end in ("low", "high"))
    expect("The range depends most on the constant loader_decode, %g to %g: the step takes %.3f to %.3f ms." % (*constant["range"], *figures) in shown, "the sentence", shown)


@test
def why_asks_about_the_best_policy_and_the_most_gpus():
    path = without_ranges("nic-and-nvlink", "v100-sxm2-ib100", nic={"range": [6, 12]}, nvlink={"range": [19, 20]})
    words = ("whatif", "--profile", path, "--model", "vgg16", "--image", "32", "--batch", "4", "--draws", "0", "--why", "--json", "-")
    named = [harness(*words, "--gpus", gpus).json()["range_depends_on"]["constant"] for gpus in ("4,16", "4,8")]
    expect_equal(named, ["nic", "nvlink"], "on two hosts and on one")


@test
def why_names_no_constant_if_none_has_a_range():
    path = without_ranges("exact", "v100-sxm2-ib100")
    words = ("whatif", "--profile", path, *TWO_HOSTS, "--gpus", "16", "--why")
    result = harness(*words, "--json", "-").json()
    expect_equal(result["range_depends_on"], None, "range_depends_on")
    point, = result["points"]
    expect_equal((point["step_low_s"], point["step_high_s"]), (point["step_s"],) * 2, "a step without a range")
    expect(point["between_hosts_s"] > 0, "exposed communication is divided", point)
    shown = harness(*words).out
    expect("depends most" not in shown and "between" in shown, "no sentence about a constant", shown)


@more_test
def the_page_quotes_what_whatif_gives_with_one_thread_of_a_server_and_with_eight():
    with open(os.path.join(ROOT, "docs/simulation.md"), encoding="utf-8") as file:
        quoted = re.search(r"^    harness (whatif .*--server-threads) 1\n\nshows a step of (\d+) ms \((\d+) to (\d+)\); "
                           r"eight threads give (\d+) \((\d+) to (\d+)\)", file.read(), re.M)
    expect(quoted, "the command and its figures")
    for threads, figures in (("1", quoted.groups()[1:4]), ("8", quoted.groups()[4:])):
        point = harness(*shlex.split(quoted[1]), threads, "--json", "-").json()["points"][0]
        found = tuple(f"{1e3 * point[key]:.0f}" for key in ("step_s", "step_low_s", "step_high_s"))
        expect_equal(figures, found, f"{threads} threads")


@more_test
def the_page_quotes_ranges_causes_and_a_loader_as_the_program_gives_them():
    with open(os.path.join(ROOT, "docs/simulation.md"), encoding="utf-8") as file:
        page = file.read().replace("\\\n", " ")
    of = r"^    harness (whatif [^\n]*{})\n\n{}"
    command, *figures = re.search(of.format("--stack unknown", r"shows a step of (\d+) ms \((\d+) to (\d+)\), and without `--stack unknown` (\d+) ms \((\d+) to (\d+)\)"), page, re.M).groups()
    unknown, policy = (harness(*shlex.split(words), "--json", "-").json()["points"][0] for words in (command, command.replace(" --stack unknown", "")))
    found = [f"{1e3 * point[key]:.0f}" for point in (unknown, policy) for key in ("step_s", "step_low_s", "step_high_s")]
    expect_equal(figures, found, "the figures of --stack unknown")
    command, printed = re.search(of.format("--why", r"prints among other lines:\n\n((?:    [^\n]*\n|\n)+)"), page, re.M).groups()
    blocks, out = re.sub(r"^    ", "", printed, flags=re.M).strip("\n").split("\n\n"), harness(*shlex.split(command)).out
    expect(len(blocks) == 2 and all(block in out for block in blocks), "the lines of --why", *blocks, out)
    command, loaded, plain = re.search(of.format(r"--loader-workers host:16 --loader-rate \d+", r"shows a step of (\d+) ms.*?step takes (\d+) ms"), page, re.M | re.S).groups()
    steps = [harness(*shlex.split(words), "--json", "-").json()["points"][0]["step_s"] for words in (command, command.split("--loader")[0])]
    expect_equal([loaded, plain], [f"{1e3 * step:.0f}" for step in steps], "steps with and without a loader")


RESNET = ["--model", "resnet50", "--batch", "16"]
SAME = [  # label, profile, engine, policy, GPUs, options
    ("one configuration", "dgx1-v100", "ring", "ddp", 8, ["--model", "resnet50", "--batch", "64"]),
    ("keys of a policy", "dgx1-v100", "ring", "ring=apex:message-size=1000000:order=ready", 4, RESNET),
    ("bfloat16 and Adam", "dgx-a100-80g", "ring", "torch-0.4.1", 8, [*RESNET, "--bf16", "--optimizer", "adam"]),
    ("machines, a network of one's own", "v100-sxm2-ib100", "ring", "ddp", 16, [*RESNET, "--nodes", "4", "--link", "25Gbit/s,20us"]),
    ("the rate of a network", "v100-pcie-10gbe", "ring", "ddp", 4, [*RESNET, "--link", "40Gbit/s"]),
    ("no batch ahead", "v100-pcie-32g", "ring", "ddp", 4, [*RESNET, "--prefetch", "off"]),
    ("jitter", "v100-pcie-32g", "ring", "ddp", 4, [*RESNET, "--jitter", "3"]),
    ("sequences and division before the sum", "dgx1-v100", "ring", "ddp", 4, ["--model", "bert", "--batch", "8", "--divide", "before"]),
    ("efficiencies", "v100-pcie-32g", "ring", "ddp", 2, [*RESNET, "--efficiency", "0.5"]),
    ("micro-batches", "v100-pcie-32g", "ring", "ddp", 2, [*RESNET, "--accumulate", "3"]),
    ("other steps", "v100-pcie-32g", "ring", "ddp", 2, [*RESNET, "--warmup", "1", "--steps", "5"]),
    ("stages of a pipeline", "dgx1-v100", "ring", "ddp", 4, ["--model", "resnet18", "--batch", "8", "--stages", "2", "--accumulate", "4", "--schedule", "gpipe"]),
    ("stages on a rank's devices", "dgx1-v100", "ring", "ddp", 2, ["--model", "resnet18", "--batch", "8", "--stages", "2", "--stages-on", "devices"]),
    ("servers", "dgx1-v100", "ps", "sync", 4, [*RESNET, "--servers", "2", "--payload", "zmq"]),
    ("servers in their own processes", "v100-pcie-10gbe", "ps", "sync", 4, [*RESNET, "--server-placement", "own"]),
    ("a slow rank under async", "v100-pcie-32g", "ps", "async", 4, [*RESNET, "--slow", "3:2"]),
    ("replicas", "v100-pcie-32g", "ps", "dp", 4, [*RESNET, "--dp-loss", "replica"]),
]


@cases([(label, *case) for label, *case in SAME], at_check=4)
def whatif_is_a_table_of_runs(profile, engine, policy, gpus, options):
    whatif = harness("whatif", "--profile", profile, "--policy", policy, "--gpus", gpus, *options, "--quiet", "--json", "-").json()
    length = [] if "--steps" in options else ["--warmup", "2", "--steps", "3"]
    words = ("run", "--device", "sim:" + profile, *options, *length, "--quiet", "--json", "-")
    run = harness(*words, "--mode", engine, "--policy", policy, "--gpus", gpus).json()
    job, point = run["jobs"][0], whatif["points"][0]
    phases = job["phases"]
    for found, expected in ((point["step_s"], phases["step_s"]["mean_s"]),
                            (point["exposed_communication_s"], phases["exposed_communication_s"]["mean_s"]),
                            (point["waiting_s"], phases["waiting_s"]["mean_s"])):
        expect(abs(1e9 * (found - expected)) < 0.01, "nanoseconds", found, expected)
    expect_equal(point["memory_peak_bytes"], job["memory_imbalance"]["maximum_bytes"], "bytes")
    expect(abs(point["samples_per_s"] / job["throughput"]["samples_per_s"] - 1) < 1e-12, "samples per second", point)
    stages = job.get("pipeline") and len(job["pipeline"]["stages"]) or 1  # Only the first stage loads a batch.
    if engine == "ring":  # Ranks of a server end a step at different times.
        expect(abs(point["weak_scaling_efficiency"] * stages * point["step_s"] / whatif["one_gpu_step_s"] - 1) < 0.01, "efficiency", point)
    expect_equal(whatif["workload"], run["workload"], "workload")


@test
def the_step_of_one_gpu_is_that_of_run_without_communication():
    options = ("--batch", "16", "--model", "resnet50", "--optimizer", "adam", "--quiet", "--json", "-")
    whatif = harness("whatif", "--profile", "dgx1-v100", "--gpus", "1,4", "--slow", "3:2", *options).json()
    none = harness("run", "--device", "sim:dgx1-v100", "--mode", "none", "--warmup", "2", "--steps", "3", *options).jobs()["none"]
    expect_equal(round(1e9 * whatif["one_gpu_step_s"]), round(1e9 * none["phases"]["step_s"]["mean_s"]), "nanoseconds of one GPU")
    expect_equal(whatif["points"][0]["step_s"], whatif["one_gpu_step_s"], "the point of one GPU")
    expect(whatif["points"][1]["weak_scaling_efficiency"] < 0.6, "of four, one of which takes twice the time", whatif["points"])


@test
def whatif_takes_the_device_as_run_does():
    by_name, by_device = (harness("whatif", *RESNET, "--gpus", "1,2", *words, "--json", "-").json()
                          for words in (("--profile", "dgx1-p100"), ("--device", "sim:dgx1-p100")))
    expect_equal(by_device["points"], by_name["points"], "points")
    expect_equal([by_device["profile"], by_name["profile"]], ["dgx1-p100"] * 2, "profiles")


ALL = ["dp", "ddp", "zero1", "zero2", "zero3", "fsdp", "sync"]
SMALL = ("whatif", "--profile", "dgx1-v100", "--model", "lenet", "--draws", "2", "--quiet")
MACHINES = ("whatif", "--profile", "dgx-a100-40g", "--model", "lenet", "--quiet")  # of 8 GPUs


@test
def policy_all_asks_seven_policies_and_sync_has_a_server_on_every_rank():
    result = harness(*SMALL, "--gpus", "2,4", "--policy", "all", "--json", "-").json()
    points = {(p["policy"], p["gpus"]): p for p in result["points"]}
    expect_equal(list(points), [(policy, gpus) for policy in ALL for gpus in (2, 4)], "points")
    expect_equal(result["server_per_rank"], True, "server_per_rank")
    for gpus in (2, 4):
        words = (*SMALL, "--gpus", gpus, "--policy", "sync", "--json", "-")
        alone, one_server = harness(*words, "--servers", gpus).json(), harness(*words, "--servers", "1").json()
        expect_equal(points["sync", gpus], alone["points"][0], f"the point of {gpus} servers")
        expect(alone["points"][0]["step_s"] != one_server["points"][0]["step_s"], "one server takes another time", one_server)
        expect_equal(alone["server_per_rank"], False, "server_per_rank without --policy all")
    shown = harness(*SMALL, "--gpus", "2,4", "--policy", "all").out
    rows = re.findall(r"^    ([24]) (\w+)", shown, re.M)
    expect_equal(rows, [(gpus, policy) for gpus in "24" for policy in ALL], "rows of the table")
    expect_equal(len(re.findall("sync, a server per rank", shown.split("Lost per step")[0])), 2, "rows that name the servers")


def verdict_of(*words):
    """The verdict in JSON, and the text from "Best on" to "Next"."""
    shown = re.search(r"(?:Best on|No policy) .*?(?= Next:| Efficiency:)", " ".join(harness(*words).out.split()))
    return harness(*words, "--json", "-").json(), shown[0]


def limits_of_ratio(policies, words, draws):
    """samples/s of one policy over those of the other, draw by draw: the first, the least and the most."""
    rates = [[harness("run", "--device", "sim:dgx1-v100", "--mode", "ring", "--policy", policy, "--warmup", "2", "--steps", "3", "--draw", draw,
                      *words, "--json", "-", "--quiet").json()["jobs"][0]["throughput"]["samples_per_s"] for draw in range(draws + 1)] for policy in policies]
    ratios = [a / b for a, b in zip(*rates)]
    return ratios[0], min(ratios), max(ratios)


@cases([("decided", ["zero1", "ddp"], ""), ("undecided", ["horovod", "ddp"], ": undecided, because the range contains 1")])
def the_verdict_compares_policies_draw_by_draw(policies, undecided):
    words = ("--model", "resnet18", "--batch", "8", "--gpus", "4")
    result, shown = verdict_of("whatif", "--profile", "dgx1-v100", *words, "--policy", ",".join(policies), "--draws", "4", "--quiet")
    verdict, expected = result["verdict"], limits_of_ratio(policies, words, 4)
    best, other = policies
    expect_equal((verdict["policy"], verdict["gpus"], verdict["next"]["policy"]), (best, 4, other), "the two policies", shown)
    found = [verdict["next"][key] for key in ("ratio", "ratio_low", "ratio_high")]
    expect(all(abs(a / b - 1) < 1e-9 for a, b in zip(found, expected)), f"ratios {found}, expected {expected}", shown)
    expect_equal((verdict["undecided"], expected[1] <= 1), (undecided != "",) * 2, "undecided", shown)
    expect("It is %.3f (%.3f to %.3f) times as fast as %s%s." % (*expected, other, undecided) in shown, "the sentence", shown)
    expect(shown.startswith(f"Best on 4 GPUs: {best}, "), "the best", shown)


@test
def the_verdict_has_the_figures_of_its_row():
    """Of more than 1,000 samples/s, the row has three digits."""
    shown = harness(*SMALL, "--gpus", "8", "--policy", "ddp").out
    rate, cause = re.search(r"^ *8 ddp .* ([\d.]+) +[\d.]+ [KMG]iB \w+ ([\d.]+) %$", shown, re.M).groups()
    best = re.search(r"Best on 8 GPUs: ddp, ([\d.]+) samples/s. It loses most by .*, ([\d.]+) % of a step", " ".join(shown.split()))
    expect_equal((best.groups(), float(rate) > 1000), ((rate, cause), True), "samples/s, and the largest loss", shown)


@test
def equal_policies_are_undecided_even_if_nothing_is_drawn():
    result, shown = verdict_of(*SMALL, "--gpus", "4", "--policy", "zero1,zero2", "--draws", "0")
    expect_equal(result["verdict"]["undecided"], True, "undecided", shown)
    expect("times as fast as zero2: undecided, because the ratio is 1." in shown, "the sentence", shown)


@test
def a_single_policy_has_a_verdict_without_a_comparison():
    result, shown = verdict_of(*SMALL, "--gpus", "4", "--policy", "ddp")
    expect_equal((result["verdict"]["policy"], result["verdict"]["next"], result["verdict"]["undecided"]), ("ddp", None, False), "verdict", shown)
    expect("times as fast" not in shown, "no comparison", shown)


def with_memory(gib):
    """A job whose ranks hold 2 GB under ddp and 0.6 GB under zero3, on GPUs with this memory."""
    memory = {"gpu_memory": {"value": gib, "unit": "GiB", "tag": "assumed", "source": "a test"}}
    path = profile(f"memory-{gib}", base="dgx1-v100", constants=memory)
    return ("whatif", "--profile", path, "--model", "gpt2", "--sequence", "16", "--batch", "1", "--optimizer", "adam", "--gpus", "8",
            "--policy", "all", "--draws", "0", "--quiet")


@test
def the_verdict_names_the_fastest_policy_that_fits_into_the_memory():
    result, shown = verdict_of(*with_memory(0.75))
    fits = {p["policy"]: p["samples_per_s"] for p in result["points"] if p["fits"]}
    expect("ddp" not in fits and "zero3" in fits, f"policies that fit: {list(fits)}", shown)
    expect(max(p["samples_per_s"] for p in result["points"]) > max(fits.values()), "the fastest does not fit", result["points"])
    expect_equal(result["verdict"]["policy"], max(fits, key=fits.get), "the best", shown)
    rows = harness(*with_memory(0.75)).out.split("Lost per step")[0]
    for p in result["points"]:
        row = re.search(rf"^    8 {p['policy']}.*?(?=^    8|\Z)", rows, re.M | re.S)[0]
        expect_equal("does not fit" in row, not p["fits"], f"the row of {p['policy']}", row)
        expect(p["memory_peak_bytes"] > 0 and "iB" in row, "the memory it needs", row)


@test
def if_no_policy_fits_all_rows_say_so_and_there_is_no_verdict():
    result = harness(*with_memory(0.1))
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(len(re.findall(r"^ {4}8 .*?does not fit", result.out, re.M | re.S)), len(ALL), "rows that do not fit", result)
    answer, shown = verdict_of(*with_memory(0.1))
    expect_equal((answer["verdict"], [p["fits"] for p in answer["points"]]), (None, [False] * 7), "verdict and points", shown)
    expect_equal(shown, "No policy can run on 8 GPUs of 0 GiB.", "the last line")


@test
def the_row_of_dataparallel_on_several_machines_says_why_and_the_others_remain():
    reason = "DataParallel is one process on one machine: expected at most 8 GPUs of profile dgx-a100-40g, got 16"
    words = (*MACHINES, "--gpus", "8,16", "--draws", "0", "--policy", "dp,ddp")
    result = harness(*words)
    expect_equal(result.code, 0, "exit code", result)
    expect(f"16 dp cannot run: {reason} 16 ddp" in " ".join(result.out.split()), "the reason in the table", result)
    points = harness(*words, "--json", "-").json()["points"]
    expect_equal([(p["policy"], p["gpus"], p["refused"], p["fits"], p["step_s"] is None) for p in points],
                 [("dp", 8, None, True, False), ("dp", 16, reason, False, True), ("ddp", 8, None, True, False), ("ddp", 16, None, True, False)], "points")
    rows = list(csv.DictReader(io.StringIO(harness(*words, "--csv", "-").out)))
    expect_equal([(row["step_s"] == "", row["fits"]) for row in rows], [(False, "1"), (True, "0"), (False, "1"), (False, "1")], "CSV")
    alone = harness(*MACHINES, "--gpus", "16", "--policy", "dp")
    expect_equal((alone.code, alone.err), (78, f"harness: {reason}\n"), "exit code and stderr of dp alone", alone)


@test
def all_policies_leave_out_servers_that_take_minutes():
    words = ("whatif", "--profile", "dgx-a100-80g", "--workload", "params=10M,units=4,step=20ms,peak=1GiB", "--gpus", "40", "--draws", "0")
    rows = {row["policy"]: row for row in harness(*words, "--policy", "all", "--json", "-").json()["points"]}
    expect("--policy sync --servers 40" in rows["sync"]["refused"], "the reason", rows["sync"])
    expect(rows["ddp"]["step_s"] > 0, "other policies have a step", rows["ddp"])
    alone = harness(*words, "--policy", "sync", "--servers", "40", "--json", "-").json()["points"][0]
    expect(alone["step_s"] > 0 and not alone["refused"], "the policy alone has a step", alone)


if __name__ == "__main__":
    main()
