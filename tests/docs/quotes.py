#!/usr/bin/env python3
"""Documents quote the code as it is: a ```c block after a link to a source file holds consecutive lines of that file. TAP."""
import os
import re
import sys

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
LINK = re.compile(r"\]\(\.\./([\w/.-]+\.[ch])\)")


def quotes(text):
    """(file, quoted lines) of every block; the file is the one that was linked to last."""
    parts = re.split(r"^```c\n(.*?)^```$", text, flags=re.S | re.M)
    linked = None
    for prose, block in zip(parts[::2], parts[1::2]):
        links = LINK.findall(prose)
        linked = links[-1] if links else linked
        yield linked, block


def is_quoted(block, source):
    return ("\n" + block) in ("\n" + source)


def main(documents):
    print(f"1..{len(documents) + 1}")
    code = 0
    for number, document in enumerate(documents, 1):
        with open(os.path.join(ROOT, document), encoding="utf-8") as stream:
            found = list(quotes(stream.read()))
        wrong = []
        for path, block in found:
            with open(os.path.join(ROOT, path), encoding="utf-8") as stream:
                if not is_quoted(block, stream.read()):
                    wrong.append(f"{path} does not contain:\n{block}")
        good = bool(found) and not wrong
        print(f"{'ok' if good else 'not ok'} {number} - {document} quotes {len(found)} passages as they stand in the code")
        for text in wrong:
            print("".join(f"# {line}\n" for line in text.splitlines()), end="")
        code |= not good
    good = not is_quoted("int b;\n", "int a;\n")
    print(f"{'ok' if good else 'not ok'} {len(documents) + 1} - a line that is not in the file is found")
    return code | (not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
