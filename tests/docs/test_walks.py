#!/usr/bin/env python3
"""Every file and function that a ```walk block of docs/architecture.md names exists: the file defines the function."""
import os
import re
import sys

ROOT = os.environ.get("SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def steps():
    with open(os.path.join(ROOT, "docs", "architecture.md"), encoding="utf-8") as stream:
        for block in re.findall(r"^```walk\n(.*?)^```$", stream.read(), re.S | re.M):
            for line in block.splitlines():
                found = re.match(r"\s+(\S+\.c)\s+(\w+)\(\)", line)
                if found:
                    yield found.groups()
                elif line.startswith(" "):
                    yield line.strip(), None


def fault(path, function):
    if function is None:
        return "expected FILE  FUNCTION()"
    if not os.path.isfile(os.path.join(ROOT, path)):
        return "no such file"
    with open(os.path.join(ROOT, path), encoding="utf-8") as stream:
        # A definition: the name at the outer level, and no semicolon before the brace.
        defined = re.search(r"^\w[^;{}()]*\b%s\([^;{}]*\)\n\{" % function, stream.read(), re.M)
    return None if defined else "does not define %s()" % function


def main():
    walk = list(steps())
    bad = ["%s: %s" % (path, fault(path, function)) for path, function in walk if fault(path, function)]
    if len(walk) < 20:
        bad.append("docs/architecture.md: expected two walks, got %d steps" % len(walk))
    for line in bad:
        print("# " + line)
    print("%sok 1 - each file of docs/architecture.md defines the function named with it\n1..1" % ("not " if bad else ""))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
