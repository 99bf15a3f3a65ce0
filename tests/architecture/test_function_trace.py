#!/usr/bin/env python3
"""Counts the files through which a gradient passes on its way to the update, in a trace of all functions that are called.

The build with the thread sanitizer has every function instrumented (gcc -finstrument-functions); function_trace.c records
which ones are entered. The stretch is that from on_ready() of a step's last gradient to the call of optimizer_update(), on those
threads of all ranks that run the engine; on ranks that do not update, to the return of trainer_update().

Two limits: of all source files; and of the path, in which a layer behind one interface (INTERFACES) counts as that one file, since
the files under it can be exchanged and the path stays the same, and what only observes (OBSERVERS) does not count. An inline
function of a header belongs to the files that include it.

    python3 test_function_trace.py [--list]    also lists files and functions
"""
import collections
import glob
import os
import subprocess
import sys
import tempfile

import tap
from tap import expect

ROOT = os.environ.get("SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD_DIR", "build-tsan"))
PROGRAM = os.path.join(BUILD, "bin", "harness")
RECORDER = os.path.join(BUILD, "tests", "function_trace.so")
STEP = 4  # of the job: set-up is over
LIST = "--list" in sys.argv

INTERFACES = {"common/net": "common/net/transport.c", "common/device": "common/device/device.c",
              "common/reduce": "common/reduce/reduce.c", "common/process_group": "common/process_group/process_group.c", "common/collectives": "common/collectives/collective.c",
              "ring/all_reduce": "common/collectives/collective.c"}
ENGINES = ("ps/", "ring/")
OBSERVERS = ("common/sync/anatomy", "common/base/", "common/trace/", "common/memory/ledger.c", "common/net/status_table.", "harness/train/step_log.")


def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def addresses():
    """Of functions by name."""
    found = collections.defaultdict(list)
    for line in run("nm", PROGRAM).splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in "tT":
            found[words[2]].append(words[0])
    return found


def one(known, name):
    expect(len(known[name]) == 1, f"expected one function {name}(), got {len(known[name])}")
    return known[name][0]


def in_tree(path):
    """The file's name in the tree. A compiler cache may hold objects of another copy of the tree, with that copy's paths."""
    parts = os.path.normpath(path).split(os.sep)
    for first in range(len(parts)):
        name = os.path.join(*parts[first:])
        if parts[first] and os.path.isfile(os.path.join(ROOT, name)):
            return name
    return os.path.relpath(path, ROOT)


def trace(call, returns, *options):
    """{file: {(rank, thread, function)}}. Ranks are numbered in the order of their process ids."""
    known = addresses()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "trace")
        env = dict(os.environ, LD_PRELOAD=RECORDER, TSAN_OPTIONS="report_bugs=0", FUNCTION_TRACE_OUT=out, FUNCTION_TRACE_COUNT=str(STEP),
                   FUNCTION_TRACE_BEGIN=one(known, "on_ready"), FUNCTION_TRACE_CALL=one(known, call),
                   FUNCTION_TRACE_RETURN=one(known, returns))
        run(PROGRAM, "--gpus", "2", "--model", "toy", "--data", "synthetic", "--batch", "4", "--steps", str(STEP + 2),
            *options, env=env, timeout=120)
        files = collections.defaultdict(set)
        traces = sorted(glob.glob(out + ".*"), key=lambda name: int(name.rsplit(".", 1)[1]))
        expect(len(traces) == 2, f"expected traces of 2 ranks, got {len(traces)}")
        for rank, name in enumerate(traces):
            with open(name, encoding="ascii") as stream:
                entries = [line.split() for line in stream]
            places = run("addr2line", "-f", "-e", PROGRAM, input="\n".join(at for _, at in entries)).splitlines()
            for (thread, _), function, place in zip(entries, places[0::2], places[1::2]):
                files[in_tree(place.rsplit(":", 1)[0])].add((rank, int(thread), function))
    return files


def threads(entries):
    return {(rank, thread) for rank, thread, _ in entries}


def on_path(name):
    for folder, interface in INTERFACES.items():
        if name.startswith(folder + "/"):
            return interface
    return name


@tap.cases([
    ("policy ps=dp", 15, 31, "optimizer_update", "trainer_update", "--mode", "ps", "--policy", "ps=dp",
     "--progress", "thread"),
    ("collective ring", 13, 30, "optimizer_update", "trainer_update", "--mode", "ring", "--algorithm", "ring",
     "--progress", "thread"),
])
def a_gradient_passes_through_few_files(most, most_of_all, call, returns, *options):
    files = trace(call, returns, *options)
    for name in sorted(files) if LIST else ():
        print(f"# {name}: {', '.join(sorted({function for _, _, function in files[name]}))}")
    ours = {place for name in files if name.startswith(ENGINES) for place in threads(files[name])}
    every = {name for name in files if threads(files[name]) & ours and name.endswith(".c") and
             not name.startswith(("..", os.path.relpath(BUILD, ROOT)))}
    path = {on_path(name) for name in every if not name.startswith(OBSERVERS)}
    ranks = collections.defaultdict(set)
    for rank, thread in ours:
        ranks[rank].add(thread)
    print(f"# {len(path)} files on the path, {len(every)} total")
    expect(all(len(found) == 2 for found in ranks.values()),
           f"expected one hand-over per rank, from the compute thread to the agent: two threads that run the engine, got {dict(ranks)}")
    expect(len(path) <= most, f"expected at most {most} files on the path, got {len(path)}:", *sorted(path))
    expect(len(every) <= most_of_all, f"expected at most {most_of_all} files, got {len(every)}:", *sorted(every))


if __name__ == "__main__":
    sys.argv = [word for word in sys.argv if word != "--list"]
    sys.exit(tap.main())
