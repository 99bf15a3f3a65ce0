"""Text, page, CSV and JSON of one run show the same numbers: every number in every table of the text report against the JSON, every
number in every table of the page against CSV and JSON, and what has one name in text and page against each other."""
import csv
import html.parser
import json
import math
import os
import re
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

LENET = ["--model", "lenet", "--data", "synthetic", "--steps", "8"]
SIM = ["--model", "resnet18", "--device", "sim:dgx1-v100", "--steps", "4"]
RUNS = [("both engines", [*LENET, "--gpus", "2", "--policy", "ps=sync,ring=ddp", "--bucket-cap-mb", "0.05"]),
        ("late reads over an emulated link", [*LENET, "--gpus", "3", "--policy", "ps=async,ring=ddp", "--link", "1GB/s,10us", "--target-loss", "2.305"]),
        ("dp in virtual time", [*SIM, "--gpus", "8", "--policy", "ps=dp,ring=ddp", "--loader-workers", "2"]),
        ("servers of their own", [*LENET, "--gpus", "2", "--mode", "ps", "--policy", "sync", "--servers", "2", "--server-placement", "own"]),
        ("ranks that are sharded", [*LENET, "--gpus", "3", "--mode", "ring", "--policy", "zero3"]),
        ("a split model", [*LENET, "--gpus", "2", "--mode", "ring", "--stages", "2", "--accumulate", "3"]),
        ("a split model in virtual time", [*SIM, "--gpus", "4", "--mode", "ring", "--stages", "2", "--accumulate", "4", "--schedule", "gpipe"]), ("one rank", [*LENET, "--mode", "none"])]
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "%": 0.01}


def at(value, path):
    for key in path.split("."):
        if isinstance(value, list):
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def shown(text, unit=1):
    """The number that a cell shows, and half a unit of its last digit; None if it shows no number."""
    found = re.fullmatch(r"(-?[\d.]+)(?: (\w+|%))?", text)
    if not found:
        expect(text in ("", "-", "not measured"), f"no number: {text!r}")
        return None
    scale = UNITS[found[2]] if found[2] else unit
    return float(found[1]) * scale, 0.5 * 10 ** -len(found[1].partition(".")[2]) * scale


def expect_shown(text, value, what, unit=1):
    number = shown(text, unit)
    if number is None or value is None or not math.isfinite(value):
        expect(number is None and (value is None or not math.isfinite(value)), f"{what}: shown {text!r}, the JSON has {value!r}")
        return
    expect(abs(number[0] - value) <= number[1] * (1 + 1e-9) + 1e-15, f"{what}: shown {text!r}, the JSON has {value!r}")


# ---- what the JSON has ---------------------------------------------------------------------------

def title(job):
    name = {"all-cores": "all cores", "isolated": "isolated"}.get(job["name"], job["policy"])
    text = job["engine"] if name == job["engine"] else f"{job['engine']} ({name})"
    servers = int(at(job, "settings.servers") or 0)
    return text if servers <= 1 else f"{text[:-1]}, {servers} servers)"


def busiest(key):
    return lambda job, _: max((row[key] for row in at(job, "traffic.per_rank") or [] if row.get(key) is not None), default=None)


def per_step(key):
    def mean(job, _):
        total, steps = sum(rank.get(key) or 0 for rank in job["ranks"]), sum(rank["measured_steps"] for rank in job["ranks"])
        return total / steps if total > 0 and steps > 0 else None
    return mean


def waited_for(job):
    """For each step and rank, under dp of rank 0: the rank that was waited for longest, and how long."""
    ranks = job["ranks"][:1] if job["policy"] == "dp" else job["ranks"]
    sums = [sum((rank.get("waited_for_s") or {}).get(str(late), 0) for rank in ranks) for late in range(len(job["ranks"]))]
    most = max(sums)
    return (None, None) if most <= 0 else (sums.index(most), most / sum(rank["measured_steps"] for rank in ranks))


def compared(baseline, key):
    return lambda job, result: next((row[key] for row in at(result, f"comparison.{baseline}") or [] if row["name"] == job["name"]), None)


def path(name):
    return lambda job, _: at(job, name)


# Rows of the text's tables: the number in the JSON, and the figure and column of the page that show it; or the reason
# why the page does not show it.
ABOUT, COUNTS, SPREAD = "it describes the run: on the page in its command and options", "figures show means", "figures show no spread within a run"
DETAIL = "a part of another row; figures show exclusive parts"
JOB_ROWS = {
    "ranks": (path("world_size"), ABOUT), "threads per rank": (path("threads_per_rank"), ABOUT), "batch per rank": (path("batch_per_rank"), ABOUT),
    "trained steps": (path("trained_steps"), ABOUT), "measured steps": (path("step_time.count"), ABOUT), "step time, mean": (path("step_time.mean_s"), "from step to step; figures show a rank's"),
    "  median": (path("step_time.median_s"), COUNTS), "  p95": (path("step_time.p95_s"), SPREAD), "  spread (p75-p25)/median": (path("step_time.spread"), SPREAD),
    "  SIMULATED: predicted": (path("prediction.step_median_s"), "of calibrated machines"), "  own steps, median": (path("prediction.measured_s"), "of calibrated machines"),
    "  prediction / own steps - 1": (path("prediction.error"), "of calibrated machines"),
    "a rank's step, mean": (path("phases.step_s.mean_s"), ("step-parts", "step")), "  data": (path("phases.data_s.mean_s"), ("step-parts", "data")),
    "  forward": (path("phases.forward_s.mean_s"), ("step-parts", "forward")), "  backward": (path("phases.backward_s.mean_s"), ("step-parts", "backward")),
    "  exposed communication": (path("phases.exposed_communication_s.mean_s"), ("step-parts", "exposed communication")),
    "  waiting for other ranks": (path("phases.waiting_s.mean_s"), ("step-parts", "waiting for other ranks")),
    "  optimizer": (path("phases.optimizer_s.mean_s"), ("step-parts", "optimizer")), "  other": (path("phases.other_s.mean_s"), ("step-parts", "other")),
    "slowdown by communication": (path("slowdown.mean_s"), DETAIL), "  95 % interval, from": (path("slowdown.low_s"), DETAIL), "    to": (path("slowdown.high_s"), DETAIL),
    "lost against one rank alone": (path("lost.total_s"), DETAIL),
    **{f"  by {name}": (path(f"lost.{key}_s"), DETAIL) for key, name in (
        ("neighbors", "neighbors"), ("exchange", "contention with exchange"), ("update", "update"), ("engine", "copies by the engine"),
        ("communication", "exposed communication"), ("waiting", "waiting for other ranks"), ("data", "loading data"),
        ("python", "dp's Python process"))},
    "off the CPU, compute thread": (per_step("off_cpu_s"), DETAIL), "CPU time of a rank's agents": (per_step("agents_cpu_s"), "of other threads than a step's"),
    "updates on other threads": (per_step("update_aside_s"), "of other threads than a step's"), "copy of the next batch": (path("phases.batch_copy_s.mean_s"), "of other threads than a step's"),
    "samples/s, all ranks": (path("throughput.samples_per_s"), ("throughput", "samples/s")), "  per rank": (path("throughput.samples_per_s_per_rank"), ("throughput", "per rank")),
    "speed-up over none": (compared("against_none", "speedup"), "the figure has the share of ideal"),
    "weak-scaling efficiency": (compared("against_none", "weak_scaling_efficiency"), ("throughput", "share of ideal")),
    "efficiency per core": (compared("against_none", "efficiency_per_core"), "the figure has ranks, not cores"),
    "speed-up over none (all cores)": (compared("against_all_cores", "speedup"), "the figure has the share of ideal"),
    "bytes sent per step, max": (busiest("bytes_sent_per_step"), "no figure of traffic"), "bytes received per step, max": (busiest("bytes_received_per_step"), "no figure of traffic"),
    "peak memory, max over ranks": (path("memory_imbalance.maximum_bytes"), ("memory", "peak")),
    "  memory imbalance, max/mean": (path("memory_imbalance.maximum_over_mean"), "the figure has the difference"),
    "  memory imbalance, max-min": (path("memory_imbalance.maximum_minus_minimum_bytes"), ("memory", "above the least")),
    "loss, first measured step": (path("loss_first"), ("loss-steps", "loss")), "  last step": (path("loss_last"), ("loss-steps", "loss")),
    "accuracy on the test data": (path("accuracy"), "no figure of accuracy")}
COMMUNICATION_ROWS = {
    "total": (path("phases.communication_s.mean_s"), "figures show what takes time of the step"),
    "  hidden while computing": (path("phases.hidden_while_computing_s.mean_s"), ("step-parts", "hidden communication, while computing")),
    "  hidden while waiting for another rank": (path("phases.hidden_while_waiting_s.mean_s"),
                                                ("step-parts", "hidden communication, while waiting for other ranks")),
    "  exposed (computation waited for it)": (path("phases.exposed_communication_s.mean_s"), ("step-parts", "exposed communication")),
    "waiting for other ranks": (path("phases.waiting_s.mean_s"), ("step-parts", "waiting for other ranks")),
    "  of it, for the rank waited for longest": (lambda job, _: waited_for(job)[1], DETAIL), "    that rank": (lambda job, _: waited_for(job)[0], DETAIL),
    "first all-reduce to end of backward (PyTorch)": (path("phases.first_to_backward_end_s.mean_s"), "PyTorch's figure, of another definition"),
    "last bucket, bytes": (path("ranks.0.last_bucket_bytes"), "figures of buckets show times"), "  from its start to its end": (path("phases.last_bucket_s.mean_s"), "the figure shows one step"),
    "  bound: its bytes over the emulated link": (path("ranks.0.last_bucket_bound_s"), "the figure shows one step")}
# Columns of the page's tables without a row of the text.
PAGE_ONLY = {("throughput", "ideal"): "the text has the efficiency", ("throughput", "95 % from"): "the verdict has the interval", ("throughput", "to"): "the verdict has the interval",
             ("memory", "ranks alike"): "the text's heads name the ranks", ("staleness", "reads"): "the text has shares and the sum",
             **{("step-parts", f"hidden communication, while {what}"): "the text has no table of communication for one rank"
                for what in ("computing", "waiting for other ranks")},
             **{("loss-steps", name): "the text has first and last loss" for name in ("step", "training time")},
             **{("loss-time", name): "the same rows as against steps" for name in ("step", "training time", "loss")},
             **{("timeline", name): "one step in detail" for name in ("rank", "index", "begins", "ends")},
             **{("buckets", name): "one step in detail" for name in ("ready", "launched", "starts to move", "finished", "taken")}}
SENTENCES = ("Averaged gradients of ", "Parameters of ps and ring", "ps (", "ring (", "samples/s of ", "Waiting of ", "Times of ", "The prediction is ", "Parts of a step of ")

# ---- the text ------------------------------------------------------------------------------------


class Text:
    """The tables of the text report: (table, row, column) to the text of the cell. A line that belongs to no known
    table or sentence fails."""

    def __init__(self, text, result):
        self.result, self.jobs = result, result["jobs"]
        self.cells, self.memory, self.staleness, self.phases, self.hosts, self.stages, self.stage_times = {}, {}, {}, {}, {}, [], []
        self.numbers = 0
        blocks = [block.splitlines() for block in re.split(r"\n\n+", text.strip("\n"))]
        expect(len(blocks) > 2 and blocks[1][0].startswith(result["workload"]["model"]), "verdict, then the workload", text)
        for block in blocks[2:]:
            self.read(block)

    def read(self, block):
        first = block[0]
        if first.startswith(" " * 20):
            self.table("jobs", block, 30, self.jobs, JOB_ROWS)
        elif first.startswith("Communication per step"):
            jobs = [job for job in self.jobs if job["world_size"] >= 2 and job["engine"] != "none"]
            self.table("communication", block, 46, jobs, COMMUNICATION_ROWS, 17)
        elif first.startswith("Memory by phase under dp"):
            self.read_phases(block)
        elif first.startswith("Memory of "):
            self.read_memory(block)
        elif first.startswith("Staleness under "):
            self.read_staleness(block)
        elif first.startswith("stage "):
            self.read_stages(block)
        elif first.startswith("per step "):
            expect_equal(re.split(r"  +", first), ["per step", "forward", "backward", "exposed comm.", "waiting"], "heads")
            self.stage_times = [re.fullmatch(r"(?:stage|device) (\d+) +(.*)", line).groups() for line in block[1:]]
        elif ": host time per step" in first:
            rows = [line for line in block if re.match(r".{42}", line) and ": host time" not in line]
            expect(len(rows) >= len(block) - 2, "parts of a host", block)
            self.hosts[first.split(":")[0]] = [(line[:42].strip(), line[42:].strip()) for line in rows]
        else:
            expect(first.startswith(SENTENCES), f"a line that is no known table or sentence: {first!r}")

    def table(self, name, block, label_width, jobs, rows, column_width=0):
        width = column_width or (50 // len(jobs) if len(jobs) > 2 else 18)
        for line in block[1:]:
            label = line[:label_width].rstrip()
            target = re.fullmatch(r"time to (loss [\d.]+|[\d.]+ % accuracy)", label)
            if label in rows or target:
                expect(len(line) <= label_width + width * len(jobs), f"columns of {label}", line)
                for i, job in enumerate(jobs):
                    self.cells[name, label, job["name"]] = line[label_width + width * i:label_width + width * (i + 1)].strip()
            else:
                known = not label or label.startswith(SENTENCES) or label.lstrip().startswith(("more ranks than devices", "separate devices")) or \
                    any(line.startswith("  ") and before.startswith(SENTENCES) for before in block)
                expect(known, f"{name}: a row that is listed nowhere: {label!r}")

    def read_memory(self, block):
        job = next(job for job in self.jobs if block[0].startswith(f"Memory of {self.plain(job)}, "))
        unit = UNITS[re.search(r", (\wiB):", block[0])[1]]
        heads = []
        lines = iter(block[1:])
        for line in lines:
            if line.startswith("Largest on rank"):
                sentence = " ".join([line.strip()] + [rest.strip() for rest in lines])
                expect_shown(re.search(r"max/mean ([\d.]+),", sentence)[1], at(job, "memory_imbalance.maximum_over_mean"), f"{job['name']}: {sentence}")
                expect_shown(re.search(r"max-min ([\d.]+) ", sentence)[1], at(job, "memory_imbalance.maximum_minus_minimum_bytes"), f"{job['name']}: {sentence}", unit)
                expect_equal(int(re.search(r"rank (\d+) in", sentence)[1]), at(job, "memory_imbalance.rank"), "rank")
            elif line.startswith(" " * 20) and "current" not in line:
                heads = [line[20 + 20 * i:40 + 20 * i].strip() for i in range(len(line[20:]) // 20)]
            elif line.startswith("phase of the peak"):
                for i, head in enumerate(heads):
                    expect_equal(line[20 + 20 * i:40 + 20 * i].strip(), self.member(job, head)["memory"]["total"]["peak_phase"], f"{job['name']}: {head}: phase of the peak")
            elif heads and not line.startswith(" " * 20):
                for i, head in enumerate(heads):
                    for k, what in enumerate(("peak", "current")):
                        text = line[20 + 20 * i + 10 * k:30 + 20 * i + 10 * k].strip()
                        self.memory[job["name"], head, line[:20].strip(), what] = text, unit
            else:
                expect(not heads or "current" in line or line.startswith("  "), f"a line of memory: {line!r}")

    @staticmethod
    def plain(job):
        return re.sub(r", \d+ servers\)", ")", title(job))

    @staticmethod
    def member(job, head):
        kind, number = re.match(r"(rank|server)s? (\d+)", head).groups()
        return job["ranks" if kind == "rank" else "servers"][int(number)]

    def read_staleness(self, block):
        policy = re.match(r"Staleness under (\w+):", block[0])[1]
        counts = next(line for line in block if " reads, mean " in line)
        bins = [re.fullmatch(r" *(\d+|more) +([\d.]+ %) *#*", line) for line in block if "%" in line]
        expect(all(bins), "shares", block)
        self.staleness[policy] = re.fullmatch(r"(\d+) reads, mean ([\d.]+), largest (\d+)", counts).groups(), [(b[1], b[2]) for b in bins]

    def read_stages(self, block):
        expect_equal(block[0].split(), ["stage", "begins", "at", "parameters", "live", "activations", "idle"], "heads")
        note = next((i for i, line in enumerate(block) if line.startswith("live: ")), 0)
        found = [re.fullmatch(r" *(\d+) (\S+) +(\d+) +(\d+) +([\d.]+ \w*B) +([\d.]+ %)", line) for line in block[1:note]]
        expect(found and all(found), "rows of stages, then a note", block)
        self.stages = [row.groups() for row in found]

    def read_phases(self, block):
        text = " ".join(line.strip() for line in block)
        unit = UNITS[re.search(r"under dp, (\wiB):", text)[1]]
        self.phases = {"unit": unit, "sizes": dict(re.findall(r"(\w+(?:/n)?) = ([\d.]+)", text)),
                       "rows": [found.groups() for found in (re.fullmatch(r"(\S.*?) +([\d.]+) +([\d.]+) +([\d.]+) (.*)", line) for line in block) if found]}


# ---- the page ------------------------------------------------------------------------------------

class Page(html.parser.HTMLParser):
    """Of each figure of a page the heads of its table and its rows of (text, number or None); and the text report within it."""

    def __init__(self, file_name):
        super().__init__()
        self.figures, self.report, self.figure, self.cell, self.is_text, self.in_report = {}, "", None, None, False, False
        with open(file_name, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "figure":
            self.figure = self.figures.setdefault(attrs["id"].removeprefix("s1-"), ([], []))
        elif tag == "details":
            self.is_text = attrs.get("class") == "text"
        elif tag == "pre":
            self.in_report = self.is_text
        elif tag == "tr" and self.figure and self.figure[0]:
            self.figure[1].append([])
        elif tag in ("th", "td") and self.figure:
            self.cell = [tag, attrs, ""]

    def handle_endtag(self, tag):
        if tag == "figure":
            self.figure = None
        elif tag == "pre":
            self.in_report = False
        elif tag in ("th", "td") and self.cell:
            _, attrs, text = self.cell
            if attrs.get("scope") == "col":
                self.figure[0].append(text)
            else:
                self.figure[1][-1].append((text, float(attrs["data-v"]) if "data-v" in attrs else None))
            self.cell = None

    def handle_data(self, data):
        if self.cell:
            self.cell[2] += data
        elif self.in_report:
            self.report += data

    def column(self, figure, name):
        """{(job, ...texts of the row): (text, number)} of a column."""
        heads, rows = self.figures[figure]
        return [(row[0][0], row[heads.index(name)]) for row in rows]


def expected_rows(result):
    """What each figure shows, from the JSON only: rows as the CSV file has them."""
    jobs = result["jobs"]
    single = next((at(job, "throughput.samples_per_s") for job in jobs if job["name"] == "none"), None)
    rows = {name: [] for name in ("step-parts", "throughput", "memory", "loss-steps", "timeline", "buckets", "staleness")}
    exchange = any(job["engine"] != "none" and job["ranks"][0].get("timeline") for job in jobs)
    for job in jobs:
        name, rate, world = title(job), at(job, "throughput.samples_per_s"), job["world_size"]
        parts = ("step", "data", "forward", "backward", "exposed_communication", "waiting", "optimizer", "other", "hidden_while_computing", "hidden_while_waiting")
        rows["step-parts"].append([name, *[at(job, f"phases.{part}_s.mean_s") for part in parts]])
        ideal = single * world if world > 1 and single is not None else None
        if rate is not None:  # the ranks of a job may never train at the same time
            rows["throughput"].append([name, rate, rate / world, ideal, ideal and rate / ideal, None, None])
        least = min(rank["memory"]["total"]["peak_bytes"] for rank in job["ranks"])
        members = [(str(r), rank) for r, rank in enumerate(job["ranks"])] + [(f"server {s}", server) for s, server in enumerate(job.get("servers") or [])]
        for label, member in members:
            peak, classes = member["memory"]["total"]["peak_bytes"], member["memory"]["peak_classes"]
            keys = ("parameters", "gradients", "optimizer_state", "activations", "outputs_and_loss", "replicas", "gathered_units", "buckets", "workspace", "batch")
            row = [name, peak, None if label.startswith("s") else peak - least, *[classes.get(key) for key in keys]]
            last = rows["memory"][-1] if rows["memory"] else None
            if last and not label.startswith("s") and not last[1].startswith("s") and [last[0], *last[3:]] == row:
                last[1], last[2] = f"{last[1].split('–')[0]}–{label}", last[2] + 1
            else:
                rows["memory"].append([name, label, 1, *row[1:]])
        time = 0
        for i, loss in enumerate(job.get("losses") or []):
            time += job["step_s"][i]
            if loss is not None:
                rows["loss-steps"].append([name, job["ranks"][0]["step_index"][i], time, loss])
        if job["engine"] != "none" or not exchange:
            zero = min(rank["timeline"]["begin_s"] for rank in job["ranks"])
            for rank in job["ranks"]:
                for part in rank["timeline"]["parts"]:
                    rows["timeline"].append([name, rank["rank"], part["part"], None, part["begin_s"] - zero, part["end_s"] - zero])
                for m in rank["timeline"]["messages"]:
                    begin = m["started_s"] if m.get("started_s") is not None else m["launched_s"]
                    rows["timeline"].append([name, rank["rank"], m["name"], m["index"], begin - zero, m["finished_s"] - zero])
            for m in job["ranks"][0]["timeline"]["messages"]:
                if m.get("ready_s") is not None and m["ready_s"] >= zero:
                    rows["buckets"].append([name, f"{'key' if 'key' in m['name'] else m['name']} {m['index']}",
                                            *[m[key] - zero if m.get(key) is not None else None for key in ("ready_s", "launched_s", "started_s", "finished_s", "taken_s")]])
        histograms = [at(rank, "staleness.histogram") or [] for rank in job["ranks"]]
        reads = [sum(h[i] for h in histograms if i < len(h)) for i in range(max(map(len, histograms)))]
        if any(reads[1:]):
            last = max(i for i, n in enumerate(reads) if n)
            rows["staleness"] += [[name, i, reads[i], reads[i] / sum(reads)] for i in range(last + 1)]
    rows["loss-time"] = rows["loss-steps"]
    return {name: found for name, found in rows.items() if found}


def csv_rows(file_name):
    def cell(text):
        return None if text == "" else float(text) if re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", text) else text
    with open(file_name, encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    return head, [[cell(text) if not name.startswith(("job", "ranks")) else text for name, text in zip(head, row)] for row in rows]


_made = {}


def made(name):
    """JSON, text, page and CSV of a run."""
    if name not in _made:
        with tempfile.TemporaryDirectory() as folder:
            done = harness(*dict(RUNS)[name], "--json", folder + "/r.json", "--report", folder + "/r.html", "--verbose", "--quiet", limit=120)
            expect_equal(done.code, 0, "exit code", done)
            expect_equal(harness("report", folder + "/r.json", "--csv", folder + "/csv").code, 0, "exit code")
            with open(folder + "/r.json", encoding="utf-8") as file:
                result = json.load(file)
            files = {file[:-4]: csv_rows(os.path.join(folder, "csv", file)) for file in os.listdir(folder + "/csv")}
            _made[name] = result, done.out, Page(folder + "/r.html"), files
    return _made[name]


ALL = [(name, name) for name, _ in RUNS]


@cases(ALL)
def every_number_of_the_text_is_that_of_the_json(name):
    result, text, _, _ = made(name)
    report, jobs = Text(text, result), {job["name"]: job for job in result["jobs"]}
    tables = {"jobs": JOB_ROWS, "communication": COMMUNICATION_ROWS}
    expect(len(report.cells) >= 20 * len(jobs), "cells", report.cells)
    for (table, label, job), cell in report.cells.items():
        if label.startswith("time to "):
            value = at(jobs[job], "target.accuracy_s" if "accuracy" in label else "target.loss_s")
        else:
            value = tables[table][label][0](jobs[job], result)
        expect_shown(cell, value, f"{table}, {label.strip()}, {job}")
    for (job, head, label, what), (cell, unit) in report.memory.items():
        memory = report.member(jobs[job], head)["memory"]
        key = label.replace(" ", "_")
        value = memory["total"][what + "_bytes"] if label == "total" else memory["peak_classes"].get(key) if what == "peak" else at(memory, f"classes.{key}.current_bytes")
        expect_shown(cell, value, f"memory of {job}, {head}, {label}, {what}", unit)
    expect_equal({job for job, *_ in report.memory}, set(jobs), "jobs with memory")
    for policy, ((reads, mean, largest), bins) in report.staleness.items():
        found = [rank["staleness"] for job in jobs.values() if job["policy"] == policy for rank in job["ranks"]]
        total, counts = sum(s["reads"] for s in found), [s["histogram"] for s in found]
        expect_shown(reads, total, "reads")
        expect_shown(mean, sum(s["reads"] * s["mean"] for s in found) / total, "mean staleness")
        expect_shown(largest, max(s["largest"] for s in found), "largest staleness")
        for late, share in bins:
            rows = range(10, 64) if late == "more" else [int(late)]
            expect_shown(share, sum(h[i] for h in counts for i in rows if i < len(h)) / total, f"reads that are {late} late")
    for job in jobs.values():
        stages, bubble = at(job, "pipeline.stages") or [], re.search(r"(?:bubble|idle) ([\d.]+ %) \(equal(?: stages)?: ([\d.]+ %)\)", re.sub(r"\n +", " ", text))
        expect_equal(bubble is not None, bool(stages), "a line of the pipeline")
        for i, key in enumerate(("bubble", "bubble_of_equal_stages") if stages else ()):
            expect_shown(bubble[i + 1], job["pipeline"][key], key)
        expect_equal([row[:2] for row in report.stages], [(str(i), stage["begins_at"]) for i, stage in enumerate(stages)], "stages")
        for row, stage in zip(report.stages, stages):
            for cell, key in zip(row[2:], ("parameters", "live_micro_batches", "activations_peak_bytes", "idle")):
                expect_shown(cell, stage[key], f"stage {row[0]}, {key}")
        expect_equal([number for number, _ in report.stage_times], [str(i) for i in range(len(stages))], "times of stages")
        for (number, cells), stage in zip(report.stage_times, stages):
            for cell, key in zip(re.split(r"  +", cells), ("forward_s", "backward_s", "exposed_communication_s", "waiting_s")):
                expect_shown(cell, stage[key], f"stage {number}, {key}")
    for policy, rows in report.hosts.items():
        parts = next(job["host_costs"]["parts"] for job in jobs.values() if job["policy"] == policy and job.get("host_costs"))
        expect_equal([label for label, _ in rows], [part["name"].strip() for part in parts], f"parts of the host of {policy}")
        for (label, cell), part in zip(rows, parts):
            expect_shown(cell, part["time_s"], f"{policy}: {label}")
    if "dp" in [job["policy"] for job in jobs.values()]:
        m, unit = jobs["ps"]["dataparallel_memory"], report.phases["unit"]
        keys = {"P": "parameters_bytes", "G": "kept_gradients_bytes", "S": "optimizer_state_bytes", "O": "outputs_bytes", "L": "loss_outputs_bytes",
                "O/n": "other_output_bytes", "batch": "batch_bytes", "ahead": "ahead_bytes"}
        for label, cell in report.phases["sizes"].items():
            expect_shown(cell, m[keys[label]], label, unit)
        expect_equal([row[0].strip() for row in report.phases["rows"]], [phase["phase"] for phase in m["phases"]], "phases")
        for (label, device0, other, formula, _), phase in zip(report.phases["rows"], m["phases"]):
            for cell, key in ((device0, "device0_bytes"), (other, "other_bytes"), (formula, "formula_bytes")):
                expect_shown(cell, phase[key], f"{label}, {key}", unit)


@cases(ALL)
def every_number_of_the_page_is_that_of_csv_and_json(name):
    result, _, page, files = made(name)
    expected = expected_rows(result)
    expect_equal(sorted(files), sorted(expected), "files of numbers")
    expect_equal(sorted(page.figures), sorted(expected), "figures of the page")
    for figure, rows in expected.items():
        head, found = files[figure]
        expect_equal([row for row in found], [[float(cell) if isinstance(cell, (int, float)) else cell for cell in row] for row in rows], f"{figure}: CSV and JSON")
        heads, shown_rows = page.figures[figure]
        expect_equal(len(heads), len(head), f"{figure}: columns of page and CSV")
        expect_equal(len(shown_rows), min(len(found), 200), f"{figure}: rows of page and CSV")
        for shown_row, row in zip(shown_rows, found):
            for column, (text, number), value in zip(heads, shown_row, row):
                if isinstance(value, float):
                    expect_equal(number, value, f"{figure}, {column}, {row[0]}: the page's number")
                    expect_shown(text, value, f"{figure}, {column}, {row[0]}: the page's text")
                else:
                    expect_equal((text, number), ("-" if value is None else value, None), f"{figure}, {column}, {row[0]}: the page's text")


@cases(ALL)
def what_text_and_page_both_show_is_the_same(name):
    result, text, page, _ = made(name)
    report = Text(text, result)
    expect_equal(page.report.split(), text.split(), "the text report within the page")
    titles = {job["name"]: title(job) for job in result["jobs"]}
    seen, tables = set(), {"jobs": JOB_ROWS, "communication": COMMUNICATION_ROWS}
    for (table, label, job), cell in report.cells.items():
        where = tables[table].get(label, (None, "the training time to a target: figures of the loss show it as a curve"))[1]
        if isinstance(where, str):
            expect(where, f"{label}: a reason")
            continue
        found = [pair for row, pair in page.column(*where) if row == titles[job]] if where[0] in page.figures else []
        seen.add(where)
        if where == ("memory", "peak"):
            found = [max(found, key=lambda pair: pair[1])]
        elif where == ("memory", "above the least"):
            found = [max((pair for pair in found if pair[1] is not None), key=lambda pair: pair[1])]
        elif where[0] == "loss-steps":
            found = found[:1] if "first" in label else found[-1:]
        if where == ("throughput", "share of ideal") and result["jobs"][0]["name"] == job or cell == "-":
            continue  # A single rank is its own ideal.
        expect_equal([pair[0] for pair in found], [cell], f"{label.strip()} of {job}")
    heads, rows = page.figures["memory"]
    names = {"total": "peak", "buckets": "buckets, sums"}
    for (job, head, label, what), (cell, unit) in report.memory.items():
        where = ("memory", names.get(label, label))
        expect(where[1] in heads, f"the page has no column of {label}", heads)
        seen.add(where)
        if what == "peak":  # the figure is of the peak
            first = head.split()[1].split("-")[0] if head.startswith("rank") else head
            row = next(row for row in rows if row[0][0] == titles[job] and row[1][0].split("–")[0] == first)
            number, digits = shown(cell, unit), shown(row[heads.index(where[1])][0])
            expect(abs(number[0] - digits[0]) <= number[1] + digits[1] + 1e-9, f"memory of {job}, {head}, {label}", cell, row)
    for policy, (_, bins) in report.staleness.items():
        job = titles[next(job["name"] for job in result["jobs"] if job["policy"] == policy)]
        found = [pair[0] for row, pair in page.column("staleness", "share") if row == job] if "staleness" in page.figures else []
        expect(found == [share for late, share in bins if late != "more"][:len(found)] and (found or len(bins) == 1), f"staleness of {policy}", found, bins)
        seen |= {("staleness", "share"), ("staleness", "updates late")}
    for figure, (heads, rows) in page.figures.items():
        for column, head in enumerate(heads):
            if any(row[column][1] is not None for row in rows) and (figure, head) not in seen:
                classes = figure == "memory" and all(not row[column][1] for row in rows)  # the text leaves out rows of zeros
                expect((figure, head) in PAGE_ONLY or classes, f"{figure}: the column {head!r} is neither in the text nor listed with a reason")


@test
def a_number_that_differs_is_found():
    expect_shown("1.07 ms", 0.0010749, "rounded")
    for cell, value in (("1.07 ms", 0.0010751), ("-", 1.0), ("12.5 %", 0.1256), ("2.3 MiB", 2.36 * 2**20), ("7", None)):
        try:
            expect_shown(cell, value, "a number")
        except Exception:
            continue
        expect(False, f"{cell} was taken for {value}")


main()
