"""Recorded jobs (`--workload`): a job of four numbers, a model that this program has recorded, and files that are wrong."""
import copy
import json
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, more_cases, test

FOLDER = tempfile.mkdtemp()
NUMBERS = "params=350M,units=24,step=412ms,peak=31GiB"
DEVICE = "sim:dgx-a100-80g"
ENGINES = {"ddp": "ring", "zero1": "ring", "zero3": "ring", "sync": "ps"}


def path(name):
    return os.path.join(FOLDER, name)


def job(policy, *words, gpus=8, device=DEVICE):
    """The job of a policy in virtual time."""
    mode = ("--mode", ENGINES[policy], "--policy", policy, "--gpus", str(gpus)) if policy else ("--mode", "none")
    return harness("run", "--device", device, *mode, *words, "--warmup", "2", "--steps", "3", "--quiet", "--json", "-").json()["jobs"][0]


def refused(code, message, *words):
    """One line on stderr with the message, and the exit code."""
    result = harness(*map(str, words))
    expect_equal(result.code, code, "exit code", result)
    expect(len(result.lines()) == 1 and message in result.err, f"one line with: {message}", result)


def step_ms(job):
    return 1e3 * job["step_time"]["median_s"]


def peaks(job):
    return [rank["memory"]["total"]["peak_bytes"] for rank in job["ranks"]]


def recorded(model, *words, batch=16, device=DEVICE):
    """The options of a model and those of its recording."""
    file = path(f"{model}-{device}.json")
    as_model = ("--model", model, "--batch", str(batch), *words)
    if not os.path.exists(file):
        harness("run", "--device", device, "--mode", "none", *as_model, "--steps", "1", "--warmup", "1", "--quiet", "--workload-out", file)
    return as_model, ("--workload", file), json.load(open(file))


# ---- replays -----------------------------------------------------------------------------------------

MODELS = {"resnet18": ("--image", "64"), "gpt": ("--optimizer", "adamw"), "bert": ("--optimizer", "adam")}


CONTENTION = "sim:v100-pcie-32g"  # the profile with kappa above 1


def replays_like_its_model(model, policy, gpus=8, device=DEVICE):
    as_model, as_workload, _ = recorded(model, *MODELS.get(model, ()), device=device)
    own, replay = job(policy, *as_model, gpus=gpus, device=device), job(policy, *as_workload, gpus=gpus, device=device)
    expect(abs(step_ms(replay) / step_ms(own) - 1) < 0.005, f"a step of {step_ms(own)} ms replays as {step_ms(replay)}")
    expect_equal(peaks(replay), peaks(own), "memory of the ranks")


@cases([(f"{model} replays under {policy} to the step within 0.5 % and to the byte", model, policy) for model in MODELS for policy in ENGINES])
def a_recording_replays(model, policy):
    replays_like_its_model(model, policy)


@cases([(f"{model} under {policy}", model, policy) for model, policy in (("resnet50", "ddp"), ("resnet50", "zero3"), ("bert_base", "ddp"))])
def a_recording_of_one_gpu_slows_down_on_several_like_its_model(model, policy):
    replays_like_its_model(model, policy, device=CONTENTION)


@test
def a_recording_of_several_ranks_contains_their_contention():
    _, as_workload, file = recorded("resnet50", device=CONTENTION)
    file["source"]["ranks"] = 2
    with open(path("several.json"), "w") as out:
        json.dump(file, out)
    one, several = (job("ddp", "--workload", name, device=CONTENTION)["phases"] for name in (as_workload[1], path("several.json")))
    for part, phase in (("forward", "forward_s"), ("optimizer", "optimizer_s")):
        kappa = 1 + 1e9 * (one[phase]["mean_s"] - several[phase]["mean_s"]) / file["parts_ns"][part]
        expect(abs(kappa - 1.1) < 0.005, f"the factor of one rank in {part}", kappa)
    expect(abs(1e9 * several["optimizer_s"]["mean_s"] / file["parts_ns"]["optimizer"] - 1) < 0.01, "the recorded update", several["optimizer_s"])


@more_cases([(f"{model} replays under {policy} on {gpus} GPUs to the step within 0.5 % and to the byte", model, policy, gpus)
             for model in ("resnet50", "gpt2", "vgg16", "bert_base") for policy in ENGINES for gpus in (8, 16)], at_more=8)
def a_larger_recording_replays(model, policy, gpus):
    replays_like_its_model(model, policy, gpus)


@test
def servers_update_in_proportion_to_the_recorded_update():
    short, long = (job("sync", "--workload", f"{NUMBERS},update={ms}ms")["ranks"][0]["update_aside_s"] for ms in (15, 60))
    expect(abs(long / short - 4) < 0.2, "a fourfold update", short, long)  # keys at the ends of the measured steps


@test
def a_recording_of_one_gpu_takes_the_step_of_its_model():
    as_model, as_workload, file = recorded("resnet18", "--image", "64")
    own, replay = job(None, *as_model), job(None, *as_workload)
    expect(abs(step_ms(replay) / step_ms(own) - 1) < 0.005, step_ms(own), step_ms(replay))
    expect(abs(1e-6 * file["step_ns"] / step_ms(own) - 1) < 1e-6, "the recorded step", file["step_ns"], step_ms(own))


@test
def the_parts_of_a_recording_add_up():
    _, _, file = recorded("resnet18", "--image", "64")
    expect_equal(sum(file["parts_ns"].values()), file["step_ns"], "the step")
    for part, segments in (("forward", file["forward"] + file["loss"]), ("backward", file["backward"])):
        expect_equal(sum(s["kernel_ns"] + s["idle_ns"] for s in segments), file["parts_ns"][part], part)
    ready = [p for s in file["backward"] for p in s["ready"]]
    expect_equal(sorted(ready), list(range(len(file["parameters"]))), "each gradient becomes ready once")


@test
def a_recording_has_the_buckets_of_its_model():
    as_model, as_workload, _ = recorded("resnet18", "--image", "64")
    for cap in (1, 10, 25, 100):
        own, replay = (harness("buckets", *words, "--bucket-cap-mb", str(cap), "--json", "-").json() for words in (("--model", "resnet18"), as_workload))
        expect_equal(replay, own, f"a cap of {cap} MiB")


@test
def a_recording_on_a_gpu_of_twice_the_speed_takes_half_the_time():
    _, as_workload, file = recorded("resnet18", "--image", "64")
    once, twice = (job(None, *as_workload, "--efficiency", str(e)) for e in (1, 2))
    halves = 1e-6 * (file["parts_ns"]["forward"] + file["parts_ns"]["backward"] - file["parts_idle_ns"]["forward"] - file["parts_idle_ns"]["backward"]) / 2
    expect(step_ms(once) - step_ms(twice) >= 0.95 * halves, step_ms(once), step_ms(twice), halves)


# ---- numbers -----------------------------------------------------------------------------------------

@test
def four_numbers_give_the_step_and_the_memory_of_one_gpu():
    alone = job(None, "--workload", NUMBERS)
    expect(abs(step_ms(alone) / 412 - 1) < 1e-3, step_ms(alone))
    expect(abs(peaks(alone)[0] / (31 << 30) - 1) < 0.01, peaks(alone))


@test
def four_numbers_give_one_table_of_all_policies():
    answer = harness("whatif", "--profile", "dgx-a100-80g", "--workload", NUMBERS, "--policy", "dp,ddp,zero3", "--gpus", "8,512", "--draws", "0", "--json", "-").json()
    rows = {(row["policy"], row["gpus"]): row for row in answer["points"]}
    expect(0.412 < rows["ddp", 8]["step_s"] < 0.45, rows["ddp", 8])
    expect("one machine" in rows["dp", 512]["refused"], rows["dp", 512])
    expect(rows["zero3", 512]["memory_peak_bytes"] < rows["ddp", 512]["memory_peak_bytes"], "memory")
    expect(abs(answer["one_gpu_step_s"] / 0.412 - 1) < 1e-3, answer["one_gpu_step_s"])


@test
def gradients_of_bfloat16_halve_what_is_exchanged():
    sent = [job("ddp", "--workload", f"params=350M,units=24,step=412ms,peak=31GiB,gradients={type}")["traffic"]["per_rank"][0]["bytes_sent_per_step"]
            for type in ("float32", "bfloat16")]
    expect(abs(sent[0] / sent[1] - 2) < 0.01, sent)


@test
def a_larger_share_of_the_forward_pass_is_a_longer_forward_pass():
    long, short = (job(None, "--workload", f"{NUMBERS},forward={share}")["phases"]["forward_s"]["mean_s"] for share in (0.5, 0.25))
    expect(abs(long / short - 2) < 0.01, long, short)


WRONG_NUMBERS = {
    "params=350M": "expected a file, or params=, units=, step= and peak=",
    NUMBERS + ",speed=3": "got 'speed='",
    NUMBERS.replace("350M", "many"): "--workload: params",
    NUMBERS.replace("350M", "-5"): "--workload: params",
    NUMBERS.replace("350M", "9e99T"): "--workload: params",
    NUMBERS.replace("412ms", "412"): "--workload: step",
    NUMBERS.replace("412ms", "1us"): "expected at least twice the update",
    NUMBERS.replace("31GiB", "1GiB"): "expected at least the",
    NUMBERS.replace("24", "0"): "--workload: units",
    "params=10,units=24,step=412ms,peak=31GiB": "expected at least 192 for 24 units",
    NUMBERS + ",forward=1.5": "--workload: forward",
    NUMBERS + ",gradients=int3": "--workload: gradients",
    NUMBERS + ",=" + "x" * 600: "characters",
}


@cases([(f"the numbers {text[:60]} are refused", text) for text in WRONG_NUMBERS])
def wrong_numbers(text):
    refused(64, WRONG_NUMBERS[text], "run", "--device", DEVICE, "--mode", "none", "--workload", text)


# ---- files -------------------------------------------------------------------------------------------

def changed(change):
    def of(file):
        new = copy.deepcopy(file)
        change(new)
        return json.dumps(new)
    return of


def deep(file):
    return "[" * 100000


WRONG_FILES = {
    "that is empty": lambda file: "",
    "that is truncated": lambda file: json.dumps(file)[:2000],
    "that is nested deeply": deep,
    "that is a list": lambda file: "[]",
    "of another version": changed(lambda f: f.update(schema_version=99)),
    "with a parameter of 2^31 dimensions": changed(lambda f: f["parameters"][0].update(shape=[1 << 31] * 4)),
    "with five dimensions": changed(lambda f: f["parameters"][0].update(shape=[1] * 5)),
    "with a negative time": changed(lambda f: f["backward"][0].update(kernel_ns=-1)),
    "whose parts do not add up": changed(lambda f: f["parts_ns"].update(other=12345)),
    "whose segments do not add up": changed(lambda f: f["backward"][3].update(kernel_ns=f["backward"][3]["kernel_ns"] + 1)),
    "in which a gradient is ready twice": changed(lambda f: f["backward"][-1]["ready"].extend(f["backward"][0]["ready"])),
    "with an unknown parameter": changed(lambda f: f["forward"][0].update(uses=[100000])),
    "whose peak is below its live bytes": changed(lambda f: f["forward"][-1].update(peak_bytes=0)),
    "without parameters": changed(lambda f: f.update(parameters=[])),
    "with a segment that has no list": changed(lambda f: f["forward"][0].update(uses="all")),
    "with a step of 1e300": changed(lambda f: f.update(step_ns=1e300)),
    "with control characters": changed(lambda f: f.update(model="\x1b[2J" * 100)),
}


@cases([(f"a file {name} is one line with exit code 65", name) for name in WRONG_FILES])
def wrong_files(name):
    _, _, file = recorded("resnet18", "--image", "64")
    wrong = path("wrong.json")
    with open(wrong, "w") as out:
        out.write(WRONG_FILES[name](file))
    refused(65, "wrong.json", "run", "--device", DEVICE, "--mode", "none", "--workload", wrong)


@test
def a_trace_is_refused_with_the_command_that_makes_a_workload_of_it():
    with open(path("trace.json"), "w") as out:
        out.write('{"traceEvents": []}')
    refused(65, "expected a workload, which harness import makes of a trace", "whatif", "--workload", path("trace.json"))


@test
def control_characters_of_a_file_do_not_reach_the_terminal():
    _, _, file = recorded("resnet18", "--image", "64")
    file["model"] = "net\x1b[2J"
    with open(path("control.json"), "w") as out:
        json.dump(file, out)
    text = harness("run", "--device", DEVICE, "--mode", "none", "--workload", path("control.json"), "--steps", "1", "--warmup", "1").out
    expect("\x1b" not in text and "net?" in text, text)


OPTIONS = {("--model", "resnet18"): "--model: unexpected with --workload", ("--batch", "8"): "--batch: unexpected with --workload",
           ("--bf16",): "--bf16: unexpected with --workload", ("--data", "wine"): "--data: unexpected with --workload",
           ("--hidden", "8"): "--hidden: unexpected with --workload"}


@cases([(f"{' '.join(words)} is refused together with --workload", words) for words in OPTIONS])
def options_that_the_job_determines(words):
    refused(64, OPTIONS[words], "run", "--device", DEVICE, "--mode", "none", "--workload", NUMBERS, *words)


@test
def a_real_device_refuses_a_recorded_job():
    refused(64, "--workload: expected --device sim:PROFILE", "run", "--device", "cpu", "--mode", "none", "--workload", NUMBERS)


@test
def what_cannot_be_recorded_is_refused():
    for words in (("--bf16",), ("--accumulate", "2")):
        refused(64, "--workload-out", "run", "--device", DEVICE, "--mode", "none", "--model", "toy", *words, "--workload-out", path("none.json"))
    expect(not os.path.exists(path("none.json")), "a file was written")


main()
