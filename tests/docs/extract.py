#!/usr/bin/env python3
"""Writes the ```c blocks of a Markdown file, or of its section HEADING, one after another to one C file.

    extract.py FILE.md FILE.c [HEADING]
    extract.py FILE.md FILE.c HEADING START    after what the file START holds
"""
import re
import sys


def main():
    source, target = sys.argv[1:3]
    with open(source, encoding="utf-8") as stream:
        text = stream.read()
    if len(sys.argv) > 3:
        text = text.split("\n## %s\n" % sys.argv[3], 1)[1].split("\n## ", 1)[0]
    start = ""
    if len(sys.argv) > 4:
        with open(sys.argv[4], encoding="utf-8") as stream:
            start = stream.read()
    blocks = re.findall(r"^```c\n(.*?)^```$", text, re.S | re.M)
    if not blocks:
        sys.exit("%s has no C code" % source)
    with open(target, "w", encoding="utf-8") as stream:
        stream.write(start + "\n".join(blocks))


if __name__ == "__main__":
    main()
