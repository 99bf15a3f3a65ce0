"""The programs of docs/examples have at most 60 lines each, and print what a tutorial on the same calls prints."""
import glob
import os
import subprocess

from program import PROGRAM
from tap import cases, expect, expect_equal, main, test

FOLDER = os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "docs", "examples")
PRINTED = {
    "all_reduce": ["max, rank 0: 1 -> 2", "max, rank 1: 2 -> 2", "mean, rank 0: 1 -> 1.5", "mean, rank 1: 2 -> 1.5",
                   "sum, rank 0: 1 -> 3", "sum, rank 1: 2 -> 3"],
    "gather": ["all_gather, rank 0: 0 1 -> 0 10", "all_gather, rank 1: 10 11 -> 0 10", "all_to_all, rank 0: 0 1 -> 0 10",
               "all_to_all, rank 1: 10 11 -> 1 11", "broadcast, rank 0: 0 1 -> 0 1", "broadcast, rank 1: 10 11 -> 0 1",
               "reduce_scatter, rank 0: 0 1 -> 10 0", "reduce_scatter, rank 1: 10 11 -> 12 0"],
    "send": [f"rank {rank}: 999, then a matrix of [2, 3] from 1 to 6" for rank in (0, 1)],
    "barrier": ["rank 0 waited 0.0 s", "rank 1 waited 0.3 s", "rank 2 waited 0.3 s"],
    "groups": ["rank 0, rank 0 of its group: 1 -> 3", "rank 1, rank 1 of its group: 2 -> 3",
               "rank 2, rank 0 of its group: 3 -> 7", "rank 3, rank 1 of its group: 4 -> 7"],
}


@cases([(name, name) for name in PRINTED])
def an_example_prints_what_its_ranks_have(name):
    done = subprocess.run([os.path.join(os.path.dirname(PROGRAM), "example_" + name)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60, check=False)
    found = sorted(done.stdout.splitlines())
    if name == "barrier":  # a busy machine takes longer, and never less long
        waited = [float(line.split()[3]) for line in found]
        expect(done.returncode == 0 and waited[1] >= 0.2 and waited[2] >= 0.2, done.stdout)
    else:
        expect_equal((done.returncode, found), (0, PRINTED[name]), "exit code and lines")


@test
def every_example_has_a_case_and_at_most_60_lines():
    files = sorted(glob.glob(FOLDER + "/*.c"))
    expect_equal([os.path.basename(path)[:-2] for path in files], sorted(PRINTED), "examples")
    for path in files:
        with open(path, encoding="utf-8") as file:
            count = len(file.readlines())
        expect(count <= 60, f"{path} has {count} lines")


main()
