"""Tests that print TAP. A test is a function marked with @test whose name is a sentence, or one row of a
table: @cases(rows) calls the function once a row, and each row is a test of its own. @more_test and @more_cases(rows)
mark those that take too long for `make check`, @long_test and @long_cases(rows) those that take too long for
`make check-more`. With @cases(rows, at_check=2) all rows but the first two wait for `make check-more`, with
@cases(rows, at_more=5) all but the first five for `make check-all`. Rows that mostly wait run several at once:
@cases(rows, at_once=4). A test that fails while the machine stands still proves nothing, and runs once more.

    python3 test_x.py [--more | --long] [--part I/N] [WORDS]    only the tests whose names hold the words; every N-th of them
"""
import importlib
import itertools
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

_tests = {"": [], "--more": [], "--long": []}  # of each level: (name, function, arguments, how many rows of the function run at once)
STANDSTILL_S = 1  # A thread that wakes so late was not delayed by other threads; the machine stood still, as a paused virtual machine does.


class Skip(Exception):
    """Skips a test: the machine lacks something that it needs."""


class Failure(Exception):
    pass


def module_or_skip(name, package):
    """Imports a module of a Debian package, without which the test is skipped."""
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise Skip(f"needs {package}") from missing


def _marks_one(tests):
    def mark(function):
        tests.append((function.__name__.replace("_", " "), function, (), 1))
        return function
    return mark


def _marks_rows(tests):
    def with_rows(rows, at_once=1, at_check=sys.maxsize, at_more=sys.maxsize):
        def mark(function):
            for number, row in enumerate(rows):
                level = _tests["--long"] if number >= at_more else _tests["--more"] if number >= at_check else tests
                level.append((f"{function.__name__.replace('_', ' ')}: {row[0]}", function, row[1:], at_once))
            return function
        return mark
    return with_rows


test, more_test, long_test = map(_marks_one, _tests.values())
cases, more_cases, long_cases = map(_marks_rows, _tests.values())  # a row: its label, then the arguments


def expect(condition, *lines):
    if not condition:
        raise Failure("\n".join(str(line) for line in lines))


def expect_equal(found, expected, what, *lines):
    expect(found == expected, f"{what}: found {found!r}, expected {expected!r}", *lines)


class _Standstill(threading.Thread):
    """How long the machine has stood still while this thread has run."""
    def __init__(self):
        super().__init__(daemon=True)
        self.seconds, self.over = 0.0, threading.Event()

    def run(self):
        over, asleep = False, time.monotonic()
        while not over:
            over = self.over.wait(0.1)
            awake = time.monotonic()
            self.seconds += awake - asleep if awake - asleep > STANDSTILL_S else 0
            asleep = awake

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def _try(function, arguments):
    """'ok', 'not ok' or 'skip'; the lines that explain it."""
    try:
        function(*arguments)
    except Skip as reason:
        return "skip", str(reason)
    except Failure as failure:
        return "not ok", str(failure)
    except Exception:
        return "not ok", traceback.format_exc()
    return "ok", ""


def _run(one):
    """Its name; 'ok', 'not ok' or 'skip', the lines that explain it, and the seconds that it took."""
    name, function, arguments, _ = one
    begin = time.monotonic()
    with _Standstill() as standstill:
        outcome, lines = _try(function, arguments)
    if outcome == "not ok" and standstill.seconds:
        print(f"# the machine stood still for {standstill.seconds:.1f} s, once more: {name}", *lines.splitlines(), sep="\n# ")
        outcome, lines = _try(function, arguments)
    return name, outcome, lines, time.monotonic() - begin


def _run_all(chosen):
    """Their outcomes, in their order."""
    for (_, at_once), rows in itertools.groupby(chosen, lambda one: (one[1], one[3])):
        if at_once == 1:
            yield from map(_run, rows)
        else:
            with ThreadPoolExecutor(at_once) as pool:
                yield from pool.map(_run, rows)


def main():
    level = next((word for word in sys.argv[1:] if word in _tests), "")
    words, part, parts = [word for word in sys.argv[1:] if word != level], 1, 1
    if "--part" in words:
        at = words.index("--part")
        part, parts = (int(number) for number in words[at + 1].split("/"))
        del words[at:at + 2]
    chosen = [t for t in _tests[level] if " ".join(words) in t[0]][part - 1::parts]
    failed = 0
    if level and not _tests[level]:
        sys.exit(f"{sys.argv[0]}: expected tests that are marked {level[2:]}, got none")
    print(f"1..{len(chosen)}", flush=True)
    for number, (name, outcome, lines, seconds) in enumerate(_run_all(chosen), 1):
        failed += outcome == "not ok"
        word = "not ok" if outcome == "not ok" else "ok"
        print(f"{word} {number} - {name}" + (f" # SKIP {lines}" if outcome == "skip" else ""))
        if outcome == "not ok":
            print("".join(f"# {line}\n" for line in lines.splitlines()), end="")
        print(f"# {seconds:.2f} s", flush=True)
    sys.exit(1 if failed else 0)
