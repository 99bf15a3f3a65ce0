#!/usr/bin/env python3
"""Writes the ```c blocks of a Markdown file, one after another, to one C file."""
import re
import sys


def main():
    source, target = sys.argv[1:3]
    with open(source, encoding="utf-8") as stream:
        text = stream.read()
    blocks = re.findall(r"^```c\n(.*?)^```$", text, re.S | re.M)
    if not blocks:
        sys.exit("%s has no C code" % source)
    with open(target, "w", encoding="utf-8") as stream:
        stream.write("\n".join(blocks))


if __name__ == "__main__":
    main()
