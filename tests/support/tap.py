"""Tests that print TAP. A test is a function marked with @test whose name is a sentence, or one row of a
table: @cases(rows) calls the function once a row, and each row is a test of its own.

    python3 test_x.py [WORDS]    only the tests whose names hold the words
"""
import sys
import time
import traceback

_tests = []


class Skip(Exception):
    """The machine lacks what the test needs."""


class Failure(Exception):
    pass


def test(function):
    _tests.append((function.__name__.replace("_", " "), function, ()))
    return function


def cases(rows):
    """Each row is a tuple: its label, then the arguments of the function."""
    def mark(function):
        for row in rows:
            _tests.append((f"{function.__name__.replace('_', ' ')}: {row[0]}", function, row[1:]))
        return function
    return mark


def expect(condition, *lines):
    if not condition:
        raise Failure("\n".join(str(line) for line in lines))


def expect_equal(found, expected, what, *lines):
    expect(found == expected, f"{what}: found {found!r}, expected {expected!r}", *lines)


def _run(name, function, arguments):
    """'ok', 'not ok' or 'skip', and the lines that explain it."""
    try:
        function(*arguments)
    except Skip as reason:
        return "skip", str(reason)
    except Failure as failure:
        return "not ok", str(failure)
    except Exception:
        return "not ok", traceback.format_exc()
    return "ok", ""


def main():
    words = " ".join(sys.argv[1:])
    chosen = [t for t in _tests if words in t[0]]
    failed = 0
    print(f"1..{len(chosen)}", flush=True)
    for number, (name, function, arguments) in enumerate(chosen, 1):
        begin = time.monotonic()
        outcome, lines = _run(name, function, arguments)
        failed += outcome == "not ok"
        word = "not ok" if outcome == "not ok" else "ok"
        print(f"{word} {number} - {name}" + (f" # SKIP {lines}" if outcome == "skip" else ""))
        if outcome == "not ok":
            print("".join(f"# {line}\n" for line in lines.splitlines()), end="")
        print(f"# {time.monotonic() - begin:.2f} s", flush=True)
    sys.exit(1 if failed else 0)
