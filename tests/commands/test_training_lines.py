"""What a run prints while it trains: a line per epoch (its losses are compared with PyTorch's in
tests/golden/test_wine_epochs.py), lines of evaluations and saved files, --print-steps and --print-shapes."""
import json
import os
import re
import tempfile

from program import Run, harness
from tap import cases, expect, expect_equal, main, test

WINE = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--optimizer", "adam", "--quiet"]
ENGINES = [("none", "none", []), ("a ring", "ring", []), ("dp", "ps", ["--policy", "dp"]),
           ("servers", "ps", ["--policy", "sync"]), ("stages", "ring", ["--stages", "2", "--drop-last"])]
PASSES = r"time=(\d+\.\d+)s fp_time=(\d+\.\d+)s bp_time=(\d+\.\d+)s"


def ranks(engine):
    return ["--mode", engine] + (["--gpus", "2"] if engine != "none" else [])


def run(*words, code=0):
    result = harness("run", *words)
    expect_equal(result.code, code, "exit code", result)
    return result


@cases(ENGINES)
def the_loss_of_an_epoch_is_the_mean_of_its_steps_over_the_ranks(engine, words):
    with tempfile.TemporaryDirectory() as folder:
        result = run(*WINE, *ranks(engine), *words, "--epochs", 3, "--warmup", 0, "--json", folder + "/r.json")
        with open(folder + "/r.json", encoding="utf-8") as file:
            job = json.load(file)["jobs"][0]
    rows = [[loss for loss in rank["losses"] if loss is not None] for rank in job["ranks"]]
    rows = [row for row in rows if row]
    steps = len(rows[0]) // 3
    means = [sum(sum(row[e * steps:(e + 1) * steps]) for row in rows) / (steps * len(rows)) for e in range(3)]
    expect_equal(re.findall(rf"^{engine} epoch (\d)/3: loss ([0-9.]+)$", result.out, re.M),
                 [(str(e + 1), f"{mean:.4f}") for e, mean in enumerate(means)], "lines", result)


@test
def without_epochs_and_with_the_result_on_stdout_there_are_no_lines():
    expect(" epoch " not in run(*WINE, *ranks("ring"), "--steps", 12).out, "lines without --epochs")
    result = run(*WINE, *ranks("ring"), "--epochs", 2, "--print-steps", "--print-shapes", "--eval-every", "1ep", "--json", "-")
    expect_equal(json.loads(result.out)["jobs"][0]["name"], "ring", "the only job on stdout")


@test
def ranks_that_do_not_wait_for_each_other_print_the_loss_of_rank_0():
    lines = re.findall(r"^ps epoch \d/2: loss [0-9.]+ on rank 0$", run(*WINE, *ranks("ps"), "--policy", "async", "--epochs", 2).out, re.M)
    expect_equal(len(lines), 2, "lines")


@test
def a_run_of_only_warm_up_steps_has_its_accuracy_and_its_file_and_says_how_steps_are_measured():
    with tempfile.TemporaryDirectory() as folder:
        out = run(*WINE, *ranks("ring"), "--epochs", 1, "--save", folder + "/wine").out
        expect(os.path.exists(folder + "/wine"), "no file")
    for line in (r"Test accuracy [0-9.]+ %\.", r"Checkpoint: saved in .*/wine\.", r"Next: --warmup 0 or more steps: no step was measured\..*"):
        expect(re.search(f"^{line}$", out, re.M), line, out)


@test
def an_evaluation_before_the_end_prints_loss_and_accuracy():
    out = run(*WINE, *ranks("ring"), "--epochs", 4, "--eval-every", "2ep").out
    lines = re.findall(r"^ring step (\d+): loss [0-9.]+, accuracy [0-9.]+ % on the test data$", out, re.M)
    expect_equal(lines, ["10"], "steps of evaluations before the end")
    expect(re.search(r"^Loss: ring [0-9.]+ to [0-9.]+, test accuracy [0-9.]+ %\.$", out, re.M), out)


@cases([("processes", []), ("virtual time", ["--device", "sim"])])
def a_closed_pipe_under_the_lines_of_steps_does_not_end_the_training(words):
    end, pipe = os.pipe()
    os.close(end)
    with tempfile.TemporaryDirectory() as folder:
        save = [] if words else ["--save", folder + "/p.st"]
        result = harness("run", "--mode", "ring", "--gpus", "2", "--model", "lenet", "--steps", "20", "--print-steps", "--quiet", *words, *save,
                         "--json", folder + "/r.json", stdout=pipe)
        os.close(pipe)
        expect_equal(len(os.listdir(folder)), 1 + bool(save), "files", result)
    expect_equal((result.code, result.lines()), (73, ["harness: stdout: Broken pipe"]), "exit code and lines", result)


@cases([("a ring", "ring", ["--mode", "ring", "--gpus", "2", "--batch", "16"]), ("one process", "none", ["--mode", "none"]),
        ("virtual GPUs", "ring", ["--device", "sim:dgx1-v100", "--mode", "ring", "--gpus", "2", "--batch", "4"])])
def a_line_per_step_has_the_times_of_both_passes(engine, words):
    out = run("--model", "lenet", *words, "--steps", 4, "--warmup", 1, "--print-steps", "--quiet").out
    simulated = r" \(simulated\)" if "--device" in words else ""
    found = re.findall(rf"^{engine} iteration (\d+){simulated}: {PASSES}" + ("$" if simulated else r" loss=[0-9.]+$"), out, re.M)
    expect_equal([int(line[0]) for line in found], list(range(5)), "steps, the warm-up first", out)
    for _, whole, forward, backward in found:
        expect(abs(float(whole) - float(forward) - float(backward)) <= 2e-6, f"{whole} s are not {forward} + {backward}")
        expect(float(forward) > 0 and float(backward) > 0, "times of the passes", out)


def shapes(out):
    return sorted(set(line for line in out.splitlines() if " input [" in line))


@test
def under_dp_a_replica_sees_a_part_of_the_batch_that_rank_0_sees():
    out = run("--mode", "ps", "--policy", "dp", "--gpus", 2, "--model", "linear", "--data", "synthetic:5:2:30", "--batch", 15,
              "--epochs", 1, "--warmup", 0, "--print-shapes", "--quiet").out
    expect_equal(shapes(out), ["ps rank 0: input [15, 5], output [15, 2] in the model",
                               "ps rank 0: input [30, 5], output [30, 2] outside, of all replicas",
                               "ps rank 1: input [15, 5], output [15, 2] in the model"], "lines")


@test
def under_ddp_each_rank_sees_a_batch_of_its_own_and_the_rest_of_the_epoch():
    out = run("--mode", "ring", "--gpus", 2, "--model", "linear", "--data", "synthetic:5:2:90", "--batch", 30, "--epochs", 1,
              "--warmup", 0, "--print-shapes", "--quiet").out
    expect_equal(shapes(out), [f"ring rank {rank}: input [{n}, 5], output [{n}, 2] in the model" for rank in (0, 1) for n in (15, 30)],
                 "lines")


@test
def images_are_shown_in_the_order_of_pytorch():
    out = run("--mode", "none", "--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", 8, "--steps", 1, "--print-shapes", "--quiet").out
    expect_equal(shapes(out), ["none rank 0: input [8, 1, 28, 28], output [8, 10] in the model"], "lines")


# ---- how long it takes -------------------------------------------------------------------------------


@cases([("steps", ["--steps", "20000"], r"harness: about (1 minute|(?!1 )\d+ (minutes|hours)) on this machine; about a minute with --steps \d+"),
        ("epochs", ["--epochs", "50"], r"harness: about (1 minute|(?!1 )\d+ (minutes|hours)) on this machine")])
def a_long_run_says_before_its_first_step_how_long_it_takes(words, line):
    with Run("--mode", "ring", "--gpus", "2", "--model", "resnet34", "--batch", "16", *words) as run:
        run.wait_for_line("harness: about ")
        shown = run.text(run.err_file).splitlines()
    expect(re.fullmatch(line, shown[-1]), shown)
    expect(not any("progress" in text for text in shown), f"the run had begun: {shown}")


@test
def a_short_run_says_nothing_about_its_duration():
    result = run("--mode", "ring", "--gpus", "2", "--model", "lenet", "--steps", "20")
    expect("about" not in result.err, result)


# ---- files --------------------------------------------------------------------------------------


@test
def a_period_of_epochs_saves_files_that_have_the_number_of_the_epoch():
    with tempfile.TemporaryDirectory() as folder:
        words = [*WINE, *ranks("ring")]
        out = run(*words, "--epochs", 5, "--save", folder + "/wine_{epoch}.safetensors", "--save-every", "2ep").out
        expect_equal(sorted(os.listdir(folder)), [f"wine_{n}.safetensors" for n in (2, 4, 5)], "files")
        expect_equal(re.findall(r"saved in .*/(wine_\d\.safetensors)$", out, re.M), [f"wine_{n}.safetensors" for n in (2, 4, 5)], "lines")
        run(*words, "--epochs", 2, "--save", folder + "/two.safetensors")
        with open(folder + "/two.safetensors", "rb") as two, open(folder + "/wine_2.safetensors", "rb") as also:
            expect(two.read() == also.read(), "the file of epoch 2 differs from the file of a run of two epochs")
        run(*words, "--epochs", 5, "--load", folder + "/wine_4.safetensors", "--save", folder + "/again.safetensors")
        with open(folder + "/again.safetensors", "rb") as again, open(folder + "/wine_5.safetensors", "rb") as five:
            expect(again.read() == five.read(), "a run that continues from epoch 4 ends elsewhere")


@test
def a_period_of_epochs_counts_epochs_of_accumulated_steps():
    with tempfile.TemporaryDirectory() as folder:
        run(*WINE, *ranks("ring"), "--accumulate", 3, "--epochs", 6, "--save", folder + "/{epoch}", "--save-every", "3ep")
        expect_equal(sorted(os.listdir(folder)), ["3", "6"], "files")


@cases([(text, text) for text in ("0ep", "ep", "5e", "1.5ep", "-1ep", " 5ep", "")])
def a_period_that_is_no_number_of_steps_or_epochs_is_refused(text):
    result = run(*WINE, "--mode", "none", "--save", "x", f"--save-every={text}", code=64)
    expect_equal(result.err.strip(), "harness: --save-every: expected a number of steps, or of epochs such as 50ep, got "
                 f"'{text}'", "message")


main()
