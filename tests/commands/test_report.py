"""The report of a run as a page: in a browser without a network, light and dark, wide and narrow, with hostile and with large
results; the same numbers as in text, CSV and JSON."""
import base64
import copy
import hashlib
import json
import os
import re
import resource
import subprocess

from browser import CONTRAST, OVERLAPS, Browser
from program import PROGRAM, harness, in_ns
from report_page import HOSTILE, at, config_files, csv_rows, report
from results import seal
from tap import cases, expect, expect_equal, main, test

FIGURES = ["step-parts", "timeline", "throughput", "memory", "loss-steps", "loss-time", "buckets"]
PARTS = ["data", "forward", "backward", "exposed_communication", "waiting", "optimizer", "other"]

_made = {}


def real():
    """A run of lenet with both engines: its JSON, and its page."""
    if "real" not in _made:
        result = harness("--model", "lenet", "--data", "synthetic", "--gpus", "2", "--steps", "8", "--policy", "ps=sync,ring=ddp",
                         "--bucket-cap-mb", "0.05", "--json", at("real.json"), "--report", at("real.html"), "--quiet", "--verbose")
        expect_equal(result.code, 0, "exit code", result)
        with open(at("real.json"), encoding="utf-8") as file:
            _made["real"] = json.load(file), result.out
    return _made["real"]


def virtual():
    if "virtual" not in _made:
        result = harness("--model", "resnet18", "--device", "sim:dgx1-v100", "--gpus", "8", "--policy", "ps=dp,ring=ddp", "--steps", "4",
                         "--json", at("virtual.json"), "--report", at("virtual.html"), "--quiet")
        expect_equal(result.code, 0, "exit code", result)
        with open(at("virtual.json"), encoding="utf-8") as file:
            _made["virtual"] = json.load(file), result.out
    return _made["virtual"]


def runs():
    if "runs" not in _made:
        result = harness("--model", "lenet", "--data", "synthetic", "--gpus", "2", "--steps", "4", "--policy", "ps=sync", "--repeat", "3",
                         "--json", at("runs.json"), "--report", at("runs.html"), "--quiet")
        expect_equal(result.code, 0, "exit code", result)
        with open(at("runs.json"), encoding="utf-8") as file:
            _made["runs"] = json.load(file), result.out
    return _made["runs"]


def page_of(which):
    {"real": real, "virtual": virtual, "runs": runs}[which]()
    return at(which + ".html")


def job_title(job):
    title = {"all-cores": "all cores", "isolated": "isolated"}.get(job["name"], job["policy"])
    return job["engine"] if title == job["engine"] else f"{job['engine']} ({title})"


# ---- the JSON ----

@cases([("real", real), ("virtual", virtual)])
def the_time_line_of_a_rank_adds_up_to_its_step(made):
    result, _ = made()
    for job in result["jobs"]:
        lines = [rank["timeline"] for rank in job["ranks"]]
        expect_equal(len({line["step"] for line in lines}), 1, f"{job['name']}: steps that are shown")
        for rank, line in zip(job["ranks"], lines):
            i = rank["step_index"].index(line["step"])
            expect_equal([in_ns(line["begin_s"]), in_ns(line["end_s"])], [in_ns(rank["step_begin_s"][i]), in_ns(rank["step_end_s"][i])], "step")
            edges = [in_ns(line["begin_s"])]
            sums = dict.fromkeys(PARTS, 0)
            for part in line["parts"]:
                expect_equal(in_ns(part["begin_s"]), edges[-1], f"{job['name']}: begin of {part}")
                edges.append(in_ns(part["end_s"]))
                sums[part["part"]] += edges[-1] - edges[-2]
            expect_equal(edges[-1], in_ns(line["end_s"]), "end of the last part")
            expect_equal(sums, {p: in_ns(rank[p + "_s"][i]) for p in PARTS}, f"{job['name']}, rank {rank['rank']}: parts")
        if job["engine"] != "none":
            expect(all(line["messages"] for line in lines), f"{job['name']}: no messages")
    ring = next(job for job in result["jobs"] if job["name"] == "ring")
    for m in ring["ranks"][0]["timeline"]["messages"]:
        if m["name"] == "bucket":
            expect(m["ready_s"] <= m["launched_s"] <= m["started_s"] <= m["finished_s"], m)


# ---- the page ----

@cases([(f"{which}, {width} px, {'dark' if dark else 'light'}", which, width, dark)
        for which in ("real", "virtual") for width in (1280, 400) for dark in (False, True)])
def the_page_opens_without_a_network(which, width, dark):
    page = page_of(which)
    with Browser() as browser:
        browser.open(page, width, dark)
        expect_equal(browser.complaints(), [], "console and requests")
        expect_equal(browser.evaluate("document.documentElement.scrollWidth"), width, "width of the page")
        expect_equal(browser.evaluate(OVERLAPS), [], "texts that overlap or are cut off")
        expect_equal(browser.evaluate(CONTRAST), [], "texts with too little contrast")
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        expect_equal(sum(map(int, re.findall(r"\d+", paper))) < 200, dark, f"dark, with paper {paper}")


@test
def every_figure_has_title_description_and_table():
    page_of("real")
    with Browser() as browser:
        browser.open(at("real.html"))
        ids = browser.evaluate("Array.from(document.querySelectorAll('figure')).map(f => f.id)")
        expect_equal(sorted(i.removeprefix("s1-") for i in ids), sorted(FIGURES), "figures")
        bad = browser.evaluate("""Array.from(document.querySelectorAll('figure')).flatMap(f => Array.from(f.querySelectorAll('svg')).filter(s => {
          const [t, d] = s.getAttribute('aria-labelledby').split(' ').map(i => s.querySelector('#' + i));
          return s.getAttribute('role') != 'img' || !t.textContent || !d.textContent || f.querySelectorAll('table tbody tr').length < 1 ||
            !f.querySelector('figcaption h3').textContent }).map(() => f.id))""")
        expect_equal(bad, [], "figures without title, description or table")
        expect_equal(browser.evaluate("new Set(Array.from(document.querySelectorAll('[id]')).map(e => e.id)).size"),
                     browser.evaluate("document.querySelectorAll('[id]').length"), "ids are unique")
        unnamed = browser.evaluate("""Array.from(document.querySelectorAll('[role=region]')).filter(e => !e.getAttribute('aria-label')).length +
          (document.documentElement.lang ? 0 : 1) + (document.title ? 0 : 1) + (document.querySelectorAll('h1').length - 1) +
          Array.from(document.querySelectorAll('th')).filter(e => !e.scope).length""")
        expect_equal(unnamed, 0, "regions, headings and header cells without names")


@test
def lengths_and_heights_of_bars_are_the_numbers_of_the_JSON():
    result, _ = real()
    with Browser() as browser:
        browser.open(at("real.html"))
        found = browser.evaluate("""Object.fromEntries(['step-parts', 'throughput', 'memory'].map(n => [n,
          Array.from(document.querySelectorAll('#s1-' + n + ' svg.wide rect[data-v]')).map(r => { const b = r.getBoundingClientRect();
            return [Number(r.dataset.v), b.width, b.height, r.dataset.t] })]))""")
    expected = {"step-parts": [job["phases"][p + "_s"]["mean_s"] for job in result["jobs"] for p in PARTS],
                "throughput": [job["throughput"]["samples_per_s"] for job in result["jobs"]]}
    for name, side in (("step-parts", 1), ("throughput", 2), ("memory", 2)):
        bars = found[name]
        scale = max(b[side] for b in bars) / max(b[0] for b in bars)
        for bar in bars:
            expect(abs(bar[side] - bar[0] * scale) < 1, f"{name}: {bar} is {bar[side]} px, expected {bar[0] * scale}")
        if name in expected:
            values = [v for v in expected[name] if v]
            expect(len(bars) == len(values) and all(abs(b[0] / v - 1) < 1e-6 for b, v in zip(bars, values)), name, bars, values)


@cases([("measured", "real", False), ("virtual time", "virtual", False), ("median of several runs", "runs", True)])
def the_ideal_of_the_throughput_is_one_rank_without_communication_times_the_ranks(which, repeat):
    """In the numbers, in the dashed lines and in the texts of the figure, against the JSON."""
    page_of(which)
    with open(at(which + ".json"), encoding="utf-8") as file:
        result = json.load(file)
    report(at(which + ".json"), "--csv", at("ideal-" + which))
    medians = {job["name"]: job["samples_per_s"]["median"] for job in result["repetitions"]["jobs"]} if repeat else {}
    rates = {job["name"]: medians.get(job["name"], job["throughput"]["samples_per_s"]) for job in result["jobs"]}
    ideals = [rates["none"] * job["world_size"] if job["world_size"] > 1 else None for job in result["jobs"]]
    rows = csv_rows(at(f"ideal-{which}/throughput.csv"))
    expect_equal(len(rows), len(ideals), "rows")
    for row, job, ideal in zip(rows, result["jobs"], ideals):
        rate = rates[job["name"]]
        expect_equal(float(row["samples_per_s"]), rate, "samples/s")
        expect_equal(float(row["samples_per_s_per_rank"]), rate / job["world_size"], "per rank")
        expect_equal([row["ideal_samples_per_s"], row["share_of_ideal"]], ["", ""] if ideal is None else [f"{ideal:.17g}", f"{rate / ideal:.17g}"], "ideal and share")
    for efficiency in [] if repeat else result["comparison"]["against_none"]:
        row = next(r for r, job in zip(rows, result["jobs"]) if job["name"] == efficiency["name"])
        if row["share_of_ideal"]:
            expect(abs(float(row["share_of_ideal"]) / efficiency["weak_scaling_efficiency"] - 1) < 1e-9, "the weak-scaling efficiency", row, efficiency)
    with Browser() as browser:
        browser.open(at(which + ".html"))
        bars, lines, texts = browser.evaluate("""((f, box) => [Array.from(f.querySelectorAll('rect[data-v]')).map(r => [Number(r.dataset.v), box(r).bottom, box(r).height]),
          Array.from(f.querySelectorAll('line.ideal')).map(l => [box(l).top, box(l).left, box(l).right]), Array.from(f.querySelectorAll('text')).map(t => t.textContent)])(
          document.querySelector('#s1-throughput svg.wide'), e => e.getBoundingClientRect())""")
    bottom, scale = bars[0][1], max(b[2] for b in bars) / max(b[0] for b in bars)
    drawn = [(ideal, rate) for ideal, rate in zip(ideals, rates.values()) if ideal]
    expect_equal(len(lines), len(drawn) + 1, "lines, and that of the legend")
    for ideal, rate in drawn:
        expect(any(abs(bottom - y - ideal * scale) < 1.5 for y, _, _ in lines[:len(drawn)]), f"a line at {ideal}", lines, bars)
        expect(any(t.startswith(f"{100 * rate / ideal:.0f} %") for t in texts), f"a text of {rate / ideal}", texts)


@test
def the_page_prints_with_its_numbers():
    page_of("virtual")
    with Browser() as browser:
        browser.open(at("virtual.html"), 794, media="print")  # A4 at 96 dpi
        tables = browser.evaluate("""Array.from(document.querySelectorAll('figure')).map(f => { const cells = Array.from(f.querySelectorAll('td'));
          return [f.id, cells.length, cells.filter(c => c.checkVisibility({contentVisibilityAuto: true}) && c.getBoundingClientRect().height > 8).length] })""")
        expect(len(tables) == 5, "figures", tables)
        for figure, cells, visible in tables:
            expect_equal(visible, cells, f"{figure}: cells on paper")
        cut = browser.evaluate("""Array.from(document.querySelectorAll('figure .scroll')).filter(e => e.getBoundingClientRect().right > 795 ||
          getComputedStyle(e).maxHeight != 'none' || e.scrollWidth > e.clientWidth + 1).map(e => e.getAttribute('aria-label') + e.scrollWidth)""")
        expect_equal(cut, [], "tables that are cut off")
        expect(browser.evaluate("getComputedStyle(document.querySelector('details.text')).display") == "none", "the text report is printed, too")
        expect_equal(browser.evaluate("Array.from(document.querySelectorAll('svg.narrow')).filter(s => s.checkVisibility()).length"), 0, "narrow figures")
        browser.open(at("virtual.html"))
        opened = "document.querySelectorAll('details[open]').length"
        expect_equal(browser.evaluate(opened), 0, "open on the screen")
        browser.evaluate("dispatchEvent(new Event('beforeprint'))")
        expect_equal(browser.evaluate(opened), browser.evaluate("document.querySelectorAll('details').length"), "open on paper")
        browser.evaluate("dispatchEvent(new Event('afterprint'))")
        expect_equal(browser.evaluate(opened), 0, "open after it")


@test
def the_value_under_the_pointer_is_shown():
    page_of("real")
    with Browser() as browser:
        browser.open(at("real.html"))
        x, y, text, on_top = browser.evaluate("""(() => {
          const width = r => r.getBoundingClientRect().width; /* the longest bar has a label on it */
          const r = Array.from(document.querySelectorAll('#s1-step-parts svg.wide rect[data-t]')).reduce((a, b) => width(a) > width(b) ? a : b);
          r.scrollIntoView({block: 'center'}); const b = r.getBoundingClientRect(), x = b.left + b.width / 2, y = b.top + b.height / 2;
          return [x, y, r.dataset.t, document.elementFromPoint(x, y) === r] })()""")
        expect(on_top, "a label takes the pointer from its bar")
        browser.frames()
        expect(browser.evaluate("document.getElementById('tip').hidden"), "it is shown before")
        browser.move_until(x, y, "!document.getElementById('tip').hidden")
        expect_equal(browser.evaluate("document.getElementById('tip').textContent"), text, "text")
        browser.move_until(2, 2, "document.getElementById('tip').hidden")


# The ledger's classes, in the order of the figure.
CLASSES = ["parameters", "gradients", "optimizer_state", "activations", "outputs_and_loss", "replicas", "gathered_units", "buckets", "workspace",
           "batch"]


@test
def columns_of_memory_are_the_peaks_of_the_JSON():
    result, _ = virtual()
    with Browser() as browser:
        browser.open(page_of("virtual"))
        bars = browser.evaluate("""Array.from(document.querySelectorAll('#s1-memory svg.wide rect[data-v]')).map(r =>
          [r.dataset.t.split(', ')[0], r.dataset.t.match(/ranks? ([^:]*):/)[1], Number(r.dataset.v), r.getBoundingClientRect().height])""")
    scale = max(b[3] for b in bars) / max(b[2] for b in bars)
    columns = {}
    for job, ranks, value, height in bars:
        expect(abs(height - value * scale) < 1, f"{job}, {ranks}: {height} px, expected {value * scale}")
        columns.setdefault((job, int(re.match(r"\d+", ranks).group())), []).append(value)
    expect_equal(sorted({job for job, _ in columns}), sorted(job_title(job) for job in result["jobs"]), "jobs")
    for (name, number), found in columns.items():
        job = next(job for job in result["jobs"] if job_title(job) == name)
        memory = job["ranks"][number]["memory"]
        expected = [memory["peak_classes"][c] for c in CLASSES if memory["peak_classes"].get(c)]
        expect(len(found) == len(expected) and all(abs(f / e - 1) < 1e-6 for f, e in zip(found, expected)), f"{name}, rank {number}", found, expected)
        expect(abs(sum(found) / memory["total"]["peak_bytes"] - 1) < 1e-6, f"{name}, rank {number}: sum", sum(found), memory["total"])
    dp = [number for name, number in columns if name == "ps (dp)"]
    expect(0 in dp and len(dp) == 2, "rank 0 of dp has a column of its own", dp)


@test
def figures_over_an_emulated_link_are_marked():
    result = harness("--model", "lenet", "--data", "synthetic", "--gpus", "2", "--steps", "4", "--policy", "ps=sync,ring=ddp", "--link", "1GB/s,10us",
                     "--json", at("emulated.json"), "--report", at("emulated.html"), "--quiet")
    expect_equal(result.code, 0, "exit code", result)
    report(at("emulated.json"), "--svg", at("emulated"))
    with Browser() as browser:
        browser.open(at("emulated.html"))
        marks = browser.evaluate("Array.from(document.querySelectorAll('figure svg')).map(s => Array.from(s.querySelectorAll('.mark')).map(m => m.textContent))")
        expect(len(marks) >= 12 and all(m == ["EMULATED"] for m in marks), "marks of the page", marks)
        expect("EMULATED" in browser.evaluate("document.querySelector('.notice').textContent"), "the notice")
    files = sorted(os.listdir(at("emulated")))
    expect(len(files) * 2 == len(marks), "files", files)
    for name in files:
        with open(os.path.join(at("emulated"), name), encoding="utf-8") as file:
            expect_equal(re.findall(r"EMULATED|SIMULATED", re.sub(r"<(title|desc)[^>]*>.*?</\1>", "", file.read(), flags=re.S)), ["EMULATED"], f"mark of {name}")


@test
def bars_of_staleness_are_the_histogram_of_the_JSON():
    result = harness("--model", "lenet", "--data", "synthetic", "--gpus", "3", "--steps", "12", "--mode", "ps", "--policy", "async", "--quiet",
                     "--json", at("async.json"), "--report", at("async.html"))
    expect_equal(result.code, 0, "exit code", result)
    with open(at("async.json"), encoding="utf-8") as file:
        job = next(job for job in json.load(file)["jobs"] if job["engine"] == "ps")
    histograms = [rank["staleness"]["histogram"] for rank in job["ranks"]]
    reads = [sum(h[i] for h in histograms if i < len(h)) for i in range(max(map(len, histograms)))]
    while not reads[-1]:
        reads.pop()
    expect(len(reads) > 1, "no read was late", reads)
    report(at("async.json"), "--csv", at("async"))
    expect_equal([(float(r["updates_late"]), float(r["reads"])) for r in csv_rows(at("async/staleness.csv"))], list(enumerate(reads)), "numbers")
    with Browser() as browser:
        browser.open(at("async.html"))
        bars = browser.evaluate("""Array.from(document.querySelectorAll('#s1-staleness svg.wide rect[data-v]')).map(r =>
          [Number(r.dataset.v), r.getBBox().height, r.dataset.t])""")
    shares = [n / sum(reads) for n in reads]
    scale = max(b[1] for b in bars) / max(shares)
    drawn = [(i, share) for i, share in enumerate(shares)] if len(bars) == len(shares) else [(i, s) for i, s in enumerate(shares) if s]
    expect_equal(len(bars), len(drawn), "bars")
    for (value, height, text), (late, share) in zip(bars, drawn):
        expect(abs(value - share) < 1e-6 and abs(height - share * scale) < 1, f"bar of {late} updates late", value, height, share)
        expect(f" {late} updates late" in text, "text of a bar", text)


# ---- the numbers ----

@test
def text_page_CSV_and_JSON_show_the_same_numbers():
    result, text = real()
    report(at("real.json"), "--csv", at("csv"), "--svg", at("svg"))
    steps = csv_rows(os.path.join(at("csv"), "step-parts.csv"))
    for job, row in zip(result["jobs"], steps):
        expect_equal(row["job"], job_title(job), "job")
        expect_equal({p: float(row[p + "_s"]) for p in PARTS}, {p: job["phases"][p + "_s"]["mean_s"] for p in PARTS}, "parts")
    memory = csv_rows(os.path.join(at("csv"), "memory.csv"))
    for job in result["jobs"]:
        peaks = [int(float(r["peak_bytes"])) for r in memory if r["job"] == job_title(job) for _ in range(int(float(r["count"])))]
        expect_equal(peaks, [rank["memory"]["total"]["peak_bytes"] for rank in job["ranks"]], "peaks")
    losses = csv_rows(os.path.join(at("csv"), "loss-steps.csv"))
    ring = next(job for job in result["jobs"] if job["name"] == "ring")
    expect_equal([float(r["loss"]) for r in losses if r["job"] == job_title(ring)], ring["losses"], "losses")
    with Browser() as browser:
        browser.open(at("real.html"))
        cells = browser.evaluate("""Object.fromEntries(Array.from(document.querySelectorAll('figure')).map(f => [f.id.slice(3),
          Array.from(f.querySelectorAll('tbody tr')).map(r => Array.from(r.children).map(c => c.dataset.v ? [Number(c.dataset.v), c.textContent] : c.textContent))]))""")
    for name, rows in cells.items():
        rows = [[[c] if isinstance(c, str) and re.fullmatch(r"\d+", c) else c for c in row] for row in rows]  # such as "0", a rank
        numbers = [[float(v) if v and re.fullmatch(r"[-+.\de]+", v) else v for v in row.values()] for row in csv_rows(os.path.join(at("csv"), name + ".csv"))]
        for shown, row in zip(rows, numbers):
            expect_equal([float(c[0]) if isinstance(c, list) else c for c in shown if c != "-"], [c for c in row if c != ""], f"{name}: numbers of page and CSV")
        expect(os.path.exists(os.path.join(at("svg"), name + ".svg")), f"no {name}.svg")
    # The text report shows the same digits.
    for label, column in (("  backward", 2 + PARTS.index("backward")), ("  optimizer", 2 + PARTS.index("optimizer"))):
        line = next(line for line in text.splitlines() if re.match(label + r"\s", line))
        expect_equal(re.split(r"\s{2,}", line.strip())[1:], [row[column][1] for row in cells["step-parts"]], label)


# ---- hostile and large results ----

@cases([("1280 px", 1280, HOSTILE), ("400 px", 400, HOSTILE), ("400 px, Greek", 400, "Ω" * 100), ("400 px, Cyrillic", 400, "Жю" * 50)])
def hostile_names_are_shown_and_not_run(width, policy):
    result = copy.deepcopy(real()[0])
    result["workload"]["model"] = result["host"]["name"] = result["host"]["processor"] = result["hardware_note"] = HOSTILE
    result["command"] = ["--model", HOSTILE]
    result["configuration"][HOSTILE] = HOSTILE
    for job in result["jobs"]:
        job["policy"] = policy
    with open(at("hostile.json"), "w", encoding="utf-8") as file:
        json.dump(seal(result), file)
    report(at("hostile.json"), "-o", at("hostile.html"), "--svg", at("hostile-svg"))
    with Browser() as browser:
        browser.open(at("hostile.html"), width)
        expect_equal(browser.complaints(), [], "console and requests")
        expect_equal(browser.evaluate("document.scripts.length"), 1, "scripts")
        expect(HOSTILE in browser.evaluate("document.querySelector('.workload').textContent"), "the name is not shown")
        expect_equal(browser.evaluate("document.documentElement.scrollWidth"), width, "width of the page")
        expect_equal(browser.evaluate(OVERLAPS), [], "texts that overlap or are cut off")


@test
def the_page_holds_a_configuration_file_that_runs_the_same_again():
    result = harness("--mode", "ring", "--model", "wine_mlp", "--data", "wine", "--gpus", "2", "--steps", "6", "--policy", "ring=ddp:order=ready", "--lr", "0.05",
                     "--json", at("again.json"), "--report", at("again.html"), "--quiet")
    expect_equal(result.code, 0, "exit code", result)
    with Browser() as browser:
        browser.open(at("again.html"))
        text = browser.evaluate("document.querySelector('pre.config').textContent")
    with open(at("again.toml"), "w", encoding="utf-8") as file:
        file.write(text)
    with open(at("again.json"), encoding="utf-8") as file:
        before = json.load(file)
    again = harness("--config", at("again.toml"), "--json", "-", "--quiet")
    expect_equal(again.code, 0, "exit code", again, text)
    expect_equal(again.json()["options"], before["options"], "options")
    expect_equal([j["parameter_hash"] for j in again.json()["jobs"]], [j["parameter_hash"] for j in before["jobs"]], "parameters")


@test
def the_page_of_results_shown_as_one_holds_a_configuration_file_of_each():
    words = ["--model", "lenet", "--device", "sim:dgx1-v100", "--gpus", "4", "--steps", "2", "--quiet"]
    for name, more in (("one", ["--policy", "ps=dp,ring=ddp"]), ("two", ["--mode", "ps", "--policy", "sync", "--servers", "4"])):
        expect_equal(harness(*words, *more, "--json", at(f"joined-{name}.json")).code, 0, "exit code")
    report(at("joined-one.json"), at("joined-two.json"), "-o", at("joined-pages.html"))
    files = config_files(at("joined-pages.html"))
    expect_equal(len(files), 2, "files")
    for name, (text, _) in zip(("one", "two"), files):
        with open(at("part.toml"), "w", encoding="utf-8") as file:
            file.write(text)
        again = harness("--config", at("part.toml"), "--json", "-", "--quiet")
        expect_equal(again.code, 0, "exit code", again, text)
        with open(at(f"joined-{name}.json"), encoding="utf-8") as file:
            before = json.load(file)
        expect_equal([again.json()[k] for k in ("options", "jobs")], [before[k] for k in ("options", "jobs")], name)


@test
def the_policy_of_a_page_has_the_digests_of_its_style_and_script():
    with open(page_of("real"), encoding="utf-8") as file:
        page = file.read()
    for part in ["style", "script"]:
        content = re.search(f"<{part}>(.*?)</{part}>", page, re.DOTALL).group(1)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        expect_equal(re.search(f"{part}-src 'sha256-([^']*)'", page).group(1), digest, f"digest of the {part} (page_style.h)")


@test
def a_changed_script_does_not_run():
    with open(page_of("real"), encoding="utf-8") as file:
        page = file.read()
    with open(at("changed.html"), "w", encoding="utf-8") as file:
        file.write(page.replace("<main>", "<main><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"))
    with Browser() as browser:
        browser.open(at("changed.html"))
        expect(browser.evaluate("document.title") != "run", "the page ran another script than its own")


@test
def many_ranks_and_steps_stay_small_and_open_fast():
    result = copy.deepcopy(real()[0])
    for job in result["jobs"]:
        if job["engine"] == "none":
            continue
        steps = 10000
        first = copy.deepcopy(job["ranks"][0])
        first["step_index"] = list(range(steps))
        job["losses"] = [2.3 / (1 + i / 1000) for i in range(steps)]
        job["step_s"] = [job["step_s"][0]] * steps
        job["world_size"] = 1024
        job["ranks"] = []
        for r in range(1024):
            memory = dict(first["memory"])
            for part, name in (("peak_classes", "activations"), ("total", "peak_bytes")):
                memory[part] = dict(memory[part], **{name: memory[part][name] + r})
            job["ranks"].append(dict(first, rank=r, step_index=first["step_index"] if r == 0 else [], memory=memory))
    with open(at("large.json"), "w", encoding="utf-8") as file:
        del result["checksum"]
        file.write(json.dumps({**result, "schema_version": 4}))  # an older version, whose figures need not agree
    report(at("large.json"), "-o", at("large.html"))
    size = os.path.getsize(at("large.html"))
    expect(size < 2e6, f"the page has {size} bytes, expected less than 2 MB")
    with Browser() as browser:
        browser.open(at("real.html"))
        seconds = browser.open(at("large.html"))
        expect(seconds < 3 * 2, f"the page opened in {seconds:.1f} s")  # promised: 2 s
        expect_equal(browser.evaluate(OVERLAPS), [], "texts that overlap or are cut off")


# ---- writing ----

@test
def a_file_is_replaced_whole_or_not_at_all():
    page_of("real")
    with open(at("old.html"), "w", encoding="utf-8") as file:
        file.write("old")
    full = subprocess.run([PROGRAM, "report", at("real.json"), "-o", at("old.html")], capture_output=True, text=True, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    expect(full.returncode != 0, "a page larger than the disk allows was written")
    with open(at("old.html"), encoding="utf-8") as file:
        expect_equal(file.read(), "old", "the old file")
    expect_equal(len([line for line in full.stderr.splitlines() if line]), 1, "lines of the message", full.stderr)
    missing = harness("report", at("real.json"), "-o", at("no-such-folder/page.html"))
    expect_equal(missing.code, 73, "exit code", missing)
    expect_equal(len(missing.lines()), 1, "lines of the message", missing)


@test
def several_results_are_one_page():
    page_of("real"), page_of("virtual")
    report(at("real.json"), at("virtual.json"), "-o", at("both.html"))
    sharded = harness("--model", "resnet18", "--device", "sim:dgx1-v100", "--gpus", "8", "--mode", "ps", "--policy", "sync", "--servers", "8",
                      "--steps", "4", "--json", at("sharded.json"), "--quiet")
    expect_equal(sharded.code, 0, "exit code", sharded)
    report(at("virtual.json"), at("sharded.json"), "-o", at("joined.html"), "--csv", at("joined"))
    rows = csv_rows(at("joined/throughput.csv"))
    expect_equal([r["job"] for r in rows], ["none", "ps (dp)", "ring (ddp)", "ps (sync, 8 servers)"], "jobs of results of one workload")
    with Browser() as browser:
        browser.open(at("joined.html"))
        expect_equal(browser.evaluate("document.querySelectorAll('section').length"), 1, "sections")
        expect_equal(browser.evaluate("Array.from(document.querySelectorAll('svg text')).map(t => t.textContent).filter(t => t.includes('…'))"), [], "names that are cut")
        commands = browser.evaluate("Array.from(document.querySelectorAll('pre.command')).map(c => c.textContent)")
        expect(len(commands) == 2 and "--servers 8" not in commands[0] and "--servers 8" in commands[1], "commands of both results", commands)
        browser.open(at("both.html"))
        expect_equal(browser.evaluate("document.querySelectorAll('section').length"), 2, "sections")
        marks = browser.evaluate("Array.from(document.querySelectorAll('section')).map(s => s.querySelectorAll('svg.wide .mark').length)")
        expect(marks[0] == 0 and marks[1] == browser.evaluate("document.querySelectorAll('section:nth-of-type(2) svg.wide').length"), "marks", marks)
        expect_equal(browser.complaints(), [], "console and requests")


@test
def a_step_that_is_many_times_as_short_has_a_time_axis_of_its_own():
    result = harness("--model", "resnet18", "--data", "synthetic:3x32x32:10", "--batch", "16", "--device", "sim:dgx1-v100", "--gpus", "8", "--policy",
                     "ps=sync,ring=ddp", "--servers", "8", "--steps", "4", "--quiet", "--json", at("short.json"), "--report", at("short.html"))
    expect_equal(result.code, 0, "exit code", result)
    with open(at("short.json"), encoding="utf-8") as file:
        steps = [job["phases"]["step_s"]["mean_s"] for job in json.load(file)["jobs"] if job["engine"] != "none"]
    expect(max(steps) > 5 * min(steps), "steps", steps)
    own = "Array.from(document.querySelectorAll('#s1-%s svg.wide text')).filter(t => t.textContent == 'on its own time axis').length"
    with Browser() as browser:
        browser.open(at("short.html"))
        for figure in ("timeline", "buckets"):
            expect_equal(browser.evaluate(own % figure), 2, f"{figure}: time axes of their own")
        width = browser.evaluate("""(r => Math.max(...r.map(b => b.right)) - Math.min(...r.map(b => b.left)))(Array.from(
          document.querySelectorAll('#s1-timeline svg.wide rect[data-t^="ring (ddp), rank 0"]')).map(m => m.getBoundingClientRect()))""")
        expect(width > 500, f"the short step of the ring is {width} px long")
        browser.open(page_of("real"))
        expect_equal(browser.evaluate(own % "timeline"), 0, "axes of steps of about the same length")


@test
def repeated_runs_have_their_interval_in_the_figure():
    jobs = runs()[0]["repetitions"]["jobs"]
    report(at("runs.json"), "--csv", at("repeated"))
    rows = csv_rows(at("repeated/throughput.csv"))
    expect_equal([[float(r[k]) for k in ("samples_per_s", "low_samples_per_s", "high_samples_per_s")] for r in rows],
                 [[job["samples_per_s"][k] for k in ("median", "low", "high")] for job in jobs], "median and interval")
    with Browser() as browser:
        browser.open(page_of("runs"))
        lengths = browser.evaluate("""Array.from(document.querySelectorAll('#s1-throughput svg.wide line.interval')).map(l => l.getBBox().height)""")
        bars = browser.evaluate("""Array.from(document.querySelectorAll('#s1-throughput svg.wide rect[data-v]')).map(r => [Number(r.dataset.v), r.getBBox().height])""")
        expect_equal(len(lengths), len(rows), "intervals")
        for length, (value, height), row in zip(lengths, bars, rows):
            expect(abs(length - (float(row["high_samples_per_s"]) - float(row["low_samples_per_s"])) * height / value) < 1, "length of an interval", row)


@cases([("no file", ["report"]), ("two as text", ["report", "a", "b"])])
def wrong_words_are_refused(words):
    result = harness(*words)
    expect_equal(result.code, 64, "exit code", result)


main()
