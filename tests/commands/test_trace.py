"""The time line of a run: it can be read, slices nest, flows arrive, sums are the report's."""
import json
import os
import tempfile

from program import harness, in_ns
from tap import cases, expect, expect_equal, main, test

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "8", "--threads", "1", "--warmup", "2"]
TRACKS = {1: "compute", 2: "communication", 3: "optimizer"}


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


def ns(microseconds):
    return round(microseconds * 1000)


def slices(events, track):
    found = [(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["name"]) for e in events if e["ph"] == "X" and TRACKS[e["tid"]] == track]
    return sorted(found, key=lambda s: (s[0], -s[1]))


def expect_nested(found, where):
    open_slices = []
    for begin, end, name in found:
        while open_slices and open_slices[-1][1] <= begin:
            open_slices.pop()
        if open_slices:
            expect(end <= open_slices[-1][1], f"{where}: {name} [{begin}, {end}] crosses {open_slices[-1]}")
        open_slices.append((begin, end, name))


def encloses(found, at):
    return any(begin <= at <= end for begin, end, _ in found)


def expect_flows(events, where):
    """Every flow begins, passes and ends, in that order, each within a slice of its track; returns their number."""
    points = {}
    for e in events:
        if e["ph"] in "stf":
            points.setdefault(e["id"], []).append((ns(e["ts"]), e["ph"], TRACKS[e["tid"]]))
    for flow, found in points.items():
        expect_equal([phase for _, phase, _ in found], ["s", "t", "f"], f"{where}: points of flow {flow}")
        expect_equal(found, sorted(found, key=lambda p: p[0]), f"{where}: order of flow {flow}")
        for at, phase, track in found:
            expect(encloses(slices(events, track), at), f"{where}: {phase} of flow {flow} at {at} lies in no slice of {track}")
    return len(points)


def expect_in_flight(events, where):
    begun = {}
    for e in sorted((e for e in events if e["ph"] in "be"), key=lambda e: (e["ts"], e["ph"] == "b")):
        key = (e["name"], e["id2"]["local"])
        if e["ph"] == "b":
            expect(key not in begun, f"{where}: {key} begins twice")
            begun[key] = e["ts"]
        else:
            expect(begun.pop(key, 1e300) <= e["ts"], f"{where}: {key} ends before it begins")
    expect_equal(begun, {}, f"{where}: still in flight")


def within(found, outer):
    return [s for s in found if outer[0] <= s[0] and s[1] <= outer[1]]


def total(found):
    return sum(end - begin for begin, end, _ in found)


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
        expect(flows > 0 or where.startswith("none") or "ssp" in words or "dp" in words, f"{where}: no flow")
        expect(any(e["ph"] == "C" and "parameters" in e["args"] for e in events), f"{where}: no memory counters")


@cases([("ring", ["--mode", "ring"]), ("torch-0.4.1", ["--mode", "ring", "--policy", "torch-0.4.1"]),
        ("emulated link", ["--mode", "ring", "--link", "50MB/s,100us"])])
def sums_of_slices_equal_the_report(words):
    """Of every traced step and rank: the phases, the waits, the all-reduces, the update."""
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
            phase = {name: next(s for s in inside if s[2] == name) for name in ("load", "forward", "backward")}
            found = {"step_s": total([step]), "load_s": total([phase["load"]]),
                     "forward_s": total([phase["forward"]]) - total(within(waits, phase["forward"])),
                     "backward_s": total([phase["backward"]]) - total(within(waits, phase["backward"])),
                     "optimizer_s": total(within(optimizer, step)),
                     "communication_s": total(within(communication, step))}
            for key, value in found.items():
                expect_equal(value, in_ns(rank[key][at]), f"{names[process]}, {step[2]}: {key}")
            expect_equal(total(waits), in_ns(rank["exposed_communication_s"][at]) + in_ns(rank["waiting_s"][at]),
                         f"{names[process]}, {step[2]}: waits")


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
