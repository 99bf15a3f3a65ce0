"""Starts the program as a user does, in real processes, and checks that they leave nothing behind."""
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

BUILD = os.environ.get("BUILD_DIR", "build")
PROGRAM = os.path.abspath(os.path.join(BUILD, "bin", "harness"))
SANITIZED = "san" in os.path.basename(os.path.abspath(BUILD))
SLOWER = 8 if SANITIZED else 1  # sanitized programs take their time
STARTED_BY_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                     "HARNESS_KEY")

from tap import expect  # noqa: E402


def in_ns(seconds):
    """Converts times of the results, one or many, from seconds to nanoseconds."""
    return [in_ns(s) for s in seconds] if isinstance(seconds, list) else round(seconds * 1e9)


class Result:
    def __init__(self, words, code, out, err, seconds):
        self.words, self.code, self.out, self.err, self.seconds = words, code, out, err, seconds

    def __str__(self):
        return (f"harness {' '.join(self.words)}\nexit code {self.code} after {self.seconds:.2f} s\n"
                f"stdout:\n{self.out[-3000:]}\nstderr:\n{self.err[-3000:]}")

    def lines(self):
        """Lines on stderr without the one that names the hardware and without those of sanitizers."""
        return [line for line in self.err.splitlines()
                if line and ": no CUDA device found: " not in line and " on this machine" not in line
                and not line.startswith(("==", "harness: progress: "))]

    def json(self):
        return json.loads(self.out)

    def jobs(self):
        return {job["name"]: job for job in self.json()["jobs"]}


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _variables(pid):
    pairs = (entry.partition(b"=") for entry in _read(f"/proc/{pid}/environ").split(b"\0"))
    return {name.decode(): value.decode("utf-8", "replace") for name, _, value in pairs if name}


def _names_in(folder, pattern):
    try:
        return {name for name in os.listdir(folder) if re.search(pattern, name)}
    except OSError:
        return set()


def _named_things():
    """Named things that a crashed program could leave behind: shared memory, files, sockets. Those of MPI and the folders
    of other tests do not count."""
    sockets = {line.split()[-1] for line in _read("/proc/net/unix").decode().splitlines()[1:]
               if re.search(r"/.*(psring|harness)", line)}  # Abstract sockets end with their process.
    return {"shared memory": _names_in("/dev/shm", r"psring|harness|zmq|memfd"),
            "file in /tmp": _names_in("/tmp", r"^(psring(?!-lab-)|harness)[-.]|\.partial$|^zmq"), "socket": sockets}


def ends_within(process, seconds):
    """Returns whether the process ends within so many seconds. Returns as soon as it ends, while Popen.wait(timeout)
    looks only 20 times per second."""
    if process.poll() is None:
        fd = os.pidfd_open(process.pid)
        try:
            select.select([fd], [], [], seconds)
        finally:
            os.close(fd)
    return process.poll() is not None


class Run:
    """A started program. It runs in a folder of its own, and its environment has a mark by which all its processes
    can be found."""

    def __init__(self, *words, env=None, cwd=None, program=None, **popen):
        self.words = [str(word) for word in words]
        self.mark = uuid.uuid4().hex
        self.folder = tempfile.mkdtemp(prefix="run-")
        self.cwd = cwd or os.path.join(self.folder, "cwd")
        self.tmp = os.path.join(self.folder, "tmp")
        os.makedirs(self.cwd, exist_ok=True)
        os.makedirs(self.tmp)
        variables = {k: v for k, v in os.environ.items() if k not in STARTED_BY_OTHERS}
        variables.update(HARNESS_TEST=self.mark, TMPDIR=self.tmp)
        variables.update(env or {})
        popen.setdefault("stdin", subprocess.DEVNULL)
        self.out_file = tempfile.TemporaryFile(dir=self.folder)
        self.err_file = tempfile.TemporaryFile(dir=self.folder)
        popen.setdefault("stdout", self.out_file)
        popen.setdefault("stderr", self.err_file)
        self.begin = time.monotonic()
        self.process = subprocess.Popen([*(program or [PROGRAM]), *self.words], env=variables, cwd=self.cwd,
                                        start_new_session=True, **popen)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            self.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- processes -----------------------------------------------------------------------------

    def processes(self):
        """Every living process of the run."""
        mark = f"HARNESS_TEST={self.mark}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and mark in _read(f"/proc/{name}/environ"):
                found.append(int(name))
        return found

    def ranks(self, job):
        """{rank: process} of a job that the program has started."""
        found = {}
        for pid in self.processes():
            variables = _variables(pid)
            if variables.get("HARNESS_JOB") == job:
                found[int(variables["RANK"])] = pid
        return found

    def wait_for_rank(self, job, rank, limit=90):
        until = time.monotonic() + limit * SLOWER
        while time.monotonic() < until and self.process.poll() is None:
            pid = self.ranks(job).get(rank)
            if pid:
                return pid
            time.sleep(0.005)
        expect(False, f"{job} rank {rank} did not start within {limit} s", self.peek())

    def wait_for_line(self, text, limit=90):
        """Until stderr holds the text."""
        until = time.monotonic() + limit * SLOWER
        while time.monotonic() < until and self.process.poll() is None:
            if text in self.text(self.err_file):
                return
            time.sleep(0.005)
        expect(text in self.text(self.err_file), f"no {text!r} on stderr within {limit} s", self.peek())

    @staticmethod
    def kill(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    # ---- the end -------------------------------------------------------------------------------

    def peek(self):
        return Result(self.words, self.process.poll(), self.text(self.out_file), self.text(self.err_file),
                      time.monotonic() - self.begin)

    @staticmethod
    def text(file):
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode("utf-8", "replace")

    def wait(self, limit):
        """The result, once the program has ended; fails where that takes longer than `limit` seconds."""
        expect(ends_within(self.process, limit * SLOWER), f"still running after {limit * SLOWER} s", self.peek())
        result = self.peek()
        if result.code < 0:  # As a shell reports it.
            result.code = 128 - result.code
        return result

    def wait_until_gone(self, limit):
        """Waits until every process of the run has ended; returns how long that took."""
        begin = time.monotonic()
        left = self.processes()
        while left and time.monotonic() - begin < limit * SLOWER:
            time.sleep(0.01)
            left = self.processes()
        expect(not left, f"processes left behind after {limit} s: {left}", self.peek())
        return time.monotonic() - begin

    def expect_nothing_left(self, before, limit=6, allowed=()):
        self.wait_until_gone(limit)
        for folder in (self.cwd, self.tmp):
            left = sorted(set(os.listdir(folder)) - set(allowed)) if os.path.isdir(folder) else []
            expect(not left, f"files left behind: {left}", self.peek())
        until = time.monotonic() + limit
        while True:  # Other programs of the machine may create and remove such things.
            left = {kind: names - before[kind] for kind, names in _named_things().items() if names - before[kind]}
            if not left or time.monotonic() > until:
                break
            time.sleep(0.1)
        expect(not left, f"left behind: {left}", self.peek())


def harness(*words, limit=180, env=None, allowed=(), **popen):
    """Runs the program to its end, and makes sure that nothing of it is left."""
    before = _named_things()
    with Run(*words, env=env, **popen) as run:
        result = run.wait(limit)
        run.expect_nothing_left(before, allowed=allowed)
        return result


class Watch:
    """Checks that runs started after it leave nothing behind."""

    def __init__(self):
        self.before = _named_things()

    def check(self, *runs, limit=6, allowed=()):
        for run in runs:
            run.expect_nothing_left(self.before, limit, allowed)
