"""Tests that print TAP. A test is a function marked with @test whose name is a sentence, or one row of a
table: @cases(rows) calls the function once a row, and each row is a test of its own. @long_test and
@long_cases(rows) mark those that take too long for `make check`.

    python3 test_x.py [--long] [--part I/N] [WORDS]    only the tests whose names hold the words; every N-th of them
"""
import sys
import time
import traceback

_tests = []       # (name, function, arguments)
_long_tests = []


class Skip(Exception):
    """Skips a test: the machine lacks something that it needs."""


class Failure(Exception):
    pass


def _marks_one(tests):
    def mark(function):
        tests.append((function.__name__.replace("_", " "), function, ()))
        return function
    return mark


def _marks_rows(tests):
    def with_rows(rows):
        def mark(function):
            for row in rows:
                tests.append((f"{function.__name__.replace('_', ' ')}: {row[0]}", function, row[1:]))
            return function
        return mark
    return with_rows


test, long_test = _marks_one(_tests), _marks_one(_long_tests)
cases, long_cases = _marks_rows(_tests), _marks_rows(_long_tests)  # a row: its label, then the arguments


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
    long = "--long" in sys.argv
    words, part, parts = [word for word in sys.argv[1:] if word != "--long"], 1, 1
    if "--part" in words:
        at = words.index("--part")
        part, parts = (int(number) for number in words[at + 1].split("/"))
        del words[at:at + 2]
    chosen = [t for t in (_long_tests if long else _tests) if " ".join(words) in t[0]][part - 1::parts]
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
