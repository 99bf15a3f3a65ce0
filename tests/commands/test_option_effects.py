"""Every option of `run` under every engine and on every device: the table that `harness run --help=effects` prints, cell by
cell. Where a cell says yes a field of the results changes when the option is given (option_fields.py); where it refuses, the program refuses, with that reason;
where it names a reason for no effect, nothing changes and a note says so.

    test_option_effects.py [--cuda] [--long]    --cuda: the column cuda, with as many GPUs as ranks: real ones, or emulated ones
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from option_fields import field_of
from program import PROGRAM, SLOWER, STARTED_BY_OTHERS, harness
from tap import Skip, cases, expect, expect_equal, long_cases, main, more_cases, more_test, test

CUDA = "--cuda" in sys.argv
if CUDA:
    sys.argv.remove("--cuda")
ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
ENGINES = {"none": ["--mode", "none"], "ring": ["--mode", "ring"], **{f"ps={p}": ["--mode", "ps", "--policy", p] for p in ("sync", "ssp", "async", "dp")}}
DEVICES = ("cuda",) if CUDA else ("cpu", "reference", "sim", "--plan")
REAL = ("cpu", "reference", "cuda")
SIM = "sim:dgx-a100-40g"
TOY = {"--model": "toy", "--batch": "4", "--steps": "3", "--warmup": "1", "--eval-every": "-1"}
LENET = {"--model": "lenet"}
BERT = {"--model": "bert", "--layers": "1", "--hidden": "16", "--heads": "2", "--vocabulary": "64", "--positions": "16", "--sequence": "8"}
WINE = {"--steps": None, "--epochs": "1", "--data": "wine", "--model": "wine_mlp", "--batch": "32"}
RESNET = {"--model": "resnet18", "--image": "8", "--batch": "2", "--steps": "1", "--warmup": "0"}
SMALL_BUCKETS = {"--bucket-cap-mb": "0.0001"}  # of toy: each parameter has its own
THREE = {**LENET, "--gpus": "3", "--steps": "8"}                        # from three ranks on a sum depends on its order, and on when it is divided
LINK = ("100MB/s,20ms", 0.02)                  # and what a step communicates at least, in seconds
SLOW_KEYS = {"--link": "100MB/s,5ms", "--partition-bytes": "100"}  # messages of a few elements that wait for each other
SLOWER_BY = 100
REPEATED = {"jobs.parameter_hash", "jobs.ranks.losses", "jobs.memory_imbalance.maximum_bytes"}  # which equal real runs have alike
ADAM = {"--optimizer": "adam"}
OTHER_POLICY = {"none": "apex", "ring": "zero1", "ps=sync": "ssp", "ps=ssp": "sync", "ps=async": "sync", "ps=dp": "sync"}
OTHER_DIVISION = {engine: "after" if engine == "ring" else "before" for engine in ENGINES}
OTHER_HOSTS = {engine: "2" if engine == "ps=dp" else "1" for engine in ENGINES}  # DataParallel is on one machine
OTHER_CONSISTENCY = {"ps=sync": "async", "ps=ssp": "sync", "ps=async": "sync"}

# option: (words given; what the other words are, as far as they differ from TOY). "@" is a folder of the run.
TRIALS = {
    "tf32": ("", LENET), "bf16": ("", {}), "fp16": ("", {}), "benchmark": ("", {}), "cuda-graph": ("", {}), "share-gpu": ("", {}),
    "gpus": ("3", {}), "prefetch": ("off", {}), "steps": ("4", {}), "warmup": ("2", {}), "accumulate": ("2", {}),
    "stages": ("2", {}), "stages-on": ("devices", {"--stages": "2", "--gpus": "2"}), "schedule": ("gpipe", {"--stages": "2", "--accumulate": "4"}),
    "remote-stage": ("local", {}), "serve-stage": ("127.0.0.1:9", {"--json": None}),  # which needs a key
    "epochs": ("2", WINE), "seed": ("2", {}), "threads": ("3", {**LENET, "--threads": "1"}), "bind": ("core", {"--threads": "1"}),
    "loss-reduction": ("sum", {}), "eval-every": ("1", {"--eval-every": None}), "target-loss": ("1000", {"--eval-every": None}),
    "target-accuracy": ("0.0001", {"--eval-every": None, "--model": "wine_mlp", "--data": "wine"}), "json": ("@/result.json", {"--json": None}),
    "repeat": ("2", {}), "config": ("@/missing.json", {}), "verbose": ("", {"--json": None}), "print-steps": ("", {"--json": None}), "print-shapes": ("", {"--json": None}),
    "trace": ("@/trace.json", {}), "report": ("@/report.html", {}), "trace-steps": ("1:2", {"--trace": "@/trace.json"}), "quiet": ("", {}), "log-level": ("error", {}),
    "plan": ("", {}), "rendezvous": ("env://", {}), "connect-timeout": ("300ms", {"--rendezvous": "file://@/ranks"}),
    "nnodes": ("2", {}), "node-rank": ("1", {}), "master-addr": ("127.0.0.1", {}), "master-port": ("29501", {}),
    "isolated": ("", {"--steps": "6"}), "progress": ("thread", {}), "jitter": ("3", {**LENET, "--batch": "64"}), "nodes": ("2", {**LENET, "--batch": "64"}), "adapters": ("1", {**LENET, "--batch": "64"}),
    "oversubscription": ("100", {**LENET, "--batch": "64"}), "gpu": ("h100", {**LENET, "--batch": "64"}), "per-host": (OTHER_HOSTS, {**LENET, "--gpu": "v100"}),
    "nvlink": ("", {"--model": "vgg16", "--image": "32", "--batch": "1", "--gpu": "v100"}), "topology": (f"{ROOT}/tests/commands/topologies/workstation-5.txt", {**LENET, "--gpu": "v100"}),
    "efficiency": ("0.5", {**LENET, "--batch": "64"}), "draw": ("1", {**LENET, "--batch": "64"}), "model": ("wine_mlp", {}), "classes": ("7", LENET), "image": ("20", LENET),
    "activation": ("silu", RESNET), "sync-batchnorm": ("", RESNET), "layers": ("2", BERT), "hidden": ("32", BERT), "heads": ("4", BERT),
    "vocabulary": ("96", BERT), "positions": ("32", BERT), "sequence": ("16", BERT), "head": ("cls", BERT),
    "data": ("synthetic:1x20x20:10", LENET), "batch": ("6", {}), "sampler": ("global", {**WINE, "--batch": "40", "--warmup": "0", "--gpus": "3"}), "drop-last": ("", {**WINE, "--batch": "40", "--warmup": "0"}),
    "augment": ("flip", LENET), "loader-threads": ("2", {}), "optimizer": ("adam", {}), "lr": ("0.5", {}), "momentum": ("0.5", {}),
    "dampening": ("0.5", {"--momentum": "0.5"}), "nesterov": ("", {"--momentum": "0.5"}), "weight-decay": ("0.5", {}),
    "beta1": ("0.5", ADAM), "beta2": ("0.5", ADAM), "eps": ("0.5", ADAM), "lr-schedule": ("linear", {}), "lr-warmup": ("3", {}),
    "lr-steps": ("2", {"--lr-schedule": "linear"}), "lr-gamma": ("0.5", {"--lr-schedule": "step", "--lr-steps": "1"}),
    "clip-norm": ("0.001", {}), "on-nonfinite": ("skip", {"--on-nonfinite": "warn", "--lr": "1e38", "--steps": "6"}),
    "divide": (OTHER_DIVISION, THREE), "stall-timeout": ("1ms", {"--slow": "0:200"}), "link": (LINK[0], {"--nodes": "2"}), "slow": (f"0:{SLOWER_BY}", {**LENET, "--batch": "1"}),
    "save": ("@/saved.safetensors", {}), "save-every": ("1", {"--save": "@/saved.safetensors"}), "load": ("@/checkpoint.safetensors", {}),
    "bucket-cap-mb": ("0.0001", {}), "first-bucket-mb": ("0.0001", {"--policy": "ddp-2019"}), "message-size": ("20", {"--policy": "apex"}),
    "order": ("registration", SMALL_BUCKETS), "launch": ("after-backward", {**RESNET, "--bucket-cap-mb": "1", "--steps": "6"}), "broadcast-buffers": ("no", {**RESNET, "--steps": "3"}), "bucket-view": ("", {}),
    "allreduce-fp32": ("", {}), "predivide": ("3", {**THREE, "--policy": "apex"}), "collective": ("nccl", {}), "algorithm": ("two-shot", THREE),
    "collective-table": ("@/table", THREE), "find-unused-parameters": ("", {"--warmup": "0"}), "static-graph": ("", {"--warmup": "0", "--find-unused-parameters": ""}),
    "reduce-micro-batches": ("", {"--accumulate": "2"}), "comm-hook": ("powersgd", {}), "powersgd-rank": ("2", {"--comm-hook": "powersgd"}), "powersgd-start": ("1", {"--comm-hook": "powersgd"}),
    "join": ("world", {}), "reshard": ("no", {**LENET, "--policy": "zero3", "--gpus": "2"}), "mixed-precision": ("", LENET), "group": ("1", {**LENET, "--policy": "zero3", "--gpus": "2"}), "consistency": (OTHER_CONSISTENCY, {}), "staleness": ("1", {}), "partition-bytes": ("100", {}),
    "credit-bytes": ("1", SLOW_KEYS), "priority": ("fifo", {"--progress": "inline"}), "servers": ("2", {"--gpus": "2"}), "server-placement": ("own", {}),
    "server-optimizer": ("off", {}), "server-threads": ("2", LENET), "dp-loss": ("replica", {}), "dp-lifetimes": ("lean", LENET),
    "keep-grads": ("", {}), "payload": ("zmq", LENET), "transport": ("tcp", {}), "interface": ("none0", {"--transport": "tcp"}),
    "policy": (OTHER_POLICY, {}), "loader-workers": ("4", LENET), "loader-rate": ("5", {**LENET, "--loader-workers": "4"}), "dp-host": ("none", LENET), "dp-gather": ("outputs", {**LENET, "--dp-loss": "replica"}),
    "workload": ("params=1M,units=2,step=20ms,peak=100MiB", {"--model": None, "--data": None, "--batch": None}), "workload-out": ("@/workload.json", {}),
}
# What another cell than the usual one needs.
DEVICE_OF = {("tf32", "--plan"): SIM, ("fp16", "--plan"): SIM, ("workload", "--plan"): SIM, ("workload-out", "--plan"): SIM, ("jitter", "--plan"): SIM, ("nodes", "--plan"): SIM, ("adapters", "--plan"): SIM, ("oversubscription", "--plan"): SIM, ("efficiency", "--plan"): SIM, ("loader-workers", "--plan"): SIM, ("loader-rate", "--plan"): SIM, ("dp-host", "--plan"): SIM, ("dp-gather", "--plan"): SIM, ("draw", "--plan"): SIM, ("payload", "sim"): "sim:cpu",
             ("prefetch", "--plan"): SIM, ("stages", "--plan"): SIM, ("schedule", "--plan"): SIM, ("stages-on", "--plan"): SIM,
             **{(option, device): "sim" for option in ("gpu", "per-host", "nvlink", "topology") for device in ("sim", "--plan")}}
OF_ENGINES = {"--policy": "ring", "--comm-hook": "ring", "--bucket-cap-mb": "ring", "--find-unused-parameters": "ring", "--transport": "ps", "--dp-loss": "ps=dp",
              **dict.fromkeys(SLOW_KEYS, ("ps=s", "ps=a"))}  # words that only some engines take
EMULATED = bool(os.environ.get("EMULATED_GPUS"))
ONLY_A_CARD = {"tf32": "the emulator multiplies in float32"}
NO_TRIALS = {"mode", "device"}             # tests of their own, below
NOT_AN_EFFECT = re.compile(r"^(started_at|checksum|command|configuration|options|host|hardware_note|comparison|jobs.settings|precision|workload.precision)|(^|\.)seed$|^(workload|jobs|jobs.ranks|jobs.ranks.device|jobs.profile)$")  # the last two name the machines


class Outcome:
    def __init__(self, words, code, out, err, files):
        self.words, self.code, self.out, self.err, self.files = words, code, out, err, files
        try:
            self.fields = flat(json.loads(out)) if out else {}
        except ValueError:
            self.fields = {}

    def __str__(self):
        return f"harness run {' '.join(self.words)}\nexit code {self.code}\n{self.err[-600:]}"


encode = json.JSONEncoder(sort_keys=True).encode


def flat(value, path="", found=None):
    """{"jobs.ranks.step_s": [all values]}"""
    found = {} if found is None else found
    if isinstance(value, dict):
        for key, inner in value.items():
            found.setdefault(f"{path}.{key}" if path else key, []).append(encode(inner))
            if isinstance(inner, (dict, list)):
                flat(inner, f"{path}.{key}" if path else key, found)
    elif isinstance(value, list):
        for inner in value:
            flat(inner, path, found)
    return found


def run(words, env=None):
    variables = {k: v for k, v in os.environ.items() if k not in STARTED_BY_OTHERS}
    variables.update(env or {})
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        words = [word.replace("@", folder) for word in words]
        if any("checkpoint.safetensors" in word for word in words):
            made = [PROGRAM, "run", "--mode", "none", "--model", "toy", "--device", "cpu", "--steps", "2", "--seed", "1", "--quiet", "--save",
                    f"{folder}/checkpoint.safetensors"]
            subprocess.run(made, check=True, capture_output=True, env=variables, cwd=folder)
        if any(word.endswith("/table") for word in words):
            with open(f"{folder}/table", "w", encoding="ascii") as file:
                file.write("ranks<=64 bytes<=1000000000 two-shot\n")
        done = subprocess.run([PROGRAM, "run", *words], stdin=subprocess.DEVNULL, capture_output=True, env=variables, cwd=folder,
                              encoding="utf-8", timeout=180 * SLOWER, check=False)
        files = {}
        for name in os.listdir(folder):
            if name not in ("checkpoint.safetensors", "table"):
                with open(f"{folder}/{name}", "rb") as file:
                    files[name] = file.read()
    return Outcome(words, done.returncode, done.stdout, done.stderr.replace(folder, "@"), files)


def the_table():
    """{(option, engine): {device: cell}}, with the field that changes in place of yes."""
    lines = harness("run", "--help=effects").out.splitlines()
    columns = [name.strip() for name in lines[0].strip("|").split("|")]
    table = {}
    for line in lines[2:]:
        row = [cell.strip() for cell in line.strip("|").split("|")]
        engines = ENGINES if row[1] == "all" else [e.strip() for e in row[1].split(",")]
        for engine in engines:
            cells = table[row[0].strip("`-"), engine] = dict(zip(columns[2:], row[2:]))
            for device in (device for device in cells if cells[device] == "yes"):
                field = field_of(row[0].strip("`-"), engine, device) or "?"
                cells[device] = f"`{field}`" if "." in field or "_" in field else field
    return table


TABLE = the_table()


def words_of(option, engine, device):
    """The words of the run without the option, and the words of the run with it."""
    value, others = TRIALS[option]
    value = value.get(engine, "sync") if isinstance(value, dict) else value
    if option == "collective" and device == "cuda":
        value = "shm"  # NCCL is the default
    if device == "cuda" and option in ("slow", "server-threads"):
        others = {}  # kernels of LeNet take long on the emulator
    kept = {**TOY, "--json": "-", **{k: v for k, v in others.items() if engine.startswith(OF_ENGINES.get(k, ""))}}
    if device == "cuda" and option == "threads":
        kept.update({"--batch": "1", "--steps": "1", "--warmup": "0"})
    if device == "cuda" and option in ("threads", "progress"):
        kept.update({"ring": {"--collective": "shm"}, "ps=sync": {"--server-optimizer": "off"}}.get(engine, {}))
    if option in ("schedule", "stages-on") and (engine != "ring" or device in ("cuda", "--plan")):
        del kept["--stages"]
    if option == "link" and device != "sim":
        del kept["--nodes"]
    if option == "loader-rate" and device in REAL:
        del kept["--loader-workers"]  # which is refused, too
    if option in ("credit-bytes", "priority") and device not in REAL:
        kept = {k: v for k, v in kept.items() if k not in (*SLOW_KEYS, "--progress")}
    if option in ("quiet", "log-level") and device == "sim":
        kept["--lr"] = "0.5"  # of which there is a note
    if option in ("jitter", "nodes", "efficiency", "draw", "slow", "algorithm", "tf32", "link") and device == "sim":
        kept.update({**LENET, "--batch": "4096"})  # kernels that take longer than their launches
    if option == "launch" and device == "sim" and engine == "ring":
        kept.update({**LENET, "--image": "28", "--batch": "32", "--steps": "3", "--warmup": "1", "--bucket-cap-mb": "0.001"})
    if option in ("priority", "credit-bytes") and device == "sim":
        kept.update({"--model": "vgg16", "--batch": "1"})  # keys that wait for each other
    if device == "reference" and engine == "ring" and option in ("divide", "predivide", "algorithm", "collective-table"):
        kept["--allreduce-fp32"] = ""  # float64 hides the order of sums
    if option == "divide" and device == "reference" and engine.startswith("ps"):
        kept.update({**TOY, "--steps": "50", "--lr": "1"})  # until the last bit of a float64 shows
    if option == "bind" and device not in REAL:
        del kept["--threads"]
    if device == "sim":
        for name in ("--save", "--transport"):
            kept.pop(name, None)
    if option == "stall-timeout" and device == "cuda":
        kept["--slow"] = "0:100"
    elif option == "stall-timeout" and engine == "none" and device in REAL:
        kept.update({**LENET, "--batch": "8", "--slow": "0:200"})  # late for longer than between two looks of the launcher
    if option == "sync-batchnorm" and engine == "ps=async":
        kept["--lr"] = "0"  # losses are of the same parameters, whoever comes first
    if device in REAL:
        kept.pop("--gpu", None)
    if (option == "adapters" or option == "oversubscription" and engine != "ps=dp") and device == "sim" and engine != "none":
        kept.update({"--nodes": "2", "--gpus": "8"})
        if engine.startswith(("ps=s", "ps=a")):
            kept.update({"--model": "vgg16", "--batch": "4", "--gpus": "16", "--servers": "8"})
    if option in ("nodes", "link") and device == "sim":
        kept["--gpus"] = "2" if engine != "none" else None
    if option == "connect-timeout" and (engine == "none" or device in ("sim", "--plan")):
        kept.pop("--rendezvous", None)
    real = device in REAL
    if engine == "ps=ssp" and real and option != "staleness":
        kept["--staleness"] = "0"  # with others no two runs are alike
    if engine != "none" and "--gpus" not in kept:
        kept["--gpus"] = "1" if engine == "ps=async" and real and TABLE[option, engine][device] == "`jobs.parameter_hash`" else "2"
    if engine == "none":
        kept.pop("--gpus", None)
    if option == "launch" and device == "reference":
        kept["--steps"] = "2"
    if option == "powersgd-start" and device == "sim":
        kept["--model"] = "lenet"
    words = list(ENGINES[engine])
    for word, argument in kept.items():
        words += [] if argument is None else [word, argument] if argument else [word]
    where = DEVICE_OF.get((option, device), {"sim": SIM, "--plan": "cpu"}.get(device, device))
    words += ["--device", where] + (["--plan"] if device == "--plan" and option != "plan" else [])
    return words, [f"--{option}", *([value] if value else [])]


_before = {}


def before(words, env):
    key = (*words, *(env or {}))
    if key not in _before:
        _before[key] = run(words, env)
    return _before[key]


def differs(a, b, field):
    return a.fields.get(field) != b.fields.get(field)


def numbers(outcome, field):
    """The numbers of a field. A field with a number for each step gives the list of each rank; a field with a number
    for each rank gives lists of one number."""
    values = [json.loads(text) for text in outcome.fields.get(field, [])]
    ranks = [[number for number in (value if isinstance(value, list) else [value]) if number is not None] for value in values]
    expect(ranks and all(ranks), f"no {field}", outcome)
    return ranks


# Fields that no two real runs have alike: what must hold for those of a run without the option and of one with it. A machine
# with other work makes steps longer, never shorter.
THREADS = "jobs.ranks.process.threads"
NOISY = {
    ("slow", "jobs.ranks.step_s"): lambda first, after: min(after[0]) > 5 * min(first[0]),
    ("link", "jobs.ranks.communication_s"): lambda first, after: max(min(rank) for rank in after) >= LINK[1],  # a server's rank sends nothing
    ("launch", "jobs.ranks.first_to_backward_end_s"): lambda first, after: max(map(max, first)) > 0 and max(map(max, after)) == 0,
    ("loader-threads", THREADS): lambda first, after: max(b[0] - a[0] for a, b in zip(first, after)) >= 2,  # of training and of evaluation
    ("threads", THREADS): lambda first, after: min(b[0] - a[0] for a, b in zip(first, after)) >= 1,
    ("progress", THREADS): lambda first, after: min(b[0] - a[0] for a, b in zip(first, after)) >= 1,
    ("server-threads", THREADS): lambda first, after: max(b[0] - a[0] for a, b in zip(first, after)) >= 1,
    ("credit-bytes", "jobs.ranks.communication_s"): lambda first, after: max(min(rank) for rank in after) >= 0.04,  # eight messages of 5 ms, one after another
    ("priority", "jobs.ranks.pushes_overtaken"): lambda first, after: sum(map(sum, first)) > 0 == sum(map(sum, after)),
    ("partition-bytes", "jobs.ranks.messages_sent"): lambda first, after: sum(map(sum, after)) > 1.5 * sum(map(sum, first)),
}
FAILURES = {"config": ("missing.json",), "rendezvous": ("expected RANK",), "nnodes": ("--node-rank: expected an integer",),
            **dict.fromkeys(("node-rank", "master-addr", "master-port"), ("expected --nnodes too",)), "serve-stage": ("HARNESS_KEY",), "interface": ("none0",),
            "collective": ("collectives nccl",), "stall-timeout": ("no progress", "in time", " within ")}  # what the message names
NOISY_FIELDS = {field for option, field in NOISY if option != "partition-bytes"} | {"jobs.target.loss_s", "jobs.target.accuracy_s"}


def counted(words):
    """Number of times that the emulated cuBLASLt multiplied by the fastest algorithm, which its heuristics do not put
    first."""
    with tempfile.NamedTemporaryFile("r", suffix=".counts") as file:
        result = run(words, {"EMULATED_CUBLASLT": "1", "EMULATED_FAULT": "slow_first", "EMULATED_COUNTS": file.name})
        expect_equal(result.code, 0, "exit code", result)
        return sum(int(count) for name, count in map(str.split, file) if name == "fast_products")


def check_gpu_times(option, words, given):
    """Checks options that change only times of a GPU: returns None, or a text that shows that they had no effect."""
    if option == "cuda-graph":
        passes = [run([*words, "--log-level", "debug", *more]).err.count("recorded a CUDA graph") for more in ([], given)]
        return None if passes[0] == 0 < passes[1] else f"recorded passes without and with it: {passes}"
    products = [counted([*words, *more]) for more in ([], given)]
    return None if products[0] == 0 < products[1] else f"products by timed algorithms without and with it: {products}"


def check(option, engine, device):
    """Returns None, or a text that says what is wrong with a cell."""
    cell = TABLE[option, engine][device]
    words, given = words_of(option, engine, device)
    env = None
    if option == "connect-timeout" and device in REAL and engine != "none":  # a rank whose peer does not come
        env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "HARNESS_KEY": "0" * 64}
        after = run([*words, *given], env)
        return None if after.code == 75 and re.search(" in time| within 300 ms", after.err) else f"no failure after 300 ms\n{after}"
    if option == "share-gpu" and engine != "none" and device == "cuda":  # it is needed, and makes the run possible
        one = {"EMULATED_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}
        codes = [run([*words, *more], one).code for more in ([], given)]
        return None if codes == [78, 0] else f"expected exit codes 78 without and 0 with it, found {codes}"
    if option in ("benchmark", "cuda-graph") and cell.startswith("`") and (EMULATED or option == "cuda-graph"):
        return check_gpu_times(option, words, given)
    after = run([*words, *given], env)
    if cell.startswith("refused"):
        code, reason = re.match(r"refused \((\d+)\): (.*)", cell).groups()
        refused = after.code == int(code) and f"--{option}" in after.err and reason in after.err
        return None if refused else f"expected exit code {code} and '{reason}'\n{after}"
    first = before(words, env)
    if first.code != 0:
        return f"fails without the option\n{first}"
    if cell == "exit code":
        named = after.code != 0 and any(text in after.err for text in FAILURES[option])
        return None if named else f"expected a failure that names {FAILURES[option]}\n{after}"
    if after.code != 0:
        return f"expected a run\n{after}"
    if cell.startswith("none: "):
        note = f"--{option} {'may have' if 'unless' in cell else 'has'} no effect here: {cell[6:]}"
        if device != "--plan" and note not in after.err:
            return f"expected a note '{note}'\n{after}"
        fields = {*first.fields, *after.fields} if device in ("sim", "--plan") else REPEATED if engine != "ps=async" else {}
        fields = [f for f in fields if not NOT_AN_EFFECT.search(f) and differs(first, after, f)]
        return f"expected no change, found {fields[:5]}\n{after}" if fields else None
    if option == "trace-steps":
        steps = [{*re.findall(r'"(step \d+)"', outcome.files["trace.json"].decode())} for outcome in (first, after)]
        return None if steps == [{"step 1", "step 2", "step 3"}, {"step 1"}] else f"steps without and with it: {steps}"
    if cell == "a file":
        return None if after.files != first.files and after.files else f"expected a file\n{after}"
    if cell == "stdout":
        return None if len(after.out.splitlines()) > len(first.out.splitlines()) + 10 else f"expected more on stdout\n{after}"
    if cell == "stderr":
        notes = [[line for line in outcome.err.splitlines() if ": warning: " not in line] for outcome in (first, after)]
        return None if notes[0] and not notes[1] else f"expected notes only without it, found {notes}\n{after}"
    field = cell.strip("`")
    if field not in first.fields and field not in after.fields:
        return f"there is no field {field}\n{after}"
    if field not in first.fields and {*after.fields[field]} <= {"null", "[]", "{}"}:
        return f"{field} has no value\n{after}"
    noisy = NOISY.get((option, field))
    if noisy and device in REAL:
        holds = noisy(numbers(first, field), numbers(after, field))
        return None if holds else f"{field}: {first.fields[field]} without, {after.fields[field]} with it\n{after}"
    return None if differs(first, after, field) else f"expected {field} to change, found {after.fields[field][:3]} twice\n{after}"


def in_every_check(option, engine, device):
    """The columns cpu and reference mostly have the same cells, and so do engines: of cells that are alike in a column one runs, by turns
    from option to option. So every text of a cell runs for every option and device; the rest is for the long suite."""
    cell, at = TABLE[option, engine][device], list(TRIALS).index(option) + ("cpu", "reference").index(device) if device in ("cpu", "reference") else None
    if at is None or cell.startswith("refused"):
        return True
    alike = [name for name in ENGINES if TABLE[option, name][device] == cell]
    return (alike.index(engine) - at) % len(alike) == 0


def multiplies_bfloat16():
    return run(["--mode", "none", "--model", "toy", "--steps", "1", "--device", "cpu", "--bf16", "--quiet"]).code != 78


def check_all(option, often=True):
    if EMULATED and option in ONLY_A_CARD:
        raise Skip(f"only a card can: {ONLY_A_CARD[option]}")
    absent = ("cpu", "--plan") if option == "bf16" and not CUDA and not multiplies_bfloat16() else ()
    cells = [(engine, device) for engine in ENGINES for device in DEVICES
             if in_every_check(option, engine, device) == often and device not in absent]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) + 1) as pool:
        found = list(pool.map(lambda c: check(option, *c), cells))
    wrong = [f"{engine}, {device}: {text}" for (engine, device), text in zip(cells, found) if text]
    expect(not wrong, *wrong)


# ---- the table ---------------------------------------------------------------------------------

@test
def every_option_has_a_row_and_a_trial():
    listed = harness("run", "--help=all").out
    names = re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", listed, re.M) + re.findall(r"^  :([a-z0-9-]+)=", listed, re.M)
    expect(len(names) > 90, f"{len(names)} options")
    for name in names:
        for engine in ENGINES:
            cells = TABLE.get((name, engine))
            expect(cells is not None, f"--{name} has no row for {engine}")
            for device, cell in cells.items():
                expect(cell != "?", f"--{name}, {engine}, {device}: the table has no row")
        expect(name in TRIALS or name in NO_TRIALS, f"--{name} has no trial here")


@test
def the_page_has_the_programs_table():
    with open(os.path.join(ROOT, "docs/options.md"), encoding="utf-8") as file:
        page = file.read()
    expect(harness("run", "--help=effects").out in page, "docs/options.md has another table than harness run --help=effects")


@more_test
def runs_without_an_option_are_alike_in_the_fields_that_the_table_names():
    fields = {cell.strip("`") for cells in TABLE.values() for cell in cells.values() if cell.startswith("`")} - NOISY_FIELDS
    for engine in ENGINES:
        for device in {*DEVICES} & {*REAL}:
            words = words_of("lr", engine, device)[0]
            first, second = run(words), run(words)
            for field in fields & {*first.fields} - ({"jobs.ranks.messages_sent"} if engine.startswith("ps") else set()):
                expect_equal(second.fields[field], first.fields[field], f"{engine}, {device}: {field}")


# ---- every cell --------------------------------------------------------------------------------

# Runs on emulated GPUs take time: where a row's cells are the CPU's they are for the long suite, but for one of each kind: values,
# times, messages, threads, files. ResNet-18 takes seconds of processor time.
RESNETS = {"activation", "sync-batchnorm", "launch", "broadcast-buffers"}
OF_EACH_KIND = {"seed", "accumulate", "link", "bucket-cap-mb", "server-threads", "save"}
LATER = [name for name in TRIALS if name in RESNETS and (EMULATED or not CUDA) or CUDA and name not in OF_EACH_KIND and (
    all(TABLE[name, e]["cuda"] == TABLE[name, e]["cpu"] for e in ENGINES))]


@(cases if CUDA else more_cases)([(name, name) for name in TRIALS if name not in LATER], at_more=25)
@long_cases([(name, name) for name in LATER])
def cells_hold(option):
    check_all(option)


@long_cases([(name, name) for name in TRIALS if not all(in_every_check(name, engine, device) for engine in ENGINES for device in DEVICES)])
def the_other_cells_hold(option):
    check_all(option, often=False)


# ---- whatif ------------------------------------------------------------------------------------

OF_ONE_RUN = {"mode", "gpus", "device", "plan", "draw", "verbose", "print-steps", "print-shapes", "trace", "trace-steps", "report", "json"}  # whatif has its own, or refuses them
_tables = {}


def table_of(words):
    """The table that whatif prints."""
    if tuple(words) not in _tables:
        result = subprocess.run([PROGRAM, "whatif", *words, "--quiet"], capture_output=True, text=True, timeout=180 * SLOWER, check=False)
        expect_equal((result.returncode, result.stderr), (0, ""), "exit code and stderr of whatif " + " ".join(words))
        _tables[tuple(words)] = {key: value for key, value in json.loads(result.stdout).items() if key != "options"}
    return _tables[tuple(words)]


def changes_whatif(option):
    """Returns None, or a text that says what is wrong."""
    engine = next(name for name in ENGINES if name != "none" and TABLE[option, name]["sim"].startswith("`"))
    words, given = words_of(option, engine, "sim")
    words = ["--policy", "ddp", *words[2:]] if engine == "ring" else words[2:]
    try:
        return None if table_of(words) != table_of([*words, *given]) else f"--{option} changes nothing of a table"
    except Exception as failure:
        return f"--{option}: {failure}"


@more_test
def what_changes_a_virtual_run_changes_what_if():
    names = [name for name in TRIALS if name not in OF_ONE_RUN and any(TABLE[name, engine]["sim"].startswith("`") for engine in ENGINES if engine != "none")]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        wrong = [text for text in pool.map(changes_whatif, names) if text]
    expect(len(names) > 50 and not wrong, f"{len(names)} options", *wrong)


@test
def the_mode_chooses_the_engines():
    words = [*[w for pair in TOY.items() for w in pair], "--json", "-"]
    for device in DEVICES:
        place = ["--device", {"sim": SIM, "--plan": "cpu"}.get(device, device)] + (["--plan"] if device == "--plan" else [])
        runs = {engine: run([*words, *place, "--mode", engine, *([] if engine == "none" else ["--gpus", "2"])]).fields
                for engine in ("both", "none", "ring", "ps")}
        jobs = {engine: sorted({*fields["jobs.engine"]}) for engine, fields in runs.items()}  # of both there are two baselines
        expect_equal(jobs, {"both": ['"none"', '"ps"', '"ring"'], "none": ['"none"'], "ring": ['"ring"'], "ps": ['"ps"']}, device)
        changes = {engine: fields[TABLE["mode", "ring"][device].strip("`")] for engine, fields in runs.items()}
        expect_equal(len({*map(str, changes.values())}), 4, f"{device}: different values of {changes}")


@test
def the_device_chooses_where_it_runs():
    words = [w for pair in TOY.items() for w in pair] + ["--json", "-", "--mode", "none"]
    names = {"cpu", "reference", "sim", *DEVICES} - {"--plan"}
    runs = {device: run([*words, "--device", SIM if device == "sim" else device]) for device in names}
    expect_equal({device: r.fields["jobs.device"] for device, r in runs.items()}, {name: [f'"{name}"'] for name in names}, "devices")
    plans = [run([*words, "--plan", "--device", device]) for device in ("cpu", "reference")]
    field = TABLE["device", "none"]["cpu"].strip("`")
    for device in {*DEVICES} - {"--plan", "reference"}:
        expect(differs(runs["reference"], runs[device], field), "the same memory", runs[device])
    expect(differs(*plans, field), "the same memory", *plans)


@test
def a_ring_over_nccl_notes_options_of_host_threads():
    if not CUDA:
        raise Skip("a test of the column cuda")
    for option, value in (("threads", "3"), ("progress", "thread")):
        words = ["--mode", "ring", "--gpus", "2", "--device", "cuda", "--model", "toy", "--steps", "1", f"--{option}", value]
        found = [f"--{option} has no effect on a ring over NCCL" in run([*words, *more]).err for more in ([], ["--collective", "shm"])]
        expect_equal(found, [True, False], f"a note on --{option} with NCCL, and with shared memory")


# ---- options that need another one -------------------------------------------------------------

@cases([("trace-steps", "trace-steps", ["--mode", "none", "--trace-steps", "1:2"], "--trace FILE"), ("interface", "interface", ["--mode", "ps", "--interface", "eth0"], "--transport tcp"),
        ("lr-gamma", "lr-gamma", ["--lr-gamma", "0.5"], "--lr-schedule step"), ("lr-steps", "lr-steps", ["--lr-steps", "5"], "--lr-schedule step, cosine or linear"),
        ("dampening", "dampening", ["--dampening", "0.5"], "--momentum above 0"), ("powersgd-rank", "powersgd-rank", ["--mode", "ring", "--powersgd-rank", "2"], "--comm-hook powersgd"),
        ("powersgd-start", "powersgd-start", ["--mode", "ring", "--powersgd-start", "2"], "--comm-hook powersgd"),
        ("reduce-micro-batches", "reduce-micro-batches", ["--mode", "ring", "--reduce-micro-batches"], "--accumulate of at least 2"), ("hidden", "hidden", ["--hidden", "32"], "the model toy"),
        ("classes", "classes", ["--classes", "7"], "the model toy"), ("activation", "activation", ["--model", "lenet", "--activation", "silu"], "the model lenet"),
        ("head", "head", ["--model", "gpt2", "--head", "cls"], "the model gpt2"), ("policy", "policy", ["--mode", "ring", "--policy", "ps=ssp"], "a policy of --mode ring"),
        ("momentum", "momentum", ["--optimizer", "adam", "--momentum", "0.5"], "the optimizer adam")])
def an_option_that_would_do_nothing_is_refused(option, words, reason):
    result = run([*([] if "--model" in words else ["--model", "toy"]), "--steps", "1", *words])
    expect_equal(result.code, 64, "exit code", result)
    expect(f"--{option}" in result.err and reason in result.err, f"expected '{reason}'", result)


@cases([("connect-timeout", "connect-timeout", "60s"), ("eval-every", "eval-every", "0"), ("loader-threads", "loader-threads", "1"), ("progress", "progress", "auto"), ("bind", "bind", "none"), ("augment", "augment", "none"),
        ("on-nonfinite", "on-nonfinite", "stop")])
def an_option_that_is_given_as_it_is_by_default_is_no_error(option, value):
    result = run(["--mode", "none", "--model", "toy", "--steps", "1", "--device", "sim", f"--{option}", value])
    expect_equal((result.code, "no effect" in result.err), (0, False), "exit code and note", result)


main()
