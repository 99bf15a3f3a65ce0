"""Published tables in virtual time: `harness reproduce`, docs/reproduction.md, and the snapshots in results/reproduce."""
import functools
import json
import math
import os
import re
import signal
import statistics
import subprocess

from profiles import FILES
from program import Run, Watch, harness
from tap import cases, expect, expect_equal, long_cases, main, module_or_skip, more_cases, more_test, test


@more_test
def the_range_of_dataparallel_against_ddp_holds_what_was_published():
    result, text = table_and_text("dp-vs-ddp")
    cell = next(c for c in result["cells"] if (c["row"], c["quantity"]) == ("ResNet-50, 8 GPUs of 40 GB", "dp / ddp"))
    expect(cell["low"] <= cell["published"] <= cell["high"] <= 2.5 * cell["low"], "4.1 within a range of 2.5 at most", cell)
    expect(f"dp / ddp, 1 {cell['published']:.2f} {cell['ours']:.2f} ({cell['low']:.2f}-{cell['high']:.2f}) " in text, "it is printed", text)
    without = harness("reproduce", "dp-vs-ddp", "--dp-host", "none", "--draws", "0", "--json", "-").json()["cells"]
    parts = [c["quantity"] for c in without if "host under dp" in c["row"]]
    expect("pinning thread" in parts and not any("wiring" in part for part in parts), "parts without an interpreter", parts)
    refused = harness("reproduce", "throughput", "--dp-host", "none")
    expect_equal((refused.code, "--dp-host: expected table dp-vs-ddp" in refused.err), (64, True), "another table", refused)


# Every draw of the constants runs a table again. These tables take longest, so their limits are tested in the long
# suite.
LIMITS_LATER = ("ddp-benchmark", "throughput", "tf-benchmarks")


@functools.lru_cache(maxsize=None)
def table_and_text(name, limits=None):
    path = os.path.join(FILES.name, name + ".table.json")
    limits = limits or name not in LIMITS_LATER
    shown = harness("reproduce", name, *([] if limits else ["--draws", "0"]), "--json", path, limit=300).out
    expect(all(len(line) <= 80 for line in shown.splitlines()), "80 columns", shown)
    with open(path) as file:
        return json.load(file), " ".join(shown.split())


def table(name):
    return table_and_text(name)[0]


ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
TABLES = ("torch-vs-apex", "dp-vs-ddp", "ddp-benchmark", "throughput", "tf-benchmarks", "reducer-memory")
MISSES = {  # docs/reproduction.md explains them
    "dp-vs-ddp": {("GPT-2, 2 TITAN RTX", name) for name in ("ddp-no-p2p", "ddp-no-p2p / ddp-nvlink", "dp-nvlink / ddp-no-p2p")},
    "tf-benchmarks": {(row, "throughput") for row in (
        "DGX-1 P100, alexnet, batch 512, nccl, 2 GPUs", "GCE K80, vgg16, batch 32, ps-cpu, 8 GPUs",
        "GCE K80, alexnet, batch 512, ps-cpu, 4 GPUs", "GCE K80, alexnet, batch 512, ps-cpu, 8 GPUs",
        "GCE K80, vgg16, batch 32, ps-cpu, 4 GPUs")}}
REFUTED = {"dp-vs-ddp": ["GPT-2, 2 TITAN RTX: dp-nvlink is faster than ddp-no-p2p"]}


def recorded_losses(name):
    """For each scored cell of the recorded table: its row, and the terms that our model and the null model add to the
    two sums of the skill."""
    with open(os.path.join(ROOT, "results/reproduce", name + ".json"), encoding="utf-8") as file:
        cells = [c for c in json.load(file)["cells"] if c["obtained"] == "predicted" and c["null"] is not None]
    for c in cells:
        ours, null = (abs(math.log(c[key] / c["published"])) for key in ("ours", "null"))
        if null > 2 * c["uncertainty"]:
            yield c["row"], max(0, ours - c["uncertainty"]), null - c["uncertainty"]


@test
def the_page_says_which_rows_lose_skill():
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        stated = re.findall(r"^\| (tf-benchmarks|torch-vs-apex), (.*) \| (\d+) \| (\S+) \| (\S+) \|$", file.read(), re.M)
    found = {}
    for name in ("tf-benchmarks", "torch-vs-apex"):
        losses = list(recorded_losses(name))
        for row, ours, null in losses:
            if name == "tf-benchmarks":
                of = "alexnet and vgg16" if "alexnet" in row or "vgg16" in row else "others"
                group = f"{'K80' if 'K80' in row else 'P100'}, {'nccl' if 'nccl' in row else 'server'}, {of}"
            else:
                group = "apex" if "apex" in row else "torch-0.4.1"
            sums = found.setdefault((name, group), [0, 0, 0, sum(loss[1] for loss in losses)])
            for i, more in enumerate((1, ours, null)):
                sums[i] += more
    expected = {(name, group, str(n), f"{ours / all_of_it:.2f}", f"{abs(s) if abs(s) < 0.005 else s:.2f}")
                for (name, group), (n, ours, null, all_of_it) in found.items() for s in [1 - ours / null]}
    expect_equal({*stated}, expected, "groups of rows")


@more_cases([(name, name) for name in TABLES])
def cells_are_within_their_limits_except_documented_ones(name):
    result = table(name)
    scored = [c for c in result["cells"] if c["verdict"]]
    expect(len(scored) > 0, "no cell is scored")
    found = {(c["row"], c["quantity"]) for c in scored if c["verdict"] == "MISS"}
    expect_equal(found, MISSES.get(name, set()), "cells beyond their limits")
    expect_equal([claim["claim"] for claim in result["claims"] if not claim["holds"]], REFUTED.get(name, []), "claims that do not hold")


@more_cases([("throughput", "throughput"), ("tf-benchmarks", "tf-benchmarks")])
def gpus_with_a_server_are_no_faster_than_as_many_times_one(name):
    found, one = 0, None
    for c in table(name)["cells"]:
        gpus = int(re.search(r"(\d+) GPUs?$", c["row"])[1])
        one = c["ours"] if gpus == 1 else one
        if "--policy sync" in c["command"] and gpus > 1:
            found += 1
            expect(c["ours"] <= gpus * one * (1 + 1e-6), f"{c['row']}: {c['ours']}, of one GPU {one}")
    expect(found >= 3, f"{found} rows with a server")


@test
def every_simpler_model_of_torch_and_apex_predicts_something_else():
    backward = [c for c in table("torch-vs-apex")["cells"] if c["row"].endswith("apex") and c["quantity"] == "backward"]
    expect_equal(len(backward), 3, "backward passes of apex")
    for c in backward:
        ideal, without = c["baselines"]["ideal overlap"], c["baselines"]["no kappa"]
        expect(ideal < c["ours"] and without < c["ours"], f"a backward pass of {c['ours']} ms, {ideal} with ideal overlap, {without} without kappa")


def page_rows(columns, first=r"[a-z-]+"):
    """The rows of those tables of docs/reproduction.md that have `columns` columns: {first cell: the other cells}"""
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in file if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows if len(row) == columns and re.fullmatch(first, row[0])}


@cases([(name, name) for name in TABLES])
def the_page_states_the_figures_of_the_snapshot(name):
    kept = recorded(name)
    scored = [c for c in kept["cells"] if c["limit"] is not None and c["verdict"] in ("within", "MISS")]
    ranges = [c for c in kept["cells"] if c["obtained"] == "predicted" and c["low"] < c["high"]]
    contained = sum(c["low"] <= c["published"] <= c["high"] for c in ranges)
    within, error, _, between = page_rows(5)[name]
    hits = sum(c["verdict"] == "within" for c in scored)
    expect_equal(within.partition(";")[0].partition(",")[0], f"{hits} of {len(scored)}", "scored cells within their limits")
    expect_equal(error.split()[0], f"{100 * statistics.mean(abs(c['deviation']) for c in scored):.1f}", "mean error, %")
    expect_equal(between, f"{contained} of {len(ranges)}" if ranges else "", "published between low and high")
    skill = kept["skill"]
    if skill:
        value, count, worst, _, constants = page_rows(6)[name]
        expect_equal(value, "no verdict" if skill["value"] is None else f"{skill['value']:.2f}", "S")
        expect_equal(re.findall(r"\d+", count), [str(skill["scored_cells"]), str(skill["sources"])], "scored cells, sources")
        at_worst = skill["worst_without_one_source"]
        expect_equal(worst.partition(" ")[0], "" if at_worst is None else f"{abs(at_worst) if abs(at_worst) < 0.005 else at_worst:.2f}", "at worst")
        expect_equal(re.findall("[0-9a-f]{7}", constants), re.findall("since ([0-9a-f]{7})", skill["constants"]), "commits")


@test
def the_page_states_the_host_of_dataparallel_as_in_the_snapshot():
    cells = {c["quantity"].strip(): c for c in recorded("dp-vs-ddp")["cells"] if c["row"].startswith("ResNet-50")}
    found = page_rows(3, "four loader workers.*|pinning thread|main thread.*")
    for label, (best, limits) in found.items():
        name = "loader workers" if "workers" in label else label.partition(":")[0]
        digits = [f"{float('%.3g' % cells[name][key]):.0f}" for key in ("ours", "low", "high")]
        expect_equal([best, *limits.split(" to ")], [f"{int(d):,}" for d in digits], name)
    expect_equal(len(found), 3, "parts")
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        page = " ".join(file.read().split())
    c = cells["dp / ddp"]
    expect(f"The model predicts {c['ours']:.1f} times, within {c['low']:.1f} to {c['high']:.1f}." in page, "DataParallel against DDP", c)


@test
def the_page_states_how_many_ranges_are_guesses():
    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        page = " ".join(file.read().split())
    tf, dp = ("{guesses} of {constants}".format(**recorded(name)["ranges"]) for name in ("tf-benchmarks", "dp-vs-ddp"))
    expect(f"In tf-benchmarks {tf} ranges are guesses, and in dp-vs-ddp {dp}." in page, tf, dp)


@test
def the_page_states_how_much_of_an_exchange_is_hidden():
    def exchanges(name, row, quantity):
        for c in recorded(name)["cells"]:
            if c["row"].endswith(row) and c["quantity"] == quantity:
                phases = harness(*c["command"].split()[1:], "--quiet", "--json", "-").json()["jobs"][0]["phases"]
                yield [1e3 * phases[key]["median_s"] for key in ("hidden_communication_s", "communication_s")]

    with open(os.path.join(ROOT, "docs/reproduction.md"), encoding="utf-8") as file:
        page = " ".join(file.read().split())
    parts = [100 * hidden / all_of_it for hidden, all_of_it in exchanges("torch-vs-apex", "apex", "backward")]
    expect(f"hides {min(parts):.0f} to {max(parts):.0f} % of the exchange" in page, f"apex hides {parts} %")
    (hidden, all_of_it), = exchanges("dp-vs-ddp", "TITAN RTX", "ddp-no-p2p")
    expect(f"of the {all_of_it:.0f} ms that pass host memory, {hidden:.0f} are hidden" in page, f"{hidden} of {all_of_it} ms")


def distance(a, b):
    return abs(math.log(a / b))


def skill_of(cells):
    """The skill S, over the cells that the null model misses by more than 2 u."""
    def beyond(key):
        return sum(max(0, distance(c[key], c["published"]) - c["uncertainty"]) for c in cells)

    return 1 - beyond("ours") / beyond("null")


@more_cases([("throughput", "throughput", 10, 2, 0.5, 1), ("ddp-benchmark", "ddp-benchmark", 10, 0, 0.5, 1),
        ("torch-vs-apex", "torch-vs-apex", 5, 3, 0.5, 1), ("a miss that the document explains", "tf-benchmarks", 32, 7, 0, 0.5),
        ("too few cells", "dp-vs-ddp", 2, 0, None, None), ("identities", "reducer-memory", 0, 0, None, None)])
def skill_is_that_of_the_cells(name, scored, unscored, least, most):
    result = table(name)
    skill, with_null = result["skill"], [c for c in result["cells"] if c["null"] is not None]
    used = [c for c in with_null if distance(c["null"], c["published"]) > 2 * c["uncertainty"]]
    expect_equal([len(used), len(with_null) - len(used)], [scored, unscored], "scored and unscored cells")
    expect(all(c["obtained"] == "predicted" and c["uncertainty"] >= 0.01 for c in with_null), "a cell that was fitted, or is sure")
    shown = table_and_text(name)[1]
    if not scored:
        expect(skill is None and "Skill" not in shown, "no null model", shown)
        return
    expect_equal([skill["scored_cells"], skill["unscored_cells"], skill["unscored_within"]], [scored, unscored, unscored], "counts")
    if least is None:
        expect(skill["value"] is None and "no verdict on 2 scored cells" in " ".join(shown.split()), "a verdict on few cells", shown)
    else:
        expect(abs(skill["value"] - skill_of(used)) < 1e-9, f"{skill['value']}, from the cells {skill_of(used)}")
        expect(least <= skill["value"] < most, f"skill {skill['value']}, the document says from {least} to {most}")
        expect(f"S = {skill['value']:.2f}" in shown, "the skill in the report", shown)
    if name == "throughput":
        expect_equal(skill["sources"], 4, "sources")
        left = [c for c in used if "SXM2" not in c["row"]]
        expect(abs(skill["worst_without_one_source"] - skill_of(left)) < 1e-9 and "OneFlow" in skill["without"], "at worst", skill)


def constants_at(commit, name):
    """Of a profile and of those that it extends, the nearest first: {constant: (value, range)}"""
    root, found = os.environ.get("SOURCE_DIR", os.getcwd()), {}
    while name:
        path = f"common/sim/profiles/{name}.json"
        if commit:
            text = subprocess.run(["git", "-C", root, "show", f"{commit}:{path}"], check=True, stdout=subprocess.PIPE).stdout
        else:
            with open(os.path.join(root, path), "rb") as file:
                text = file.read()
        profile = json.loads(text)
        for key, constant in profile["constants"].items():
            found.setdefault(key, (constant["value"], constant.get("range")))
        found.setdefault("links", profile.get("topology", {}).get("links"))
        name = profile.get("base")
    return found


@test
def constants_are_those_of_the_commit_that_the_table_names():
    for name in TABLES[:-1]:
        result = table(name)
        stated = re.findall(r"([^;]+) since ([0-9a-f]+)(?:, the outcome known)?(?:; |$)", result["skill"]["constants"])
        since = {profile: commit for profiles, commit in stated for profile in re.split(", | and ", profiles)}
        expect_equal(sorted(since), sorted(result["profiles"].split(", ")), f"{name}: profiles whose constants have a commit")
        for profile, commit in since.items():
            if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", commit]).returncode == 0:  # not in a copy without history
                expect_equal(constants_at(None, profile), constants_at(commit, profile), f"{name}: constants of {profile} since {commit}")


@test
def every_range_is_listed_in_constants_md_as_a_source_or_a_guess():
    root = os.environ.get("SOURCE_DIR", os.getcwd())
    folder = os.path.join(root, "common/sim/profiles")
    expected = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".json")):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            profile_of = json.load(file)
        for key, constant in profile_of["constants"].items():
            if "range" not in constant:
                expect("range_is" not in constant, f"{name}: {key} has no range")
                continue
            expect(constant.get("range_is") in ("source", "guess"), f"{name}: {key}: source or guess?")
            expect("a guess" not in constant["source"].partition("range")[2] or constant["range_is"] == "guess", f"{name}: {key} is a guess")
            ends = [constant["value"], *constant["range"]]
            shown = [", ".join(f"{x:g}" for x in v) if isinstance(v, list) else f"{v:g}" for v in ends]
            expected.append(f"| `{key}` | {profile_of['profile']} | {' | '.join(shown)} | {constant['unit']} | {constant['range_is']} |")
    with open(os.path.join(root, "docs/constants.md"), encoding="utf-8") as file:
        text = file.read()
    expect_equal([line for line in text.splitlines() if line.startswith("| `")], expected, "rows")
    guesses = sum(row.endswith(" guess |") for row in expected)
    expect(f"{guesses} of {len(expected)} ranges are guesses" in text, f"the sum: {guesses} of {len(expected)}")


@cases([(name, name) for name in TABLES])
def a_table_says_how_many_ranges_are_guesses(name):
    result, text = table_and_text(name)
    ranges = result["ranges"]
    if name == "reducer-memory":
        expect(ranges is None and "ranges are guesses" not in text, "no constant enters", text)
        return
    found, folder = {}, os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "common/sim/profiles")
    for used in result["profiles"].split(", "):
        seen = set()
        while used:
            with open(f"{folder}/{used}.json", encoding="utf-8") as file:
                content = json.load(file)
            for key, constant in content["constants"].items():
                if key not in seen and "range" in constant:
                    found[key, used] = constant["range_is"] == "guess"
                seen.add(key)
            used = content.get("base")
    expect_equal([ranges["constants"], ranges["guesses"]], [len(found), sum(found.values())], "constants with a range, guesses")
    expect(f"Of {len(found)} constants with a range, {sum(found.values())} ranges are guesses" in text, "the text", text)


@more_test
def the_range_of_dataparallel_on_two_gpus_holds_what_was_published():
    cells = {(c["row"], c["quantity"]): c for c in table("dp-vs-ddp")["cells"]}
    c = cells["GPT-2, 2 TITAN RTX", "dp-nvlink / ddp-nvlink"]
    expect(abs(c["published"] - 1.0853) < 1e-4 and c["low"] <= c["published"] <= c["high"] <= 1.25 * c["low"], "1.085 within a range", c)


@test
def ddp_s_table_names_ring_or_tree():
    result, text = table_and_text("ddp-benchmark")
    by = {c["row"]: c["algorithms"] for c in result["cells"]}
    expect_equal({by[f"{model}, {gpus} GPU{'s' * (gpus > 1)}"] for model in ("resnet50", "resnet101") for gpus in (2, 4, 8)}, {"ring"}, "in a machine")
    expect({by["resnet50, 16 GPUs"], by["resnet101, 16 GPUs"]} <= {"ring", "tree", "ring and tree"}, "two machines", by)
    expect(by["resnet50, 1 GPU, no DDP"] is None, "one GPU", by)
    expect("iteration, ms; ring" in text, "the text", text)


def figures(cells, limits):
    return [{key: value for key, value in c.items() if limits or key not in ("low", "high")} for c in cells]


def recorded(name):
    with open(os.path.join(ROOT, "results/reproduce", name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def expect_snapshot(name, found, limits):
    kept = recorded(name)
    expect_equal([figures(found["cells"], limits), found["skill"]], [figures(kept["cells"], limits), kept["skill"]], name)


@cases([(name, name) for name in TABLES])
def the_program_still_prints_the_snapshot_in_results_reproduce(name):
    expect_snapshot(name, table(name), name not in LIMITS_LATER)


@long_cases([(name, name) for name in LIMITS_LATER])
def the_program_still_prints_the_limits_in_results_reproduce(name):
    expect_snapshot(name, table_and_text(name, limits=True)[0], True)


@test
def without_draws_figures_are_those_with_them_and_have_no_limits():
    with_draws, without = table("torch-vs-apex"), harness("reproduce", "torch-vs-apex", "--draws", "0", "--json", "-").json()
    expect_equal(figures(without["cells"], False), figures(with_draws["cells"], False), "figures")
    expect(all(c["low"] == c["ours"] == c["high"] for c in without["cells"]), "no limits", without["cells"])


@cases([(name, name) for name in TABLES])
def a_figure_lies_between_its_limits(name):
    cells = [c for c in (recorded if name in LIMITS_LATER else table)(name)["cells"] if c["ours"] is not None]
    for c in cells:
        expect(c["low"] <= c["ours"] <= c["high"], f"{c['row']}: {c['low']} to {c['high']}, of {c['ours']}")
    wide = [c for c in cells if c["high"] > c["low"]]
    expect((len(wide) > len(cells) / 2) == (name != "reducer-memory"), f"{len(wide)} of {len(cells)} cells have a range: bytes have no constants")


@test
def the_table_rendered_from_a_file_is_the_one_that_the_program_printed():
    path = FILES.name + "/table.json"
    printed = harness("reproduce", "reducer-memory", "--json", path).out
    expect("published           ours (range)" in printed and all(len(line) <= 80 for line in printed.splitlines()), printed)
    expect_equal(harness("report", path).out, printed, "the report of the file")


def samples_per_s(ms, batch, gpus):
    return batch * gpus / ms * 1000


@cases([("iterations", "ddp-benchmark", lambda ms, batch, gpus: ms), ("throughput", "throughput", samples_per_s), ("TensorFlow", "tf-benchmarks", samples_per_s),
        ("200 steps", "dp-vs-ddp", lambda ms, batch, gpus: 200 * ms / 1000)])
def a_cell_of_a_published_table_is_what_its_command_gives(name, figure_of):
    cells = [cell for cell in table(name)["cells"] if cell["ours"] is not None]
    for cell in cells[:2] + (cells[-2:] if cells[-1]["command"] else []):
        words = cell["command"].split()
        expect_equal(words[:2], ["harness", "run"], "command")
        run = harness(*words[1:], "--quiet", "--json", "-").json()
        ms, gpus = 1e3 * run["jobs"][0]["step_time"]["median_s"], run["jobs"][0]["world_size"]
        expected = figure_of(ms, run["workload"]["batch_per_rank"], gpus)
        expect(abs(cell["ours"] / expected - 1) < 1e-9, f"{cell['row']}: {cell['ours']}, its command gives {expected}")


# ---- torch-vs-apex as processes on this machine ------------------------------------------------

ON_PROCESSORS = ("reproduce", "torch-vs-apex", "--device", "cpu")
TWO_RANKS = (*ON_PROCESSORS, "--calibration-only", "--repeat", "1")


@cases([("draws", [*ON_PROCESSORS, "--draws", "0"], "--draws: expected --device sim:PROFILE, got cpu"),
        ("rows for a fit, on GPUs", ["reproduce", "torch-vs-apex", "--device", "cuda", "--calibration-only"], "--calibration-only: expected --device sim:PROFILE, got cuda"),
        ("a host of DataParallel", [*ON_PROCESSORS, "--dp-host", "none"], "--dp-host: expected table dp-vs-ddp, got torch-vs-apex"),
        ("another table", ["reproduce", "throughput", "--device", "cpu"], "--device: expected sim:PROFILE for throughput, got cpu: only torch-vs-apex is measured"),
        ("a link in virtual time", ["reproduce", "torch-vs-apex", "--link", "1Gbit/s,0us"], "--link: expected --device cpu, got sim"),
        ("a link of a file", ["reproduce", "./none.json", "--link", "1Gbit/s,0us"], "expected only --repeat and --json"),
        ("a wrong link", [*ON_PROCESSORS, "--link", "fast"], "--link: expected RATE,LATENCY such as 10Gbit/s,50us, got 'fast'")])
def what_a_measured_table_cannot_use_is_refused(words, message):
    refused = harness(*words)
    expect_equal((refused.code, len(refused.lines())), (64, 1), "exit code and lines", refused)
    expect(message in refused.err, message, refused)


@more_test
def a_table_on_processors_is_measured_by_real_runs_and_is_not_scored():
    path, csv, markdown = (os.path.join(FILES.name, "measured." + suffix) for suffix in ("json", "csv", "md"))
    shown = harness(*TWO_RANKS, "--link", "2Gbit/s,20us", "--json", path, "--csv", csv, "--markdown", markdown)
    expect_equal(shown.code, 0, "exit code", shown)
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    expect(not result["simulated"] and "measured on the processors here" in result["title"], "measured figures", result["title"])
    expect("MEASURED on processors of this machine" in " ".join(shown.out.split()), "the text", shown)
    expect("--link 2Gbit/s,20us" in result["profiles"] and any("share processors" in note for note in result["notes"]), "link and note", shown)
    cells = {(re.sub(", [0-9.]+ CPU per rank$", "", c["row"]), c["quantity"]): c for c in result["cells"]}
    expect_equal(sorted({row for row, _ in cells}), ["1 rank, none", "2 ranks, apex", "2 ranks, torch-0.4.1"], "rows")
    published = {(row, name): c["published"] for (row, name), c in cells.items() if name in ("forward", "backward", "exposed communication")}
    expect_equal([published[row, name] for row in ("1 rank, none", "2 ranks, torch-0.4.1", "2 ranks, apex") for name in ("forward", "backward")],
                 [119, 252, 134, 291, 131, 291], "published figures")
    expect_equal(published["2 ranks, apex", "exposed communication"], 291 - 252, "published exposed communication")
    for where, c in cells.items():
        expect_equal([c["obtained"], c["verdict"], c["limit"], c["deviation"]], ["direction only", "", None, None], f"{where}: no score")
        expect(c["low"] == c["ours"] == c["high"] >= 0, f"{where}: one round", c)
        if " ranks" in where[0]:
            expect(f"--policy {where[0].split()[-1]} --gpus 2 --link 2Gbit/s,20us" in c["command"], f"{where}: its command", c)
    ours = {where: c["ours"] for where, c in cells.items()}
    for row in {row for row, _ in cells}:
        expect(ours[row, "forward"] > 0 and abs(ours[row, "forward"] + ours[row, "backward"] - ours[row, "total"]) < 1e-5, f"{row}: a total", ours)
    for row in ("2 ranks, torch-0.4.1", "2 ranks, apex"):
        expect(0 < ours[row, "exposed communication"] < ours[row, "backward"] and ours[row, "hidden communication"] <= 100, f"{row}: an exchange", ours)
    torch, apex = ([ours[f"2 ranks, {policy}", name] for name in ("total", "hidden communication")] for policy in ("torch-0.4.1", "apex"))
    expect_equal([claim["holds"] for claim in result["claims"]], [apex[0] < torch[0], apex[1] > torch[1]], "claims", result["claims"])
    with open(os.path.join(ROOT, "docs/schemas/reproduction.schema.json"), encoding="utf-8") as file:
        errors = list(module_or_skip("jsonschema", "python3-jsonschema").Draft202012Validator(json.load(file)).iter_errors(result))
    expect(not errors, "the schema", errors)
    for file, cell in ((csv, r"^torch-vs-apex,.*,direction only,"), (markdown, r"^\| .* ranks?, .* \| direction only \|")):
        with open(file, encoding="utf-8") as text:
            expect_equal(len(re.findall(cell, text.read(), re.M)), len(cells), f"cells in {file}")


@more_cases([("a signal", None, signal.SIGINT, 130, "stopped on request"), ("a lost rank", 1, signal.SIGKILL, 75, "rank 1")])
def a_table_on_processors_ends_when_a_run_ends(rank, number, code, message):
    before = Watch()
    with Run(*TWO_RANKS) as run:
        lost = run.wait_for_rank("ring", rank or 0)
        run.wait_for_rank("ring", 1)
        run.kill(run.pid if rank is None else lost, number)
        result = run.wait(60)
        expect_equal(result.code, code, "exit code", result)
        expect(message in result.err and not result.out, "message", result)
        before.check(run)


if __name__ == "__main__":
    main()
