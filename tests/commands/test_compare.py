"""Policies compared by a sweep: what each has to show for its steps, as loss against time."""
import json
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

WINE = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--gpus", "3"]


def sweep(*words):
    """The result of the command, the table, and the runs in order."""
    with tempfile.TemporaryDirectory() as folder:
        result = harness("sweep", *words, "-o", os.path.join(folder, "s"), limit=120)
        expect_equal(result.code, 0, "exit code", result)
        with open(os.path.join(folder, "s/table.json"), encoding="utf-8") as file:
            table = json.load(file)
        runs = []
        for name in sorted(os.listdir(os.path.join(folder, "s/runs"))):
            with open(os.path.join(folder, "s/runs", name), encoding="utf-8") as file:
                runs.append(json.load(file))
        return result, table, runs


@test
def sync_ssp_and_async_are_compared_by_their_loss_against_time():
    result, table, runs = sweep("--vary", "policy=sync,ssp,async", *WINE, "--steps", "40", "--slow", "2:3")
    lines = result.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Training loss against time"))
    expect_equal(lines[at + 2].split(), ["policy", "sync", "ssp", "async"], "column heads", result)
    rows = [line.split() for line in lines[at + 3:at + 15]]
    expect(all(len(row) == 4 for row in rows), "a loss or none for every policy", result)
    times = [float(row[0]) for row in rows]
    expect_equal(times, sorted(times), "times")
    losses = table["loss_over_time"]
    for point, run in zip(losses["points"], runs):
        job = run["jobs"][0]
        expect_equal((point["loss_last"], point["accuracy"]), (job["loss_last"], job["accuracy"]), job["policy"])
        steps = [(sum(rank["step_s"][:i + 1]), loss) for rank in job["ranks"] for i, loss in enumerate(rank["losses"]) if loss is not None]
        first = [loss for end, loss in steps if end <= losses["until_s"][0]]
        expect(abs(sum(first) / len(first) - point["losses"][0]) < 1e-9 if first else point["losses"][0] is None, "the first loss", point)
    expect(losses["points"][0]["mean_staleness"] == 0 < losses["points"][2]["mean_staleness"], "staleness", losses["points"])


@test
def in_virtual_time_there_are_no_losses_to_compare():
    result, table, _ = sweep("--vary", "policy=sync,async", "--device", "sim:dgx-a100-80g", "--model", "resnet18", "--steps", "3")
    expect_equal(table["loss_over_time"], None, "losses")
    expect("Training loss" not in result.out, "no empty table", result)


@test
def each_policy_runs_with_its_own_engine():
    _, table, runs = sweep("--vary", "policy=sync,ssp,ddp", "--vary", "algorithm=two-shot", "--vary", "staleness=0", *WINE, "--steps", "5", "--divide",
                           "after")
    expect_equal([(run["jobs"][0]["engine"], run["jobs"][0]["policy"]) for run in runs], [("ps", "sync"), ("ps", "ssp"), ("ring", "ddp")], "policies")
    expect_equal(table["vary"], ["policy", "algorithm", "staleness"], "no axis of engines")
    hashes = {run["jobs"][0]["parameter_hash"] for run in runs}
    expect_equal(len(hashes), 1, f"all end with bit-identical parameters: {hashes}")


@test
def the_training_time_to_a_target_is_shown():
    result, table, _ = sweep("--vary", "policy=sync,async", *WINE, "--steps", "20", "--target-accuracy", "0.2", "--target-loss", "0.001")
    rows = {" ".join(line.split()[:3]): line.split()[3:] for line in result.out.splitlines() if line.startswith("s to ")}
    expect(all(float(cell) > 0 for cell in rows["s to 20"][1:]), "reached", result)
    row = next(line for line in result.out.splitlines() if line.startswith("s to loss 0.0"))
    expect_equal(row.split()[-2:], ["-", "-"], "not reached", result)
    expect_equal([point["target"]["accuracy"] for point in table["loss_over_time"]["points"]], [0.2, 0.2], "targets")


@cases([("unknown policy", ["--vary", "policy=sync,lazy"], ["lazy", "async"]), ("wrong option", ["--vary", "policy=sync", "--stps", "3"], ["--stps"]),
        ("no policy", ["--vary", "policy="], ["--vary: expected NAME=VALUE"])])
def wrong_input_is_answered_with_one_line(words, parts):
    result = harness("sweep", *WINE, *words, "-o", "never")
    expect_equal(result.code, 64, "exit code", result)
    for part in parts:
        expect(part in result.err, f"expected {part!r}", result)


@test
def async_still_classifies_94_of_100_wines():
    result = harness("--mode", "ps", "--policy", "async", "--model", "wine_mlp", "--data", "wine", "--batch", "16", "--gpus", "2",
                     "--epochs", "100", "--optimizer", "adam", "--lr", "0.001", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    accuracy = result.jobs()["ps"]["accuracy"]
    expect(accuracy >= 0.94, f"accuracy {accuracy}")


main()
