"""What the tests of the program on the device `cuda` share."""
import os
import sys

from program import Run
from tap import Skip, expect, expect_equal

EMULATED = "--emulated" in sys.argv
if EMULATED:
    sys.argv.remove("--emulated")
ROOT = os.environ.get("SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


LIMIT = float(os.environ.get("CUDA_RUN_LIMIT", "inf"))  # On some machines a hang must not cost more than its test.


def run(*words, limit=120, env=None):
    with Run(*words, env=env) as running:
        return running.wait(min(limit, LIMIT))


def rows(text, name):
    """What `harness doctor` prints after a name."""
    return [line[len(name):].strip() for line in text.splitlines() if line.startswith(name + " ")]


DOCTOR = run("doctor")
GPUS = rows(DOCTOR.out, "GPU 0")
USABLE = bool(GPUS) and "too old" not in GPUS[0]
REASON = "; ".join(rows(DOCTOR.out, "CUDA driver") or rows(DOCTOR.out, "device cuda"))


def needs_gpu():
    if not USABLE:
        raise Skip(f"no GPU: {REASON}")


def needs_nccl():
    needs_gpu()
    if any("missing" in row for row in rows(DOCTOR.out, "NCCL")):
        raise Skip(f"no NCCL: {rows(DOCTOR.out, 'NCCL')[0]}")


def needs_nccl_of_threads():
    """Ranks of `verify` are threads, but NCCL gives a GPU to only one rank of a process."""
    needs_nccl()
    if not EMULATED:
        raise Skip("NCCL's ranks must be processes on a GPU")


def golden(name):
    return os.path.join(ROOT, "tests", "golden", name + ".json")


def verify(name, *options):
    result = run("verify", "--device", "cuda", *options, golden(name), limit=300)
    expect_equal(result.code, 0, "exit code", result)
    expect(result.out.startswith("agrees"), "the trajectory is not PyTorch's", result)


TRAINING = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--steps", "6", "--warmup", "2", "--json", "-", "--quiet",
            "--eval-every", "0", "--optimizer", "adam"]
CONVOLUTIONS = ["--mode", "none", "--model", "lenet", "--data", "synthetic", "--batch", "4", "--steps", "2", "--warmup", "1",
                "--quiet", "--json", "-", "--eval-every", "-1"]
TRANSFORMER = ["--model", "bert", "--head", "cls", "--sequence", "8", "--layers", "1", "--hidden", "32", "--heads", "2",
               "--vocabulary", "100"]


def classes(result):
    """{(engine, rank, class): peak bytes}, without the workspace, which differs between devices."""
    found = {}
    for job in result.json()["jobs"]:
        for rank in job["ranks"]:
            for name, account in rank["memory"]["classes"].items():
                if name != "workspace":
                    found[job["engine"], rank["rank"], name] = account["peak_bytes"]
    return found
