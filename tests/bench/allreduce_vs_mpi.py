#!/usr/bin/env python3
"""All-reduce compared with Open MPI: runs allreduce_vs_mpi for several numbers of ranks, with Open MPI's default
settings and with two others that are faster in some cases: malloc keeps freed memory, and blocks are copied either
through shared memory or by the kernel (CMA), which copies them only once. For each size, the run in which Open MPI is
fastest counts. Within a run the implementations alternate.

    python3 allreduce_vs_mpi.py [--build build] [--results FOLDER] [--ranks 2,4,8] [--sizes 4096,...] [--rounds 1]

Prints the times and ratios, and each required ratio next to the measured one. Writes them to FOLDER/allreduce.json with
their provenance. A requirement is met if every round meets it. Exits with 1 if one is not met.
"""
import argparse
import os
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import provenance  # noqa: E402
from peer_settings import KEEP_MEMORY  # noqa: E402

SETTINGS = {
    "default": ([], {}),
    "two copies": (["--mca", "btl_vader_single_copy_mechanism", "none"], KEEP_MEMORY),
    "one copy": (["--mca", "btl_vader_single_copy_mechanism", "cma"], KEEP_MEMORY),
}
MB25, MB100 = 25 << 20, 100 << 20
# algorithm in shared memory, ranks, bytes, how many times as fast as Open MPI at least
TARGETS = [("two-shot", n, MB25, 3.0) for n in (2, 4, 8)] + \
          [("ring", 2, MB25, 1.8), ("ring", 4, MB25, 1.6), ("ring", 8, MB25, 1.8)] + \
          [("two-shot", n, MB100, 2.5) for n in (2, 4, 8)] + \
          [("two-shot", 2, 4096, 1 / 1.5), ("two-shot", 8, 4096, 1 / 2.0)]


def run(program, ranks, sizes, setting):
    """{(ranks, bytes): {implementation: microseconds}}"""
    words, variables = SETTINGS[setting]
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables}
    command = ["mpirun", "--oversubscribe", "-np", str(ranks), *words, program, *map(str, sizes)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    found, names = {}, []
    for line in done.stdout.splitlines():
        if line.startswith("#"):
            names = line.replace("(us)", "").split()[2:5]
            continue
        cells = line.split()
        found[int(cells[0]), int(cells[1])] = dict(zip(names, map(float, cells[2:5])))
    return found


def better(runs):
    """For each number of ranks and each size: the run in which Open MPI is fastest, and the setting of that run."""
    chosen = {}
    for setting, found in runs:
        for key, times in found.items():
            if key not in chosen or times["MPI"] < chosen[key]["times"]["MPI"]:
                chosen[key] = {"setting": setting, "times": times}
    return chosen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--results")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default=f"4096,65536,1048576,{MB25},{MB100}")
    parser.add_argument("--rounds", type=int, default=3, help="of all runs")
    a = parser.parse_args()
    program = os.path.join(a.build, "bin", "allreduce_vs_mpi")
    sizes = [int(size) for size in a.sizes.split(",")]
    rounds = []
    print(f"{'ranks':>5} {'bytes':>10} {'Open MPI':>10} {'MPI us':>10} {'two-shot':>10} {'ring':>10} {'two-shot':>8} {'ring':>7}")
    for _ in range(a.rounds):
        runs = [(setting, run(program, int(ranks), sizes, setting)) for ranks in a.ranks.split(",") for setting in SETTINGS]
        rounds.append(better(runs))
        for (ranks, size), row in sorted(rounds[-1].items()):
            t = row["times"]
            ratios = " ".join(f"{t['MPI'] / t[name]:6.2f}x" for name in ("two-shot", "ring"))
            print(f"{ranks:5} {size:10} {row['setting']:>10} {t['MPI']:10.1f} {t['two-shot']:10.1f} {t['ring']:10.1f}"
                  f"  {ratios}", flush=True)
    targets = []
    print("\nAsked for: so many times as fast as Open MPI in its better setting")
    for name, ranks, size, least in TARGETS:
        ratios = [r[ranks, size]["times"]["MPI"] / r[ranks, size]["times"][name] for r in rounds if (ranks, size) in r]
        if not ratios:
            continue
        outcome = provenance.verdict(ratios, least, at_least=True)
        targets.append({"collective": "shm", "algorithm": name, "ranks": ranks, "size_bytes": size, "least_ratio": least,
                        "ratios": ratios, "verdict": outcome})
        print(f"  {name:<8} {ranks} ranks {size:>10} bytes: {min(ratios):.2f} to {max(ratios):.2f}, at least {least:.2f}: {outcome}")
    largest = provenance.largest_spread([t["ratios"] for t in targets])
    print(provenance.closing_line(a.rounds, largest))
    if a.results:
        rows = [{"round": i, "ranks": ranks, "size_bytes": size, "open_mpi_setting": row["setting"],
                 "median_us": row["times"]} for i, r in enumerate(rounds) for (ranks, size), row in sorted(r.items())]
        versions = {**provenance.versions_of(os.path.join(a.build, "bin", "harness")),
                    "Open MPI": provenance.first_line("mpirun", "--version").split()[-1]}
        where = provenance.here(shlex.join(["python3", *sys.argv]), versions, a.rounds, largest)
        provenance.write(os.path.join(a.results, "allreduce.json"), {"provenance": where, "rows": rows, "targets": targets})
    return 0 if all(provenance.is_met(t["verdict"]) for t in targets) else 1


sys.exit(main())
