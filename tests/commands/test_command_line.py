"""The command line: what is printed without a run, and what wrong input is answered with."""
import gzip
import json
import os
import resource
import socket
import struct
import tempfile

from program import SANITIZED, Run, Watch, harness
from tap import cases, expect, expect_equal, main, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
GOLDEN = os.path.join(ROOT, "tests/golden")
FILES = tempfile.TemporaryDirectory(prefix="files-")


def file_of(name, content):
    path = os.path.join(FILES.name, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    return path


def idx(shape, data=None):
    size = 1
    for extent in shape:
        size *= extent
    header = struct.pack(">HBB", 0, 8, len(shape)) + b"".join(struct.pack(">I", extent) for extent in shape)
    return header + (bytes(size) if data is None else data)


# ---- what is printed ---------------------------------------------------------------------------

@cases([
    ("--help", ["--help"], ["usage: harness [run] [options]", "Exit codes:", "  run ", "  verify ", "  doctor ",
                            "  models ", "  policies "]),
    ("--version", ["--version"], ["harness 0."]),
    ("run --help", ["run", "--help"], ["--mode none|ps|ring|both", "--gpus N", "--json FILE", "--slow",
                                       "--lr-schedule constant|step|cosine|linear", "--bucket-cap-mb", "[both]",
                                       "\nexamples:\n  harness run --model resnet18 --gpus 2 "]),
    ("run --help=all", ["run", "--help=all"], ["--powersgd-rank RANK", ":order=policy|registration|reverse|ready|last_first",
                                               "--policy ring=ddp:order=ready"]),
    ("-h", ["-h"], ["usage: harness [run] [options]"]),
    ("help", ["help"], ["usage: harness [run] [options]"]),
    ("run -h", ["run", "-h"], ["usage: harness run [options]", "--mode none|ps|ring|both"]),
    ("help bench", ["help", "bench"], ["usage: harness bench", "-b, --begin BYTES", "-w, --warmup-iters N"]),
    ("verify --help", ["verify", "--help"], ["FILE.json", "--device NAME", "--mode auto|none|ps|ring|both"]),
    ("models --help", ["models", "--help"], ["--classes N"]),
    ("doctor --help", ["doctor", "--help"], ["usage: harness doctor"]),
    ("report --help", ["report", "--help"], ["usage: harness report FILE", "from JSON"]),
    ("doctor", ["doctor"], ["processors ", "container CPU limit", "descriptors", "shared memory", "device cpu",
                            "device reference", "oneDNN", "libzmq", "protobuf-c", "OpenMP run-time"]),
    ("models", ["models"], ["toy ", "wine_mlp ", "lenet ", "resnet18 ", "resnet50 ", "vgg16 ", "bert_base ", "gpt2 "]),
    ("models toy", ["models", "toy"], ["net1", "5x10", "165 parameters"]),
    ("models gpt2 --stages", ["models", "gpt2", "--stages", "4"], ["transformer.h.4.ln_1", "384.0 KiB",
                                                                  "transformer.wte.weight is a parameter of 2 stages."]),
    ("units", ["help", "units"], ["Sizes:", "KiB MiB GiB", "Times:", "us", "Rates:", "Gbit/s", "Gib/s", "10Gb/s is 1.25GB/s"]),
    ("units of a command", ["run", "--help=units"], ["Sizes:", "Times:", "Rates:"]),
    ("units of another command", ["bench", "--help=units"], ["Sizes:", "Times:", "Rates:"]),
    ("policies", ["policies"], ["sync ", "ddp ", "apex ", "torch-0.4.1 "]),
])
def commands_print_what_they_document(words, parts):
    result = harness(*words)
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(result.err, "", "stderr", result)
    for part in parts:
        expect(part in result.out, f"expected {part!r} in the output", result)


@test
def lines_of_the_units_fit_and_are_not_wrapped():
    lines = harness("help", "units").out.splitlines()
    expect_equal(lines, harness("run", "--help=units").out.splitlines(), "two ways to the units")
    expect_equal([line for line in lines if len(line) > 80 or line.startswith("    ") and line[4] != " "], [], "wrapped lines")
    for meaning in ("bytes", "bytes, with powers of 1024", "nanoseconds", "minutes", "bytes per second", "bits per second"):
        expect(any(line.endswith("  " + meaning) for line in lines), f"a line that ends with '{meaning}'", lines)


@cases([("a run", ["run", "--mode", "ring", "--gpus", "2", "--model", "toy", "--data", "synthetic", "--steps", "2", "--warmup", "0", "--json", "-"]),
        ("a benchmark", ["bench", "all-reduce", "--gpus", "2", "--begin", "4K", "--end", "4K", "--iters", "4"])])
def a_renamed_value_still_works_and_the_notice_names_the_new_one(words):
    for old, now in (("direct", "two-shot"), ("two-shot", "two-shot"), ("ring", "ring")):
        result = harness(*words, "--collective", old)
        expect_equal(result.code, 0, "exit code", result)
        notices = [line for line in result.err.splitlines() if "is now" in line]
        expect_equal(notices, [f"harness: --collective: '{old}' is now --collective shm --algorithm {now}"], "notices", result)
        expect("shm" in result.out and now in result.out, "the new names in the output", result)


@test
def a_benchmark_over_an_emulated_link_takes_at_least_its_time_and_fits_latency_and_bandwidth():
    words = ["bench", "all-reduce", "--algorithm", "two-shot", "--gpus", "2", "--link", "20MB/s,3ms", "--begin", "1K", "--end", "1M",
             "--factor", "32", "--iters", "2", "--warmup-iters", "1", "--fit"]
    result = harness(*words, "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    for row in result.json()["rows"]:
        least = 0.003 + row["size_bytes"] / 20e6  # each rank sends half of the buffer, twice; a late rank waits only once
        expect(row["in_place"]["best_s"] >= 0.99 * least, f"{row['size_bytes']} bytes take at least {least} s", result)
    fit, = result.json()["fits"]
    expect_equal([fit["collective"], fit["algorithm"], fit["points"]], ["shm", "two-shot", 3], "the series", result)
    expect(fit["latency_low_s"] <= fit["latency_s"] <= fit["latency_high_s"], "the interval of the latency", result)
    expect("# Fit shm two-shot: latency " in harness(*words).out, "the text names the fit")


@test
def a_table_of_the_users_own_is_measured_and_chosen():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "table")
        tuned = harness("bench", "--tune", "--gpus", "2")
        expect_equal(tuned.code, 0, "exit code", tuned)
        with open(path, "w", encoding="utf-8") as file:
            file.write(tuned.out)
        words = ["run", "--mode", "ring", "--gpus", "2", "--model", "toy", "--data", "synthetic", "--steps", "2", "--json", "-",
                 "--collective-table", path]
        for more in ([], ["--algorithm", "tuned"]):
            result = harness(*words, *more)
            expect_equal(result.code, 0, "exit code", result)
            expect_equal(result.jobs()["ring"]["algorithm"], "tuned", "algorithm", result)


@test
def a_golden_file_that_agrees_is_one_line():
    path = os.path.join(GOLDEN, "toy_w4.json")
    result = harness("verify", path)
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(len(result.out.splitlines()), 1, "lines", result)
    for part in ("agrees", path, "ps ", "ring ", " of the limit (", "of 16 tensors not checked"):
        expect(part in result.out, f"expected {part!r}", result)


@test
def a_golden_file_that_disagrees_ends_with_1_and_names_the_tensor():
    with open(os.path.join(GOLDEN, "toy_w1.json"), encoding="ascii") as file:
        text = file.read()
    at = text.index('"l2": ') + 6
    changed = file_of("changed.json", (text[:at] + "7" + text[at:]).encode())
    result = harness("verify", changed, os.path.join(GOLDEN, "toy_w1.json"))
    expect_equal(result.code, 1, "exit code", result)
    lines = result.out.splitlines()
    expect_equal([line.split()[0] for line in lines], ["DISAGREES", "agrees", "1"], "first words", result)
    expect("found " in lines[0] and "expected " in lines[0], "both figures", result)


@test
def a_loss_over_all_ranks_is_not_comparable_without_dp():
    result = harness("verify", os.path.join(GOLDEN, "bert_tiny_w2_global_loss.json"))
    expect_equal(result.code, 0, "exit code", result)
    has_dp = " dp " in harness("policies").out
    expect_equal(result.out.split()[0], "agrees" if has_dp else "skipped", "first word", result)
    expect("not comparable: its loss is over the targets of all ranks, which takes ps=dp" in result.out, result)


# ---- wrong input -------------------------------------------------------------------------------

IMAGES = file_of("images", idx([4, 8, 8]))
LABELS = file_of("labels", idx([4]))
QUICK = ["--model", "toy", "--steps", "2", "--quiet"]
LENET = ["--model", "lenet", "--mode", "none", "--quiet"]
RESNET = ["--model", "resnet18", "--mode", "none", "--quiet"]

# label, words, exit code, what the line names: the thing, what was found, what is allowed
WRONG = [
    ("unknown option", ["--modle", "ps"], 64, ["--modle", "did you mean --mode"]),
    ("unknown option near nothing", ["--zzzzzzzz"], 64, ["--zzzzzzzz", "--help"]),
    ("unknown command", ["trian"], 64, ["trian", "run, verify, models, policies"]),
    ("command that is misspelt", ["verfy"], 64, ["command: expected one of run, verify", "did you mean 'verify'?"]),
    ("help for no command", ["help", "benhc"], 64, ["command: expected one of run", "did you mean 'bench'?"]),
    ("a word too many", ["run", "twice"], 64, ["twice", "run --help"]),
    ("no value", ["--gpus"], 64, ["--gpus", "N"]),
    ("unknown mode", ["--mode", "pss"], 64, ["--mode", "pss", "none, ps, ring, both", "did you mean 'ps'?"]),
    ("unknown model", ["--model", "resnt18"], 64, ["resnt18", "resnet18", "did you mean 'resnet18'?"]),
    ("part of a profile's name", ["--device", "sim:v100"], 64, ["got 'v100'; did you mean 'dgx1-v100'?"]),
    ("unknown policy", ["--policy", "ddpp"], 64, ["--policy", "ddpp", "sync", "apex", "did you mean 'ddp'?"]),
    ("policy of the other engine", ["--policy", "ps=ddp"], 64, ["--policy", "ddp", "sync"]),
    ("two policies for an engine", ["--policy", "ring=ddp,apex"], 64, ["--policy", "'ddp' and 'apex'", "one for each"]),
    ("no policy", ["--policy", ""], 64, ["--policy", "''", "sync"]),
    ("unknown engine of a policy", ["--policy", "pc=sync"], 64, ["pc", "none, ps, ring"]),
    ("key of no policy", ["--policy", "ring=ddp:oder=ready"], 64, ["--policy ddp: expected one of first-bucket-mb", "did you mean 'order'?"]),
    ("key without a value", ["--policy", "ddp:order"], 64, ["--policy ddp: expected order=VALUE, got 'order'"]),
    ("key of a policy of another engine", ["--policy", "ps=sync:order=ready"], 64, ["--policy sync: expected one of partition-bytes", "'order'"]),
    ("key where none is possible", ["verify", "--policy", "ddp:order=ready", f"{GOLDEN}/toy_w4.json"], 64, ["--policy: expected a policy without keys"]),
    ("unknown device", ["--device", "cdua"], 64, ["--device", "cdua", "cpu"]),
    ("unknown optimizer", ["--optimizer", "adm"], 64, ["--optimizer", "adm", "sgd, adam, adamw", "did you mean 'adam'?"]),
    ("number that is none", ["--steps", "1e"], 64, ["--steps", "1e", "integer"]),
    ("negative number", ["--steps", "-3"], 64, ["--steps", "-3", "from 0"]),
    ("number with a tail", ["--batch", "16x"], 64, ["--batch", "16x", "from 1"]),
    ("zero ranks", ["--gpus", "0"], 64, ["--gpus", "0", "from 1"]),
    ("too many ranks", ["--gpus", "100000000"], 64, ["--gpus", "100000000", "from 1 to 1000000"]),
    ("rate that is none", ["--lr", "fast"], 64, ["--lr", "fast", "number"]),
    ("duration without unit", ["--stall-timeout", "soon"], 64, ["--stall-timeout", "soon"]),
    ("steps and epochs", ["--steps", "1", "--epochs", "1"], 64, ["--steps", "--epochs"]),
    ("unknown collective operation", ["bench", "all-redcue"], 64, ["all_redcue", "all_reduce, reduce, broadcast", "did you mean 'all_reduce'?"]),
    ("unknown collective", ["bench", "all-reduce", "--collective", "rign"], 64, ["--collective", "rign", "one of shm, mpi"]),
    ("algorithm of virtual time only", ["--mode", "ring", "--algorithm", "tree", "--device", "cpu"], 64,
     ["--algorithm", "--device sim:PROFILE"]),
    ("algorithm of another library", ["--mode", "ring", "--collective", "shm", "--algorithm", "library"], 64,
     ["--algorithm", "one of ring, two-shot, tuned with --collective shm", "'library'"]),
    ("tuned without a table", ["--mode", "ring", "--algorithm", "tuned"], 64, ["--algorithm", "--collective-table FILE"]),
    ("a table for another algorithm", ["--mode", "ring", "--algorithm", "ring", "--collective-table", "x"], 64,
     ["--collective-table", "--algorithm tuned"]),
    ("a link for mpi", ["bench", "all-reduce", "--collective", "mpi", "--link", "1Gbit/s,50us"], 64, ["--link: expected --collective shm"]),
    ("a link that is none", ["bench", "all-reduce", "--link", "fast"], 64, ["--link"]),
    ("a fit of two sizes", ["bench", "all-reduce", "--begin", "4K", "--end", "16K", "--fit", "--iters", "1"], 64, ["--fit: expected 3 sizes or more, got 2"]),
    ("mpi without mpirun", ["bench", "all-reduce", "--collective", "shm,mpi"], 64, ["--collective", "mpirun -n 2"]),
    ("sizes upside down", ["bench", "--begin", "1M", "--end", "4K"], 64, ["--begin, --end", "1048576", "4096"]),
    ("root out of the ranks", ["bench", "broadcast", "--root", "2"], 64, ["--root", "2", "from 0 to 1"]),
    ("ranks without engine", ["--mode", "none", "--gpus", "2"], 64, ["--gpus", "2", "--mode none"]),
    ("unknown data set", ["--data", "imagenet"], 64, ["--data", "imagenet", "fashion-mnist"]),
    ("unknown augmentation", ["--augment", "blur"], 64, ["blur", "crop"]),
    ("option of another optimizer", [*QUICK, "--optimizer", "adam", "--momentum", "0.9"], 64, ["momentum", "adam"]),
    ("malformed rendezvous", [*QUICK, "--mode", "ring", "--rendezvous", "http://x"], 64, ["expected tcp://HOST:PORT"]),
    ("option of the parameter server for the ring", [*QUICK, "--mode", "ring", "--servers", "2"], 64,
     ["--servers", "--mode ring", "--mode ps or both"]),
    ("option of the ring for none", [*QUICK, "--mode", "none", "--bucket-view"], 64, ["--bucket-view", "--mode none"]),
    ("slow rank that is not there", ["--slow", "9:2", "--gpus", "2"], 78, ["--slow", "a rank from 0 to 1, got 9"]),
    ("slow rank that is none", ["--slow", "x"], 64, ["--slow", "'x'", "RANK:FACTOR"]),
    ("no patience", ["--stall-timeout", "0s"], 64, ["--stall-timeout", "0s", "at least 1.00 ms"]),
    ("no patience for a benchmark", ["bench", "--timeout", "0s"], 64, ["--timeout", "0s", "at least 1.00 ms"]),
    ("no patience at the start", ["--connect-timeout", "0s"], 64, ["--connect-timeout", "at least"]),
    ("last policy unknown", ["sweep", "--vary", "policy=sync,nosuch", "-o", "never", "--model", "toy"], 64, ["--policy", "nosuch", "sync"]),
    ("sweep into no folder", ["sweep", "--vary", "policy=sync", "--model", "toy", "-o", "/no/such/x"], 73, ["/no/such/x"]),
    ("calibration into a folder", ["calibrate", "--out", FILES.name], 73, [FILES.name, "regular file"]),
    ("calibration of a GPU with threads", ["calibrate", "--device", "cuda", "--threads", "2"], 64, ["--threads", "cuda"]),
    ("profile that is a folder", ["--device", f"sim:{FILES.name}", "--model", "resnet50"], 65, [FILES.name, "expected a regular file, got a folder"]),
    ("verify without a file", ["verify"], 64, ["verify", "golden"]),
    ("unknown model to list", ["models", "lennet"], 64, ["lennet", "lenet"]),
    ("stages of no model", ["models", "--stages", "2"], 64, ["--stages: expected the NAME of a model too"]),
    ("too many stages", ["models", "toy", "--stages", "9"], 78, ["--stages: expected at most"]),

    ("images missing", [*LENET, "--data", f"idx:/no/such,{LABELS}"], 65, ["/no/such", "No such file"]),
    ("labels missing", [*LENET, "--data", f"idx:{IMAGES},/no/such"], 65, ["/no/such", "No such file"]),
    ("one file for two", [*LENET, "--data", f"idx:{IMAGES}"], 64, ["idx"]),
    ("a folder for a file", [*LENET, "--data", f"idx:{FILES.name},{LABELS}"], 65, [FILES.name]),
    ("empty file", [*LENET, "--data", f"idx:{file_of('empty', b'')},{LABELS}"], 65, ["empty"]),
    ("truncated images", [*LENET, "--data", f"idx:{file_of('short', idx([4, 8, 8])[:-9])},{LABELS}"], 65, ["short"]),
    ("images with a tail", [*LENET, "--data", f"idx:{file_of('long', idx([4, 8, 8]) + b'x')},{LABELS}"], 65, ["long"]),
    ("truncated gzip", [*LENET, "--data", f"idx:{file_of('cut.gz', gzip.compress(idx([4, 8, 8]))[:-12])},{LABELS}"], 65,
     ["cut.gz"]),
    ("text for images", [*LENET, "--data", f"idx:{file_of('text', b'not a picture at all')},{LABELS}"], 65, ["text"]),
    ("labels for images", [*LENET, "--data", f"idx:{LABELS},{LABELS}"], 65, [LABELS]),
    ("images for labels", [*LENET, "--data", f"idx:{IMAGES},{IMAGES}"], 65, [IMAGES]),
    ("numbers differ", [*LENET, "--data", f"idx:{IMAGES},{file_of('five', idx([5]))}"], 65, ["4", "5"]),
    ("wine missing", ["--data", "wine:/no/such", "--model", "wine_mlp"], 65, ["/no/such"]),
    ("wine of another kind", ["--data", f"wine:{IMAGES}", "--model", "wine_mlp"], 65, ["images"]),
    ("wine truncated", ["--data", f"wine:{file_of('wine.csv', b'1,14.2,1.7' + bytes([10]))}", "--model", "wine_mlp"], 65,
     ["wine.csv", "14"]),
    ("cifar without files", [*RESNET, "--data", f"cifar10:{FILES.name}"], 65, ["data_batch_1.bin"]),
    ("cifar truncated", [*RESNET, "--data", "cifar10:" + os.path.dirname(file_of("cifar/data_batch_1.bin", bytes(5000)))],
     65, ["data_batch_1.bin"]),
    ("mnist without files", [*LENET, "--data", f"mnist:{FILES.name}"], 65, ["train-images-idx3-ubyte"]),
    ("golden file missing", ["verify", "/no/such.json"], 65, ["/no/such.json"]),
    ("golden file of another kind", ["verify", f"{ROOT}/LICENSE"], 65, ["LICENSE:1:"]),
    ("other JSON", ["verify", file_of("other.json", b'{"format": 1}')], 65, ["other.json", "not a golden trajectory"]),
    ("report without a file", ["report"], 64, ["report: expected one file, got 0"]),
    ("report of a file that is missing", ["report", "/no/such.json"], 65, ["/no/such.json", "No such file"]),
    ("report of another kind", ["report", f"{ROOT}/LICENSE"], 65, ["LICENSE:1:"]),
    ("report of other JSON", ["report", file_of("other2.json", b'{"schema_version": 1}')], 65, ["other2.json: expected the JSON of harness run"]),
    ("report of a newer program", ["report", file_of("newer.json", b'{"schema_version": 1000, "jobs": []}')], 65, ["newer.json: schema_version", "got 1000"]),
    ("golden bucket tables", ["verify", f"{GOLDEN}/buckets/pytorch.json"], 65, ["pytorch.json", "not a golden"]),
    ("checkpoint missing", [*QUICK, "--load", "/no/such"], 65, ["/no/such"]),
    ("checkpoint of another kind", [*QUICK, "--load", IMAGES], 65, ["images"]),

    ("target without evaluations", [*QUICK, "--target-loss", "0.5", "--eval-every", "-1"], 64, ["--target-loss", "--eval-every -1"]),
    ("accuracy above all", [*QUICK, "--target-accuracy", "94"], 64, ["--target-accuracy", "94"]),
    ("accuracy of values", ["--model", "toy", "--target-accuracy", "0.5"], 78, ["--target-accuracy", "predicts classes", "toy"]),
    ("target in virtual time", ["--device", "sim", "--target-loss", "1"], 78, ["--target-loss", "real device"]),
    ("results into no folder", [*QUICK, "--json", "/no/such/folder/x.json"], 73, ["/no/such/folder/x.json"]),
    ("results and time line in one file", [*QUICK, "--json", "x", "--trace", "x"], 64, ["--json and --trace", "'x'"]),
    ("results and time line on stdout", [*QUICK, "--json", "-", "--trace", "-"], 64, ["--json and --trace", "'-'"]),
    ("results and checkpoint in one file", [*QUICK, "--mode", "ring", "--json", "x", "--save", "x"], 64, ["--json and --save"]),
    ("measurements into no folder", ["bench", "all-reduce", "--json", "/no/such/x"], 73, ["/no/such/x"]),
    ("results into no name", [*QUICK, "--json", ""], 64, ["--json: expected the name of a file, got ''"]),
    ("results into a folder", [*QUICK, "--json", FILES.name], 73, [FILES.name, "regular file"]),
    ("results into a device", [*QUICK, "--json", "/dev/null"], 73, ["/dev/null", "regular file"]),
    ("results into a file as a folder", [*QUICK, "--json", f"{IMAGES}/x"], 73, [IMAGES]),

    ("more ranks than shared memory serves", ["--gpus", "65", "--mode", "ring", "--model", "toy"], 78,
     ["--gpus", "at most 64 ranks with collectives over shared memory, got 65"]),
    ("more ranks than memory holds", ["--gpus", "64", "--mode", "ring", "--model", "bert_large", "--batch", "512"], 78,
     ["memory: expected a job of at most this ", "got one of ", "--gpus"]),
    ("more ranks than samples", ["--data", "wine", "--model", "wine_mlp", "--gpus", "200", "--quiet"], 78,
     ["142", "200", "one sample per rank"]),
    ("data that the model cannot take", ["--data", "wine", "--model", "lenet"], 78, ["13 features", "images"]),
    ("ranks for mode none", ["verify", "--mode", "none", f"{GOLDEN}/toy_w4.json"], 78, ["none", "expected 1 rank, got 4"]),
]


@cases(WRONG)
def wrong_input_is_answered_with_one_line(words, code, parts):
    result = harness(*words)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(result.out, "", "stdout", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    for part in parts:
        expect(part in result.lines()[0], f"expected {part!r} in the line", result)


# ---- names from other programs, and keys of policies ------------------------------------------

@cases([("torchrun's ranks", ["--nproc-per-node", "1", "--batch-size", "4"]), ("a learning rate", ["--gpus", "1", "--batch", "4", "--learning-rate", "0.01"]), ("with underscores", ["--nproc_per_node=1", "--batch_size=4"])])
def names_that_people_know_are_accepted(words):
    result = harness("run", "--mode", "ring", "--model", "toy", "--steps", "1", "--quiet", "--json", "-", *words)
    expect_equal(result.code, 0, "exit code", result)
    expect_equal([result.json()["configuration"][name] for name in ("gpus", "batch")], ["1", "4"], "ranks and batch", result)


@test
def a_benchmark_takes_the_letters_of_nccl_tests():
    result = harness("bench", "all-reduce", "-b", "8", "-e", "64", "-f", "8", "-g", "2", "-n", "4", "-w", "1", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    rows = result.json()["rows"]
    expect_equal(sorted({row["size_bytes"] for row in rows}), [8, 64], "sizes", result)


@test
def a_benchmark_of_one_rank_counts_one_rank():
    result = harness("bench", "--gpus", "1", "--begin", "8", "--end", "8", "--iters", "1")
    expect("harness: 1 CPU rank on " in result.err and "1 rank on one machine" in result.out, "one rank", result)


@test
def a_key_of_a_policy_is_the_option_and_the_option_says_so():
    words = ["run", "--mode", "ring", "--model", "toy", "--steps", "1", "--json", "-"]
    key, option = harness(*words, "--policy", "ring=apex:message-size=1000"), harness(*words, "--policy", "apex", "--message-size", "1000")
    notice = "--message-size is now a key of the policy: --policy NAME:message-size=1000"
    expect_equal([key.code, option.code], [0, 0], "exit codes", option)
    expect(notice in option.err and notice not in key.err, "expected one notice", option)
    expect(notice not in harness(*words, "--policy", "apex", "--message-size", "1000", "--quiet").err, "expected no notice", option)
    expect_equal([result.json()["configuration"]["message-size"] for result in (key, option)], ["1000", "1000"], "elements", key)


@cases([("run", ["run"]), ("bench", ["bench"]), ("whatif", ["whatif"]), ("verify", ["verify"])])
def help_fits_in_80_columns(words):
    for help_word in ("--help", "--help=all"):
        for line in harness(*words, help_word).out.splitlines():
            expect(len(line) <= 80, f"{len(line)} columns: {line}")


@test
def help_shows_about_forty_options_of_a_run():
    shown, everything = ([line for line in harness("run", word).out.splitlines() if line.startswith("  --")] for word in ("--help", "--help=all"))
    expect(35 <= len(shown) <= 48, f"{len(shown)} options")
    expect(len(everything) > 80, f"{len(everything)} options with all")


# ---- sizes that no machine has -----------------------------------------------------------------

BERT = ["--model", "bert_base", "--plan"]


def golden_with(name, **values):
    with open(os.path.join(GOLDEN, "bert_tiny_w2.json"), encoding="ascii") as file:
        golden = json.load(file)
    golden["case"].update(values)
    return file_of(name, json.dumps(golden).encode())


def with_little_memory():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))  # shared memory
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))


# label, words, variables, exit code, the bound that the line names
TOO_LARGE = [
    ("ranks of a job manager", ["--mode", "ring", "--model", "toy", "--rendezvous", "env://"],
     {"RANK": "0", "WORLD_SIZE": "1000000000", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, 78,
     "WORLD_SIZE: expected an integer from 1 to 1024, got '1000000000'"),
    ("logits", [*BERT, "--batch", "1048576", "--sequence", "1000000", "--positions", "1000000", "--vocabulary", "1000000000"],
     {}, 78, "at most 17592186044416 elements"),
    ("parameters", [*BERT, "--hidden", "1000000", "--heads", "10000", "--vocabulary", "1000000000"], {}, 78,
     "at most 17592186044416 parameters"),
    ("images", ["--model", "resnet50", "--plan", "--batch", "1048576", "--image", "4096"], {}, 78, "at most 17592186044416 elements"),
    ("parts of a model", ["--model", "resnet18", "--plan", "--mode", "ps", "--policy", "ps=sync:partition-bytes=1"], {}, 78,
     "at most 1048576 parts"),
    ("messages of a benchmark", ["bench", "all-reduce", "--begin", "9000000000000000000"], {}, 64, "at most 1 PiB"),
    ("a batch", ["--model", "resnet50", "--mode", "none", "--batch", "100000", "--steps", "1"], {}, 78,
     "memory: expected a job of at most this machine's"),
    ("layers of a golden file", ["verify", golden_with("layers.json", layers=1000000000)], {}, 65,
     "--layers: expected an integer from 0 to 10000"),
    ("samples of a golden file", ["verify", golden_with("batch.json", batch_per_rank=1 << 40)], {}, 65, "case.batch_per_rank"),
    ("ranks of a golden file", ["verify", golden_with("world.json", world_size=(1 << 32) + 1)], {}, 65, "case.world_size"),
    ("a wait", ["--stall-timeout", "9000000000s"], {}, 64, "at most 1000 days"),
]


@cases(TOO_LARGE)
def sizes_that_no_machine_holds_are_refused_before_memory_is_allocated(words, variables, code, bound):
    result = harness(*words, env=variables, preexec_fn=with_little_memory)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect(bound in result.lines()[0], f"expected {bound!r} in the line", result)


# ---- places that do not serve ------------------------------------------------------------------

@cases([("--help", ["--help"]), ("--version", ["--version"]), ("doctor", ["doctor"]), ("models", ["models"]),
        ("policies", ["policies"]), ("verify", ["verify", f"{GOLDEN}/toy_w1.json"]), ("report", QUICK),
        ("results", [*QUICK, "--json", "-"])])
def a_closed_stdout_is_a_failure(words):
    watch = Watch()
    with Run(*words, preexec_fn=lambda: os.close(1)) as run:
        result = run.wait(60)
        watch.check(run)
    expect_equal(result.code, 73, "exit code", result)
    expect(len(result.lines()) == 1 and "stdout" in result.lines()[0], "one line that names stdout", result)


@test
def a_full_disk_under_stdout_is_a_failure():
    with open("/dev/full", "wb") as full:
        result = harness(*QUICK, stdout=full)
    expect_equal(result.code, 73, "exit code", result)
    expect("No space left" in result.err, result)


@test
def a_limit_of_file_sizes_is_named():
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # noqa: E731
    result = harness("--mode", "ring", "--model", "lenet", "--steps", "2", "--quiet", preexec_fn=limit)
    expect_equal(result.code, 71, "exit code", result)
    expect(len(result.lines()) == 1 and "File too large" in result.err, result)


@test
def a_slow_rank_slows_only_jobs_that_have_that_rank():
    result = harness("--mode", "both", "--model", "toy", "--steps", "2", "--gpus", "2", "--slow", "1:2", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(len(result.jobs()), 5, "jobs", result)


@test
def a_reader_that_has_gone_ends_the_program_quietly():
    watch = Watch()
    read, write = os.pipe()
    os.close(read)
    with Run(*QUICK, stdout=write) as run:
        os.close(write)
        result = run.wait(60)
        watch.check(run)
    expect(result.code in (73, 141), "exit code 73 or the pipe's signal", result)
    expect(len(result.lines()) <= 1, "at most one line", result)


@test
def results_replace_an_older_file_and_leave_no_other_file():
    path = file_of("results/run.json", b"old")
    result = harness(*QUICK, "--json", path, "--verbose")
    expect_equal(result.code, 0, "exit code", result)
    expect_equal(os.listdir(os.path.dirname(path)), ["run.json"], "files", result)
    with open(path, encoding="utf-8") as file:
        expect(file.read().startswith("{"), "JSON in the file")
    expect("toy: 10 features with 5 values, 165 parameters" in result.out, "the report, too", result)


@cases([("a port in use", "tcp://127.0.0.1:{port}", {}),
        ("MASTER_PORT in use", "env://", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"})])
def an_address_in_use_is_named(url, variables):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {name: value.format(port=port) for name, value in variables.items()}
        env.update(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", HARNESS_KEY="0123456789abcdef" * 4)
        result = harness(*QUICK, "--mode", "ring", "--rendezvous", url.format(port=port), env=env)
    expect_equal(result.code, 69, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines", result)
    expect(port in result.lines()[0], "names the port", result)


@cases([("no RANK", {"WORLD_SIZE": "2"}, ["RANK"]), ("no WORLD_SIZE", {"RANK": "0"}, ["WORLD_SIZE"]),
        ("no LOCAL_RANK", {"RANK": "0", "WORLD_SIZE": "2"}, ["LOCAL_RANK"]),
        ("rank beyond the world", {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["RANK: expected an integer from 0 to 1, got '2'"]),
        ("rank that is none", {"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["got 'one'"]),
        ("no MASTER_ADDR", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "29500"},
         ["MASTER_ADDR"]),
        ("port that is none", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                               "MASTER_PORT": "x"}, ["MASTER_PORT", "x"])])
def an_incomplete_environment_is_named(variables, parts):
    result = harness(*QUICK, "--mode", "ring", "--rendezvous", "env://", env=variables)
    expect(result.code in (64, 78), "exit code of usage or configuration", result)
    expect_equal(len(result.lines()), 1, "lines", result)
    for part in parts:
        expect(part in result.lines()[0], f"expected {part!r}", result)


@test
def ranks_that_other_programs_start_belong_to_one_engine():
    result = harness(*QUICK, "--rendezvous", "env://", env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
    expect_equal(result.code, 64, "exit code", result)
    expect("both" in result.err and "none, ps or ring" in result.err, result)


@cases([(model, model, size) for model, size in (("resnet18", 32), ("alexnet", 64), ("inception_v3", 76), ("lenet", 28))])
def images_are_small_by_default_where_processors_compute(model, size):
    words = ("--mode", "none", "--model", model, "--batch", "2", "--steps", "1", "--plan")
    on_cpu, virtual = (harness("run", *words, "--device", device, "--json", "-").json() for device in ("cpu", "sim"))
    expect_equal(on_cpu["input"].split()[2].split("x")[1:], [str(size)] * 2, "on a CPU")
    expect_equal(virtual["input"].split()[2].split("x")[1], {"lenet": "28", "inception_v3": "299"}.get(model, "224"), "on a virtual GPU")


@test
def the_first_line_names_the_size_of_images_and_the_last_ones_the_other_engine():
    run = ("--model", "lenet", "--gpus", "2", "--batch", "2", "--steps", "1", "--warmup", "0", "--eval-every", "-1")
    ring = harness("--mode", "ring", *run)
    expect_equal(ring.code, 0, "exit code", ring)
    expect("images of 28x28, the default on a CPU; --image N for others" in ring.err, "the note", ring)
    expect("--mode both compares it with a parameter server.\n" in ring.out, "the other engine", ring)
    given = harness("--mode", "ps", *run, "--image", "16")
    expect("the default on a CPU" not in given.err and "--mode both compares it with a ring.\n" in given.out, "a given size", given)

main()
