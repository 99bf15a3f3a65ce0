"""Time lines as --trace writes them: slices of a track, and what holds for all of them."""
from tap import expect, expect_equal

TRACKS = {1: "compute", 2: "communication", 3: "optimizer", 6: "parts of the step"}


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
    """Checks that every flow begins, passes and ends, in that order, each within a slice of its track; returns their
    number."""
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
    """Checks that what is in flight ends after it has begun, or at the same time, and before it begins again."""
    times = {}
    for e in events:
        if e["ph"] in "be":
            times.setdefault((e["name"], e["id2"]["local"]), {"b": [], "e": []})[e["ph"]].append(e["ts"])
    for key, of in times.items():
        begins, ends = sorted(of["b"]), sorted(of["e"])
        expect_equal(len(begins), len(ends), f"{where}: begins and ends of {key}")
        expect(all(begin <= end for begin, end in zip(begins, ends)), f"{where}: {key} ends before it begins")
        expect(all(end <= begin for begin, end in zip(begins[1:], ends)), f"{where}: {key} begins twice")


def within(found, outer):
    return [s for s in found if outer[0] <= s[0] and s[1] <= outer[1]]


def total(found):
    return sum(end - begin for begin, end, _ in found)
