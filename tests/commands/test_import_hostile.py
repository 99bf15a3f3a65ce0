"""`harness import` refuses files that are wrong or hostile in one line and in little memory, and prints no control characters."""
import gzip
import json
import os
import random
import tempfile
import time

from program import harness
from tap import cases, expect, expect_equal, long_test, main, test
from torch_traces import FOLDER, event, expect_sum, gpu_trace, imported, in_folder, refused, step_ns, table


def with_event(**fields):
    """A trace with one more event, or one with other fields."""
    trace = gpu_trace()
    extra = event("torch::autograd::AccumulateGrad", 12465, 2, tid=2, **{"Input Dims": [[2]], "Input type": ["float"]})
    trace["traceEvents"].append({**extra, **fields})
    return json.dumps(trace).encode()


GOOD = json.dumps(gpu_trace(metadata={"step_ms": 0.9})).encode()
HOSTILE = [
    ("a truncated file", GOOD[:len(GOOD) // 2], "expected a whole trace"),
    ("a truncated compressed file", gzip.compress(GOOD)[:-200], "expected a whole trace"),
    ("an empty file", b"", "expected a whole trace"),
    ("a file of zeros", bytes(4096), "expected '{'"),
    ("a gradient of 2^31 x 2^31 elements", with_event(args={"Input Dims": [[2**31, 2**31]], "Input type": ["float"]}), "2^44 elements"),
    ("a dimension of 2^63", GOOD.replace(b"[[64, 32]]", b"[[9223372036854775808]]"), "event"),
    ("a million nested lists", b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 1000000, "expected a whole trace"),
    ("a closed nest of lists", with_event(args=1).replace(b'"args": 1}', b'"args": ' + b"[" * 9999 + b"]" * 9999 + b"}"), "expected valid JSON"),
    ("a time beyond all years", with_event(ts=1e300), '"ts" and "dur"'),
    ("a negative duration", with_event(dur=-5), '"ts" and "dur"'),
    ("control characters", b'{"traceEvents": [{"ph": "X", "name": "\x1b[31m\x07"}]}', "expected valid JSON"),
    ("no events", b'{"traceEvents": []}', "ProfilerActivity.CPU"),
    ("no list of events", b'{"schemaVersion": 1}', "traceEvents"),
    ("a list of events of another kind", b'{"traceEvents": 7}', "expected a list"),
    ("parameters of another form", GOOD.replace(b'"layers.0.weight"', b"7"), "parameter 0"),
    ("an event of three megabytes", with_event(name="x" * 3000000), "at most 2097152 bytes"),
]


@cases(HOSTILE)
def a_hostile_file_is_refused_in_one_line_and_little_memory(data, part):
    refused(in_folder(data), part)


@test
def names_with_control_characters_do_not_reach_the_terminal():
    trace = gpu_trace(metadata={"parameters": [["\x1b[31mlayers.0.weight\x9b", [64, 32], "float32", True]]})
    trace["deviceProperties"][0]["name"] = "GPU\x1b]0;x\x07"
    path = in_folder(trace)
    expect(table(path).isprintable(), "expected no control characters")
    expect(all(p["name"].isprintable() for p in imported(path)["parameters"]), "expected printable names")


@test
def a_long_name_keeps_its_end():
    name = "layers.0." + "\u00e9" * 60 + ".weight"
    trace = gpu_trace(metadata={"parameters": [[name, [64, 32], "float32", True]], "buffers": [[name, 3, "float32"]]})
    trace["deviceProperties"][0]["name"] = "GPU " + "\u00e9" * 60
    found = imported(in_folder(trace, "\u00e9" * 40 + ".json"))["parameters"][0]["name"]
    expect(len(found) > 40 and name.endswith(found), found)


@test
def a_file_of_four_gigabytes_is_refused():
    path = in_folder(b"")
    with open(path, "r+b") as file:
        file.truncate(4 << 30)
    refused(path, "trace.json")


def mutate(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:at + rng.randrange(1, 200)]
        elif kind == 2:
            data[at:at] = data[at:at + rng.randrange(1, 400)]
        elif kind == 3:
            data[at:at] = rng.choice((b"[", b"}", b'"', b"\\", b"-1", b"1e308", b"9223372036854775807", b"null", b"\x00", b"\xff"))
        else:
            start = next((i for i in range(at, len(data)) if 48 <= data[i] <= 57), at)
            end = next((i for i in range(start, len(data)) if not 48 <= data[i] <= 57), len(data))
            data[start:end] = rng.choice((b"0", b"-7", b"2147483648", b"1e18", b"99999999999999999999", b"0.5", b"[]", b'"a"'))
        if not data:
            return b"{"
    return bytes(data)


def fuzz(seconds, seed):
    """Imports mutants of a small trace. Each is imported or refused in one line."""
    rng, begin, count, codes = random.Random(seed), time.monotonic(), 0, set()
    folder = tempfile.mkdtemp(dir=FOLDER.name)
    while time.monotonic() - begin < seconds or count < 50:
        path = os.path.join(folder, "trace.json")
        data = mutate(GOOD, rng)
        with open(path, "wb") as file:
            file.write(data)
        result = harness("import", path, "-o", "-")
        ok = result.code in (0, 65) and len(result.err.splitlines()) == (result.code != 0)
        expect(ok, f"mutant {count} of seed {seed}", result)
        if result.code == 0:
            expect_sum(result.json(), step_ns(result.json()))
        codes.add(result.code)
        count += 1
    expect_equal(codes, {0, 65}, "exit codes")


@test
def mutants_of_a_trace_are_imported_or_refused():
    fuzz(5, 1)


@long_test
def mutants_of_a_trace_are_imported_or_refused_for_a_minute():
    fuzz(60, 2)


main()
