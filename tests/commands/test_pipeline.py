"""Models cut into stages, from the command line: the bubble, the memory of activations, replicas, the time line, wrong input."""
import json
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, long_cases, main, test

FILES = tempfile.TemporaryDirectory(prefix="pipeline-")
# The stages are nearly equal, and compute for so long that their messages do not count.
EVEN = ["--model", "bert", "--head", "cls", "--layers", "16", "--hidden", "1024", "--heads", "16", "--sequence", "512",
        "--vocabulary", "1000", "--batch", "8"]
TOY = ["--model", "gpt", "--layers", "4", "--hidden", "64", "--heads", "4", "--sequence", "16", "--vocabulary", "100", "--batch", "2"]

ON_DEVICES = ["--stages-on", "devices"]
REAL = ["run", "--mode", "ring", "--gpus", "2", "--model", "lenet", "--batch", "4", "--accumulate", "3", "--steps", "3", "--warmup", "1",
        "--threads", "1"]


def words(stages, batches, *more, gpus=None, model=TOY):
    return ["run", "--mode", "ring", "--device", "sim:dgx-a100-80g", "--gpus", str(gpus or stages), "--stages", str(stages),
            "--accumulate", str(batches), "--steps", "2", "--warmup", "2", *model, *more]


def run(*arguments, **more):
    result = harness(*words(*arguments, **more), "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    return result.json()["jobs"][0]


@cases([(f"{schedule}, {stages} stages, {batches} micro-batches", schedule, stages, batches)
        for schedule in ("gpipe", "1f1b") for stages, batches in ((2, 1), (2, 4), (4, 4), (4, 16))])
def equal_stages_are_idle_for_the_textbooks_part_of_a_step(schedule, stages, batches):
    pipeline = run(stages, batches, "--schedule", schedule, model=EVEN)["pipeline"]
    expected = (stages - 1) / (batches + stages - 1)
    expect(abs(pipeline["bubble_of_equal_stages"] - expected) < 1e-9, f"bubble of equal stages: {pipeline}")
    expect(abs(pipeline["bubble"] - expected) < 0.005, f"bubble: expected {expected}, got {pipeline['bubble']}")


@test
def a_stage_keeps_fewer_activations_under_1f1b():
    peaks = {}
    for schedule in ("gpipe", "1f1b"):
        stages = run(4, 16, "--schedule", schedule)["pipeline"]["stages"]
        expect_equal([s["live_micro_batches"] for s in stages], [16] * 4 if schedule == "gpipe" else [4, 3, 2, 1], schedule)
        peaks[schedule] = [s["activations_peak_bytes"] for s in stages]
    for stage in range(3):
        ratio = peaks["gpipe"][stage] / peaks["1f1b"][stage]
        expect(0.75 < ratio / (16 / (4 - stage)) < 1.05, f"stage {stage}: {peaks}")


@test
def replicas_of_each_stage_have_data_of_their_own_and_exchange_gradients():
    one, two = run(2, 4), run(2, 4, gpus=4)
    expect_equal([one["pipeline"]["replicas"], two["pipeline"]["replicas"]], [1, 2], "replicas")
    expect_equal(two["throughput"]["samples"], 2 * one["throughput"]["samples"], "samples")
    expect_equal(one["throughput"]["samples"], 2 * 4 * 2.0, "steps, micro-batches, samples of each")
    sent = [sum(r["bytes_sent"] for r in job["ranks"]) for job in (one, two)]
    expect(sent[1] > 2 * sent[0], f"bytes sent: {sent}")


@test
def stages_have_the_parameters_of_their_layers():
    listed = harness("models", *TOY[1:-2], "--stages", "4").out
    stages = run(4, 4)["pipeline"]["stages"]
    for stage in stages:
        expect(stage["begins_at"] in listed and str(stage["parameters"]) in listed, f"{stage} in {listed}")


@test
def the_time_line_shows_passes_by_micro_batch_and_messages():
    path = os.path.join(FILES.name, "trace.json")
    result = harness(*words(2, 3, "--trace", path))
    expect_equal(result.code, 0, "exit code", result)
    with open(path, encoding="utf-8") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    wanted = {*(f"forward {i}" for i in range(3)), *(f"backward {i}" for i in range(3)), "activations sent 0", "activations received 2",
              "gradient sent 1", "gradient received 1"}
    expect(wanted <= names, f"missing: {wanted - names}")


@test
def the_report_names_the_bubble_and_lists_the_stages():
    result = harness(*words(2, 3, "-v"))
    expect("Pipeline: 2 stages, 1f1b, 3 micro-batches; bubble" in harness(*words(2, 3)).out, "the line", result)
    for text in ("begins at", "activations", "transformer.wte.weight", "live: micro-batches"):
        expect(text in result.out, f"no {text!r}", result)


def train(*words):
    result = harness(*words, "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    return result.json()["jobs"][0]


def figures(job):
    return [(e["step"], e["loss"], e["accuracy"], e["samples"]) for e in job["evaluations"]]


@cases([(f"{device}, {ranks} ranks, {schedule}", device, ranks, schedule)
        for device, ranks, schedule in (("cpu", 2, "1f1b"), ("cpu", 4, "gpipe"), ("reference", 2, "gpipe"))])
def processes_train_as_those_with_the_whole_model(device, ranks, schedule):
    losses = []
    for more in (["--gpus", str(ranks), "--stages", "2", "--schedule", schedule], ["--gpus", str(ranks // 2)]):
        job = train(*REAL, "--device", device, *more, "--eval-every", "1")
        losses.append((job["losses"], job["parameter_hash"], figures(job)))
    expect(len(losses[0][0]) == 3 and None not in losses[0][0] and len(losses[0][2]) == 4, f"losses: {losses}")
    expect_equal(losses[0], losses[1], "losses, parameters and evaluations of stages and of the whole model")


@cases([("rows without targets, 3 stages", ["--model", "bert", *TOY[2:-2]], 3, 1),
        ("data of a file, 2 replicas of 2 stages", ["--model", "wine_mlp", "--data", "wine", "--drop-last"], 2, 2),
        ("rows without targets, on 3 devices", ["--model", "bert", *TOY[2:-2]], 3, 1, ON_DEVICES),
        ("data of a file, 2 ranks of 2 devices", ["--model", "wine_mlp", "--data", "wine", "--drop-last"], 2, 2, ON_DEVICES)])
@long_cases([("buffers, 3 stages", ["--model", "resnet18", "--image", "32", "--classes", "10"], 3, 1),
             ("buffers, on 3 devices", ["--model", "resnet18", "--image", "32", "--classes", "10"], 3, 1, ON_DEVICES)])
def an_evaluation_through_stages_has_the_figures_of_the_whole_model(model, stages, replicas, on=()):
    words = [*model, "--batch", "2", "--accumulate", "2", "--steps", "2", "--warmup", "0", "--threads", "1", "--eval-every", "1"]
    split = train("run", "--mode", "ring", "--gpus", str(replicas if on else stages * replicas), "--stages", str(stages), *on, *words)
    whole = train("run", "--mode", "ring", "--gpus", str(replicas), *words)
    expect_equal(len(figures(split)), 2, "evaluations: after the first step and at the end")
    for got, expected in zip(figures(split), figures(whole)):
        expect(all(abs(g - e) <= 1e-5 * (1 + abs(e)) for g, e in zip(got, expected)), f"{figures(split)}, not {figures(whole)}")
    if "bert" not in model:
        expect_equal(figures(split), figures(whole), "figures of stages and of the whole model")


@test
def a_target_is_reached_by_stages():
    job = train(*REAL, "--stages", "2", "--eval-every", "1", "--target-loss", "1000")
    expect(job["target"]["loss_s"] > 0, job["target"])


@cases([("on ranks", []), ("on devices", ["--stages-on", "devices", "--gpus", "1"])])
def gradients_are_clipped_by_the_norm_over_all_stages(on):
    clip = ["--clip-norm", "0.05", "--lr", "1"]
    split, whole, free = (train(*REAL, *more) for more in (["--stages", "2", *on, *clip], ["--gpus", "1", *clip], ["--gpus", "1", "--lr", "1"]))
    expect(all(abs(a - b) < 1e-5 for a, b in zip(split["losses"], whole["losses"])), f"{split['losses']}, not {whole['losses']}")
    expect(abs(free["losses"][2] - whole["losses"][2]) > 1e-3, f"clipping changes nothing: {free['losses']}, {whole['losses']}")


def on_devices(stages, ranks, batches=1, *more, model=TOY):
    return run(stages, batches, "--stages-on", "devices", *more, gpus=ranks, model=model)


def whole(ranks, batches, *more, model):
    """The same steps with the whole model on each GPU."""
    return run(1, batches, *more, gpus=ranks, model=model)


def time_of(job, part):
    return sum(job["ranks"][0][part]) / len(job["ranks"][0][part])


@cases([("one rank, 2 devices", 1, 2, 1), ("one rank, 4 devices, 3 micro-batches", 1, 4, 3), ("2 ranks of 2 devices", 2, 2, 1),
        ("2 ranks of 4 devices, 2 micro-batches", 2, 4, 2)])
def a_step_on_devices_is_the_computation_of_all_stages_and_the_copies_between_them(ranks, stages, batches):
    job, one = on_devices(stages, ranks, batches, model=EVEN), whole(1, batches, model=EVEN)
    rows = job["pipeline"]["stages"]
    expect_equal(job["throughput"]["samples"], 2.0 * 8 * batches * ranks, "steps, samples of a micro-batch, micro-batches, ranks")
    for part in ("forward_s", "backward_s"):
        slower = 1 + 0.01 * (part == "backward_s")  # Reductions at the same time make the backward pass slower.
        total, expected = sum(stage[part] for stage in rows), time_of(one, part)
        expect(0.99 * expected < total < 1.01 * slower * expected, f"{part} of all stages: {total}, of the whole model: {expected}")
    links = [600e9 / 2 * share for share in (0.4, 1)]  # NVLink: bytes per second one way, and what of it a copy reaches at least
    crossing = 8 * 512 * 1024 * 4
    copies = 2 * (stages - 1) * batches
    computed = sum(stage["forward_s"] + stage["backward_s"] for stage in rows)
    rest = time_of(job, "step_s") - computed - time_of(job, "optimizer_s") - time_of(job, "other_s")
    if ranks == 1:
        expect(copies * crossing / links[1] < rest < copies * crossing / links[0] + 1e-3, f"copies: {rest} s, {copies} of {crossing} bytes")
    for row in job["ranks"]:
        for index, step in enumerate(row["step_s"]):
            parts = sum(row[p][index] for p in ("data_s", "forward_s", "backward_s", "exposed_communication_s", "waiting_s", "optimizer_s", "other_s"))
            expect(abs(parts - step) < 1e-8, f"parts {parts}, step {step}")
    expect(abs(job["pipeline"]["bubble_of_equal_stages"] - (stages - 1) / stages) < 1e-9, f"{job['pipeline']}")
    expect(abs(job["pipeline"]["bubble"] - (stages - 1) / stages) < 0.01, f"idle: {job['pipeline']['bubble']}")


@test
def buckets_of_a_stage_are_reduced_while_the_stages_before_it_compute():
    job = on_devices(4, 2, model=EVEN)
    first, last = job["ranks"][0], job["ranks"][-1]
    expect_equal((last["stage"], last["of_rank"], last["rank"]), (3, 1, 7), "the last device")
    for row in job["ranks"]:
        hidden, exposed = (sum(row[key]) for key in ("hidden_communication_s", "exposed_communication_s"))
        expect(hidden > 3 * exposed, f"device {row['rank']}: hidden {hidden}, exposed {exposed}")
    begin = next(p["begin_s"] for p in first["timeline"]["parts"] if p["part"] == "backward")
    buckets = [m["finished_s"] for m in last["timeline"]["messages"] if m["name"] == "bucket"]
    expect(len(buckets) > 2 and max(buckets) < begin, f"buckets of the last stage end at {buckets}, the first stage computes from {begin}")


@test
def a_stage_that_clips_waits_for_the_norms_of_the_others():
    free, clipped = on_devices(2, 2, model=EVEN), on_devices(2, 2, 1, "--clip-norm", "1", model=EVEN)
    last = clipped["ranks"][-1]
    expect(max(last["other_s"]) < 2e-3 and max(last["optimizer_s"]) < 2e-3, f"other: {last['other_s']}, optimizer: {last['optimizer_s']}")
    expect(0 < time_of(clipped, "step_s") - time_of(free, "step_s") < 1e-3, "updates begin together, and take no longer")


@test
def each_device_has_a_ledger_of_its_own():
    job, one = on_devices(2, 2), whole(2, 1, model=TOY)
    expect_equal([(r["of_rank"], r["stage"]) for r in job["ranks"]], [(0, 0), (1, 0), (0, 1), (1, 1)], "devices")
    held = [r["memory"]["classes"]["parameters"]["peak_bytes"] for r in job["ranks"]]
    expect_equal(held, [4 * s["parameters"] for s in job["pipeline"]["stages"] for _ in range(2)], "bytes of parameters")
    whole_one = one["ranks"][0]["memory"]["classes"]["parameters"]["peak_bytes"]
    shared = 4 * 100 * 64  # the table of tokens is the head, too
    expect_equal(held[0] + held[2], whole_one + shared, "of all devices of a rank")
    result = harness(*words(2, 1, "--stages-on", "devices", "-v"))
    for text in ("device 0, ranks 0-1 device 1, ranks 0-1", "Stages: 2 on devices of each rank", "exposed comm.", "device 1 "):
        expect(text in result.out, f"no {text!r}", result)


@test
def devices_hold_the_same_on_a_processor_and_in_virtual_time():
    held = []
    for device, more in (("cpu", ["--threads", "1"]), ("sim:dgx-a100-80g", ["--prefetch", "off"])):
        result = harness(*REAL[:-2], "--device", device, *more, "--stages", "2", "--stages-on", "devices", "--json", "-")
        expect_equal(result.code, 0, "exit code", result)
        held.append([{name: bytes_["peak_bytes"] for name, bytes_ in row["memory"]["classes"].items() if name != "workspace"}
                     for row in result.json()["jobs"][0]["ranks"]])
    expect_equal(held[0], held[1], "bytes by class, workspace excepted")


@test
def gpus_of_a_rank_are_neighbors_on_one_machine():
    for stages, ranks, machines in ((4, 4, "16 GPUs on 2 machines of 8"), (3, 2, "6 GPUs on 1 machine of 8"), (3, 3, "9 GPUs on 2 machines of 8")):
        result = harness(*words(stages, 1, "--stages-on", "devices", "--json", "-", gpus=ranks))
        expect(machines in result.json()["hardware_note"], machines, result)


@test
def the_time_line_has_a_lane_for_each_device():
    for device in ("sim:dgx-a100-80g", "cpu"):
        path = os.path.join(FILES.name, f"devices-{device[:3]}.json")
        real = REAL if device == "cpu" else REAL[:-2]  # no threads in virtual time
        result = harness(*real, "--device", device, "--stages", "2", "--stages-on", "devices", "--trace", path)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        names = {e["args"]["name"] for e in events if e.get("name") == "process_name"}
        expect({f"ring rank {r} device {d}" for r in range(2) for d in range(2)} <= names, f"lanes: {names}")
        shown = {e.get("name") for e in events}
        expect({"activations received 2", "gradient received 2", "forward 2", "backward 2"} <= shown, f"events: {shown}")


@cases([(f"{device}, {ranks} ranks, {model[1]}", device, ranks, model)
        for device, ranks, model in (("cpu", 1, ["--model", "lenet"]), ("cpu", 2, ["--model", "lenet"]), ("reference", 2, ["--model", "lenet"]),
                                     ("cpu", 2, ["--model", "wine_mlp", "--data", "wine", "--drop-last"]))])
def ranks_with_a_device_for_each_stage_train_as_those_with_one_device(device, ranks, model):
    losses = []
    for more in (["--stages", "2", *ON_DEVICES], []):
        job = train(*REAL, *model, "--device", device, "--gpus", str(ranks), *more, "--eval-every", "2")
        expect_equal(job["world_size"], ranks, "ranks")
        losses.append((job["losses"], job["parameter_hash"], figures(job), job["throughput"]["samples"]))
    expect(len(losses[0][0]) == 3 and None not in losses[0][0] and losses[0][1], f"losses: {losses}")
    expect_equal(losses[0], losses[1], "losses, parameters, evaluations and samples of stages on devices and of the whole model")


@cases([
    ("devices of whole models", ["run", "--mode", "ring", "--device", "sim", "--stages-on", "devices"], 64, "--stages-on: expected --stages of at least 2"),
    ("devices of GPUs", [*REAL, "--device", "cuda", "--stages", "2", "--stages-on", "devices"], 64, "--stages: expected --device cpu, reference or sim:PROFILE"),
    ("devices of processors in virtual time", [*REAL[:-2], "--device", "sim:cpu", "--stages", "2", "--stages-on", "devices"], 78,
     "--stages-on: expected ranks for profile cpu, whose ranks compute on processors, got devices"),
    ("a pipeline on devices", words(2, 2, "--stages-on", "devices", "--schedule", "gpipe"), 64,
     "--schedule: expected sequential with --stages-on devices, got gpipe"),
    ("more stages than a machine has GPUs", words(9, 1, "--stages-on", "devices", gpus=1, model=EVEN), 78,
     "expected processes of at most 8 GPUs, which a machine has, got 9"),
    ("ranks that stages do not divide", words(2, 2, gpus=3), 64, "--gpus: expected a multiple of 2 stages, got 3"),
    ("stages of both engines", ["run", "--device", "sim", "--gpus", "2", "--stages", "2"], 64, "--stages: expected --mode ring, got both"),
    ("stages over MPI", [*REAL, "--stages", "2", "--collective", "mpi"], 64, "--collective: expected shm with --stages, got mpi"),
    ("a plan of stages", words(2, 2, "--plan"), 64, "--stages: expected a run without --plan"),
    ("a schedule without stages", ["run", "--mode", "ring", "--device", "sim", "--schedule", "gpipe"], 64, "--schedule: expected --stages of at least 2"),
    ("sharded state", words(2, 2, "--policy", "zero1"), 78, "--stages: expected a policy whose ranks have all gradients"),
    ("more stages than places", words(8, 2, model=["--model", "toy", "--batch", "2"]), 78, "--stages: expected at most 2 for model toy"),
])
def wrong_input_is_refused(line, code, message):
    result = harness(*line)
    expect_equal(result.code, code, "exit code", result)
    expect(message in result.err, message, result)


main()
