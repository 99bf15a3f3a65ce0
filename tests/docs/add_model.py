#!/usr/bin/env python3
"""Follows docs/add-a-model.md: writes the two ```c blocks of the page as models/tiny.c and main.c, and models/models.h with
the page's row at the end of MODEL_LIST."""
import os
import re
import sys


def write(folder, name, text):
    os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
        stream.write(text)


def main():
    page, header, target = sys.argv[1:4]
    with open(page, encoding="utf-8") as stream:
        text = stream.read()
    with open(header, encoding="utf-8") as stream:
        models = stream.read()
    row = re.search(r"^    (X\(tiny,.*\))$", text, re.M).group(1)
    model, program = re.findall(r"^```c\n(.*?)^```$", text, re.S | re.M)
    write(target, "models/tiny.c", model)
    write(target, "main.c", program)
    write(target, "models/models.h",
          re.sub(r"(#define MODEL_LIST\(X\)(?:[^\n]*\\\n)*[^\n]*)", lambda m: m.group(1) + " " + row, models, count=1))


if __name__ == "__main__":
    main()
