"""The time line of a run: it can be read, slices nest, flows arrive, sums are the report's."""
import json
import os
import tempfile

from program import harness, in_ns
from tap import cases, expect, expect_equal, main, test
from timeline import TRACKS, expect_flows, expect_in_flight, expect_nested, slices, total, within

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "8", "--threads", "1", "--warmup", "2"]


def traced(*words):
    """(result as JSON, {process: its events}, {process: name})"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        result = harness("--gpus", "3", *words, "--trace", path, "--json", "-", "--quiet")
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    processes, names = {}, {}
    for event in events:
        processes.setdefault(event["pid"], []).append(event)
        if event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
    return result.json(), processes, names


@cases([("ring", ["--mode", "ring"]), ("ring, inline", ["--mode", "ring", "--progress", "inline"]),
        ("ring, many buckets", ["--mode", "ring", "--bucket-cap-mb", "0.05", "--first-bucket-mb", "0.01"]),
        ("ring after the backward pass", ["--mode", "ring", "--policy", "torch-0.4.1"]), ("ps", ["--mode", "ps", "--policy", "sync"]),
        ("ps, messages", ["--mode", "ps", "--policy", "sync", "--payload", "zmq"]), ("ps, ssp", ["--mode", "ps", "--policy", "ssp"]),
        ("dp", ["--mode", "ps", "--policy", "dp"]), ("side by side", ["--policy", "sync"])])
def slices_nest_and_flows_arrive(words):
    result, processes, names = traced(*LENET, "--steps", "6", *words)
    expect_equal(len(processes), sum(job["world_size"] for job in result["jobs"]), "processes")
    for process, events in processes.items():
        where = names[process]
        for track in TRACKS.values():
            expect_nested(slices(events, track), f"{where}, {track}")
        expect_in_flight(events, where)
        flows = expect_flows(events, where)
        expect(flows > 0 or where.startswith(("none", "all-cores", "isolated")) or "ssp" in words or "dp" in words, f"{where}: no flow")
        expect(any(e["ph"] == "C" and "parameters" in e["args"] for e in events), f"{where}: no memory counters")


@cases([("ring", ["--mode", "ring"]), ("torch-0.4.1", ["--mode", "ring", "--policy", "torch-0.4.1"]),
        ("emulated link", ["--mode", "ring", "--link", "50MB/s,100us"])])
def sums_of_slices_equal_the_report(words):
    """For every traced step and rank: the phases, the waits, the all-reduces, the update."""
    result, processes, names = traced(*LENET, "--steps", "5", "--trace-steps", "2:6", *words)
    ranks = result["jobs"][0]["ranks"]
    for process, events in processes.items():
        rank = ranks[int(names[process].split()[-1])]
        compute, optimizer = slices(events, "compute"), slices(events, "optimizer")
        communication = slices(events, "communication")
        steps = [s for s in compute if s[2].startswith("step ")]
        expect_equal([s[2] for s in steps], [f"step {i}" for i in range(2, 6)], f"{names[process]}: steps")
        for step in steps:
            at = rank["step_index"].index(int(step[2].split()[1]))
            inside = within(compute, step)
            waits = [s for s in inside if s[2] == "wait"]
            phase = {name: next(s for s in inside if s[2] == name) for name in ("data", "forward", "backward")}
            found = {"step_s": total([step]), "data_s": total([phase["data"]]),
                     "forward_s": total([phase["forward"]]) - total(within(waits, phase["forward"])),
                     "backward_s": total([phase["backward"]]) - total(within(waits, phase["backward"])),
                     "communication_s": total(within(communication, step))}
            for key, value in found.items():
                expect_equal(value, in_ns(rank[key][at]), f"{names[process]}, {step[2]}: {key}")
            waited, other, update = (in_ns(sum(rank[key][at] for key in keys)) for keys in (
                ("exposed_communication_s", "waiting_s"), ("other_s",), ("optimizer_s",)))
            expect(waited <= total(waits) <= waited + other, f"{names[process]}, {step[2]}: waits of {total(waits)} ns", waited, other)
            expect(0 < update <= total(within(optimizer, step)), f"{names[process]}, {step[2]}: update of {update} ns")


@test
def only_the_given_steps_are_traced():
    _, processes, _ = traced("--mode", "ring", *LENET, "--steps", "6", "--trace-steps", "3:5")
    for events in processes.values():
        expect_equal([s[2] for s in slices(events, "compute") if s[2].startswith("step ")], ["step 3", "step 4"], "steps")


@cases([("no colon", "5"), ("no number", "a:b"), ("ends before it begins", "5:5"), ("below zero", "-1:5")])
def malformed_steps_are_refused(text):
    result = harness("--mode", "ring", *LENET, "--steps", "1", "--trace", "/dev/null", "--trace-steps", text)
    expect_equal(result.code, 64, "exit code", result)
    expect("--trace-steps" in result.err, "the option is not named", result)


@test
def a_trace_that_cannot_be_written_is_refused_before_the_run():
    result = harness("--mode", "ring", *LENET, "--steps", "1", "--trace", "/no/such/folder/trace.json")
    expect_equal(result.code, 73, "exit code", result)
    expect_equal(result.out, "", "stdout", result)


main()
