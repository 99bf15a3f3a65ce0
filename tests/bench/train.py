#!/usr/bin/env python3
"""Training steps of this program compared with PyTorch's, interleaved: ratios of step times.

    train.py [--quick] [--cases a,b | --list] [--rounds N] [--harness build/bin/harness] [--python PYTHON ...]
             [--results FOLDER | --show FILE]

Peers are every Python given (else python3, /usr/bin/python3 and $PSRING_PYTHON) that has torch and torchvision, each
in the settings that may make it fast: the environments of peer_settings.py; channels_last for convolutional networks; the
fused Adam of newer versions. A setting is dropped after the first round if it takes more than 1.3 times as long as the best
one.

In every round ours and each setting run once, in turn. A round's ratio is ours / the setting that is best over all
rounds; reported are the median ratio and the smallest and largest one, and a target is met if all of them are. Results are
added to FOLDER/speed.json with their provenance, case by case, so that a long comparison can be run in pieces; --show prints
the table of such a file.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import peer_settings  # noqa: E402
import provenance  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
SMALL_IMAGES = ["--data", "synthetic:3x32x32:10"]
CLASSIFIER = ["--head", "cls"]
# model: batch, our options, steps a run (quick: a quarter), targets of one thread and of two ranks
MODELS = {
    "wine_mlp": (32, [], 2000, 0.15, None),
    "resnet18": (32, SMALL_IMAGES, 20, 0.70, 0.45),
    "resnet50": (4, ["--image", "224"], 4, 0.72, 0.62),
    "bert_base": (4, CLASSIFIER, 3, 0.88, 0.62),
    "bert": (8, CLASSIFIER, 12, 0.85, None),
    "gpt2": (4, [], 2, 0.88, None),
}
PSS_TARGET_MIB = {"resnet18_2ranks": 250}
CONVOLUTIONAL = ("resnet18", "resnet50")
TRANSFORMERS = ("bert_base", "bert", "gpt2")
GIVE_UP = 1.3


def list_cases():
    found = []
    for suffix, ranks, threads in (("", 1, 1), ("_2threads", 1, 2), ("_2ranks", 2, 1)):
        for model, (batch, options, steps, alone, together) in MODELS.items():
            target = {"": alone, "_2ranks": together}.get(suffix)
            found.append({"name": model + suffix, "model": model, "batch": batch, "ranks": ranks, "threads": threads,
                          "options": options, "steps": steps, "target": target})
    return found


# ---- ours ---------------------------------------------------------------------------------------

def ours(harness, case, steps):
    optimizer = ["--optimizer", "sgd", "--lr", "0.01", "--momentum", "0.9"]
    if case["model"] in TRANSFORMERS:
        optimizer = ["--optimizer", "adam", "--lr", "0.0001"]
    command = [harness, "run", "--mode", "none" if case["ranks"] == 1 else "ring", "--model", case["model"],
               "--batch", str(case["batch"]), "--threads", str(case["threads"]), "--steps", str(steps), "--warmup", "3",
               "--eval-every", "-1", "--json", "-", "--quiet"] + case["options"] + optimizer
    if case["ranks"] > 1:
        command += ["--gpus", str(case["ranks"]), "--bucket-view"] # as the peer: gradient_as_bucket_view
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    job = json.loads(out)["jobs"][0]
    # The peer's tensors are made before its steps.
    load = statistics.median(job["ranks"][0]["data_s"])
    return {"step_ms": (job["step_time"]["median_s"] - load) * 1e3,
            "proportional_mib": max(r["process"]["proportional_bytes"] for r in job["ranks"]) / 2**20}


# ---- PyTorch ------------------------------------------------------------------------------------

def find_peers(candidates):
    peers = {}
    for python in candidates:
        version = provenance.first_line(python, "-c", "import torch, torchvision; print(torch.__version__)")
        if version:
            peers.setdefault(version, python)
    return peers


def settings(python, version, case):
    """Environments and options in which a peer may be fast; all are tried."""
    options = [[]]
    if case["model"] in CONVOLUTIONAL:
        options.append(["--channels-last"])
    if case["model"] not in CONVOLUTIONAL and not version.startswith("1."):
        options.append(["--fused"])
    found = []
    for name, environment in peer_settings.environments(version):
        for option in options:
            label = ", ".join(word for word in ("torch " + version, name, *option) if word)
            found.append({"python": python, "environment": environment, "options": option, "label": label})
    return found


def peer(setting, case, steps):
    command = [setting["python"], os.path.join(HERE, "pytorch_train.py"), case["model"], str(case["batch"]), str(steps),
               str(case["threads"]), "ddp" if case["ranks"] > 1 else "single", str(case["ranks"])] + setting["options"]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                         env=dict(os.environ, **setting["environment"]), timeout=900, check=False)
    if out.returncode:
        print("  %s: %s" % (setting["label"], (out.stderr.strip().splitlines() or ["no output"])[-1]), file=sys.stderr)
        return None
    return json.loads(out.stdout.strip().splitlines()[-1])


# ---- one case -----------------------------------------------------------------------------------

def measure(args, case, peers):
    steps = max(case["steps"] // (4 if args.quick else 1), 1)
    tried = [s for version, python in peers.items() for s in settings(python, version, case)]
    mine, theirs = [], {s["label"]: [] for s in tried}
    for round_ in range(args.rounds):
        mine.append(ours(args.harness, case, steps))
        for s in list(tried):
            result = peer(s, case, steps)
            if result is None:
                tried.remove(s)
                theirs.pop(s["label"])
            else:
                theirs[s["label"]].append(result["step_ms"])
        if round_ == 0 and theirs:
            best = min(t[0] for t in theirs.values())
            tried = [s for s in tried if theirs[s["label"]][0] <= GIVE_UP * best]
        print("  %s, round %d of %d: ours %.3f ms%s" % (case["name"], round_ + 1, args.rounds, mine[-1]["step_ms"],
              "".join(", %s %.3f" % (k, v[-1]) for k, v in theirs.items() if len(v) > round_)), file=sys.stderr, flush=True)
    row = {k: case[k] for k in ("name", "model", "batch", "ranks", "threads", "target")}
    row.update(rounds=args.rounds, steps_a_run=steps, ours_ms=[m["step_ms"] for m in mine],
               proportional_mib=[m["proportional_mib"] for m in mine], peers_ms=theirs)
    whole = {k: v for k, v in theirs.items() if len(v) == args.rounds}
    if whole:
        best = min(whole, key=lambda k: statistics.median(whole[k]))
        ratios = [m["step_ms"] / t for m, t in zip(mine, whole[best])]
        row.update(best_peer=best, ratio=statistics.median(ratios), ratio_smallest=min(ratios), ratio_largest=max(ratios))
    return row


# ---- results ------------------------------------------------------------------------------------

def ratios_of(row):
    """The ratio of each round; no ratios if there is no peer."""
    return [ours / theirs for ours, theirs in zip(row["ours_ms"], row["peers_ms"].get(row.get("best_peer"), []))]


def add_provenance(results, versions):
    results["provenance"] = provenance.here(shlex.join(["python3", *sys.argv]), versions, min(r["rounds"] for r in results["rows"]),
                                            provenance.largest_spread([ratios_of(r) or r["ours_ms"] for r in results["rows"]]))


def milliseconds(values):
    return "%.3f" % statistics.median(values)


def table(rows):
    yield "| case | ranks x threads | ours, ms | PyTorch's best, ms | ratio (smallest to largest) | target | PSS a rank, MiB | PyTorch's best setting |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for r in rows:
        pss = "%.0f" % max(r["proportional_mib"])
        if r["name"] in PSS_TARGET_MIB:
            limit = PSS_TARGET_MIB[r["name"]]
            pss += " (at most %d: %s)" % (limit, provenance.verdict(r["proportional_mib"], limit))
        theirs, ratio, target, best = "-", "-", "-", "none found"
        if "ratio" in r:
            theirs = milliseconds(r["peers_ms"][r["best_peer"]])
            ratio = "%.3f (%.3f to %.3f)" % (r["ratio"], r["ratio_smallest"], r["ratio_largest"])
            if r["rounds"] == 1:
                ratio = "%.3f" % r["ratio"]
            best = r["best_peer"]
            if r["target"] is not None:
                target = "%.2f: %s" % (r["target"], provenance.verdict(ratios_of(r), r["target"]))
        yield "| %s, batch %d | %d x %d | %s | %s | %s | %s | %s | %s |" % (
            r["model"], r["batch"], r["ranks"], r["threads"], milliseconds(r["ours_ms"]), theirs, ratio, target, pss, best)


def render(results):
    where = results["provenance"]
    return "\n".join([
        "# Training steps compared with PyTorch", "",
        "%s, %d processors, %s; %s; commit %s; %s." % (
            where["host"]["processor"], where["host"]["processors"], where["host"]["system"],
            ", ".join("%s %s" % item for item in where["versions"].items()), where["commit"], where["date"]), "",
        "Interleaved rounds (%s); ratio = our step time / that of PyTorch in the best of its settings, median of the rounds."
        % ", ".join(sorted({"%d x %d steps" % (r["rounds"], r["steps_a_run"]) for r in results["rows"]})),
        "PSS: proportional set size, shared pages counted by share. Made by `make bench` (tests/bench/train.py).", "",
        *table(results["rows"]), ""])


def add_results(path, versions, row):
    results = {"rows": []}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            results = json.load(stream)
    order = [c["name"] for c in list_cases()]
    results["rows"] = sorted([r for r in results["rows"] if r["name"] != row["name"]] + [row],
                             key=lambda r: order.index(r["name"]))
    add_provenance(results, versions)
    provenance.write(path, results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 rounds of short runs: to see that it works")
    parser.add_argument("--rounds", type=int, help="5, quick 2")
    parser.add_argument("--cases", help="names from --list, with commas")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--harness", default=os.path.join(ROOT, "build", "bin", "harness"))
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--results", help="folder; none: nothing is written")
    parser.add_argument("--show", help="a file of results: print its table, measure nothing")
    args = parser.parse_args()
    if args.show:
        with open(args.show, encoding="utf-8") as stream:
            print(render(json.load(stream)))
        return 0
    cases = list_cases()
    if args.list:
        print("\n".join(c["name"] for c in cases))
        return 0
    wanted = args.cases.split(",") if args.cases else [c["name"] for c in cases]
    for name in wanted:
        if name not in [c["name"] for c in cases]:
            print("train.py: --cases: expected a case of --list, got '%s'" % name, file=sys.stderr)
            return 64
    args.rounds = args.rounds or (2 if args.quick else 5)
    peers = find_peers(args.python or [p for p in ("python3", "/usr/bin/python3", os.environ.get("PSRING_PYTHON")) if p])
    if not peers:
        print("no Python with torch and torchvision found (Debian's packages: python3-torch, python3-torchvision): "
              "ours alone", file=sys.stderr)
    versions = {**provenance.versions_of(args.harness), **{"torch of " + python: version for version, python in peers.items()}}
    rows = []
    for case in cases:
        if case["name"] not in wanted:
            continue
        rows.append(measure(args, case, peers))
        if args.results:
            add_results(os.path.join(args.results, "speed-quick.json" if args.quick else "speed.json"), versions, rows[-1])
    results = {"rows": rows}
    add_provenance(results, versions)
    print(render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
