"""Every figure of the report's pages in a browser: values under the pointer, light and dark, the keyboard, paper."""
import itertools
import math
import os
import re
import tempfile

from browser import CONTRAST, OVERLAPS, SEEN, Browser
from program import harness
from tap import cases, expect, expect_equal, long_cases, main, test

folder = tempfile.TemporaryDirectory()


def at(name):
    return os.path.join(folder.name, name)


LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--steps", "12", "--quiet"]
# The command that makes a page, and the page's figures.
PAGES = {
    "stale": (["run", *LENET, "--gpus", "3", "--policy", "ps=async,ring=ddp", "--bucket-cap-mb", "0.05", "--report", at("stale.html")],
              ["step-parts", "timeline", "throughput", "memory", "loss-steps", "loss-time", "buckets", "staleness"]),
    "servers": (["run", *LENET, "--gpus", "2", "--mode", "ps", "--policy", "sync", "--servers", "3", "--server-placement", "own", "--report", at("servers.html")],
                ["step-parts", "timeline", "throughput", "memory", "loss-steps", "loss-time", "buckets"]),
    "virtual": (["run", "--model", "resnet18", "--device", "sim:dgx1-v100", "--gpus", "8", "--policy", "ps=dp,ring=ddp", "--steps", "4", "--quiet",
                 "--report", at("virtual.html")], ["step-parts", "timeline", "throughput", "memory", "buckets"]),
    "many": (["run", "--model", "lenet", "--data", "synthetic:1x28x28:10", "--device", "sim:dgx1-v100-4xib100", "--gpus", "32", "--policy", "ps=sync,ring=ddp",
              "--steps", "3", "--quiet", "--report", at("many.html")], ["step-parts", "timeline", "throughput", "memory", "buckets"]),
    "sweep": (["sweep", "--vary", "link=1Gbit/s;10Gbit/s;100Gbit/s", "--vary", "gpus=4,8,16", "--vary", "servers=1,4", "--mode", "ps,ring", "--policy",
               "ps=sync,ring=ddp", "--device", "sim:v100-pcie-10gbe", "--model", "resnet18", "--steps", "2", "-o", at("sweep")],
              ["sweep-winners", "sweep-curves", "sweep-heat"]),
    "policies": (["sweep", "--vary", "policy=sync,ssp,async", *LENET[:-1], "--gpus", "2", "-o", at("policies")], ["sweep-losses"]),
}
_made = {}


def page(name):
    if name not in _made:
        words, _ = PAGES[name]
        result = harness(*words, limit=300)
        expect_equal(result.code, 0, "exit code", result)
        if words[0] == "sweep":
            expect_equal(harness("report", at(name), "-o", at(name + ".html")).code, 0, "exit code")
        _made[name] = at(name + ".html")
    return _made[name]


@cases([(name, name) for name in PAGES])
def a_page_has_its_figures(name):
    path = page(name)
    with Browser() as browser:
        browser.open(path)
        found = browser.evaluate("Array.from(document.querySelectorAll('figure')).map(f => f.id.slice(3))")
        expect_equal(sorted(found), sorted(PAGES[name][1]), "figures")


# For each visible figure: the marks with the largest, the middle and the smallest area that the pointer can hit.
MARKS = """Array.from(document.querySelectorAll('figure')).map(f => { const svg = %s.find(s => f.contains(s));
  const area = m => { const b = m.getBoundingClientRect(); return b.width * b.height };
  const all = Array.from(svg.querySelectorAll('[data-t]')).filter(m => area(m) >= 9 && m.getBoundingClientRect().width >= 3 && m.getBoundingClientRect().height >= 3).sort((a, b) => area(a) - area(b));
  const chosen = new Set([all[all.length - 1], all[all.length >> 1], all[0]]);
  chosen.forEach(m => m && m.setAttribute('data-test', f.id));
  return [f.id, all.length] })""" % SEEN

PLACE = """(() => { const m = document.querySelectorAll('[data-test="%s"]')[%d]; if (!m) return null;
  m.scrollIntoView({block: 'center', inline: 'nearest'}); const b = m.getBoundingClientRect();
  for (const [p, q] of [[.5, .5], [.5, .2], [.5, .8], [.2, .5], [.8, .5]]) { const x = b.left + b.width * p, y = b.top + b.height * q,
    e = document.elementFromPoint(x, y); if (e && e.closest('[data-t]') === m) return [x, y, m.dataset.t]; }
  const e = document.elementFromPoint(b.left + b.width / 2, b.top + b.height / 2);
  return [0, 0, 'behind ' + (e ? e.outerHTML.slice(0, 120) : 'nothing') + ': ' + m.dataset.t] })()"""


@cases([(f"{name}, 400 px", name, 400) for name in PAGES], at_more=2)
@long_cases([(f"{name}, 1280 px", name, 1280) for name in PAGES])
def every_figure_shows_the_value_under_the_pointer(name, width):
    with Browser() as browser:
        browser.open(page(name), width)
        expect_equal(browser.evaluate("Array.from(document.querySelectorAll('.curve')).filter(c => getComputedStyle(c).pointerEvents != 'none').length"),
                     0, "lines that hide the points of other lines from the pointer")
        for figure, marks in browser.evaluate(MARKS):
            expect(marks > 0, f"{figure} has no values")
            for number in range(3):
                place = browser.evaluate(PLACE % (figure, number))
                if not place:
                    continue
                x, y, text = place
                if x == 0 and "behind" in text:  # of overlapping points of lines, or messages in flight, the upper one is shown
                    expect('"point' in text or '"message"' in text or "curves" in figure, f"{figure}: {text}")
                    continue
                browser.frames()
                browser.move_until(x, y, f"document.getElementById('tip').textContent === {text!r} && !document.getElementById('tip').hidden")
                box = browser.evaluate("(b => [b.left, b.top, b.right, b.bottom])(document.getElementById('tip').getBoundingClientRect())")
                expect(box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= 900, f"{figure}: the value is within the window", box)


# Colors of texts and marks of every figure. Marks of maps and of waiting have other means than contrast: numbers, a pattern.
COLORS = """Object.fromEntries(Array.from(document.querySelectorAll('figure')).map(f => [f.id, Array.from(f.querySelectorAll('svg.wide text'))
  .map(t => getComputedStyle(t).fill)[0]]))"""
FAINT = """(() => { const bad = [];
const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b };
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => p - q); return (y + .05) / (x + .05) };
const paper = getComputedStyle(document.body).backgroundColor;
for (const svg of %s) { for (const m of svg.querySelectorAll('rect[data-v]:not([class^=heat])')) { const c = getComputedStyle(m).fill;
    if (!c.startsWith('url') && ratio(c, paper) < 3) bad.push(svg.parentElement.id + ' ' + m.getAttribute('class') + ' ' + ratio(c, paper).toFixed(2)); }
  for (const m of svg.querySelectorAll('path.curve')) { const c = getComputedStyle(m).stroke;
    if (ratio(c, paper) < 3) bad.push(svg.parentElement.id + ' ' + m.getAttribute('class') + ' ' + ratio(c, paper).toFixed(2)); } }
return [...new Set(bad)]; })()""" % SEEN


@cases([(name, name) for name in PAGES], at_more=2)
def every_figure_is_light_and_dark_and_readable_in_both(name):
    path, colors = page(name), {}
    with Browser() as browser:
        for width in (1280, 400):
            for dark in (False, True):
                browser.open(path, width, dark)
                expect_equal(browser.complaints(), [], "console and requests")
                expect_equal(browser.evaluate("document.documentElement.scrollWidth"), width, "width of the page")
                expect_equal(browser.evaluate(OVERLAPS), [], f"texts that overlap or are cut off at {width} px")
                expect_equal(browser.evaluate(CONTRAST), [], f"texts with too little contrast, dark: {dark}")
                expect_equal(browser.evaluate(FAINT), [], f"marks with too little contrast, dark: {dark}")
                colors[dark] = browser.evaluate(COLORS)
    for figure, color in colors[False].items():
        expect(color and color != colors[True][figure], f"{figure} has the same color in light and dark", color)


# Colors as they appear with all cones, and without those of one kind, to linear RGB (Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.0).
SIGHT = {"all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
         "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
         "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
         "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900))}


def oklab(color, sight):
    """Where a color "rgb(...)" lies in Oklab (Ottosson, 2020): distances are about those that are seen."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (int(c) / 255 for c in re.findall(r"\d+", color)[:3])]
    seen = [min(1, max(0, sum(a * c for a, c in zip(row, linear)))) for row in SIGHT[sight]]
    cones = [sum(a * c for a, c in zip(row, seen)) ** (1 / 3) for row in ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
                                                                          (0.0883024619, 0.2817188376, 0.6299787005))]
    return [sum(a * c for a, c in zip(row, cones)) for row in ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
                                                               (0.0259040371, 0.7827717662, -0.8086757660))]


# For each figure, the colors of its marks and lines by class. Texts and maps of numbers show their values in words.
CLASSES = """Object.fromEntries(Array.from(document.querySelectorAll('figure')).map(f => [f.id, Object.fromEntries([
  ...Array.from(f.querySelectorAll('svg.wide rect[data-v]')).map(r => [r.getAttribute('class'), getComputedStyle(r).fill]),
  ...Array.from(f.querySelectorAll('svg.wide path.curve')).map(p => [p.getAttribute('class').replace('curve stroke-', ''), getComputedStyle(p).stroke])]
  .filter(([name, color]) => !name.startsWith('heat') && !color.startsWith('url')))]))"""


# Series that may stand in one figure: parts of a step, classes of memory, jobs, lines of a sweep.
TOGETHER = {"parts": ["data", "forward", "backward", "exposed", "optimizer", "other"],
            "memory": ["parameters", "backward", "optimizer", "forward", "outputs", "replicas", "gathered", "exposed", "other", "data"],
            "jobs": ["none", "none2", "ps", "ps2", "ring", "ring2"], "engines of a sweep": ["ps", "ps2", "replicas", "ring", "ring2", "outputs"],
            "points of a sweep": ["backward", "exposed", "optimizer", "none", "outputs", "replicas", "data", "forward"],
            "losses of a sweep": ["backward", "exposed", "optimizer", "outputs", "replicas", "none", "data", "parameters"]}


def expect_apart(colors, where):
    for sight in SIGHT:
        for a, b in itertools.combinations(sorted(colors), 2):
            apart = math.dist(oklab(colors[a], sight), oklab(colors[b], sight))
            expect(apart >= 0.05 or {a, b} == {"exposed", "message"}, f"{where}, {sight}: {a} {colors[a]} and {b} {colors[b]} are {apart:.3f} apart")


@test
def colors_that_stand_together_differ_for_color_blind_readers():
    with Browser() as browser:
        browser.open(page("stale"))
        for where, names in TOGETHER.items():
            expect_apart(browser.evaluate("""(names => Object.fromEntries(names.map(name => { const svg = document.querySelector('figure svg.wide'),
              r = svg.appendChild(document.createElementNS(svg.namespaceURI, 'rect')); r.setAttribute('class', name);
              return [name, getComputedStyle(r).fill] })))(%s)""" % names), where)


@cases([(name, name) for name in PAGES])
def colors_of_a_figure_differ_for_color_blind_readers(name):
    with Browser() as browser:
        browser.open(page(name))
        figures = browser.evaluate(CLASSES)
    expect(any(len(colors) > 1 for colors in figures.values()), "figures with several colors", figures)
    for figure, colors in figures.items():
        expect_apart(colors, figure)


@cases([(name, name) for name in PAGES], at_more=2)
def the_keyboard_reaches_and_opens_the_numbers_of_every_figure(name):
    with Browser() as browser:
        browser.open(page(name))
        summaries = browser.evaluate("Array.from(document.querySelectorAll('summary')).map(s => s.textContent)")
        reached = []
        for _ in range(3 * len(summaries)):
            browser.press("Tab", 9)
            focus = browser.evaluate("""(e => e === document.body ? null : [e.tagName, e.textContent.slice(0, 80), getComputedStyle(e).outlineStyle,
              parseFloat(getComputedStyle(e).outlineWidth)])(document.activeElement)""")
            if focus is None:
                break
            if focus[0] == "SUMMARY":
                expect(focus[2] != "none" and focus[3] >= 1, f"{focus[1]}: the focus is not seen")
                reached.append(focus[1])
                browser.press("Enter", 13)
                expect(browser.evaluate("document.activeElement.parentElement.open"), f"{focus[1]} does not open with Enter")
            else:  # the numbers, which may be longer than their region
                expect_equal(browser.evaluate("document.activeElement.getAttribute('role') + ' ' + !!document.activeElement.getAttribute('aria-label')"),
                             "region true", "what has the focus after a summary")
        expect_equal(reached, [s[:80] for s in summaries], "summaries, in their order")
        rows = browser.evaluate("Array.from(document.querySelectorAll('figure')).map(f => f.querySelector('tbody td').checkVisibility())")
        expect(all(rows), "tables that are shown", rows)


@cases([(f"{name}, dark", name, True) for name in PAGES], at_more=2)
@long_cases([(name, name, False) for name in PAGES])
def every_figure_is_printed_in_light_colors_with_its_numbers(name, dark):
    with Browser() as browser:
        browser.open(page(name), 794, dark, media="print")  # A4 at 96 dpi
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        expect_equal(paper, "rgb(252, 252, 250)", "paper")
        figures = browser.evaluate("""Array.from(document.querySelectorAll('figure')).map(f => { const cells = Array.from(f.querySelectorAll('td')),
          b = f.querySelector('svg.wide').getBoundingClientRect();
          return [f.id, b.width > 300 && b.right <= 795, cells.length, cells.filter(c => c.checkVisibility({contentVisibilityAuto: true}) &&
            c.getBoundingClientRect().height > 8).length, f.querySelector('svg.narrow').checkVisibility()] })""")
        for figure, fits, cells, visible, narrow in figures:
            expect(fits, f"{figure} fits the page")
            expect(cells > 0 and visible == cells, f"{figure}: {visible} of {cells} cells on paper")
            expect(not narrow, f"{figure}: the narrow drawing is printed, too")
        expect_equal(browser.evaluate(OVERLAPS), [], "texts that overlap or are cut off")
        expect_equal(browser.evaluate("document.querySelector('#tip').checkVisibility()"), False, "the value under the pointer")
        document = browser.printed()
        expect(document.startswith(b"%PDF-") and len(document) > 20000, f"a PDF of {len(document)} bytes")


main()
