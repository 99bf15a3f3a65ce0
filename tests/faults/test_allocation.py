"""Memory or descriptors run out anywhere: one line names memory or the limit, exit code 71, nothing left. A run that did
not need them ends with 0."""
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile

from program import BUILD, SANITIZED, Run, Watch
from struck import GONE, LENET, errors, strike
from tap import Skip, cases, expect, expect_equal, long_cases, main, test

FAIL_ALLOCATION = os.path.abspath(os.path.join(BUILD, "tests", "fail_allocation.so"))
ENGINES = {"dp": ["--mode", "ps", "--policy", "ps=dp"], "sync": ["--mode", "ps", "--policy", "ps=sync"], "ring": ["--mode", "ring"]}
MODELS = {"wine_mlp": ["--model", "wine_mlp", "--data", "wine"], "lenet": ["--model", "lenet", "--data", "synthetic:1x28x28:10"]}
FILES = ["--save", "z.st", "--save-every", "1", "--eval-every", "1", "--json", "z.json", "--trace", "t.json", "--report", "r.html"]
PROCESSES = ["launcher", "0", "1"]
SAMPLE = 3       # failures per process, engine and model
ENDS_WITHIN = 10
# What libraries print before they end the process; the assertion is glibc's, which begins with the program's name.
OF_LIBRARIES = (": Assertion `", "OUT OF MEMORY", "Cannot allocate memory (src/", "Assertion failed: ", "libgomp: Out of memory")


def words_of(engine, model, gpus=2):
    return [*ENGINES[engine], *MODELS[model], "--gpus", str(gpus), "--batch", "8", "--threads", "1", "--warmup", "0", "--steps", "2",
            "--quiet"]


def end_of(words, env=None, limit=ENDS_WITHIN, **popen):
    """The result of a run that leaves nothing but its files."""
    watch = Watch()
    with Run(*words, env=env, **popen) as run:
        result = run.wait(limit)
        watch.check(run, allowed=("z.st", "z.json", "t.json", "r.html"))
    return result


def closed_by_zeromq(result):
    """Whether ZeroMQ's own thread had no memory to receive a message: then it closes the connection without giving a
    reason."""
    return result.code == 75 and len(errors(result)) == 1 and errors(result)[0].endswith(" is lost")


def expect_memory(result, *names):
    """Success, or exit code 71 and one line that holds one of the names."""
    lines = [line for line in errors(result) if not any(text in line for text in OF_LIBRARIES)]
    if result.code == 0:
        expect_equal(lines, [], "errors of a run that ended with 0", result)
        return
    expect_equal(result.code, 71, "exit code", result)
    expect_equal(len(lines), 1, "lines of errors", result)
    expect(any(name in lines[0] for name in names), f"expected one of {names} in the line", result)


def fail_allocations(process, engine, model, sample, files):
    """Fails allocations of the process, one per run: one of each chain of callers, or `sample` of them."""
    if SANITIZED:
        raise Skip("a sanitizer has allocation functions of its own")
    words = words_of(engine, model) + files
    env = {"LD_PRELOAD": FAIL_ALLOCATION, "FAIL_RANK": process}
    with tempfile.NamedTemporaryFile() as listed:
        result = end_of(words, {**env, "FAIL_LIST": listed.name})
        expect_equal(result.code, 0, "exit code without a failure", result)
        numbers = sorted({int(line) for line in listed.read().split()})
    expect(len(numbers) > 100, f"only {len(numbers)} allocations")
    closed, wrong = 0, []
    for number in sorted(random.Random(f"{process} {engine} {model}").sample(numbers, sample)) if sample else numbers:
        try:
            result = end_of(words, {**env, "FAIL_AT": str(number)})
            closed += closed_by_zeromq(result)
            if not closed_by_zeromq(result) or closed > 3:
                expect_memory(result, "memory", "thread")
        except Exception as failure:  # pylint: disable=broad-except
            wrong.append((number, failure))
    expect(not wrong, f"{len(wrong)} of {len(numbers)} allocations", "\n".join(f"allocation {number}: {why}" for number, why in wrong[:5]))


@cases([(f"{sample} of {who}, {engine}, {model}", who, engine, model, sample, files) for who in PROCESSES for engine in ENGINES
        for model, sample, files in (("wine_mlp", SAMPLE, []),)] +
       [(f"{SAMPLE} of rank 0, sync, lenet and files", "0", "sync", "lenet", SAMPLE, FILES)], at_once=2)
def a_failed_allocation_ends_with_one_line_and_71(process, engine, model, sample, files):
    fail_allocations(process, engine, model, sample, files)


@long_cases([(f"{who}, {engine}, {model}{', files' if files else ''}", who, engine, model, sample, files)
             for who in PROCESSES for engine in ENGINES
             for model, sample, files in (("wine_mlp", None, []), ("wine_mlp", 100, FILES), ("lenet", 100, []))], at_once=2)
def each_failed_allocation_ends_with_one_line_and_71(process, engine, model, sample, files):
    fail_allocations(process, engine, model, sample, files)


# ---- limits ----------------------------------------------------------------------------------------------

def limited(which, value):
    return lambda: resource.setrlimit(which, (value, value))


def expect_limit(engine, model, gpus, option, value):
    if SANITIZED and option == "-v":
        raise Skip("a sanitizer reserves terabytes of addresses")
    which, unit = {"-v": (resource.RLIMIT_AS, 1024), "-n": (resource.RLIMIT_NOFILE, 1), "-f": (resource.RLIMIT_FSIZE, 1024)}[option]
    expect_memory(end_of(words_of(engine, model, gpus), preexec_fn=limited(which, value * unit)), f"(ulimit {option} {value})",
                  "refused memory")


@cases([(f"{engine}, {model}, {gpus} ranks, ulimit {option} {value}", engine, model, gpus, option, value)
        for engine, model, gpus, option, value in
        (("sync", "lenet", 2, "-v", 200000), ("ring", "lenet", 2, "-v", 300000), ("dp", "wine_mlp", 2, "-v", 100000),
         ("dp", "lenet", 2, "-v", 400000), ("ring", "wine_mlp", 4, "-n", 40), ("ring", "wine_mlp", 4, "-n", 36),
         ("sync", "wine_mlp", 2, "-n", 24), ("dp", "wine_mlp", 4, "-n", 16), ("ring", "lenet", 2, "-f", 200))], at_once=2)
def a_limit_that_was_reached_is_named(engine, model, gpus, option, value):
    expect_limit(engine, model, gpus, option, value)


@long_cases([(f"{engine}, {model}, {gpus} ranks, ulimit {option} {value}", engine, model, gpus, option, value)
             for engine in ENGINES for model in MODELS for gpus in (2, 4)
             for option, values in (("-v", range(100000, 900000, 100000)), ("-n", range(20, 68, 4))) for value in values], at_once=2)
def every_limit_that_was_reached_is_named(engine, model, gpus, option, value):
    expect_limit(engine, model, gpus, option, value)


@test
def a_crash_without_a_failed_allocation_is_not_called_one():
    watch = Watch()
    with Run("--mode", "ring", "--gpus", "2", *LENET) as run:
        strike(run, "ring", 1, "forward", 3, signal.SIGSEGV)
        result = run.wait(GONE)
        watch.check(run)
    expect_equal(result.code, 75, "exit code", result)
    expect("killed by signal 11 (Segmentation fault)" in result.err and "memory" not in result.err, "the line", result)


HOG = f"open('/proc/self/oom_score_adj', 'w').write('{{}}'); bytearray({64 << 20})"


class MemoryGroup:
    """A new memory control group below this process's."""
    def __enter__(self):
        with open("/proc/self/cgroup", encoding="ascii") as file:
            groups = dict(line.rstrip().split(":")[1:] for line in file)
        mount, self.limit, self.usage = ("/memory", "memory.limit_in_bytes", "memory.usage_in_bytes") if "memory" in groups else (
            "", "memory.max", "memory.current")
        self.folder = f"/sys/fs/cgroup{mount}{groups.get('memory', groups.get('', '/'))}/harness-{os.getpid()}"
        try:
            os.mkdir(self.folder)
        except OSError as reason:
            raise Skip(f"no control group can be made: {reason}") from reason
        if not os.path.exists(f"{self.folder}/{self.limit}"):
            os.rmdir(self.folder)
            raise Skip("control groups do not limit memory here")
        return self

    def __exit__(self, *_):
        os.rmdir(self.folder)

    def write(self, name, value):
        with open(f"{self.folder}/{name}", "w", encoding="ascii") as file:
            file.write(str(value))

    def run_out(self, score):
        """Starts a process in the group that asks for too much memory, so that the kernel kills the process with the
        highest score."""
        with open(f"{self.folder}/{self.usage}", encoding="ascii") as file:
            self.write(self.limit, int(file.read()) + (16 << 20))
        return subprocess.run([sys.executable, "-c", HOG.format(score)], preexec_fn=self.join, check=False).returncode

    def join(self):
        self.write("cgroup.procs", os.getpid())


@test
def a_rank_that_the_kernel_kills_for_memory_is_named():
    watch = Watch()
    with MemoryGroup() as group:
        with Run("--mode", "ring", "--gpus", "2", *LENET, preexec_fn=group.join) as run:
            pid = run.wait_for_rank("ring", 1)
            with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
                file.write("1000")
            group.run_out(0)
            result = run.wait(GONE)
            watch.check(run)
    expect_memory(result, "as the kernel ran out of memory")
    expect_equal(result.code, 71, "exit code", result)


@test
def a_rank_that_somebody_kills_is_not_taken_for_one_that_the_kernel_killed_elsewhere():
    watch = Watch()
    with MemoryGroup() as group, Run("--mode", "ring", "--gpus", "2", *LENET) as run:
        pid = run.wait_for_rank("ring", 1)
        expect_equal(group.run_out(1000), -signal.SIGKILL, "end of the process in the group")
        os.kill(pid, signal.SIGKILL)
        result = run.wait(GONE)
        watch.check(run)
    expect_equal(result.code, 75, "exit code", result)
    expect("killed by signal 9 (Killed)" in result.err and "memory" not in result.err, "the line", result)


main()
