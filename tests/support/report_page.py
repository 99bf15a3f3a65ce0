"""Pages of `harness report` in tests: files in a folder that goes with the test, and what a page and its CSV hold."""
import csv
import os
import tempfile

from browser import Browser
from program import harness
from tap import expect_equal

folder = tempfile.TemporaryDirectory()


def at(name):
    return os.path.join(folder.name, name)


def report(*words):
    result = harness("report", *words)
    expect_equal(result.code, 0, "exit code", result)
    return result


def csv_rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def config_files(page):
    """Texts of the configuration files on a page, and what their headings name."""
    with Browser() as browser:
        browser.open(page)
        return browser.evaluate("""Array.from(document.querySelectorAll('pre.config')).map(p => [p.textContent, p.closest('details').querySelector('summary').textContent])""")


HOSTILE = "<script>alert(1)</script>\"'&" + "Ω" * 100 + "\u202eabc\u05d0\u05d1" + "x" * 100
