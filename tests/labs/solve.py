"""Answers to the questions of answers.txt, computed without the grader from what the questions say.

    PYTHONPATH=tests/support python3 tests/labs/solve.py FOLDER    prints those of a started lab
"""
import functools
import json
import math
import re
import struct
import subprocess
import sys
import tempfile

from program import PROGRAM


def numbers(text):
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)]


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def shortest(value):
    return f"{value:.10g}"


def ring(text):
    ranks, chunk = map(int, re.search(r"(\d+) ranks sum one float each, all in chunk (\d+)", text).groups())
    values = numbers(re.search(r"# The values:(.*?)\(", text)[1])
    order = [(chunk + k) % ranks for k in range(ranks)]

    def total(ranks_in_order):
        result = 0.0
        for rank in ranks_in_order:
            result = float32(result + values[rank])
        return shortest(result)
    return {"order": " ".join(map(str, order)), "ring_sum": total(order), "rank_order_sum": total(range(ranks)),
            "equal_up_to": "2"}


def count_bytes(text):
    ranks, n, times = map(int, re.search(r"# (\d+) ranks sum (\d+) gradients.* at least (\d+) times", text, re.S).groups())
    return {"reducer_bytes": 4 * n * (ranks - 1), "ring_bytes": 4 * n * 2 * (ranks - 1) // ranks, "servers_as_ring": ranks,
            "ranks_for_times": 2 * times}


def reducer(text):
    found = re.search(r"mean gradient of (\d+), (\d+) and (\d+) samples: ([\d.]+), ([\d.]+) and ([\d.]+)\.\n", text).groups()
    samples, grads = [int(word) for word in found[:3]], [float(word) for word in found[3:]]
    mean = sum(s * g for s, g in zip(samples, grads)) / sum(samples)
    return {"mean": f"{mean:.5g}", "variant_a": f"{sum(grads) / 3:.5g}", "variant_b": f"{mean / 3:.5g}", "right_for_equal_batches": "a"}


def alpha_beta(text):
    rate, delay = map(float, re.search(r"--link (\d+)MB/s,([\d.]+)ms", text).groups())
    size, n = map(int, re.search(r"all-reduce of (\d+) bytes among (\d+) ranks", text).groups())
    alpha, beta = delay / 1e3, 1 / (rate * 1e6)
    answers = {"latency_ms": delay, "bandwidth": rate, "ring_ms": 2e3 * (n - 1) * (alpha + size / n * beta),
               "reducer_ms": 2e3 * (alpha + (n - 1) * size * beta), "crossover_bytes": n * (n - 2) * alpha / beta / (n - 1) ** 2}
    return {key: f"{value:.5g}" for key, value in answers.items()}


@functools.lru_cache
def choose(text):
    """The ring with a cap of 25 MiB or eight servers, whichever is faster, with the largest batch that fits: within 3 % of the best
    for every draw."""
    words = re.search(r"# harness (whatif .*) --batch 16", text)[1].split()
    limit = int(re.search(r"Memory per GPU: (\d+) GiB", text)[1])
    settings = ({"policy": "ddp", "bucket_cap_mb": 25, "servers": 0}, {"policy": "sync", "bucket_cap_mb": 0, "servers": 8})

    def point_of(batch, policy, bucket_cap_mb, servers):
        setting = ["--servers", str(servers)] if servers else ["--bucket-cap-mb", str(bucket_cap_mb)]
        out = subprocess.run([PROGRAM, *words, "--batch", str(batch), "--policy", policy, *setting, "--json", "-"], check=True, capture_output=True).stdout
        return json.loads(out)["points"][0]

    for batch in (64, 32, 16):
        points = [point_of(batch, **setting) for setting in settings]
        if all(point["memory_peak_bytes"] <= limit * 2**30 for point in points):
            break
    point, setting = max(zip(points, settings), key=lambda pair: pair[0]["samples_per_s"])
    return {**setting, "batch": batch, "samples_per_s": point["samples_per_s"], "memory_gib": point["memory_peak_bytes"] / 2**30,
            "exposed_ms": point["exposed_communication_s"] * 1e3}


def program(line, *further):
    """The JSON that a command of the questions prints."""
    words = re.search(rf"# harness ({line} .*)", further[0])[1].split()
    return json.loads(subprocess.run([PROGRAM, *words, *further[1:], "--json", "-"], check=True, capture_output=True).stdout)


def covered(spans, begin, end):
    """The length of [begin, end) that the spans cover."""
    total = 0
    for first, last in sorted(spans):
        first, last = max(first, begin), min(last, end)
        if first < last:
            total, begin = total + last - first, last
    return total


@functools.lru_cache
def buckets(text):
    exposed = {cap: 1e3 * program("whatif", text, "--bucket-cap-mb", cap)["points"][0]["exposed_communication_s"]
               for cap in ("0.2", "1", "5", "25", "100")}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/trace.json"
        program("run", text, "--trace", path)
        with open(path, encoding="utf-8") as file:
            slices = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    step = next(e for e in slices if e["name"] == "step 3")
    rows = {cat: [(e["ts"], e["ts"] + e["dur"]) for e in slices if e["pid"] == step["pid"] and e["cat"] == cat]
            for cat in ("compute stream", "communication")}
    flight = busy = 0
    at, end = step["ts"], step["ts"] + step["dur"]
    for first, last in sorted(rows["communication"]):
        first, last = max(first, at), min(last, end)
        if first < last:
            flight, busy, at = flight + last - first, busy + covered(rows["compute stream"], first, last), last
    return {"best_cap_mb": min(exposed, key=exposed.get), "exposed_at_0.2_ms": exposed["0.2"], "exposed_at_100_ms": exposed["100"],
            "trace_ms": (flight - busy) / 1e3}


@functools.lru_cache
def stragglers(text):
    command = re.search(r"# harness (run .*) --policy sync", text)[1].split()
    answers = {}
    for policy in ("sync", "ssp", "async"):
        out = subprocess.run([PROGRAM, *command, "--policy", policy, "--json", "-"], check=True, capture_output=True).stdout
        answers[f"{policy}_samples_per_s"] = json.loads(out)["jobs"][0]["throughput"]["samples_per_s"]
    staleness = int(re.search(r"# Staleness (\d+);", text)[1])
    step, pause = map(int, re.search(r"need (\d+) ms for a step; .* for (\d+) ms", text).groups())
    return dict(answers, steps_before_wait=staleness + 1, smallest_staleness=-(-pause // step))


def memory(text):
    millions, ranks = map(int, re.search(r"A model of (\d+) million parameters .* on (\d+) ranks", text).groups())
    limit, gib = int(re.search(r"fit into (\d+) GiB", text)[1]), millions * 1e6 / 2**30
    return {"ddp_gib": 16 * gib, "zero1_gib": (8 + 8 / ranks) * gib, "zero3_gib": 16 * gib / ranks,
            "least_ranks": math.ceil(16 * gib / limit), "sent_ratio": 1.5}


SOLVERS = {1: count_bytes, 2: reducer, 3: ring, 4: alpha_beta, 5: buckets, 6: stragglers, 7: memory, 8: choose}


def answers(lab, text):
    return SOLVERS[lab](text)


if __name__ == "__main__":
    with open(f"{sys.argv[1]}/answers.txt", encoding="utf-8") as file:
        questions = file.read()
    for key, value in answers(int(re.search(r"# Answers to lab (\d)", questions)[1]), questions).items():
        print(f"{key} = {value}")
