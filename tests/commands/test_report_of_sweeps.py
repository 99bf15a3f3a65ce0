"""The report of a sweep as a page: the map of who wins, hostile names, and the configuration that runs it again."""
import json
import os

from browser import CONTRAST, OVERLAPS, Browser
from program import harness
from report_page import HOSTILE, at, config_files, csv_rows, report
from tap import cases, expect, expect_equal, main, test


@test
def a_sweep_is_a_page_with_the_map_of_who_wins():
    sweep = harness("sweep", "--vary", "link=1Gbit/s;10Gbit/s;100Gbit/s", "--vary", "gpus=2,8", "--vary", "servers=1,2", "--mode", "ps,ring",
                    "--policy", "ps=sync,ring=ddp", "--device", "sim:v100-pcie-10gbe", "--model", "lenet", "--steps", "2", "-o", at("sweep"))
    expect_equal(sweep.code, 0, "exit code", sweep)
    expect_equal(report(at("sweep")).out, sweep.out[sweep.out.index("link "):], "its table as text")
    report(at("sweep"), "-o", at("sweep.html"), "--csv", at("sweep-csv"))
    with open(at("sweep/table.json"), encoding="utf-8") as file:
        table = json.load(file)
    points = table["points"]
    winners = csv_rows(at("sweep-csv/sweep-winners.csv"))
    expect_equal(len(winners), 6, "cells")
    for row in winners:
        rates = sorted((p["samples_per_s"]["median"] for p in points if (p["values"]["link"], p["values"]["gpus"]) == (row["x"], row["y"])), reverse=True)
        expect_equal(float(row["factor"]), rates[0] / rates[1], f"factor of {row}")
        best = next(p["values"] for p in points if p["samples_per_s"]["median"] == rates[0])
        expect_equal(row["fastest"].split()[0], best["mode"], "who is fastest")
    with Browser() as browser:
        for width in (1280, 400):
            for dark in (False, True):
                browser.open(at("sweep.html"), width, dark)
                expect_equal(browser.complaints(), [], "console and requests")
                expect_equal(browser.evaluate("document.documentElement.scrollWidth"), width, "width of the page")
                expect_equal(browser.evaluate(OVERLAPS), [], "texts that overlap or are cut off")
                expect_equal(browser.evaluate(CONTRAST), [], "texts with too little contrast")
        cells = browser.evaluate("Array.from(document.querySelectorAll('#s1-sweep-winners svg.wide rect[data-v]')).map(r => Number(r.dataset.v))")
        expect(all(abs(c - float(row["factor"])) < 1e-6 for c, row in zip(cells, winners)) and len(cells) == 6, "cells", cells, winners)
        expect_equal(browser.evaluate("document.querySelectorAll('figure').length"), 3, "figures")
        expect_equal(browser.evaluate("document.querySelectorAll('svg.wide .mark').length"), 3, "marks")
        expect_equal(browser.evaluate("document.title"), "psring report: sweep", "title")
        expect_equal(browser.evaluate("document.querySelector('pre.command').textContent"),
                     "harness sweep --vary 'link=1Gbit/s,10Gbit/s,100Gbit/s' --vary gpus=2,8 --vary servers=1,2 --vary mode=ps,ring "
                     f"--policy ps=sync,ring=ddp --device sim:v100-pcie-10gbe --model lenet --steps 2 --repeat 1 -o {at('sweep')}".replace("'", ""), "command")
        facts = browser.evaluate("""Object.fromEntries(Array.from(document.querySelectorAll('dt')).map(t => [t.textContent, t.nextSibling.textContent]))""")
        expect_equal([facts.get(k) for k in ("Runs", "Started", "Host", "Program", "Commit")],
                     [f"{len(points)} points, 1 of each", table["started_at"], table["host"]["name"], table["program"]["version"],
                      table["program"]["commit"]], "facts")
        options = browser.evaluate("""Object.fromEntries(Array.from(document.querySelectorAll('section > details th[scope=row]'))
          .map(t => [t.textContent, t.nextSibling.textContent]))""")
        expect_equal([options.get("model"), options.get("steps"), "gpus" in options], ["lenet", "2", False], "options of all points")


def crafted_sweep(name, rates, verdict=None, rounds=1, x="link", links=("1Gbit/s", "10Gbit/s")):
    """The folder of a sweep over x, gpus and mode whose rates are those of rates[gpus][x] = (ps, ring); none is virtual."""
    points = [{"values": {x: link, "gpus": gpus, "mode": mode}, "runs": rounds, "simulated": False, "emulated": False, "failure": None,
               "samples_per_s": {"median": rate, "low": None, "high": None}, "step_s": {"median": 1.0, "low": None, "high": None}}
              for gpus, row in rates.items() for link, pair in zip(links, row) for mode, rate in zip(("ps", "ring"), pair)]
    best = max(range(len(points)), key=lambda i: points[i]["samples_per_s"]["median"])
    table = {"schema_version": 1, "vary": [x, "gpus", "mode"], "rounds": rounds, "points": points, "loss_over_time": None,
             "best": {"row": best, "next_row": 0, "factor": 1.5, "rounds": rounds, **({"verdict": verdict} if verdict else {})}}
    os.makedirs(at(name), exist_ok=True)
    with open(at(name + "/table.json"), "w", encoding="utf-8") as file:
        json.dump(table, file)
    return at(name)


EVEN = {"2": ((100.0, 150.0), (100.0, 150.0)), "8": ((100.0, 150.0), (100.0, 150.0))}


@cases([(f"{what}, {width} px", name, width) for width in (1280, 400) for what, name in (("elements", "<b id=inj>link</b><script>alert(1)</script>"), ("200 characters", HOSTILE))])
def hostile_names_in_a_sweep_are_shown_and_not_run(name, width):
    report(crafted_sweep("hostile-sweep", EVEN, x=name, links=("1", "2")), "-o", at("hostile-sweep.html"))
    with Browser() as browser:
        browser.open(at("hostile-sweep.html"), width)
        expect_equal(browser.complaints(), [], "console and requests")
        expect_equal(browser.evaluate("document.documentElement.scrollWidth"), width, "width of the page")
        expect_equal(browser.evaluate(OVERLAPS), [], "texts that overlap or are cut off")
        expect_equal(browser.evaluate("document.querySelectorAll('#inj').length"), 0, "elements from names")
        expect_equal(browser.evaluate("document.scripts.length"), 1, "scripts")
        heads = browser.evaluate("Array.from(document.querySelectorAll('th')).map(h => h.textContent)")
        expect(name in heads, "the name is not shown", heads)


@cases([("shown", "shown", 8, "."), ("virtual", "virtual", 1, "."), ("not shown", "not shown", 8, " (not shown)."),
        ("too few rounds", "too few rounds", 7, " (not shown: too few rounds).")])
def the_heading_of_a_sweep_says_whether_it_is_shown(verdict, rounds, end):
    report(crafted_sweep("heading", EVEN, verdict, rounds), "-o", at("heading.html"))
    with Browser() as browser:
        browser.open(at("heading.html"))
        text = browser.evaluate("document.querySelector('h1').textContent")
        expect(text.endswith("1.50 times the next" + end), "heading", text)
        few = "Single runs decide" if rounds == 1 else "Medians of few runs decide"
        said = browser.evaluate("document.querySelector('#s1-sweep-winners svg desc').textContent")
        expect((few in said) == (rounds < 8) and ("decide" in said) == (rounds < 8), f"description after {rounds} rounds", said)


@test
def lines_of_equal_factors_part_the_cells_of_different_winners():
    report(crafted_sweep("contours", {"2": ((220.0, 100.0), (100.0, 220.0)), "8": ((220.0, 100.0), (100.0, 220.0))}), "-o", at("contours.html"))
    report(crafted_sweep("one-winner", {"2": ((100.0, 220.0), (100.0, 220.0)), "8": ((100.0, 220.0), (100.0, 220.0))}), "-o", at("one.html"))
    with Browser() as browser:
        browser.open(at("one.html"))
        expect_equal(browser.evaluate("document.querySelectorAll('#s1-sweep-winners svg.wide .contour').length"), 0, "lines in one region")
        browser.open(at("contours.html"))
        lines, cells = browser.evaluate("""['.contour', 'rect[data-v]'].map(q => Array.from(document.querySelectorAll('#s1-sweep-winners svg.wide ' + q))
          .map(e => e.getBBox()).map(b => [b.x, b.width]))""")
        border = max(x for x, _ in cells)
        sides = [x < border for x, _ in lines]
        expect_equal([len(lines), sum(sides)], [6, 3], "lines of 1.1, 1.5 and 2, and those left of the border", lines)
        names = browser.evaluate("Array.from(document.querySelectorAll('#s1-sweep-winners svg.wide text.tick.halo')).map(t => t.textContent)")
        expect(names and set(names) <= {"1.1×", "1.5×", "2×"}, "labels of the lines", names)
        expect(all(width < 0.01 for _, width in lines), "lines between columns are upright", lines)


@test
def a_sweep_over_policies_shows_loss_against_time():
    sweep = harness("sweep", "--vary", "policy=sync,async", "--mode", "ps", "--gpus", "2", "--model", "lenet", "--data", "synthetic", "--steps", "12",
                    "-o", at("policies-sweep"))
    expect_equal(sweep.code, 0, "exit code", sweep)
    report(at("policies-sweep"), "-o", at("losses.html"), "--csv", at("losses"))
    with open(at("policies-sweep/table.json"), encoding="utf-8") as file:
        table = json.load(file)
    expected = [(table["points"][p["row"]]["values"]["policy"], until, loss) for p in table["loss_over_time"]["points"]
                for until, loss in zip(table["loss_over_time"]["until_s"], p["losses"]) if loss is not None]
    expect_equal([(r["point"], float(r["time_s"]), float(r["loss"])) for r in csv_rows(at("losses/sweep-losses.csv"))], expected, "losses")
    with Browser() as browser:
        for width in (1280, 400):
            browser.open(at("losses.html"), width)
            expect_equal(browser.complaints(), [], "console and requests")
            expect_equal(browser.evaluate(OVERLAPS), [], "texts that overlap or are cut off")
        expect_equal(browser.evaluate("document.querySelectorAll('#s1-sweep-losses svg.wide path.curve').length"), 2, "lines")


@test
def the_page_of_a_sweep_holds_a_configuration_file_that_runs_the_same_again():
    words = ["--vary", "link=1Gbit/s,50us;10Gbit/s,50us", "--vary", "gpus=2,4", "--vary", "bucket-cap-mb=1,25", "--mode", "ps,ring", "--policy", "ps=sync,ring=ddp",
             "--device", "sim:v100-pcie-10gbe", "--model", "lenet", "--steps", "2", "--drop-last", "--repeat", "2"]
    first = harness("sweep", *words, "-o", at("sweep-first"), limit=300)
    expect_equal(first.code, 0, "exit code", first)
    report(at("sweep-first"), "-o", at("sweep-first.html"))
    ((text, heading),) = config_files(at("sweep-first.html"))
    expect("harness sweep --config FILE.toml -o DIR" in heading, "heading", heading)
    with open(at("sweep-again.toml"), "w", encoding="utf-8") as file:
        file.write(text)
    again = harness("sweep", "--config", at("sweep-again.toml"), "-o", at("sweep-again"), limit=300)
    expect_equal(again.code, 0, "exit code", again, text)
    expect_equal(again.out, first.out, "table", text)
    tables = []
    for name in ("sweep-first", "sweep-again"):
        with open(at(name + "/table.json"), encoding="utf-8") as file:
            tables.append(json.load(file))
    for key in ("options", "vary", "rounds", "points", "best"):
        expect_equal(tables[1][key], tables[0][key], key)
    expect_equal({k: v for k, v in tables[1]["configuration"].items() if k != "json"}, {k: v for k, v in tables[0]["configuration"].items() if k != "json"}, "configuration")


main()
