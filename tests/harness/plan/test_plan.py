"""--plan: the ledger that a run would have, without the run."""
import os
import resource
import struct
import tempfile

from program import harness
from tap import cases, expect, expect_equal, long_cases, main, test

FOLDER = tempfile.TemporaryDirectory(prefix="run-")
COUNT = 80


def write(name, header, data):
    path = os.path.join(FOLDER.name, name)
    with open(path, "wb") as file:
        file.write(struct.pack(f">{len(header)}I", *header) + data)
    return path


# Few samples, so that evaluations are short.
IMAGES = write("images", [0x803, COUNT, 28, 28], bytes(i * i % 251 for i in range(COUNT * 28 * 28)))
LABELS = write("labels", [0x801, COUNT], bytes(i % 10 for i in range(COUNT)))
RESNET = ["--model", "resnet18", "--batch", "2", "--data", f"idx:{IMAGES},{LABELS}"]
LENET = ["--model", "lenet", *RESNET[2:]]
BERT = ["--model", "bert", "--layers", "2", "--hidden", "32", "--heads", "4", "--batch", "4", "--vocabulary", "99", "--sequence", "8"]
# Runs of both flush after their first step, to compare gradients: the peaks are those of the steps from the third on.
STEPS = ["--steps", "3", "--warmup", "2", "--threads", "1"]


def ledgers(words):
    result = harness("run", *words, "--json", "-", "--quiet")
    expect_equal(result.code, 0, "exit code", result)
    return {job["name"]: [rank["memory"] for rank in job["ranks"]] for job in result.json()["jobs"]}


@cases([
    ("small BERT through all engines", [*BERT, "--gpus", "2", "--optimizer", "adamw"]),
    ("three ranks, clipped", [*LENET, "--gpus", "3", "--momentum", "0.9", "--clip-norm", "1", "--lr", "0.01"]),
    ("SyncBatchNorm", [*RESNET, "--mode", "ring", "--gpus", "2", "--sync-batchnorm", "--batch", "4"]),
    ("two servers, bounded staleness", [*BERT, "--mode", "ps", "--policy", "ps=ssp", "--gpus", "3", "--servers", "2"]),
    ("asynchronous updates", [*BERT, "--mode", "ps", "--policy", "ps=async", "--gpus", "2", "--optimizer", "adam"]),
    ("loss in the replicas, gradients kept", [*BERT, "--mode", "ps", "--dp-loss", "replica", "--keep-grads", "--gpus", "3",
                                             "--optimizer", "adam"]),
    ("one synchronous server", [*BERT, "--mode", "ps", "--policy", "ps=sync", "--gpus", "3"]),
    ("ranks update", [*BERT, "--mode", "ps", "--policy", "ps=sync", "--server-optimizer", "off", "--momentum", "0.9", "--gpus", "2"]),
    ("buckets in place", [*LENET, "--mode", "ring", "--bucket-view", "--gpus", "2"]),
    ("buckets that pass", [*LENET, "--mode", "ring", "--policy", "ring=torch-0.4.1", "--gpus", "2"]),
    ("PowerSGD", [*LENET, "--mode", "ring", "--comm-hook", "powersgd", "--gpus", "2"]),
    ("an epoch with an odd end", ["--mode", "ring", "--model", "wine_mlp", "--data", "wine", "--batch", "32", "--gpus", "2"]),
    ("in float64", ["--mode", "ring", "--model", "toy", "--device", "reference", "--gpus", "2"]),
])
@long_cases([("ResNet-18 through all engines", [*RESNET, "--gpus", "2", "--optimizer", "adam"])])
def the_plan_equals_the_ledger_of_the_run(words):
    real, planned = ledgers([*words, *STEPS]), ledgers([*words, *STEPS, "--plan"])
    expect_equal(sorted(planned), sorted(real), "engines")
    for engine, ranks in real.items():
        expect_equal(len(planned[engine]), len(ranks), f"ranks of {engine}")
        for rank, (found, expected) in enumerate(zip(planned[engine], ranks)):
            for part in expected:
                expect_equal(found[part], expected[part], f"{engine}, rank {rank}, {part}")


@test
def a_plan_allocates_no_tensor():
    result = harness("run", "--plan", "--model", "bert_large", "--gpus", "64", "--batch", "8", "--optimizer", "adam",
                     "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    planned = sum(rank["memory"]["total"]["peak_bytes"] for rank in result.jobs()["ring"]["ranks"])
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    expect(planned > 64 * 5e9, f"planned {planned} bytes")
    expect(used < 1e9, f"the largest program used {used} bytes")


@test
def a_plan_is_printed_as_a_table_of_ranks():
    result = harness("run", "--plan", "--model", "bert_large", "--gpus", "64", "--mode", "ps")
    expect_equal(result.code, 0, "exit code", result)
    rows = [line.split() for line in result.out.splitlines()]
    for row in (["rank", "0", "ranks", "1-63"], ["peak", "current", "peak", "current"]):
        expect(row in rows, f"a head of columns: {row}", result)
    expect(any(row[0] == "gradients" and len(row) == 5 for row in rows if row), "a row for gradients", result)


@cases([
    ("more ranks than samples", ["--model", "wine_mlp", "--data", "wine", "--gpus", "200"], 78),
    ("an unknown policy", ["--policy", "ring=none-such"], 64),
    ("heads that do not divide", ["--model", "bert", "--hidden", "64", "--heads", "5"], 78),
])
def what_cannot_run_is_not_planned(words, code):
    result = harness("run", "--plan", *words)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)


main()
