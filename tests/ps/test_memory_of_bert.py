"""BERT-base under dp: device 0's excess over another device is what DataParallel's table says, phase by phase, to 1%
of the parameters."""
from program import harness
from tap import cases, expect, expect_equal, long_cases, main

BERT = ["--mode", "ps", "--model", "bert", "--layers", "12", "--hidden", "768", "--heads", "12", "--vocabulary", "30522",
        "--positions", "512", "--sequence", "32", "--data", "synthetic", "--batch", "2", "--threads", "1", "--steps", "1",
        "--warmup", "1", "--stall-timeout", "600s", "--connect-timeout", "600s", "--eval-every", "-1"]
DIFFERENCES = {  # in units of P, G, S, O, O/n
    "after the optimizer, before zero_grad": (2, 0, 1, 0, 0),
    "after replicate": (0, 1, 1, 0, 0),
    "end of forward": (0, 1, 1, 2, 0),
    "inside the loss's backward": (0, 1, 1, 4, 0),
    "replicas' backward begins": (0, 1, 1, 2, -1),
    "reduce begins": (1, 1, 1, 0, 0),
    "reduce ends": (2, 1, 1, 0, 0),
}


# ranks, optimizer, S and G in units of P
ROWS = [("2 ranks, Adam", 2, ["--optimizer", "adam"], 2, 0), ("4 ranks, Adam", 4, ["--optimizer", "adam"], 2, 0),
        ("2 ranks, SGD without momentum", 2, ["--optimizer", "sgd"], 0, 0),
        ("2 ranks, SGD with momentum, kept gradients", 2, ["--optimizer", "sgd", "--momentum", "0.9", "--keep-grads"], 1, 1)]


def device_0_holds_more(ranks, words, states, kept):
    result = harness(*BERT, "--gpus", ranks, *words, "--json", "-", limit=1200)
    expect_equal(result.code, 0, "exit code", result)
    memory = result.jobs()["ps"]["dataparallel_memory"]
    parameters = memory["parameters_bytes"]
    expect(430e6 < parameters < 445e6, f"P is {parameters}")
    outputs = ranks * 2 * 32 * 30522 * 4
    units = (parameters, kept * parameters, states * parameters, outputs, outputs / ranks)
    expect_equal({phase["phase"] for phase in memory["phases"]}, set(DIFFERENCES), "phases")
    for phase in memory["phases"]:
        wanted = sum(factor * unit for factor, unit in zip(DIFFERENCES[phase["phase"]], units))
        off = abs(phase["difference_bytes"] - wanted)
        expect(off <= 0.01 * parameters, f"{phase['phase']}: found {phase['difference_bytes']}, expected {wanted:.0f}")


@cases(ROWS)
def planned_device_0_holds_more_as_the_table_says(ranks, words, states, kept):
    device_0_holds_more(ranks, ["--plan", *words], states, kept)


@long_cases(ROWS)
def trained_device_0_holds_more_as_the_table_says(ranks, words, states, kept):
    device_0_holds_more(ranks, words, states, kept)


main()
