"""harness compare: several policies in one run, and what they have to show for it."""
from program import harness
from tap import cases, expect, expect_equal, main, test

WINE = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--gpus", "3", "--quiet"]


@test
def sync_ssp_and_async_are_compared_in_one_run():
    result = harness("compare", *WINE, "--steps", "40", "--slow", "2:3")
    expect_equal(result.code, 0, "exit code", result)
    lines = result.out.splitlines()
    expect_equal(lines[3].split(), ["sync", "ssp", "async"], "column heads", result)
    expect("Training loss against time" in result.out, "the table of losses", result)
    at = next(i for i, line in enumerate(lines) if line.startswith("seconds"))
    rows = [line.split() for line in lines[at + 1:at + 13]]
    expect(all(len(row) == 4 for row in rows), "a loss or none for every policy", result)
    times = [float(row[0]) for row in rows]
    expect_equal(times, sorted(times), "times")
    expect_equal(result.out.count("Staleness under"), 3, "histograms", result)


@test
def the_runs_are_in_the_json():
    result = harness("compare", "--policies", "sync,ssp,ddp", *WINE, "--steps", "5", "--algorithm", "two-shot", "--divide", "after",
                     "--staleness", "0", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    jobs = [run["jobs"] for run in result.json()["runs"]]
    expect_equal([[job["policy"] for job in run] for run in jobs], [["sync"], ["ssp"], ["ddp"]], "policies")
    hashes = {run[0]["parameter_hash"] for run in jobs}
    expect_equal(len(hashes), 1, f"all end with bit-identical parameters: {hashes}")


@cases([("unknown policy", ["--policies", "sync,lazy"], ["lazy", "async"]), ("wrong option", ["--stps", "3"], ["--stps"]),
        ("no policy", ["--policies="], ["--policies: expected a name"]),
        ("an engine's mode", ["--mode", "ps"], ["--mode: unexpected with compare"]),
        ("one policy", ["--policy", "sync"], ["--policy: unexpected with compare"]),
        ("a time line of several runs", ["--trace", "/tmp/never.json"], ["--trace: unexpected with compare"]),
        ("one file for several runs", ["--save", "/tmp/never.safetensors"], ["--save: unexpected with compare"]),
        ("an option of no policy", ["--policies", "ddp,apex", "--servers", "2"], ["--servers: expected a policy of ps, got none"])])
def wrong_input_is_answered_with_one_line(words, parts):
    result = harness("compare", *WINE, *words)
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
