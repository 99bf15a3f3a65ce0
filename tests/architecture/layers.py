#!/usr/bin/env python3
"""The layers of docs/architecture.md, held by reading every include line.

A folder may include headers of itself and of the folders that its row lists. Implementer headers
(*_impl.h) may be included in the folders that LEAKS names. Prints TAP.
"""
import os
import re
import subprocess
import sys

COMMON = ["base", "memory", "ops", "sim", "device", "reduce", "optim", "nn", "data", "net", "collectives", "trace", "checkpoint", "sync",
          "process_group", "pipeline"]

# folder -> folders below it, nearest rule wins (longest prefix)
ALLOWED = {
    "common/base": [],
    "common/memory": ["common/base"],
    "common/ops": ["common/base", "common/memory"],
    "common/reduce": ["common/base", "common/ops"],
    "common/sim": ["common/base", "common/memory", "common/ops"],
    "common/device": ["common/base", "common/memory", "common/ops", "common/reduce", "common/device"],
    "common/device/sim": ["common/base", "common/memory", "common/ops", "common/sim", "common/device"],
    "common/optim": ["common/base", "common/memory", "common/ops", "common/device"],
    "common/nn": ["common/base", "common/memory", "common/ops", "common/reduce", "common/device"],
    "common/data": ["common/base", "common/ops", "common/nn"],
    "common/net": ["common/base", "common/ops"],
    "common/net/sim": ["common/base", "common/ops", "common/sim", "common/net"],
    "common/collectives": ["common/base", "common/memory", "common/ops", "common/sim", "common/device", "common/reduce", "common/net"],
    "common/trace": ["common/base", "common/memory"],
    "common/checkpoint": ["common/base", "common/memory", "common/ops", "common/device", "common/optim", "common/nn"],
    "common/sync": ["common/base", "common/memory", "common/ops", "common/sim", "common/device", "common/reduce", "common/optim",
                    "common/nn", "common/net", "common/trace"],
    "common/process_group": ["common/base", "common/memory", "common/ops", "common/device", "common/nn", "common/net", "common/collectives",
                             "common/trace", "common/sync"],
    "common/pipeline": ["common/base", "common/memory", "common/ops", "common/device", "common/reduce", "common/optim", "common/nn",
                        "common/net", "common/collectives", "common/trace", "common/sync", "common/process_group"],
    "models": ["common/base", "common/ops", "common/nn"],
    "ring": ["common/" + c for c in COMMON if c not in ("data", "checkpoint", "pipeline")],
    "ps": ["common/" + c for c in COMMON if c not in ("data", "checkpoint", "pipeline")],
    "labs": [],
    "harness": ["common/" + c for c in COMMON] + ["models", "ring", "ps", "harness", "labs"],
    "tests": ["common/" + c for c in COMMON] + ["models", "ring", "ps", "harness", "tests"],
    "docs": ["common/" + c for c in COMMON] + ["models", "ring", "ps", "harness"],
}
# Engines besides ps and ring, from the list of engines: a folder each.
with open(os.path.join(os.environ.get("SOURCE_DIR", "."), "harness/options/engines.h"), encoding="utf-8") as stream:
    for engine in re.findall(r"^ +X\(\w+, (\w+)\)", stream.read(), re.M):
        if engine not in ("none", "ps", "ring"):
            ALLOWED[engine] = ALLOWED["ps"]
            for user in ("harness", "tests", "docs"):
                ALLOWED[user].append(engine)
# Headers for implementers of an interface: who besides their own folder may include them.
IMPLEMENTERS = {"common/device/device_impl.h": ["common/device"], "common/device/host/host.h": ["common/device", "harness"]}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def rule_of(path):
    folder = os.path.dirname(path)
    while folder and folder not in ALLOWED:
        folder = os.path.dirname(folder)
    return folder


def within(path, folders):
    return any(path == f or path.startswith(f + "/") for f in folders)


def violations(path, lines):
    rule = rule_of(path)
    if not rule:
        yield "%s lies in no layer" % path
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        where = "%s:%d includes %s" % (path, number, target)
        if target.endswith(".pb-c.h"):
            if not path.endswith("_wire.c") and not path.startswith("tests/"):
                yield where + ": protobuf stays behind *_wire.c"
        elif "/" not in target:
            yield where + ": include lines start at the root"
        elif not within(target, [rule] + ALLOWED[rule]):
            yield where + ": %s may use %s" % (rule, ", ".join(ALLOWED[rule]) or "nothing")
        elif target in IMPLEMENTERS and not within(path, IMPLEMENTERS[target] + ["tests"]):
            yield where + ": for implementers alone"


def sources():
    names = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.cu", "*.cuh"], check=True, stdout=subprocess.PIPE,
                           universal_newlines=True).stdout.split()
    return [n for n in names if os.path.exists(n)]


def main():
    os.chdir(os.environ.get("SOURCE_DIR", "."))
    found = []
    files = sources()
    for path in files:
        with open(path, encoding="utf-8") as stream:
            found += violations(path, stream)
    planted = list(violations("common/ops/x.c", ['#include "ring/ring.h"'])) + \
        list(violations("models/x.c", ['#include "common/sync/engine.h"'])) + \
        list(violations("ps/x.c", ['#include "ring/ring.h"'])) + \
        list(violations("ring/x.c", ['#include "models/models.h"']))
    print("1..2")
    print("%s 1 - include lines of %d files point the way that the layers allow" % ("not ok" if found else "ok", len(files)))
    for line in found:
        print("# " + line)
    print("%s 2 - include lines that point the wrong way are found" % ("ok" if len(planted) == 4 else "not ok"))
    return 1 if found or len(planted) != 4 else 0


if __name__ == "__main__":
    sys.exit(main())
