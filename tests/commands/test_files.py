"""Files that the program reads: what is no regular file, damaged data, changed results, texts for a terminal."""
import gzip
import json
import os
import random
import re
import struct
import subprocess
import tempfile

from program import PROGRAM, harness
from results import changed, checksum, leaves, seal
from tap import cases, expect, expect_equal, main, more_test, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
FILES = tempfile.TemporaryDirectory(prefix="files-test-")
WINE = ["--model", "wine_mlp", "--batch", "8", "--steps", "3", "--mode", "none", "--quiet"]
LENET = ["--model", "lenet", "--batch", "2", "--steps", "1", "--mode", "none", "--quiet"]


def at(*names):
    return os.path.join(FILES.name, *names)


def write(name, content):
    os.makedirs(os.path.dirname(at(name)), exist_ok=True)
    with open(at(name), "wb") as file:
        file.write(content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode())
    return at(name)


def refused(result, code, *texts):
    expect_equal((result.code, len(result.lines())), (code, 1), "exit code and lines", result)
    for text in texts:
        expect(text in result.err, f"expected {text!r}", result)


_made = []


def made():
    """A run of both engines with evaluations, in which all steps are measured."""
    if not _made:
        words = ["--model", "wine_mlp", "--data", "wine", "--batch", "8", "--gpus", "2", "--threads", "1", "--steps", "6", "--eval-every", "3"]
        _made.append(harness(*words, "--quiet", "--json", "-").json())
    return _made[0]


# ---- what is no regular file -------------------------------------------------------------------

for name in ("fifo", "fifo.json", "cifar/data_batch_1.bin", "sweep/sweep.json", "table/table.json"):
    os.makedirs(os.path.dirname(at(name)), exist_ok=True)
    os.mkfifo(at(name))
write("result.json", {"jobs": [{"name": "none"}]})


@cases([("--config", ["--config", at("fifo.json")]), ("--config of TOML", ["--config", at("fifo")]), ("report", ["report", at("fifo.json")]),
        ("report of a sweep", ["report", at("table")]), ("compare", ["compare", at("result.json"), at("fifo.json")]), ("compare of sweeps", ["compare", at("sweep"), at("sweep")]),
        ("reproduce", ["reproduce", at("fifo.json")]), ("verify", ["verify", at("fifo")]), ("a device", ["--device", f"sim:{at('fifo.json')}", "--model", "resnet18"]),
        ("--profile", ["whatif", "--model", "resnet18", "--profile", at("fifo.json")]),
        ("a table of algorithms", [*WINE[:-3], "--mode", "ring", "--gpus", "2", "--algorithm", "tuned", "--collective-table", at("fifo"), "--quiet"]),
        ("IDX", [*LENET, "--data", f"idx:{at('fifo')},{at('fifo')}"]), ("CIFAR-10", [*LENET, "--data", f"cifar10:{at('cifar')}"]),
        ("wine", [*WINE, "--data", f"wine:{at('fifo')}"]), ("a checkpoint", [*WINE, "--load", at("fifo")]),
        ("a device file", ["report", "/dev/zero"])], at_once=4)
def a_fifo_or_a_device_is_refused_at_once(words):
    refused(harness(*words, limit=10), 65, "expected a regular file, got a device, pipe or socket")


# ---- data sets ---------------------------------------------------------------------------------

IMAGES = struct.pack(">4I", 0x803, 4, 28, 28) + bytes(4 * 28 * 28)


def labels(*values):
    return struct.pack(">2I", 0x801, len(values)) + bytes(values)


@cases([("bytes after gzip's end", gzip.compress(IMAGES) + b"more", labels(0, 1, 0, 1), "expected the end of the file after the gzip data, got 4 more bytes"),
        ("a label of 255", IMAGES, labels(0, 255, 0, 1), "offset 9: expected a label from 0 to 254, got 255"),
        ("gzip data that end early", gzip.compress(IMAGES)[:-9], labels(0, 1, 0, 1), "gzip data end early")])
def damaged_idx_files_are_refused(images, of_images, message):
    words = [*LENET, "--data", f"idx:{write('images', images)},{write('labels', of_images)}"]
    refused(harness(*words), 65, message)


@test
def a_label_above_the_classes_is_refused():
    for part in ("train", "t10k"):
        write(f"mnist/{part}-images-idx3-ubyte", IMAGES)
        write(f"mnist/{part}-labels-idx1-ubyte", labels(0, 1, 10, 2))
    refused(harness(*LENET, "--data", f"mnist:{at('mnist')}"), 65, "offset 10: expected a label from 0 to 9, got 10")


@test
def several_members_of_gzip_are_one_file():
    words = [*LENET, "--data", f"idx:{write('images', gzip.compress(IMAGES[:100]) + gzip.compress(IMAGES[100:]))},{write('labels', labels(0, 1, 0, 1))}"]
    expect_equal(harness(*words).code, 0, "exit code")


# ---- messages ----------------------------------------------------------------------------------

LATIN_1 = os.fsdecode(b"caf\xe9")


@cases([("run", ["run", "--device", f"sim:{LATIN_1}/p.json", "--mode", "ring", "--gpus", "2", "--model", "lenet", "--json", "w.json"], "argument 2 of run"),
        ("run by default", [*WINE, "--save", f"{LATIN_1}.st"], "argument 11 of run"), ("sweep", ["sweep", "--vary", f"load={LATIN_1}", *WINE, "-o", "d"], "argument 2 of sweep"),
        ("compare", ["compare", f"{LATIN_1}.json", "r.json"], "argument 1 of compare"), ("report", ["report", f"{LATIN_1}.json"], "argument 1 of report")])
def words_that_are_not_utf_8_are_refused(words, place):
    refused(harness(*words), 64, f"{place}: expected UTF-8, got '")


@test
def a_rendezvous_of_another_scheme_is_named_with_those_expected():
    refused(harness(*WINE, "--rendezvous", "bogus://x"), 64, "expected tcp://HOST:PORT, ipc://@NAME, file://PATH or env://, got 'bogus://x'")


@cases([("a key", {"k" * 1000000: 1}, "unknown option '--kkk"), ("a value", {"steps": "v" * 1000000}, "--steps: expected an integer from 0 to "),
        ("with quotes", {"mode": "v'" * 500000}, "--mode: expected one of")])
def a_long_text_is_cut_in_messages(content, message):
    result = harness("--config", write("long.json", content))
    refused(result, 64, message, "...")
    expect(len(result.err) < 800, f"{len(result.err)} characters", result)


@test
def control_characters_of_files_do_not_reach_the_terminal():
    text = "\x1b[31m\x9b1mred\x07\x7f\nline"
    shown = {"hardware_note": text, "workload": {"model": text}, "jobs": [{"name": text, "engine": text, "policy": text, "ranks": [{"rank": 0}], "step_time": {}}]}
    for words, content, code in ((["report"], {"schema_version": 3, **shown}, 0), (["report"], {"jobs": {text: 1}}, 65), (["report"], seal({**made(), text: 1}), 65),
                                 (["--config"], {text: 1}, 64), (["--config"], {"mode": text}, 64), (["--config"], {"steps": "x\x1b"}, 64)):
        result = harness(*words, write("escape.json", content))
        expect_equal(result.code, code, "exit code", result)
        found = [c for c in result.out + result.err if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
        expect(not found and "\nline" not in result.out + result.err, f"control characters {found}", result)


# ---- results -----------------------------------------------------------------------------------

# Kinds of values that follow from others, so that a change shows even if the checksum is computed anew: all that is measured per
# step, but for copies and waits of single ranks; memory per class and phase; all figures of a job, of the
# comparison and of the verdict. Values that stand for themselves have no such rule: names and versions, the host, the command and
# the configuration, the workload, processes, timelines, counts of an engine, the agreement of parameters.
RULED = re.compile(r"""jobs\.\[\]\.(step_s\.\[\] | (step_time|throughput|traffic|memory_imbalance)\..* | phases\..* | losses\.\[\] | loss_(first|last) | accuracy
    | updates_skipped | evaluations\.\[\]\..*
    | ranks\.\[\]\.((step|data|forward|backward|exposed_communication|waiting|optimizer|other|communication|hidden_communication)_s\.\[\]
        | hidden_while_(computing|waiting)_s\.\[\] | step_(begin|end)_s\.\[\] | step_samples\.\[\] | losses\.\[\] | (samples|wall_s|rank)
        | (bytes|messages)_(sent|received) | memory\.(peak_classes|phases)\..* | memory\.total\.peak_bytes))
    | (comparison\.against_none|verdict)\..*""", re.VERBOSE)


def kind_of(path):
    return ".".join("[]" if isinstance(key, int) else key for key in path)


def other(value):
    """Another value of the same type, or a number instead of null."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 1.01 * value if value else 0.5
    return value + "x" if isinstance(value, str) else 1


def drawn(count, seed, is_drawn):
    """`count` changed results; every kind of value is changed once before any kind is changed twice."""
    rng, kinds = random.Random(seed), {}
    for path in leaves(made()):
        if path[0] not in ("options", "checksum", "provenance") and is_drawn(kind_of(path)):
            kinds.setdefault(kind_of(path), []).append(path)
    names = sorted(kinds)
    rng.shuffle(names)
    for i in range(count):
        path = rng.choice(kinds[names[i % len(names)]])
        yield path, changed(made(), path, other)


@test
def the_checksum_is_that_of_the_document():
    expect_equal(made()["checksum"], checksum(made()), "checksum")


def refused_by_both(path, content, name):
    file = write(name, content)
    for words in (["report", file], ["compare", file, file]):
        result = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
        expect_equal((result.returncode, result.stderr.count("\n")), (65, 1), f"{'.'.join(map(str, path))}: exit code and lines", result)
        expect(re.search(re.escape(name) + r": [^:]+: expected .+, got ", result.stderr), "file, place, expected and found value", result)


@more_test
def a_hundred_results_with_one_changed_value_are_refused():
    for path, content in drawn(100, 1, lambda kind: True):
        refused_by_both(path, content, "changed.json")


@more_test
def a_hundred_changed_results_with_a_new_checksum_break_a_rule():
    for path, content in drawn(100, 2, RULED.fullmatch):
        refused_by_both(path, seal(content), "sealed.json")


@cases([("a version of the future", lambda r: {**r, "schema_version": 999}, "schema_version: expected an integer from 5 to 6, got 999"),
        ("an older version with a checksum", lambda r: {**r, "schema_version": 4}, "schema_version: expected an integer from 5 to 6, got 4"),
        ("no version", lambda r: {key: value for key, value in r.items() if key != "schema_version"}, "schema_version: expected an integer from 5 to 6, got nothing"),
        ("no checksum", lambda r: {key: value for key, value in r.items() if key != "checksum"}, "got nothing"),
        ("a number of jobs", lambda r: seal({**r, "jobs": 5}), "jobs: expected array, got 5"),
        ("numbers as jobs", lambda r: seal({**r, "jobs": [1, 2]}), "jobs[0]: expected object, got 1"),
        ("an old number of jobs", lambda r: {"schema_version": 4, "options": {}, "jobs": 5}, "jobs: expected array, got 5"),
        ("old numbers as jobs", lambda r: {"schema_version": 4, "options": {}, "jobs": [1, 2]}, "jobs[0]: expected object, got 1"),
        ("not a number", lambda r: json.dumps(r).replace(json.dumps(r["jobs"][0]["loss_last"]), "NaN"), "result.json:1:"),
        ("infinity", lambda r: json.dumps(r).replace(json.dumps(r["jobs"][0]["loss_last"]), "1e999"), "result.json:1:"),
        ("an unknown key", lambda r: seal({**r, "more": 1}), "more: expected no such key, got 1"),
        ("a missing key", lambda r: seal({key: value for key, value in r.items() if key != "host"}), "host: expected a value, got nothing"),
        ("a step less", lambda r: seal(changed(r, ("jobs", 0, "ranks", 0, "step_index"), lambda steps: steps[:-1])), "jobs[0].ranks[0]."),
        ("a rank less", lambda r: seal(changed(r, ("jobs", -1, "ranks"), lambda ranks: ranks[1:])), "ranks[0].rank: expected 0, got 1")])
def damaged_results_are_refused_by_all_that_read_them(damage, message):
    file = write("result.json", damage(made()))
    for words in (["report", file], ["compare", file, file], ["reproduce", file], ["--config", file]):
        refused(harness(*words), 65, "result.json", message)


@cases([("a plan", ["--plan", *WINE, "--json"], ("jobs", 0, "ranks", 0, "memory", "total", "peak_bytes")), ("memory", ["memory", "--model", "lenet", "--gpus", "2", "--json"], ("jobs", 0, "row")),
        ("a reproduction", ["reproduce", "reducer-memory", "--draws", "0", "--json"], ("cells", 0, "ours"))])
def changed_plans_and_reproductions_are_refused(words, path):
    expect_equal(harness(*words, at("other.json"), limit=60).code, 0, "exit code")
    expect_equal(harness("report", at("other.json")).code, 0, "report")
    with open(at("other.json"), encoding="utf-8") as file:
        refused(harness("report", write("other.json", changed(json.load(file), path, other))), 65, "checksum: expected ")


@test
def changed_files_of_a_sweep_are_refused():
    words = ["sweep", "--device", "sim:dgx1-v100", "--model", "resnet18", "--steps", "2", "--vary", "gpus=1,2", "--mode", "ring", "-o", at("swept")]
    expect_equal(harness(*words).code, 0, "exit code")
    run = at("swept", "runs", "point-0000-round-000.json")
    for file, path, reader in ((at("swept", "table.json"), ("points", 0, "step_s", "median"), ["report", at("swept")]),
                               (run, ("jobs", 0, "step_s", 0), ["compare", at("swept"), at("swept")])):
        with open(file, encoding="utf-8") as stream:
            good = stream.read()
        write(file, changed(json.loads(good), path, other))
        refused(harness(*reader), 65, os.path.basename(file), "checksum: expected ")
        write(file, good)
    with open(run, encoding="utf-8") as stream:
        write(run, changed(json.load(stream), ("jobs", 0, "step_s", 0), other))
    again = harness(*words)
    expect("the run has no valid result" in again.err, "a damaged run is announced", again)
    expect_equal((again.code, harness("compare", at("swept"), at("swept")).code), (0, 0), "the run is repeated", again)


@test
def options_of_a_result_may_be_edited():
    edited = {**made(), "options": {**made()["options"], "steps": 2, "batch": "4"}}
    result = harness("--config", write("edited.json", edited), "--quiet", "--json", "-")
    expect_equal(result.code, 0, "exit code", result)
    expect_equal((result.json()["options"]["steps"], result.json()["options"]["batch"]), ("2", "4"), "options")
    refused(harness("--config", write("edited.json", changed(edited, ("jobs", 0, "steps"), other))), 65, "edited.json: checksum: expected ")


@cases([("a run", "run-version-4", 4, 6), ("a run with a checksum", "run-version-5", 5, 6), ("a reproduction", "reproduction-version-4", 4, 5)])
def recorded_results_of_older_versions_are_read_with_a_notice(name, found, current):
    path = os.path.join(ROOT, "tests/commands", name + ".json")
    result = harness("report", path)
    expect_equal((result.code, len(result.lines())), (0, 1), "exit code and lines", result)
    expect(f"schema_version {found}, this program writes {current}" in result.err, "notice", result)
    with open(path, encoding="utf-8") as file:
        stored = json.load(file)
    if "checksum" in stored:
        refused(harness("report", write("older.json", changed(stored, ("checksum",), other))), 65, "older.json: checksum: expected ")


def keywords(schema):
    """The keywords of a schema and of those in it."""
    for key, value in schema.items():
        yield key
        inner = value.values() if key in ("properties", "$defs") else [value] if key in ("items", "additionalProperties") else []
        for one in inner:
            yield from keywords(one) if isinstance(one, dict) else ()


@test
def the_program_knows_every_keyword_of_the_schemas_of_results():
    known = {"$schema", "title", "$defs", "$ref", "type", "enum", "properties", "required", "additionalProperties", "items",
             "x-sums", "x-ascending", "x-numbered"}
    for name in ("run", "plan", "memory", "sweep", "reproduction"):
        with open(os.path.join(ROOT, "docs/schemas", f"{name}.schema.json"), encoding="utf-8") as file:
            expect_equal(set(keywords(json.load(file))) - known, set(), name)


main()
