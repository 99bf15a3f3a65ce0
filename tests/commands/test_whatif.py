"""Tables of `harness whatif`: their rows are runs in virtual time, and the verdict names the fastest policy."""
import csv
import io
import json
import os
import re
import shlex

from profiles import FILES, length, profile
from program import harness
from tap import cases, expect, expect_equal, long_test, main, more_test, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())


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
def the_csv_of_whatif_quotes_the_texts_of_a_recorded_job():
    numbers = "params=350M,units=24,step=412ms,peak=31GiB"
    path = FILES.name + "/job.json"
    harness("run", "--device", "sim", "--mode", "none", "--model", "lenet", "--workload-out", path)
    with open(path, encoding="utf-8") as file:
        job = {**json.load(file), "model": 'a "net", mine'}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job, file)
    for workload, model in ((numbers, numbers), (path, job["model"])):
        words = ("whatif", "--profile", "dgx-a100-80g", "--workload", workload, "--policy", "ddp,dp", "--gpus", "8,512", "--draws", "0", "--csv", "-")
        header, *rows = csv.reader(io.StringIO(harness(*words).out))
        expect_equal([(len(row), row[1], row[3]) for row in rows], [(len(header), model, policy) for policy in ("ddp", "ddp", "dp", "dp")], "rows")


@test
def the_ranges_of_one_draw_name_a_draw():
    shown = " ".join(harness("whatif", "--model", "lenet", "--gpus", "2", "--draws", "1").out.split())
    expect("limits over 1 draw of the profile's constants" in shown, shown)


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
    words = ("run", "--device", "sim:" + profile, *options, *(() if "--steps" in options else length(policy)), "--quiet", "--json", "-")
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


SLOW = ("whatif", "--profile", "v100-pcie-32g", "--model", "resnet50", "--batch", "8", "--gpus", "8", "--slow", "3:2", "--draws", "0", "--json", "-")


@cases([("ssp", "ssp"), ("async", "async")])
def ranks_that_do_not_wait_are_measured_after_they_have_run_ahead(policy):
    of = [harness(*SLOW, "--policy", policy, *words).json()["points"][0]["samples_per_s"] for words in ((), ("--warmup", "60", "--steps", "60"))]
    expect(abs(of[0] / of[1] - 1) < 0.03, f"samples/s after 20 and after 60 steps: {of}")


@test
def it_does_not_matter_which_of_two_equal_gpus_is_slow():
    words = ("whatif", "--profile", "dgx1-v100", "--model", "resnet50", "--gpus", "1,2", "--draws", "0", "--json", "-")
    first, second = (harness(*words, "--slow", slow).json()["points"] for slow in ("0:3", "1:3"))
    expect(all(abs(a[key] / b[key] - 1) < 1e-3 for a, b in zip(first, second) for key in ("step_s", "weak_scaling_efficiency")), "points", first, second)


@test
def of_machines_of_one_gpu_rank_0_stands_for_all_and_a_tiny_efficiency_stays_apart_from_the_step():
    result = harness("whatif", "--profile", "v100-pcie-10gbe", "--model", "vgg16", "--batch", "1", "--gpus", "512", "--draws", "0", "--link", "1Mb/s,100ms")
    expect("identical ranks: rank 0 stands for all;" in " ".join(result.out.split()), "one rank", result)
    expect(re.search(r"^  512 ddp +\d+ 0\.000\d+ +[\d.]+ ", result.out, re.M), "columns", result)


@test
def the_calls_of_ring_and_tree_are_listed_by_policy():
    words = ("whatif", "--profile", "v100-pcie-10gbe", "--model", "resnet18", "--gpus", "32", "--policy", "ddp,horovod", "--bucket-cap-mb", "0.25", "--draws", "0")
    result = harness(*words)
    expect_equal(re.findall(r"^(\S+) on 32 GPUs, per step: ring \d+ calls", result.out, re.M), ["ddp", "horovod"], "policies", result)


@test
def batches_that_were_loaded_before_the_measured_steps_hide_no_slow_loader():
    words = ("whatif", "--profile", "dgx1-v100", "--model", "resnet50", "--gpus", "8", "--policy", "sync,ddp", "--loader-workers", "1", "--draws", "0")
    servers, ring = (p["samples_per_s"] for p in harness(*words, "--json", "-").json()["points"])
    expect(abs(servers / ring - 1) < 0.001, "one loader limits both", servers, ring)


@test
def a_job_whose_ranks_never_train_at_the_same_time_is_refused():
    result = harness("whatif", "--profile", "v100-pcie-32g", "--model", "vgg16", "--batch", "1", "--gpus", "8", "--policy", "ssp", "--slow", "1:1.5",
                     "--servers", "2", "--draws", "0", "--warmup", "2", "--steps", "3")
    expect_equal((result.code, result.err), (78, "harness: --steps: expected more steps, got so few that no time has all 8 GPUs at work\n"), "exit code and stderr", result)


@test
def one_gpu_has_a_single_row_without_a_policy():
    words = (*SMALL, "--policy", "ddp,sync")
    points = harness(*words, "--gpus", "1,2", "--json", "-").json()["points"]
    expect_equal([(p["gpus"], p["policy"]) for p in points], [(1, "none"), (2, "ddp"), (2, "sync")], "points")
    expect_equal(len(list(csv.DictReader(io.StringIO(harness(*words, "--gpus", "1,2", "--csv", "-").out)))), 3, "rows of CSV")
    run = harness("run", "--device", "sim:dgx1-v100", "--model", "lenet", "--mode", "none", *length("none"), "--json", "-").jobs()["none"]
    expect_equal((points[0]["samples_per_s"], points[0]["memory_peak_bytes"]),
                 (run["throughput"]["samples_per_s"], run["memory_imbalance"]["maximum_bytes"]), "figures of a run without communication")
    alone = harness(*words, "--gpus", "1")
    expect("none" in alone.out and "Best on" not in alone.out and "No policy" not in alone.out, "no verdict about one GPU", alone)


@test
def numbers_of_gpus_are_sorted_and_the_verdict_is_about_the_most_that_can_run():
    answer, shown = verdict_of(*SMALL, "--gpus", "8,2", "--policy", "ddp,sync")
    expect_equal(([p["gpus"] for p in answer["points"]], answer["verdict"]["gpus"]), ([2, 8, 2, 8], 8), "GPUs", shown)
    answer, shown = verdict_of(*SMALL, "--gpus", "8,16", "--policy", "ddp,sync")
    expect_equal((answer["verdict"]["gpus"], answer["points"][1]["refused"] is None), (8, False), "the verdict on 8 of dgx1-v100's GPUs", shown)
    expect(shown.startswith("Best on 8 GPUs: "), "the sentence", shown)


@test
def without_draws_no_range_is_shown():
    shown = harness(*SMALL, "--gpus", "2,4", "--policy", "ddp", "--draws", "0").out
    expect("(range)" not in shown and "draws" not in shown and not re.search(r"\d \(\d", shown) and "ranges" not in shown, "ranges", shown)


@cases([("a draw", ("--draw", "3"), 64, "--draw: unexpected with whatif, which runs the jobs of --gpus and --policy"),
        ("a network that no GPU uses", ("--link", "1Mb/s"), 78, "--link: expected GPUs on several machines, got 8 on one of profile v100-sxm2-ib100: take --nodes")])
def options_without_effect_on_the_table_are_refused(words, code, reason):
    result = harness("whatif", "--profile", "v100-sxm2-ib100", "--model", "lenet", "--gpus", "4,8", *words)
    expect_equal((result.code, result.out, result.err), (code, "", f"harness: {reason}\n"), "exit code, stdout and stderr", result)


@test
def the_update_of_dp_is_that_of_rank_0_and_no_wait_of_the_others():
    words = ("whatif", "--profile", "v100-pcie-32g", "--workload", "params=10M,units=4,step=100ms,peak=2GiB,update=20ms", "--policy", "dp", "--gpus", "4", "--draws", "0")
    result = harness(*words, "--json", "-").json()
    lost = result["points"][0]["lost"]
    expect(abs(lost["update_s"]) < 1e-6 and 0 <= lost["waiting_s"] < 1e-4, "one GPU updates, as alone", lost)
    expect(0 < lost["communication_s"] <= lost["total_s"], "the cause is a part of the whole", lost)
    expect_equal(result["verdict"]["limited_by"], "communication_s", "limited by")
    expect(f" exposed {100 * lost['communication_s'] / lost['step_s']:.3g} %" in harness(*words).out, "the text", lost)


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
    expect_equal(shown, "No policy can run on these GPUs of 0 GiB.", "the last line")


@test
def a_number_of_gpus_that_no_policy_can_use_has_one_row():
    rows, lost = harness("whatif", "--profile", "dgx1-v100", "--model", "lenet", "--draws", "0", "--gpus", "8,16", "--policy", "ddp,dp").out.split("Lost per step")
    expect_equal(re.findall(r"^ +16 .*(?:\n {5}.*)*", rows, re.M), ["   16 cannot run: profile dgx1-v100: expected 1 to 8 ranks (8 GPUs on each of 1\n     machine), got 16"], "rows of 16 GPUs")
    expect_equal(re.findall(r"^(?:ddp|dp|) +(\d+) ", lost, re.M), ["8", "8"], "rows of lost time")


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


main()
