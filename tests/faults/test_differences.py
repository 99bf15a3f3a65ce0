"""Ranks that do not have the same program, options, data or checkpoint do not train; replicas that differ replace no
checkpoint; what keeps one rank from starting ends all of them with its cause."""
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from program import PROGRAM, SANITIZED, Run
from struck import GONE, errors, held, strike
from tap import Skip, cases, expect, expect_equal, main, test

FOLDER = tempfile.TemporaryDirectory(prefix="run-")
WORDS = ["--model", "lenet", "--data", "idx:images,labels", "--batch", "4", "--threads", "1", "--warmup", "0", "--quiet", "--log-level", "warn"]
RING, SYNC = ["--mode", "ring"], ["--mode", "ps", "--policy", "sync"]


def path(name):
    return os.path.join(FOLDER.name, name)


def samples(count=60):
    """[(image, label)] to be written as an IDX file."""
    draw = random.Random(7)
    return [(draw.randbytes(28 * 28), i % 10) for i in range(count)]


def write_idx(folder, pairs, images="images", labels="labels"):
    with open(os.path.join(folder, images), "wb") as file:
        file.write(struct.pack(">IIII", 0x803, len(pairs), 28, 28) + b"".join(image for image, _ in pairs))
    with open(os.path.join(folder, labels), "wb") as file:
        file.write(struct.pack(">II", 0x801, len(pairs)) + bytes(label for _, label in pairs))


class Job:
    """Two ranks that are started by hand, each in a folder of its own with the same data set."""

    def __init__(self, *words, differ=((), ()), programs=(PROGRAM, PROGRAM), port=None, limits=(None, None)):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = port or taken.getsockname()[1]
        self.words, self.differ, self.programs, self.limits = words, differ, programs, limits
        self.runs = [None, None]
        self.folders = [data_folder() for _ in range(2)]

    def start(self, rank, world=2):
        env = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(self.port), "HARNESS_KEY": "0123456789abcdef" * 4}
        self.runs[rank] = Run(*self.words, *self.differ[rank], "--rendezvous", "env://", env=env, cwd=self.folders[rank],
                              program=[self.programs[rank]], preexec_fn=self.limits[rank])
        return self.runs[rank]

    def end(self, limit=60):
        results = [run.wait(limit) for run in self.runs]
        for run in self.runs:
            run.wait_until_gone(2)
            run.__exit__()
        return results

    def run(self, late=None, limit=60):
        """Both results. The rank `late` starts after the other rank has reported its error, if that rank has one."""
        for rank in sorted((0, 1), key=lambda rank: rank == late):
            if rank == late:
                time.sleep(1.5)
            self.start(rank)
        return self.end(limit)


def same_line(results, code, *parts):
    """Checks that all ranks end with the code and one line; returns the lines without the rank that prints them."""
    lines = []
    for rank, result in enumerate(results):
        expect_equal(result.code, code, f"exit code of rank {rank}", result)
        expect_equal((result.out, len(errors(result))), ("", 1), f"stdout of rank {rank}, lines on stderr", result)
        lines.append(re.sub(r"^harness: \w+ rank \d+: ", "", errors(result)[0]))
        for part in parts:
            expect(part in lines[-1], f"expected {part!r}", result)
    return lines


# ---- before step 0 --------------------------------------------------------------------------------------------------

def change_data(change):
    def apply(job):
        pairs = samples()
        change(pairs)
        write_idx(job.folders[1], pairs)
    return apply


def swap(pairs):
    pairs[3], pairs[13] = pairs[13], pairs[3]  # of one class


def shorten(pairs):
    pairs.pop()


def relabel(pairs):
    pairs[5] = (pairs[5][0], 6)


def data_folder():
    folder = tempfile.mkdtemp(dir=FOLDER.name)
    write_idx(folder, samples())
    return folder


def trained(*words):
    """The exit code of a run on the same data."""
    with Run("run", "--mode", "none", *WORDS, *words, cwd=data_folder()) as run:
        return run.wait(60).code


def saved(*words):
    """A checkpoint of a run with these words. Two cases that run at the same time make it only once."""
    name = path("checkpoint" + "".join(words))
    with SAVES:
        if not os.path.exists(name):
            expect_equal(trained(*words, "--save", name), 0, "exit code")
    return name


SAVED = ["--steps", "10"]
SAVES = threading.Lock()


def change_checkpoint(*words):
    def apply(job):
        for folder, source in zip(job.folders, (saved(*SAVED), saved(*words))):
            shutil.copy(source, os.path.join(folder, "c"))
        job.words = [*job.words, "--load", "c"]
    return apply


def change_commit(job):
    with open(PROGRAM, "rb") as file:
        program = file.read()
    identity = re.search(rb"\d+\.\d+\.\d+, (commit|sources) [0-9a-f]+\0", program)
    expect(identity, "the program has no identity")
    other = identity[0][:-2] + (b"0" if identity[0][-2:-1] != b"0" else b"1") + b"\0"
    copy = os.path.join(job.folders[1], "harness")
    with open(copy, "wb") as file:
        file.write(program.replace(identity[0], other))
    os.chmod(copy, 0o755)
    job.programs = (PROGRAM, copy)


def change_words(*words):
    def apply(job):
        job.differ = ((), words)
    return apply


@cases([
    ("order of the data, ring", RING, change_data(swap), "training data = 48 samples, XXH3 "),
    ("length of the data, ps=sync", SYNC, change_data(shorten), "training data = 47 samples, XXH3 "),
    ("one label, zero1", [*RING, "--policy", "zero1"], change_data(relabel), "training data = 48 samples, XXH3 "),
    ("step of the checkpoint, dp", ["--mode", "ps", "--policy", "dp"], change_checkpoint("--steps", "25"), "checkpoint = step 25, XXH3 "),
    ("weights of the checkpoint, zero3", [*RING, "--policy", "zero3"], change_checkpoint(*SAVED, "--batch", "5"), "checkpoint = step 10, XXH3 "),
    ("commit, ring", RING, change_commit, "program version: "),
    ("learning rate, ps=async", ["--mode", "ps", "--policy", "async"], change_words("--lr", "0.5"), "lr = 0.5"),
    ("kind of data, ring", RING, change_words("--data", "fashion-mnist"), "data = fashion-mnist"),
    ("a checkpoint on one rank, ring", RING, lambda job: change_words("--load", saved(*SAVED))(job), "load = given"),
], at_once=2)
def ranks_that_differ_end_before_step_0(words, change, text):
    job = Job(*WORDS, *words, "--steps", "5")
    change(job)
    first, second = same_line(job.run(limit=GONE), 76, text, "rank 1 has '", "rank 0 has '")
    expect_equal(first, second, "the line of rank 0 and that of rank 1")


@test
def paths_reports_and_threads_may_differ():
    job = Job(*WORDS[:2], *WORDS[4:], *RING, "--steps", "3",
              differ=(["--data", "idx:images,labels", "--json", "-", "--threads", "1", "--save", "a"],
                      ["--data", "idx:pictures,classes", "--threads", "2", "--save", "b", "--log-level", "warn"]))
    write_idx(job.folders[1], samples(), "pictures", "classes")
    for rank, result in enumerate(job.run()):
        expect_equal(result.code, 0, f"exit code of rank {rank}", result)


@test
def a_build_without_a_commit_is_known_by_its_sources():
    def hash_of(name, text):
        folder = path(name)
        os.makedirs(os.path.join(folder, "ring"), exist_ok=True)
        with open(os.path.join(folder, "ring", "engine.c"), "w", encoding="utf-8") as file:
            file.write(text)
        script = os.path.join(os.environ.get("SOURCE_DIR", "."), "common", "build", "HashSources.cmake")
        subprocess.run(["cmake", "-D", f"FOLDER={folder}", "-D", "VERSION=1.0", "-D", f"OUT={folder}/identity.h", "-P", script], check=True)
        with open(os.path.join(folder, "identity.h"), encoding="utf-8") as file:
            return file.read()
    one, alike, other = hash_of("one", "int a;\n"), hash_of("alike", "int a;\n"), hash_of("other", "int b;\n")
    expect(re.fullmatch(r'#define PROGRAM_IDENTITY "1\.0, sources [0-9a-f]{12}"\n', one), f"identity: {one!r}")
    expect_equal((one == alike, one == other), (True, False), "equal for equal sources, and for others")


# ---- errors in set-up -----------------------------------------------------------------------------------------------

def remove_data(rank):
    return lambda job: os.remove(os.path.join(job.folders[rank], "labels"))


def missing_checkpoint(job):
    change_checkpoint(*SAVED)(job)
    os.remove(os.path.join(job.folders[1], "c"))


def damaged_checkpoint(job):
    change_checkpoint(*SAVED)(job)
    with open(os.path.join(job.folders[1], "c"), "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"12345678")


def limit(kind, value):
    def apply(job):
        if SANITIZED:
            raise Skip("sanitizers reserve more memory")
        job.limits = (None, lambda: resource.setrlimit(kind, (value, value)))
    return apply


LARGE = [*RING, "--model", "gpt", "--layers", "1", "--hidden", "64", "--heads", "1", "--sequence", "8", "--vocabulary", "300000",
         "--data", "synthetic", "--batch", "1", "--eval-every", "-1"]


@cases([
    ("a data file is missing on rank 1", RING, remove_data(1), 1, 65, "labels"),
    ("a data file is missing on rank 0", SYNC, remove_data(0), 0, 65, "labels"),
    ("the checkpoint is missing on rank 1", RING, missing_checkpoint, 1, 65, "c: cannot be opened"),
    ("the checkpoint is damaged on rank 1", SYNC, damaged_checkpoint, 1, 65, "they are damaged"),
    ("no such interface on rank 1", [*SYNC, "--servers", "2", "--transport", "tcp"], change_words("--interface", "none0"), 1, 69, "none0"),
    ("the model does not fit on rank 1", LARGE, limit(resource.RLIMIT_AS, 280 << 20), 1, 71, "no memory for 7"),
], at_once=2)
def the_error_of_one_rank_ends_all_with_its_code_and_cause(words, change, rank, code, text):
    for late in (None, 1 - rank) if code != 71 else (None,):
        job = Job(*WORDS, *words, "--steps", "5")
        change(job)
        lines = same_line(job.run(late, limit=GONE), code, text)
        expect(re.fullmatch(rf"rank {rank} \(\S+, process \d+\): " + re.escape(lines[rank]), lines[1 - rank]), f"lines: {lines}")


# ---- a second job ---------------------------------------------------------------------------------------------------

@test
def a_second_job_at_the_port_of_a_complete_one_is_refused_by_its_token():
    first = Job(*WORDS, *RING, "--steps", "100000000", "--save", "c", "--save-every", "10", "--eval-every", "-1")
    saved = os.path.join(first.folders[0], "c")
    for rank in (0, 1):
        first.start(rank)
    until = time.monotonic() + 30
    while not os.path.exists(saved) and time.monotonic() < until:
        time.sleep(0.01)
    for rank, world, code, text in ((1, 2, 76, "job token: rank 1 comes to the job at "), (2, 3, 76, "job token: rank 2 comes to "), (0, 2, 69, "in use")):
        second = Job(*WORDS, *RING, "--steps", "5", port=first.port)
        second.runs.append(None)
        second.differ, second.programs, second.limits = ((),) * 3, (PROGRAM,) * 3, (None,) * 3
        second.folders.append(second.folders[0])
        with second.start(rank, world) as run:
            result = run.wait(GONE)
        expect_equal(result.code, code, "exit code", result)
        expect(text in result.err, f"expected {text!r}", result)
    os.remove(saved)
    until = time.monotonic() + 30
    while not os.path.exists(saved) and time.monotonic() < until:
        time.sleep(0.01)
    expect(os.path.exists(saved), "the first job saves no more", *(run.peek() for run in first.runs))
    for run in first.runs:
        run.__exit__()


# ---- replicas -------------------------------------------------------------------------------------------------------

def header_of(name):
    with open(name, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size


def damage(pid, values):
    """Changes a bit of the first value at each place in the process's memory that holds these values; returns the
    number of places."""
    places = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for begin, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps.read(), re.MULTILINE):
            if int(end, 16) - int(begin, 16) > 16 << 20:
                continue
            memory.seek(int(begin, 16))
            try:
                content = memory.read(int(end, 16) - int(begin, 16))
            except OSError:  # The process has just unmapped this memory, such as that of a checkpoint.
                continue
            found = content.find(values)
            while found >= 0:
                memory.seek(int(begin, 16) + found)
                memory.write(bytes([values[0] ^ 1]))
                places += 1
                found = content.find(values, found + 1)
    return places


def known_values():
    """The bias of a layer in the checkpoint."""
    header, begin = header_of(saved(*SAVED))
    first, end = max((t["data_offsets"] for key, t in header.items() if key != "__metadata__" and len(t["shape"]) == 1),
                     key=lambda offsets: offsets[1] - offsets[0])
    with open(saved(*SAVED), "rb") as file:
        file.seek(begin + first)
        return file.read(end - first)


DIFFERENCE = re.compile(r"parameters after step (\d+): rank 1 has XXH3 [0-9a-f]{16}, rank 0 has [0-9a-f]{16}")


def differ(words, step):
    """Runs two replicas whose parameters do not change until a bit of rank 1's parameters is changed; returns the
    result."""
    with Run(*RING, "--gpus", "2", *WORDS, "--lr", "1e-30", "--load", saved(*SAVED), *words, cwd=data_folder(), env=held("ring", 1)) as run:
        pid = run.wait_for_rank("ring", 1)
        with ThreadPoolExecutor() as pool:
            struck = pool.submit(strike, run, "ring", 1, "forward", step, signal.SIGSTOP)
            time.sleep(0.3)  # so that it looks before the rank begins
            run.kill(pid, signal.SIGCONT)
            struck.result()
        expect(damage(pid, known_values()) > 0, "the parameter is not in the memory of rank 1", run.peek())
        run.kill(pid, signal.SIGCONT)
        result = run.wait(60)
    expect_equal((result.code, len(errors(result))), (76, 1), "exit code, lines on stderr", result)
    found = DIFFERENCE.search(result.err)
    expect(found, "the line names no ranks and hashes", result)
    return result, int(found[1])


@test
def replicas_that_differ_at_a_save_keep_the_previous_checkpoint():
    last = path("last")
    result, step = differ(["--steps", "100000000", "--save", last, "--save-every", "20"], 55)
    expect("last is not written" in result.err and "stopped early" in result.out and f"; step {step - 20} saved in {last}." in result.out.replace("\n  ", " "), result)
    expect_equal(int(header_of(last)[0]["__metadata__"]["psring.step"]), step - 20, "step of the checkpoint", result)
    expect_equal(trained("--steps", "1", "--load", last), 0, "exit code of a run that loads it")


@cases([("without a checkpoint", []), ("with a checkpoint at the end", ["--save", path("never")])], at_check=1)
def replicas_that_differ_at_the_end_keep_the_results(words):
    result, step = differ(["--steps", "5990", "--eval-every", "-1", "--json", "-", *words], 15)
    expect_equal((step, result.json()["jobs"][0]["steps"]), (6000, 6000), "step of the difference, and of the results", result)
    expect(not os.path.exists(path("never")), "a checkpoint was written")


main()
