"""The comparison with PyTorch works where there is none, too, and its results add up in pieces."""
import json
import os
import subprocess
import sys
import tempfile

from program import PROGRAM
from tap import expect, expect_equal, main, test

TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")


def train(*words):
    return subprocess.run([sys.executable, TRAIN, "--harness", PROGRAM, "--python", "/nonexistent", *words],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False)


@test
def results_are_added_case_by_case():
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        for case in ("wine_mlp_2ranks", "wine_mlp"):
            done = train("--quick", "--rounds", "2", "--cases", case, "--results", folder)
            expect_equal(done.returncode, 0, "exit code", done.stderr)
        path = os.path.join(folder, "speed-quick.json")
        expect_equal(os.listdir(folder), [os.path.basename(path)], "files")
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        expect_equal([r["name"] for r in results["rows"]], ["wine_mlp", "wine_mlp_2ranks"], "cases")
        for row in results["rows"]:
            expect(len(row["ours_ms"]) == 2 and min(row["ours_ms"]) > 0, row)
            expect(min(row["proportional_mib"]) > 0, row)
        expect_equal(results["provenance"]["rounds"], 2, "rounds")
        expect(results["provenance"]["spread"] > 0, results["provenance"])
        text = train("--show", path).stdout
        expect("| wine_mlp, batch 32 | 2 x 1 |" in text, "a row in the table", text)


@test
def a_case_that_is_not_known_is_refused():
    done = train("--cases", "none-such")
    expect_equal(done.returncode, 64, "exit code", done.stderr)
    expect("'none-such'" in done.stderr, done.stderr)


main()
