"""The time line of virtual time: a row for each stream and each link, in agreement with the step that is reported."""
import json
import os
import tempfile

from program import harness, in_ns
from tap import cases, expect, expect_equal, main, test
from timeline import expect_flows, expect_in_flight, expect_nested, ns, slices, within

STREAMS = {4: "compute stream", 5: "copy stream"}


def traced(*words):
    """(result, {rank: its events}, {(process, row): slices with arguments} of links)"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        result = harness(*words, "--trace", path, "--json", "-", "--quiet")
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")}
    ranks, links = {}, {}
    for e in events:
        process = names[e["pid"], 0]
        if " links of machine " in process:
            if e["ph"] == "X":
                links.setdefault((process, names[e["pid"], e["tid"]]), []).append(e)
        else:
            ranks.setdefault(process, []).append(e)
    return result.json(), ranks, links


def row(events, track):
    found = [(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["name"]) for e in events if e["ph"] == "X" and e["tid"] == track]
    return sorted(found)


def host(events):
    """The events without the rows of streams, as in a trace of a real run."""
    return [e for e in events if e["tid"] not in STREAMS]


RING = ["--mode", "ring", "--device", "sim:v100-pcie-10gbe", "--gpus", "4", "--steps", "3", "--warmup", "1"]


@cases([("none", ["--mode", "none", "--device", "sim"]), ("ring", RING), ("ring on NVLink", ["--mode", "ring", "--device", "sim:dgx1-v100", "--gpus", "4"]),
        ("ps", ["--mode", "ps", "--policy", "sync", "--device", "sim", "--gpus", "2"]), ("dp", ["--mode", "ps", "--policy", "dp", "--device", "sim", "--gpus", "2"]),
        ("async", ["--mode", "ps", "--policy", "async", "--device", "sim", "--gpus", "2"]),
        ("a processor", ["--mode", "ring", "--device", "sim:cpu", "--gpus", "2"]),
        ("micro-batches", [*RING, "--accumulate", "2"]), ("side by side", ["--policy", "sync", "--device", "sim", "--gpus", "2"])])
def slices_nest_and_streams_run_one_thing_at_a_time(words):
    result, ranks, links = traced("--model", "lenet", *words)
    expect_equal(len(ranks), sum(job["world_size"] for job in result["jobs"]), "processes")
    for name, events in ranks.items():
        for track in ("compute", "communication", "optimizer"):
            expect_nested(slices(host(events), track), f"{name}, {track}")
        expect_in_flight(host(events), name)
        expect_flows(host(events), name)
        for track, what in STREAMS.items():
            found = row(events, track)
            for before, after in zip(found, found[1:]):
                expect(before[1] <= after[0], f"{name}, {what}: {before} and {after} overlap")
        expect(len(row(events, 4)) > 10, f"{name}: no kernels")
    for (process, name), uses in links.items():
        uses.sort(key=lambda e: e["ts"])
        for before, after in zip(uses, uses[1:]):
            expect(ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"]), f"{process}, {name}: {before} and {after} overlap")
        for use in uses:
            expect(0 < use["args"]["used"] < 1.001, f"{process}, {name}: more than the link carries", use)


@test
def kernels_fill_the_phases_of_the_step():
    """No GPU waits for its host here, so a phase takes as long as its kernels together."""
    result, ranks, _ = traced("--mode", "none", "--device", "sim:dgx1-v100", "--model", "resnet18", "--image", "224", "--batch", "64",
                              "--steps", "2", "--warmup", "1", "--prefetch", "off")
    rank, events = result["jobs"][0]["ranks"][0], ranks["none rank 0"]
    kernels, compute = row(events, 4), slices(host(events), "compute")
    for at, index in enumerate(rank["step_index"]):
        step = next(s for s in compute if s[2] == f"step {index}")
        expect_equal(step[1] - step[0], in_ns(rank["step_s"][at]), "length of the step")
        for phase in ("forward", "backward"):
            outer = next(s for s in within(compute, step) if s[2] == phase)
            found = within(kernels, outer)
            busy = sum(end - begin for begin, end, _ in found)
            expect(abs(busy - (outer[1] - outer[0])) <= len(found), f"{phase}: kernels of {busy} ns in {outer}")
        names = {name for _, _, name in within(kernels, step)}
        expect({"conv2d_forward", "sgd", "copy"} <= names, f"kernels of a step: {names}")


@test
def a_link_carries_what_the_report_says():
    result, ranks, links = traced("--model", "lenet", *RING)
    job = result["jobs"][0]
    for machine in range(4):
        uses = links[f"ring links of machine {machine}", "nic0 sends"]
        sent = sum(use["args"]["bytes"] for use in uses)
        expect_equal(round(sent), round(3 * job["traffic"]["per_rank"][machine]["bytes_sent_per_step"]), f"bytes of machine {machine}")
        calls = slices(host(ranks[f"ring rank {machine}"]), "communication")
        expect_equal([ns(use["ts"]) for use in sorted(uses, key=lambda e: e["ts"])], [begin for begin, _, _ in calls], "begins")
        for use, (begin, end, _) in zip(sorted(uses, key=lambda e: e["ts"]), calls):
            expect(use["name"] in ("ring all_reduce", "broadcast"), "what a link carries", use)
            expect(ns(use["dur"]) <= end - begin, f"{use} beyond its call [{begin}, {end}]")
            # 2 (n - 1) / n of the bucket at the adapter's rate of 1.2 GB/s, in the protocol that NCCL's model takes
            expect(use["args"]["bytes"] / 1.2 <= ns(use["dur"]) * 1.001, "faster than the adapter", use)


# In an earlier version they had the time of the host's clock.
@cases([("by servers", "sync"), ("by servers, as pushes come", "async"), ("by ranks", "sync --server-optimizer off")])
def updates_of_keys_lie_in_the_run(words):
    _, ranks, _ = traced("--model", "lenet", "--mode", "ps", "--device", "sim", "--gpus", "2", "--steps", "3", "--policy", *words.split())
    updates = [s for events in ranks.values() for s in slices(host(events), "optimizer") if s[2].startswith("update of key")]
    end = max(s[1] for events in ranks.values() for s in slices(host(events), "compute"))
    expect(len(updates) > 0, "no updates")
    for update in updates:  # a rank's last ones come after its last pass
        expect(0 <= update[0] <= update[1] <= 2 * end, f"{update}, of a run whose last pass ends at {end}")


@test
def only_the_given_steps_are_traced():
    _, ranks, links = traced("--model", "lenet", *RING, "--trace-steps", "2:3")
    for events in ranks.values():
        steps = [s for s in slices(host(events), "compute") if s[2].startswith("step ")]
        expect_equal([s[2] for s in steps], ["step 2"], "steps")
        for kernel in (k for k in row(events, 4) if k[2] != "copy"):  # the loss is copied after the step
            expect(steps[0][0] <= kernel[0] and kernel[1] <= steps[0][1], f"{kernel} lies outside of {steps[0]}")
    expect(len(links) > 0, "no links")


@test
def of_many_ranks_the_first_are_shown():
    with tempfile.TemporaryDirectory() as folder:
        result = harness("--mode", "ring", "--model", "lenet", "--device", "sim:v100-pcie-10gbe", "--gpus", "70", "--steps", "1",
                         "--warmup", "0", "--trace", os.path.join(folder, "trace.json"))
    expect_equal(result.code, 0, "exit code", result)
    expect("the time line shows ranks 0 to 63 of 70" in result.err, "no notice", result)


main()
