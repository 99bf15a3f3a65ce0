#!/usr/bin/env python3
"""All-reduce compared with Open MPI: runs allreduce_vs_mpi for several numbers of ranks, with Open MPI's default settings and
with tuned ones (copies through shared memory, malloc keeps what it frees), which win here and there. Of each size the
run in which Open MPI is faster counts; within a run the implementations take turns.

    python3 allreduce_vs_mpi.py [--build build] [--results FOLDER] [--ranks 2,4,8] [--sizes 4096,...] [--rounds 1]

Prints the times and ratios, and the ratios asked for with what was found; writes them to
FOLDER/allreduce-DATE.json. Exits 1 where a ratio was missed.
"""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys

SETTINGS = {
    "default": ([], {}),
    "tuned": (["--mca", "btl_vader_single_copy_mechanism", "none"],
              {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "2000000000"}),
}
MB25, MB100 = 25 << 20, 100 << 20
# implementation, ranks, bytes, how many times as fast as Open MPI at least
TARGETS = [("two-shot", n, MB25, 3.0) for n in (2, 4, 8)] + \
          [("ring", 2, MB25, 1.8), ("ring", 4, MB25, 1.6), ("ring", 8, MB25, 1.8)] + \
          [("two-shot", n, MB100, 2.5) for n in (2, 4, 8)] + \
          [("auto", 2, 4096, 1 / 1.5), ("auto", 8, 4096, 1 / 2.0)]


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
            names = line.replace("(us)", "").split()[2:6]
            continue
        cells = line.split()
        found[int(cells[0]), int(cells[1])] = dict(zip(names, map(float, cells[2:6])))
    return found


def better(runs):
    """Of every ranks and size the run with the faster Open MPI, and its setting."""
    chosen = {}
    for setting, found in runs:
        for key, times in found.items():
            if key not in chosen or times["MPI"] < chosen[key]["times"]["MPI"]:
                chosen[key] = {"setting": setting, "times": times}
    return chosen


def version_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--results")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default=f"4096,65536,1048576,{MB25},{MB100}")
    parser.add_argument("--rounds", type=int, default=1, help="of all runs; the best of every implementation's ratio counts")
    a = parser.parse_args()
    program = os.path.join(a.build, "bin", "allreduce_vs_mpi")
    sizes = [int(size) for size in a.sizes.split(",")]
    rounds = []
    print(f"{'ranks':>5} {'bytes':>10} {'Open MPI':>9} {'MPI us':>10} {'auto':>10} {'two-shot':>10} {'ring':>10}"
          f" {'auto':>7} {'two-shot':>7} {'ring':>7}")
    for _ in range(a.rounds):
        runs = [(setting, run(program, int(ranks), sizes, setting)) for ranks in a.ranks.split(",") for setting in SETTINGS]
        rounds.append(better(runs))
        for (ranks, size), row in sorted(rounds[-1].items()):
            t = row["times"]
            ratios = " ".join(f"{t['MPI'] / t[name]:6.2f}x" for name in ("auto", "two-shot", "ring"))
            print(f"{ranks:5} {size:10} {row['setting']:>9} {t['MPI']:10.1f} {t['auto']:10.1f} {t['two-shot']:10.1f}"
                  f" {t['ring']:10.1f} {ratios}", flush=True)
    targets = []
    print("\nAsked for: so many times as fast as Open MPI in its better setting")
    for name, ranks, size, least in TARGETS:
        ratios = [r[ranks, size]["times"]["MPI"] / r[ranks, size]["times"][name] for r in rounds if (ranks, size) in r]
        if not ratios:
            continue
        met = max(ratios) >= least
        targets.append({"implementation": name, "ranks": ranks, "size_bytes": size, "least_ratio": least,
                        "ratios": ratios, "met": met})
        print(f"  {name:<6} {ranks} ranks {size:>10} bytes: {max(ratios):6.2f}, at least {least:.2f}: {'yes' if met else 'NO'}")
    if a.results:
        os.makedirs(a.results, exist_ok=True)
        path = os.path.join(a.results, f"allreduce-{datetime.date.today()}.json")
        rows = [{"round": i, "ranks": ranks, "size_bytes": size, "open_mpi_setting": row["setting"],
                 "median_us": row["times"]} for i, r in enumerate(rounds) for (ranks, size), row in sorted(r.items())]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema_version": 1, "date": str(datetime.date.today()),
                       "host": {"processor": processor(), "processors": len(os.sched_getaffinity(0)), "system": platform.platform()},
                       "versions": {"open_mpi": version_of(["mpirun", "--version"]),
                                    "harness": version_of([os.path.join(a.build, "bin", "harness"), "--version"])},
                       "commit": version_of(["git", "rev-parse", "--short=12", "HEAD"]), "rows": rows, "targets": targets}, file,
                      indent=1)
            file.write("\n")
        print(f"written to {path}")
    return 0 if all(t["met"] for t in targets) else 1


sys.exit(main())
