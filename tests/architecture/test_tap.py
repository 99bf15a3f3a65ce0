"""What tests/support/tap.py does with a test that fails: it fails, unless the machine stood still meanwhile."""
import os
import subprocess
import sys
import tempfile

from tap import cases, expect_equal, main

FAILS_ONCE = """
import subprocess
from tap import expect, main, test
tries = []

@test
def it_fails_the_first_time():
    tries.append(1)
    subprocess.run(["sh", "-c", {command!r}], check=True)
    expect(len(tries) > 1, "failed")

main()
"""


@cases([("the machine runs", "true", 1),
        ("the machine stands still for more than a second", "kill -STOP $PPID; sleep 1.5; kill -CONT $PPID", 0)])
def a_test_that_fails_once_runs_again_only_where_the_machine_stood_still(command, code):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(FAILS_ONCE.format(command=command))
        file.flush()
        done = subprocess.run([sys.executable, "-B", file.name], env=dict(os.environ), capture_output=True, text=True, check=False)
    expect_equal(done.returncode, code, done.stdout + done.stderr)


main()
