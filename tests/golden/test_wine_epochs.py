"""`--epochs` prints, epoch by epoch, the loss that PyTorch's DistributedDataParallel prints for Wine with Adam
(wine_epochs.json, made by make_wine_epochs.py), from the same parameters and the same order of the data."""
import json
import os
import re
import struct
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main
from wine import SHAPES, initial_parameters

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "wine_epochs.json"), encoding="utf-8") as _file:
    GOLDEN = json.load(_file)
WINE = ["--model", "wine_mlp", "--data", "wine", "--optimizer", "adam", "--lr", "0.001", "--quiet"]


def write_parameters(path):
    header, data = {}, b""
    for name, values in initial_parameters().items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": SHAPES[name], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def printed(engine, case, *words):
    """The losses of the lines that a run prints."""
    with tempfile.TemporaryDirectory() as folder:
        write_parameters(folder + "/first.safetensors")
        mode = ["--mode", engine] + (["--gpus", case["ranks"]] if engine != "none" else [])
        result = harness("run", *WINE, *mode, "--batch", case["batch"], "--epochs", GOLDEN["epochs"], "--load",
                         folder + "/first.safetensors", *words)
    expect_equal(result.code, 0, f"exit code; {result.err}")
    lines = re.findall(rf"^{engine} epoch (\d+)/{GOLDEN['epochs']}: loss (\d+\.\d{{4}})$", result.out, re.M)
    expect_equal([int(n) for n, _ in lines], list(range(1, GOLDEN["epochs"] + 1)), "numbers of the epochs")
    return [float(loss) for _, loss in lines]


@cases([("one process", "none", 0, []), ("a ring of two ranks", "ring", 1, []),
        ("a parameter server of two ranks", "ps", 1, ["--policy", "sync"])])
def every_line_of_an_epoch_has_the_loss_that_pytorch_prints(engine, number, words):
    case = GOLDEN["cases"][number]
    found = printed(engine, case, *words)
    expect_equal(len(found), len(case["losses"]), "lines")
    for epoch, (ours, pytorch) in enumerate(zip(found, case["losses"]), 1):
        expect(abs(ours - pytorch) <= 1e-4, f"epoch {epoch}: {ours}, PyTorch {pytorch}")


main()
