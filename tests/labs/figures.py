"""Draws the figures of the labs' handouts, labs/N-name/figure.svg, for light and dark pages.

    python3 tests/labs/figures.py    writes all of them; test_figures.py compares
"""
import math
import os
from html import escape

LIGHT = {"paper": "#fcfcfa", "ink": "#16191d", "muted": "#5b6470", "line": "#d5d5cf", "idle": "#f1ead6"}
DARK = {"paper": "#14181d", "ink": "#e9ebee", "muted": "#a3adb8", "line": "#39424c", "idle": "#2b2a22"}
# As in the program's own figures: a color, and the ink on it.
COLORS = {"compute": ("#5493d0", "#101418"), "message": ("#de6b1f", "#101418"), "update": ("#9a7fd1", "#101418"), "server": ("#b83a63", "#ffffff"),
          "ring": ("#0a7a70", "#ffffff"), "parameters": ("#56657f", "#ffffff"), "gradients": ("#38a0a8", "#101418"),
          "state": ("#9a7fd1", "#101418"), "replicas": ("#94549c", "#ffffff"), "gathered": ("#b9a13a", "#101418"), "buckets": ("#de6b1f", "#101418")}
FONT = "12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Figure:
    def __init__(self, name, width, height, title, description):
        self.name, self.width, self.height, self.title, self.description, self.body = name, width, height, title, description, []

    def text(self, x, y, words, style="", anchor="start"):
        style = f' class="{style}"' if style else ""
        anchor = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.body.append(f'<text x="{number(x)}" y="{number(y)}"{anchor}{style}>{escape(words)}</text>')

    def box(self, x, y, width, height, color, words="", corner=2):
        self.body.append(f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="{corner}" class="{color}"/>')
        if words:
            self.text(x + width / 2, y + height / 2 + 4, words, f"on-{color}", "middle")

    def line(self, x1, y1, x2, y2, style="base", arrows=""):
        ends = "".join(f' marker-{end}="url(#tip)"' for end in arrows.split())
        self.body.append(f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{style}"{ends}/>')

    def curve(self, points, style):
        self.body.append(f'<polyline points="{" ".join(f"{number(x)},{number(y)}" for x, y in points)}" class="curve {style}"/>')

    def dot(self, x, y, style):
        self.body.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="4" class="{style}"/>')

    def svg(self):
        def page(colors):
            return ":root{" + ";".join(f"--{key}:{value}" for key, value in colors.items()) + "}"
        style = (f"{page(LIGHT)}@media (prefers-color-scheme:dark){page(DARK)}text{{font:{FONT};fill:var(--ink)}}.small{{font-size:11px;fill:var(--muted)}}"
                 ".strong{font-weight:600}.paper{fill:var(--paper)}.base{stroke:var(--muted);fill:none}.grid{stroke:var(--line)}"
                 ".bold{stroke:var(--ink);stroke-width:1.5}.dashed{stroke:var(--muted);stroke-dasharray:4 3}.tip{fill:var(--ink)}.idle{fill:var(--idle)}"
                 ".on-idle{fill:var(--muted);font-size:11px}.cell{fill:var(--paper);stroke:var(--line)}.on-cell{fill:var(--ink)}.curve{fill:none;stroke-width:2}")
        used = "\n".join(self.body)
        for key, (color, ink) in COLORS.items():
            if f"{key}\"" in used or f"line-{key}" in used:
                style += f".{key}{{fill:{color}}}text.on-{key}{{fill:{ink}}}.line-{key}{{stroke:{color}}}"
        tip = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
               '<path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>\n' if "marker-" in used else "")
        return (f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="t d" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}">\n<title id="t">{escape(self.title)}</title>\n<desc id="d">{escape(self.description)}</desc>\n'
                f'<style>{style}</style>\n{tip}<rect width="{self.width}" height="{self.height}" class="paper"/>\n{used}\n</svg>\n')


def edge(f, a, b, words, side):
    """An arrow between two ranks' boxes of 64 x 28, in both directions where `words` has no '>'; its label next to it."""
    (x1, y1), (x2, y2) = a, b
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    out = min(32 / abs(ux) if ux else 1e9, 14 / abs(uy) if uy else 1e9) + 3
    one_way = words.startswith(">")
    f.line(x1 + ux * out, y1 + uy * out, x2 - ux * out, y2 - uy * out, "bold", "end" if one_way else "start end")
    dx, dy, anchor = {"above": (0, -6, "middle"), "below": (0, 15, "middle"), "left": (-7, 4, "end"), "right": (7, 4, "start")}[side]
    at = 0.5 if len({x1, x2}) == 1 or len({y1, y2}) == 1 else 0.28
    f.text(x1 + (x2 - x1) * at + dx, y1 + (y2 - y1) * at + dy, words.lstrip(">"), "strong", anchor)


def count_bytes():
    f = Figure("1-count-bytes", 720, 232, "Three ways to sum gradients among four ranks",
               "Graphs of four ranks; an edge is labeled with the buffers of n gradients that it carries in each direction. One reducer: rank 0 exchanges 1 "
               "with each other rank, 3 in total. Two servers, on ranks 0 and 1: ranks 2 and 3 exchange one half with each server; ranks 0 and 1 exchange 1, one "
               "half with each of their servers. Ring: every rank sends 1.5 to its right neighbor.")
    f.text(110, 20, "one reducer", "strong", "middle")
    f.text(355, 20, "2 servers, on ranks 0 and 1", "strong", "middle")
    f.text(605, 20, "ring", "strong", "middle")
    star = [(62, 125), (62, 55), (180, 125), (62, 195)]
    for r, side in ((1, "left"), (2, "above"), (3, "left")):
        edge(f, star[0], star[r], "1", side)
    square = [(285, 70), (425, 70), (285, 180), (425, 180)]
    for a, b, side in ((0, 1, "above"), (0, 2, "left"), (1, 3, "right"), (0, 3, "right"), (1, 2, "left")):
        edge(f, square[a], square[b], "1" if (a, b) == (0, 1) else "1/2", side)  # between the servers' ranks: a push and the other part's sum
    circle = [(535, 70), (675, 70), (675, 180), (535, 180)]
    for r, side in enumerate(("above", "right", "below", "left")):
        edge(f, circle[r], circle[(r + 1) % 4], ">1.5", side)
    for nodes, servers in ((star, 1), (square, 2), (circle, 0)):
        for r, (x, y) in enumerate(nodes):
            f.box(x - 32, y - 14, 64, 28, "server" if r < servers else "compute", f"rank {r}", 6)
    f.box(215, 208, 10, 10, "server")
    f.text(230, 217, "holds a server, too", "small")
    f.text(350, 217, "labels: buffers in each direction; in the ring to the right only", "small")
    return f


def lanes(f, names, top, step, left, right):
    for i, name in enumerate(names):
        f.text(8, top + i * step + 15, name)
        f.box(left, top + i * step, right - left, 22, "idle")


def reducer():
    f = Figure("2-reducer", 720, 190, "Arrivals at a parameter server",
               "Time lines of three ranks and the server. The ranks end their computation at different times and push: first rank 0, then rank 1, then rank 2. "
               "When all three pushes have arrived, the server updates the parameters and replies to all ranks, which compute the next step; its first push is again "
               "that of rank 0, the second that of rank 2.")
    left, right, top = 66, 708, 12
    lanes(f, ["rank 0", "rank 1", "rank 2", "server"], top, 36, left, right)
    ends, update, second = [150, 220, 300], (318, 372), [480, 690, 560]
    for r in range(3):
        y = top + 36 * r
        f.box(left, y, ends[r] - left, 22, "compute", "compute")
        if r < 2:
            f.text(ends[r] + (update[1] - ends[r]) / 2, y + 15, "waits", "on-idle", "middle")
        f.box(update[1], y, (second[r] if r != 1 else right) - update[1], 22, "compute", "compute")
        f.line(ends[r], y + 11, ends[r], top + 108, "line-message bold", "end")
        f.text(ends[r] + 5, top + 102, "push", "small")
        f.line(update[1], top + 108, update[1], y + 23, "bold", "end")
        if r != 1:
            f.line(second[r], y + 11, second[r], top + 108, "line-message bold", "end")
            f.text(second[r] + 5, top + 102, "push", "small")
    f.box(update[0], top + 108, update[1] - update[0], 22, "update", "update")
    f.text(update[1] + 5, top + 102, "replies", "small")
    f.text(left, top + 152, "time", "small")
    f.line(left + 30, top + 148, right, top + 148, "base", "end")
    f.text(left, top + 168, "Pushes arrive in another order in every step; the server adds in the order of ranks all the same.", "small")
    return f


def ring():
    f = Figure("3-ring", 720, 214, "The chunk table of a ring of four ranks",
               "Which chunk each rank sends in each of six steps. Rank r sends chunk r - s modulo 4 in step s. In steps 0 to 2, reduce-scatter, the receiver adds; in "
               "steps 3 to 5, all-gather, it copies. Chunk 0 is marked: it is sent by ranks 0, 1, 2, then 3, 0 and 1, one rank further to the right in every step.")
    left, top, width, height = 86, 50, 92, 30
    for s in range(6):
        x = left + s * (width + 8) + (20 if s > 2 else 0)
        f.text(x + width / 2, 42, f"step {s}", "small", "middle")
        for r in range(4):
            chunk = (r - s) % 4
            f.box(x, top + r * (height + 6), width, height, "ring" if chunk == 0 else "cell", f"chunk {chunk}", 4)
            if chunk == 0 and s < 5:
                to = x + width + 8 + (20 if s == 2 else 0)
                next_y = top + ((r + 1) % 4) * (height + 6) + height / 2
                f.line(x + width - 6, top + r * (height + 6) + height / 2 + 9, to + 4, next_y - 9 if r < 3 else next_y + 14, "bold", "end")
    for r in range(4):
        f.text(8, top + r * (height + 6) + 20, f"rank {r}")
    f.text(left + 150, 20, "reduce-scatter: add what arrives", "strong", "middle")
    f.text(left + 470, 20, "all-gather: copy what arrives", "strong", "middle")
    f.text(8, 208, "Chunk 0 moves one rank to the right in every step; rank 3 is the first to hold its whole sum. Rank 3's right neighbor is rank 0.", "small")
    return f


def alpha_beta():
    latency, bandwidth = 2e-3, 50e6
    f = Figure("4-alpha-beta", 720, 300, "Time of a message over its size, on logarithmic axes",
               "A link of 2 ms and 50 MB per second. Up to 100 KB, which is 2 ms times 50 MB per second, the time stays near 2 ms: the latency counts. Above, "
               "twice the size takes twice as long: the bandwidth counts. At 100 KB the message takes 4 ms, half of it latency.")
    left, right, top, bottom = 70, 700, 20, 250
    x_of = lambda size: left + (math.log10(size) - 3) / 5 * (right - left)
    y_of = lambda seconds: bottom - (math.log10(seconds) + 3) / 3.6 * (bottom - top)
    for power, words in enumerate(("1 KB", "10 KB", "100 KB", "1 MB", "10 MB", "100 MB"), 3):
        f.line(x_of(10**power), top, x_of(10**power), bottom, "grid")
        f.text(x_of(10**power), bottom + 16, words, "small", "end" if power == 8 else "middle")
    for power, words in ((-3, "1 ms"), (-2, "10 ms"), (-1, "100 ms"), (0, "1 s")):
        f.line(left, y_of(10**power), right, y_of(10**power), "grid")
        f.text(left - 8, y_of(10**power) + 4, words, "small", "end")
    sizes = [10**(3 + k / 20) for k in range(101)]
    f.line(left, y_of(latency), x_of(4e6), y_of(latency), "dashed")
    f.line(x_of(5e4), y_of(5e4 / bandwidth), right, y_of(1e8 / bandwidth), "dashed")
    f.curve([(x_of(s), y_of(latency + s / bandwidth)) for s in sizes], "line-compute")
    f.line(x_of(1e5), y_of(4e-3), x_of(1e5), bottom, "dashed")
    f.dot(x_of(1e5), y_of(4e-3), "message")
    f.text(x_of(1e5) - 10, y_of(4e-3) - 10, "latency = size / bandwidth", "strong", "end")
    f.text(x_of(4e3), y_of(latency) + 18, "the latency counts", "strong")
    f.text(x_of(8e6) - 12, y_of(0.16) - 12, "the bandwidth counts", "strong", "end")
    f.text(x_of(4e6) + 6, y_of(latency) + 4, "latency, 2 ms", "small")
    f.text(x_of(1e5) + 6, bottom - 6, "100 KB = 2 ms x 50 MB/s", "small")
    f.text((left + right) / 2, bottom + 36, "size of the message", "small", "middle")
    return f


def buckets():
    f = Figure("5-buckets", 720, 236, "One step without and with overlap",
               "Two time lines of one step with six gradients. Without overlap one all-reduce of all gradients begins when the sixth is ready, and all of it is exposed. "
               "With buckets of gradient 0, of gradients 1 to 3 and of gradients 4 and 5 the first two all-reduces run while later gradients are computed; only the "
               "end of the second and the third are exposed, and the step ends earlier.")
    left, gradient, latency, byte = 108, 52, 12, 36
    ready = [left + gradient * (i + 1) for i in range(6)]

    def step(top, title, groups):
        f.text(8, top, title, "strong")
        f.text(8, top + 27, "compute")
        f.text(8, top + 55, "communication")
        for i in range(6):
            f.box(left + gradient * i, top + 12, gradient - 2, 22, "compute", f"g{i}")
        at = 0
        for first, last in groups:
            at, begin = 0, max(at, ready[last])
            at = begin + latency + byte * (last - first + 1)
            f.box(begin, top + 40, at - begin - 2, 22, "message", f"g{first}" if first == last else f"g{first} to g{last}")
        f.box(at, top + 12, 48, 22, "update", "update")
        f.line(ready[5], top + 76, at, top + 76, "bold", "start end")
        f.text((ready[5] + at) / 2, top + 92, "exposed", "strong", "middle")
        f.line(ready[5], top + 12, ready[5], top + 80, "dashed")
        f.line(at, top + 12, at, top + 80, "dashed")
    step(18, "Without overlap", [(0, 5)])
    step(140, "With buckets {g0} {g1 g2 g3} {g4 g5}", [(0, 0), (1, 3), (4, 5)])
    return f


def stragglers():
    f = Figure("6-stragglers", 720, 318, "Clock lanes of three ranks under three rules",
               "Ranks 0 and 1 need one unit of time per step, rank 2 needs four. Under sync all wait for rank 2 in every step. Under stale synchronous parallel with staleness "
               "2, ranks 0 and 1 make three steps, then wait until rank 2 has pushed its first, and make one more step for each of its steps. Under async nobody waits.")
    left, unit, slow, ends = 108, 47, 4, 12.5

    def rule(top, name, bound):
        f.text(8, top + 10, name, "strong")
        clock, begins, free = [0, 0, 0], [], [0.0, 0.0, 0.0]
        time = 0.0
        while time < ends:  # as the rule says: who may begin, begins
            for r in range(3):
                if free[r] is not None and free[r] <= time and clock[r] - min(clock) <= bound:
                    length = slow if r == 2 else 1
                    begins.append((r, time, clock[r], length))
                    free[r] = None
            time += 1
            for r, start, step, length in begins:
                if start + length == time and free[r] is None and clock[r] == step:
                    clock[r], free[r] = clock[r] + 1, time
        for r in range(3):
            y = top + 18 + r * 24
            f.text(56, y + 14, f"rank {r}")
            f.box(left, y, unit * ends, 19, "idle")
            for who, start, step, length in begins:
                if who == r and start < ends:
                    f.box(left + unit * start + 1, y, unit * min(length, ends - start) - 2, 19, "server" if r == 2 else "compute", str(step))
    rule(8, "sync", 0)
    rule(110, "SSP, staleness 2", 2)
    rule(212, "async", 10**9)
    f.text(left, 313, "A number: the step that the rank computes. No number: it waits. The slow rank stands in another color.", "small")
    return f


def memory():
    f = Figure("7-memory", 720, 292, "What one of four ranks holds under each scheme, with Adam",
               "Stacked bars in multiples of the parameters' size P, on 4 ranks. DDP: parameters 1, gradients 1, optimizer state 2, buckets 1. ZeRO-1: parameters 1, gradients 1, "
               "optimizer state 1/2. ZeRO-2: parameters 1, gradients 1/4, optimizer state 1/2, buckets 1/2. ZeRO-3: parameters 1/4, gradients 1/4, optimizer state 1/2, buckets 1/2, gathered units "
               "1/2. DataParallel, rank 0: parameters 1, gradients 2, optimizer state 2, buckets 2; another rank: gradients 1, buckets 1, replicas 1.")
    classes = ("parameters", "gradients", "state", "buckets", "gathered", "replicas")
    names = ("parameters", "gradients", "optimizer state", "buckets", "gathered units", "replicas")
    rows = [("DDP", (1, 1, 2, 1)), ("ZeRO-1", (1, 1, .5)), ("ZeRO-2", (1, .25, .5, .5)), ("ZeRO-3", (.25, .25, .5, .5, .5)),
            ("DataParallel, rank 0", (1, 2, 2, 2)), ("DataParallel, others", (0, 1, 0, 1, 0, 1))]
    left, unit, top = 150, 78, 40
    for n in range(8):
        f.line(left + unit * n, top - 6, left + unit * n, top + 34 * len(rows), "grid")
        f.text(left + unit * n, top - 12, f"{n} P" if n else "0", "small", "middle")
    for i, (name, parts) in enumerate(rows):
        x = left
        f.text(left - 10, top + 34 * i + 19, name, "", "end")
        for key, part in zip(classes, parts):
            if part:
                words = {0.25: "1/4", 0.5: "1/2"}.get(part, str(part))
                f.box(x, top + 34 * i + 2, unit * part - 1, 26, key, words)
                x += unit * part
    x = 20
    for key, name in zip(classes, names):
        f.box(x, 262, 12, 12, key)
        f.text(x + 17, 272, name, "small")
        x += 40 + 6.4 * len(name)
    return f


def choose():
    f = Figure("8-choose", 720, 290, "The map of who wins",
               "A map with the speed of the network on the horizontal axis, from fast to slow, and the model's compute per byte on the vertical axis, from little to much. Much "
               "compute, fast network: communication is hidden after the backward pass, choose by memory. Much compute, slow network: the ring; its latency begins to count. Little "
               "compute, fast network: the ring with buckets of 5 to 25 MiB; servers on all ranks come near. Little compute, slow network: the network is the limit; the ring, and larger batches.")
    left, top, width, height = 92, 16, 300, 112
    cells = [("compute", ["The backward pass hides", "all communication:", "choose by memory"]), ("cell", ["The ring.", "Few large buckets: each one", "pays the latency"]),
             ("cell", ["The ring, buckets of 5 to 25 MiB;", "servers on all ranks come near"]), ("message", ["The network is the limit:", "the ring, and larger batches"])]
    for i, (color, lines) in enumerate(cells):
        x, y = left + (i % 2) * (width + 6), top + (i // 2) * (height + 6)
        f.box(x, y, width, height, color, "", 6)
        for k, words in enumerate(lines):
            f.text(x + width / 2, y + height / 2 + 5 + 17 * (k - (len(lines) - 1) / 2), words, f"on-{color}", "middle")
    f.text(8, top + height + 60, "little")
    f.text(8, top + 60, "much")
    f.line(left - 14, top + 2 * height + 6, left - 14, top, "bold", "end")
    f.text(8, top + height + 8, "compute", "small")
    f.text(8, top + height + 21, "per byte", "small")
    f.line(left, top + 2 * height + 22, left + 2 * width + 6, top + 2 * height + 22, "bold", "end")
    f.text(left, top + 2 * height + 40, "fast network")
    f.text(left + 2 * width + 6, top + 2 * height + 40, "slow network", "", "end")
    return f


FIGURES = (count_bytes, reducer, ring, alpha_beta, buckets, stragglers, memory, choose)


def main():
    labs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../labs")
    for draw in FIGURES:
        figure = draw()
        with open(os.path.join(labs, figure.name, "figure.svg"), "w", encoding="utf-8") as file:
            file.write(figure.svg())


if __name__ == "__main__":
    main()
