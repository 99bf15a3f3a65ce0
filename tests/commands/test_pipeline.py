"""Models cut into stages, from the command line: the bubble, the memory of activations, replicas, the time line, wrong input."""
import json
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

FILES = tempfile.TemporaryDirectory(prefix="pipeline-")
# Stages that are nearly equal, and compute long enough for their messages not to count.
EVEN = ["--model", "bert", "--head", "cls", "--layers", "16", "--hidden", "1024", "--heads", "16", "--sequence", "512",
        "--vocabulary", "1000", "--batch", "8"]
TOY = ["--model", "gpt", "--layers", "4", "--hidden", "64", "--heads", "4", "--sequence", "16", "--vocabulary", "100", "--batch", "2"]

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


@cases([(f"{device}, {ranks} ranks, {schedule}", device, ranks, schedule)
        for device, ranks, schedule in (("cpu", 2, "1f1b"), ("cpu", 4, "gpipe"), ("reference", 2, "gpipe"))])
def processes_train_as_those_with_the_whole_model(device, ranks, schedule):
    losses = []
    for more in (["--gpus", str(ranks), "--stages", "2", "--schedule", schedule], ["--gpus", str(ranks // 2), "--eval-every", "-1"]):
        result = harness(*REAL, "--device", device, *more, "--json", "-")
        expect_equal(result.code, 0, "exit code", result)
        expect_equal("no evaluation: with --stages no rank has the whole model" in result.err, "--stages" in more, "a note", result)
        job = result.json()["jobs"][0]
        losses.append(job["losses"])
    expect(len(losses[0]) == 3 and None not in losses[0], f"losses: {losses}")
    expect_equal(losses[0], losses[1], "losses of stages and of the whole model")


@cases([
    ("ranks that stages do not divide", words(2, 2, gpus=3), 64, "--gpus: expected a multiple of 2 stages, got 3"),
    ("stages of both engines", ["run", "--device", "sim", "--gpus", "2", "--stages", "2"], 64, "--stages: expected --mode ring, got both"),
    ("stages that are saved", [*REAL, "--stages", "2", "--save", os.path.join(FILES.name, "x.safetensors")], 64, "--stages: expected a run without --save"),
    ("stages that are evaluated", [*REAL, "--stages", "2", "--eval-every", "2"], 64, "--stages: expected a run without --eval-every"),
    ("stages over MPI", [*REAL, "--stages", "2", "--collective", "mpi"], 64, "--collective: expected shm with --stages, got mpi"),
    ("a plan of stages", words(2, 2, "--plan"), 64, "--stages: expected a run without --plan"),
    ("a schedule without stages", ["run", "--mode", "ring", "--device", "sim", "--schedule", "gpipe"], 64, "--schedule: expected --stages of at least 2"),
    ("sharded state", words(2, 2, "--policy", "zero1"), 78, "--stages: expected a policy whose ranks have all gradients"),
    ("clipping", words(2, 2, "--clip-norm", "1"), 78, "--stages: expected no --clip-norm"),
    ("more stages than places", words(8, 2, model=["--model", "toy", "--batch", "2"]), 78, "--stages: expected at most 2 for model toy"),
])
def wrong_input_is_refused(line, code, message):
    result = harness(*line)
    expect_equal(result.code, code, "exit code", result)
    expect(message in result.err, message, result)


main()
