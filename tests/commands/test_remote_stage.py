"""A remote stage, from the command line: the same losses as with the whole model, processes that meet over TCP, what the
anatomy and the link say about its messages, and how a wrong peer ends both sides."""
import json
import os
import socket
import subprocess
import tempfile

from program import PROGRAM, SLOWER, STARTED_BY_OTHERS, harness
from tap import cases, expect, expect_equal, main, test

LENET = ["--mode", "ring", "--model", "lenet", "--batch", "4", "--steps", "3", "--warmup", "1", "--threads", "1", "--device", "cpu"]
KEY = {"HARNESS_KEY": "5" * 64}
SECOND_HALF, CROSSING, CLASSES = 61550, 6 * 14 * 14, 10  # of LeNet: from conv2 on


def job_of(*words, **more):
    result = harness("run", *words, "--json", "-", **more)
    expect_equal(result.code, 0, "exit code", result)
    return result.json()["jobs"][0]


@cases([("one worker", ["--accumulate", "3"]), ("Adam", ["--optimizer", "adam", "--lr", "0.01", "--lr-schedule", "cosine"]),
        ("momentum", ["--momentum", "0.9", "--weight-decay", "0.01"]), ("a sum of losses", ["--loss-reduction", "sum", "--lr", "0.001"]),
        ("the mean squared error", ["--model", "toy"]), ("two threads", ["--threads", "2"]),
        ("reference", ["--device", "reference", "--accumulate", "2"]), ("two workers", ["--gpus", "2", "--accumulate", "2"]),
        ("three workers", ["--gpus", "3", "--algorithm", "two-shot"]),
        ("three workers that divide later", ["--gpus", "3", "--algorithm", "two-shot", "--divide", "after"]),
        ("resnet18", ["--model", "resnet18", "--image", "32", "--gpus", "2", "--batch", "2"]),
        ("bert", ["--model", "bert", "--head", "cls", "--layers", "2", "--hidden", "32", "--heads", "4", "--vocabulary", "97",
                  "--sequence", "7"])], at_check=2)
def workers_train_as_with_the_whole_model(words):
    words = [*LENET, "--gpus", "1", *words]
    remote, whole = job_of(*words, "--remote-stage", "local"), job_of(*words, "--eval-every", "-1")
    expect(len(whole["losses"]) == 3 and None not in whole["losses"], f"losses: {whole['losses']}")
    expect_equal(remote["losses"], whole["losses"], "losses, and those of the whole model")
    expect_equal(remote["parameter_hash"], None, "no rank has all parameters")


@test
def the_results_describe_the_remote_stage_and_count_its_messages():
    job = job_of(*LENET, "--gpus", "2", "--accumulate", "2", "--remote-stage", "local", "--bucket-cap-mb", "25")
    stage = job["remote_stage"]
    expect_equal((stage["address"], stage["begins_at"], stage["parameters"]), ("local", "conv2", SECOND_HALF), "remote stage")
    expect_equal(len(job["servers"]), 1, "processes besides the ranks")
    memory = job["servers"][0]["memory"]["classes"]
    expect_equal(memory["parameters"]["peak_bytes"], 4 * SECOND_HALF, "its parameters")
    expect_equal(memory["gradients"]["peak_bytes"], 2 * 4 * SECOND_HALF, "its gradients, of two workers")
    alone = job_of(*LENET, "--gpus", "1", "--accumulate", "2", "--remote-stage", "local")["ranks"][0]
    expect_equal(alone["bytes_sent"], 3 * 2 * 4 * 4 * (CROSSING + CLASSES), "bytes: steps, micro-batches, samples, float32")
    expect_equal(alone["bytes_received"], alone["bytes_sent"], "bytes received")
    expect_equal((alone["messages_sent"], alone["messages_received"]), (3 * 2 * 2, 3 * 2 * 2), "messages")


@test
def waiting_for_the_remote_stage_is_waiting_and_its_messages_are_communication():
    link = ["--link", "8Mbit/s,1ms"]  # 1 MB/s
    rank = job_of(*LENET, "--gpus", "1", "--remote-stage", "local", *link)["ranks"][0]
    expect_equal(set(rank["waited_for_s"]), {"1"}, "who was waited for: the remote stage, as the rank after the last")
    sent = 2 * 4 * 4 * (CROSSING + CLASSES) / 1e6 + 4 * 0.001
    for waiting, exposed in zip(rank["waiting_s"], rank["exposed_communication_s"]):
        expect(waiting > 0, f"waiting: {rank['waiting_s']}")
        expect(exposed >= sent, f"exposed communication: expected at least {sent} s, got {exposed}")
    for i, step in enumerate(rank["step_s"]):
        parts = sum(rank[part][i] for part in ("data_s", "forward_s", "backward_s", "waiting_s", "exposed_communication_s",
                                               "optimizer_s", "other_s"))
        expect(abs(parts - step) < 1e-8, f"parts of step {i}: {parts}, the step: {step}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def both_sides(server, worker, server_key=KEY, ends=True):
    """The ends of `harness run --serve-stage` and `--remote-stage`: (code, stderr) of the first, the result of the other.
    `ends`: the first one does, once the other one has."""
    address = f"127.0.0.1:{free_port()}"
    env = {name: value for name, value in os.environ.items() if name not in STARTED_BY_OTHERS}
    with subprocess.Popen([PROGRAM, "run", *LENET, *server, "--serve-stage", address], env={**env, **server_key}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as remote:
        result = harness("run", *LENET, *worker, "--remote-stage", address, "--json", "-", env=KEY)
        if not ends:
            remote.terminate()
        _, errors = remote.communicate(timeout=120 * SLOWER)
    return (remote.returncode, errors), result


@cases([("one worker", 1), ("two workers", 2)])
def a_remote_stage_that_was_started_by_hand_serves_over_tcp(workers):
    words = ["--gpus", str(workers)]
    (code, errors), result = both_sides(words, words)
    expect_equal((result.code, code), (0, 0), errors, result)
    expect_equal(result.json()["jobs"][0]["losses"], job_of(*LENET, *words, "--eval-every", "-1")["losses"], "losses")
    expect("lenet, layers from conv2 on with 61550 parameters" in errors and "4 steps; all workers have left" in errors, errors)


@test
def another_configuration_ends_both_sides_with_its_first_line():
    (code, errors), result = both_sides(["--gpus", "1", "--lr", "0.5"], ["--gpus", "1"])
    expect_equal((result.code, code), (76, 76), errors, result)
    for text in (errors, result.err):
        expect("configuration: " in text and "'lr = 0.01'" in text and "'lr = 0.5'" in text, text)


@test
def another_key_is_refused():
    (_, errors), result = both_sides(["--gpus", "1"], ["--gpus", "1"], {"HARNESS_KEY": "6" * 64}, ends=False)
    expect_equal(result.code, 77, errors, result)
    expect("its HARNESS_KEY differs" in result.err and "does not have the key of this job" in errors, errors, result)


@cases([("worker", "--remote-stage"), ("remote stage", "--serve-stage")])
def a_key_is_needed(side):
    result = harness("run", *LENET, "--gpus", "1", side, f"127.0.0.1:{free_port()}")
    expect_equal(result.code, 77, "exit code", result)
    expect("export HARNESS_KEY=$(openssl rand -hex 32)" in result.err, "how to make one", result)


@test
def an_address_where_nobody_serves_is_named():
    address = f"127.0.0.1:{free_port()}"
    result = harness("run", *LENET, "--gpus", "1", "--remote-stage", address, "--connect-timeout", "1s", env=KEY)
    expect_equal(result.code, 75, "exit code", result)
    expect(f"--remote-stage {address}" in result.err and "did not reach" in result.err, "the address", result)


@test
def a_remote_stage_where_nobody_comes_ends():
    address = f"127.0.0.1:{free_port()}"
    result = harness("run", *LENET, "--gpus", "2", "--serve-stage", address, "--connect-timeout", "1s", env=KEY)
    expect_equal(result.code, 75, "exit code", result)
    expect(f"--serve-stage {address}" in result.err and "ranks 1, 2" in result.err, "who is missing", result)


@test
def the_time_line_shows_its_messages_and_the_report_names_it():
    with tempfile.TemporaryDirectory(prefix="remote-") as folder:
        path = os.path.join(folder, "trace.json")
        result = harness("run", *LENET, "--gpus", "1", "--accumulate", "2", "--remote-stage", "local", "--trace", path)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            names = {event.get("name") for event in json.load(file)["traceEvents"]}
    wanted = {f"{what} {i}" for what in ("activations sent", "output received", "output gradient sent", "gradient received") for i in (0, 1)}
    expect(wanted <= names, f"missing: {wanted - names}")
    expect("Remote stage: layers from conv2 on, 61550 parameters, for all ranks." in result.out, "a line of the report", result)


@test
def a_note_says_that_nothing_is_evaluated():
    result = harness("run", *LENET, "--gpus", "1", "--remote-stage", "local")
    expect("no evaluation: with --remote-stage no rank has the whole model" in result.err, "a note", result)


@cases([
    ("an address without a port", ["--remote-stage", "localhost"], 64, "--remote-stage: expected HOST:PORT such as 10.0.0.1:5555, got 'localhost'"),
    ("a port that is none", ["--serve-stage", "localhost:x"], 64, "--serve-stage: expected an integer from 1 to 65535, got 'x'"),
    ("both sides", ["--remote-stage", "local", "--serve-stage", "localhost:1"], 64, "--serve-stage: unexpected with --remote-stage"),
    ("stages, too", ["--remote-stage", "local", "--stages", "2", "--gpus", "2"], 64, "--remote-stage: expected a run without --stages"),
    ("a run that is saved", ["--remote-stage", "local", "--save", "x.safetensors"], 64, "--remote-stage: expected a run without --save"),
    ("evaluations", ["--remote-stage", "local", "--eval-every", "2"], 64, "--remote-stage: expected a run without --eval-every"),
    ("results of the remote stage", ["--serve-stage", "localhost:1", "--json", "-"], 64, "--serve-stage: expected a run without --json"),
    ("SyncBatchNorm", ["--model", "resnet18", "--remote-stage", "local", "--gpus", "2", "--sync-batchnorm"], 64, "--remote-stage: expected a run without --sync-batchnorm"),
    ("the parameter server", ["--mode", "ps", "--gpus", "2", "--remote-stage", "local"], 64, "--remote-stage: expected --mode ring, got"),
    ("virtual devices", ["--device", "sim", "--remote-stage", "local"], 64, "--remote-stage: expected --device cpu or reference, got sim"),
    ("sharded state", ["--remote-stage", "local", "--gpus", "2", "--policy", "zero1"], 78, "--remote-stage: expected a policy whose ranks have all gradients"),
    ("clipping", ["--remote-stage", "local", "--clip-norm", "1"], 78, "--remote-stage: expected no --clip-norm"),
    ("skipped updates", ["--remote-stage", "local", "--on-nonfinite", "skip"], 78, "--remote-stage: expected --on-nonfinite stop or warn, got skip"),
    ("a short last batch", ["--remote-stage", "local", "--model", "wine_mlp", "--data", "wine", "--batch", "40"], 78, "add --drop-last"),
    ("a shared parameter", ["--remote-stage", "local", "--model", "gpt2", "--layers", "2", "--hidden", "32", "--heads", "4", "--vocabulary",
                            "50", "--sequence", "9"], 78, "--remote-stage: expected a model whose halves share no parameter, got transformer.wte.weight"),
])
def wrong_input_is_refused(words, code, message):
    result = harness("run", *LENET, *([] if "--gpus" in words else ["--gpus", "1"]), *words)
    expect_equal(result.code, code, "exit code", result)
    expect(message in result.err, message, result)


main()
