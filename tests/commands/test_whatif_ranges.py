"""Ranges of `harness whatif`: what a measured point, the model's error and an unknown stack make of them, and why they are wide."""
import json
import os
import re
import shlex

from profiles import profile, without_ranges
from program import harness, in_ns
from tap import cases, expect, expect_equal, main, more_cases, more_test, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
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
def a_second_point_is_of_the_first_policy_and_adds_the_same_to_the_others():
    words = ("whatif", "--profile", "dgx1-v100", "--model", "resnet50", "--batch", "32", "--gpus", "8", "--draws", "0")
    for policies, measured in (("ddp,dp", "ddp"), ("all", "ddp"), ("dp,ddp", "dp")):
        model, points = ({p["policy"]: p for p in harness(*words, "--policy", policies, "--measured", rates, "--json", "-").json()["points"]}
                         for rates in ("1:400", "1:400,8:2000"))
        expect(abs(points[measured]["samples_per_s"] / 2000 - 1) < 1e-9, f"the measured rate of {measured} of {policies}", points)
        added = points[measured]["step_s"] - model[measured]["step_s"]
        for policy in model:
            expect(abs(points[policy]["step_s"] - model[policy]["step_s"] - added) < 1e-9, f"{policy}: {added} s more", points[policy])
    shown = " ".join(harness(*words, "--policy", "ddp,dp", "--measured", "1:400,8:2000").out.split())
    expect("ddp on 8 GPUs: 2000 samples/s measured" in shown and "a step of every policy takes" in shown, "the sentence", shown)
    expect("beyond: measured, beyond the model" in shown and "neighbors" not in shown, "the cause", shown)


@test
def several_gpus_that_are_much_faster_than_as_many_alone_are_refused():
    result = harness("whatif", "--profile", "dgx1-v100", "--model", "resnet50", "--gpus", "8", "--measured", "1:400,8:8000")
    expect_equal((result.code, result.err), (64, "harness: --measured: expected at most 8 times the samples/s of one GPU, got 8000 and 400\n"), "exit code and stderr", result)


@test
def a_second_point_that_is_much_faster_than_the_model_makes_no_step_shorter_than_a_measured_one_may_be():
    words = ("whatif", "--profile", "hgx-h200", "--model", "vgg16", "--batch", "2", "--policy", "sync,ddp", "--gpus", "2,24", "--draws", "2")
    points = harness(*words, "--measured", "1:182,24:2000", "--json", "-").json()["points"]
    for p in points:
        expect(0 < p["weak_scaling_efficiency_low"] <= p["weak_scaling_efficiency_high"] < 1.1001 and p["step_low_s"] > 0, "at most a tenth faster than alone", p)
    expect(abs(points[1]["samples_per_s"] / 2000 - 1) < 1e-9, "the measured point", points)


@test
def a_measured_step_of_which_launches_take_the_most_is_reached_in_every_draw():
    """Launches take most of the step in draw 11."""
    words = ("--profile", "v100-sxm2-ib100", "--model", "resnet18", "--batch", "4", "--optimizer", "adamw", "--gpus", "1", "--draws", "11")
    result = harness("whatif", *words, "--measured", "1:1087.77")
    expect_equal((result.code, result.err), (0, ""), "exit code and stderr", result)
    expect("one GPU takes 3.677 ms, as measured" in " ".join(result.out.split()), "the measured step", result)


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
def the_page_quotes_ranges_causes_and_a_loader_as_the_program_gives_them():
    with open(os.path.join(ROOT, "docs/simulation.md"), encoding="utf-8") as file:
        page = file.read().replace("\\\n", " ")
    of = r"^    harness (whatif [^\n]*{})\n\n{}"
    command, *figures = re.search(of.format("--stack unknown", r"shows a step of (\d+) ms \((\d+) to (\d+)\), and without `--stack unknown` (\d+) ms \((\d+) to (\d+)\)"), page, re.M).groups()
    unknown, policy = (harness(*shlex.split(words), "--json", "-").json()["points"][0] for words in (command, command.replace(" --stack unknown", "")))
    found = [f"{1e3 * point[key]:.0f}" for point in (unknown, policy) for key in ("step_s", "step_low_s", "step_high_s")]
    expect_equal(figures, found, "the figures of --stack unknown")
    command, policies, verdict = re.search(of.format("--policy all", r".*?For `--policy (\S+)` it says of ddp: \"(.*?)\""), page, re.M | re.S).groups()
    said = " ".join(harness(*shlex.split(command.replace("--policy all", f"--policy {policies}"))).out.split())
    expect("Best on 8 GPUs: ddp, " in said and " ".join(verdict.split()) in said, "the verdict of two policies", said)
    command, printed = re.search(of.format("--why", r"prints among other lines:\n\n((?:    [^\n]*\n|\n)+)"), page, re.M).groups()
    blocks, out = re.sub(r"^    ", "", printed, flags=re.M).strip("\n").split("\n\n"), harness(*shlex.split(command)).out
    expect(len(blocks) == 2 and all(block in out for block in blocks), "the lines of --why", *blocks, out)
    command, loaded, plain = re.search(of.format(r"--loader-workers host:16 --loader-rate \d+", r"shows a step of (\d+) ms.*?step takes (\d+) ms"), page, re.M | re.S).groups()
    steps = [harness(*shlex.split(words), "--json", "-").json()["points"][0]["step_s"] for words in (command, command.split("--loader")[0])]
    expect_equal([loaded, plain], [f"{1e3 * step:.0f}" for step in steps], "steps with and without a loader")


main()
