#!/usr/bin/env python3
"""Messages, help, documents and comments keep to plain words: no pattern of words.txt occurs in them.

    test_words.py [FOLDER...]      without folders: everything
"""
import io
import os
import re
import subprocess
import sys
import tokenize

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.environ.get("SOURCE_DIR") or os.path.dirname(os.path.dirname(HERE))
HARNESS = os.path.join(os.environ.get("BUILD_DIR") or os.path.join(ROOT, "build"), "bin", "harness")
C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.S)
JOINED = re.compile(r'"\s*(?:PRI\w+\s*)?"')  # of literals that C puts together


def rules():
    for line in open(os.path.join(HERE, "words.txt"), encoding="utf-8"):
        if line.strip() and not line.startswith("#"):
            scope, rest = line.split(" | ", 1)
            pattern, instead = rest.rsplit(" | ", 1)
            yield scope.strip(), re.compile(pattern, re.I), instead.strip()


def of_c(text):
    for token in C_TOKEN.finditer(text):
        word, line = token.group(), text.count("\n", 0, token.start()) + 1
        if word[0] == '"':
            yield "text", line, word[1:-1]
        elif word[0] == "/":
            yield "any", line, word


FSTRING_MIDDLE = getattr(tokenize, "FSTRING_MIDDLE", None)  # since Python 3.12


def of_python(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == FSTRING_MIDDLE:
            yield "text", token.start[0], token.string
        elif token.type == tokenize.STRING:
            yield "text", token.start[0], token.string.strip("rbfu\"'")
        elif token.type == tokenize.COMMENT:
            yield "any", token.start[0], token.string


def of_lines(text):
    for number, line in enumerate(text.split("\n"), 1):
        yield "any" if line.lstrip().startswith("#") else "text", number, line


READERS = {".c": of_c, ".h": of_c, ".cu": of_c, ".py": of_python, ".sh": of_lines, ".md": of_lines}


def pieces(folders):
    """(scope, place, text) of all texts that people read."""
    names = subprocess.run(["git", "ls-files", "--"] + folders, cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not names:  # an archive of the sources
        names = [os.path.relpath(os.path.join(at, name), ROOT) for folder in folders or ["."]
                 for at, _, files in os.walk(os.path.join(ROOT, folder)) for name in files if "/build" not in at]
    for name in names:
        path, ending = os.path.join(ROOT, name), os.path.splitext(name)[1]
        if ending not in READERS or not os.path.isfile(path) or name.startswith("results/") and ending == ".md":
            continue
        with open(path, encoding="utf-8") as stream:
            for scope, line, text in READERS[ending](stream.read()):
                yield scope, "%s:%d" % (name, line), text


def help_texts():
    listed = subprocess.run([HARNESS, "--help"], capture_output=True, text=True).stdout
    yield "text", "harness --help", listed
    for command in re.findall(r"^  ([a-z]+) ", listed, re.M):
        out = subprocess.run([HARNESS, command, "--help"], capture_output=True, text=True).stdout
        for line in out.split("\n"):
            yield "text", "harness %s --help" % command, line


def faults(found):
    table = list(rules())
    for scope, place, text in found:
        for wanted, pattern, instead in table:
            if scope == "any" and wanted == "text":
                continue
            for hit in pattern.finditer(text):
                line = text.count("\n", 0, hit.start())
                name, _, number = place.rpartition(":")
                at = "%s:%d" % (name, int(number) + line) if number.isdigit() else place
                yield at, hit.group().strip(), instead


def main():
    folders = sys.argv[1:]
    bad = list(faults(pieces(folders)))
    if not folders and os.path.exists(HARNESS):
        bad += faults(help_texts())
    for place, words, instead in bad:
        print("# %s: '%s': write: %s" % (place, words, instead))
    print("%sok 1 - messages, help, documents and comments use plain words\n1..1" % ("not " if bad else ""))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
