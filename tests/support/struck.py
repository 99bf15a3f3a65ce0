"""Faults of a run: a rank gets a signal in the middle of an operation."""
import os
import subprocess

from program import BUILD, SLOWER, Run, ends_within
from tap import expect

AT_OPERATION = os.path.abspath(os.path.join(BUILD, "tests", "at_operation"))
HOLD_RANK = os.path.abspath(os.path.join(BUILD, "tests", "hold_rank.so"))
GONE = 15      # promised: 5 s after a failure; tests allow three times what is promised
GONE_WITH_LAUNCHER = 6  # promised: 2 s

LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "8", "--threads", "1", "--steps", "10000000"]
RESNET = ["--model", "resnet18", "--data", "synthetic:3x32x32:10", "--batch", "4", "--threads", "1", "--steps", "10000000"]


def held(job, rank):
    """The environment of a run whose rank is stopped before its main()."""
    return {"LD_PRELOAD": HOLD_RANK, "HOLD_JOB": job, "HOLD_RANK": str(rank)}


def strike(run, job, rank, operation, step, number):
    """Signals the rank once it is in `operation` at `step` or later; returns its process and what its status table shows."""
    pid = run.wait_for_rank(job, rank)
    done = subprocess.run([AT_OPERATION, str(pid), operation, str(step), str(int(number))], capture_output=True, text=True,
                          timeout=150 * SLOWER, check=False)
    if done.returncode != 0:
        ends_within(run.process, GONE)  # Waits, so that the program can report why the rank has gone.
    expect(done.returncode == 0, done.stderr, run.peek())
    return pid, done.stdout.strip()


def reach(run, job, rank, step):
    """Waits until the rank is at `step` or later."""
    return strike(run, job, rank, "forward", step, 0)[0]


def errors(result):
    return [line for line in result.lines() if " warning: " not in line]


def cause(result):
    """The only line of errors: the cause that ended the run."""
    lines = errors(result)
    expect(len(lines) == 1, f"{len(lines)} lines, expected one", result)
    return lines[0]


def start(*words, **popen):
    return Run(*words, **popen)
