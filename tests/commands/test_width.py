"""What commands print fits 80 columns; on a terminal it is in color and pages, elsewhere it is plain."""
import errno
import os
import pty
import re
import select
import signal
import struct
import fcntl
import tempfile
import termios

from program import Run, harness
from tap import cases, expect, expect_equal, main, more_cases, more_test, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:10", "--batch", "4", "--gpus", "2", "--steps", "6", "--warmup", "1", "--quiet"]
SIM = ["--device", "sim:dgx1-v100", "--model", "resnet50", "--steps", "2", "--quiet"]


@cases([(" ".join(words), words) for words in (
    ["run", *LENET], ["run", "-v", *LENET], ["run", "-v", *SIM, "--gpus", "8"], ["run", "--plan", "--model", "bert_large", "--gpus", "64"], ["models"], ["models", "resnet50"], ["models", "bert_large"], ["policies"], ["profiles"],
    ["profiles", "dgx1-v100-4xib100"], ["buckets"], ["buckets", "--model", "bert_large"], ["doctor"], ["reproduce", "--list"], ["reproduce", "reducer-memory"],
    ["whatif", "--model", "resnet18", "--gpus", "2,4", "--policy", "ddp,sync"],
    ["bench", "all-reduce", "--gpus", "2", "--begin", "8", "--end", "64K", "--factor", "64", "--iters", "2"],
    ["--help"], ["run", "--help=all"], ["sweep", "--help"], ["report", "--help"], ["help", "units"],
    ["run", "-v", "--isolated", *LENET, "--target-accuracy", "0.5"], ["run", "-v", "--mode", "ps", "--policy", "async", *LENET],
    ["run", "-v", *LENET, "--link", "250MB/s,50us", "--repeat", "2"], ["run", "-v", *LENET, "--gpus", "8"],
    ["run", "-v", "--mode", "ps", "--policy", "sync", "--servers", "2", "--server-placement", "own", *LENET])], at_check=22)
def lines_have_at_most_80_columns(words):
    result = harness(*words, limit=120)
    expect_equal(result.code, 0, "exit code", result)
    long = [line for line in result.out.splitlines() if len(line) > 80]
    expect(not long, *long, result)
    expect("\x1b" not in result.out, "colors in a pipe", result)


@test
def a_table_of_a_sweep_has_at_most_80_columns():
    with tempfile.TemporaryDirectory() as folder:
        result = harness("sweep", "--vary", "gpus=2,4", "--vary", "link=10Gbit/s;1Gbit/s", *SIM, "--device", "sim:dgx1-v100-4xib100", "--nodes", "2", "--policy", "ps=sync", "-o", os.path.join(folder, "s"), limit=120)
    expect_equal(result.code, 0, "exit code", result)
    expect(all(len(line) <= 80 for line in result.out.splitlines()), result)


# ---- a terminal --------------------------------------------------------------------------------

def on_terminal(words, rows, env, until=None):
    """The output of the program on a terminal with `rows` rows. Ctrl-C ends the program when its output matches the
    expression."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    variables = {"TERM": "xterm", "NO_COLOR": "", "PAGER": "sed s/^/PAGED:/", **env}
    found = b""
    with Run(*words, env=variables, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        while select.select([ours], [], [], 60)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError as error:
                expect_equal(error.errno, errno.EIO, "the terminal ends")
                break
            if not data:
                break
            found += data
            if until and re.search(until, found.decode(errors="ignore")):
                run.kill(run.pid, signal.SIGINT)
                until = None
        run.process.wait()
    os.close(ours)
    return found.decode().replace("\r\n", "\n")


@cases([("short", ["run", *SIM, "--gpus", "8"], 60, False), ("long", ["run", "-v", *SIM, "--gpus", "8"], 24, True)])
def what_is_longer_than_the_terminal_is_paged(words, rows, paged):
    shown = on_terminal(words, rows, {})
    expect_equal("PAGED:" in shown, paged, "paged", shown[:500])
    expect("ring (ddp) trains" in shown, "the verdict", shown[:500])


@more_test
def a_verified_file_is_one_line_for_scripts_and_several_on_a_terminal():
    words = ["verify", os.path.join(ROOT, "tests/golden/wine_mlp_w1.json")]
    shown = on_terminal(words, 60, {"NO_COLOR": "1"})
    expect("agrees " in shown and all(len(line) <= 80 for line in shown.splitlines()), shown)
    expect_equal(" ".join(shown.split()), " ".join(harness(*words).out.split()), "the same words")


@cases([("empty", ""), ("cat", "cat"), ("missing", "/no/such/pager")])
def without_a_pager_everything_is_printed(pager):
    shown = on_terminal(["run", "-v", *SIM, "--gpus", "8"], 24, {"PAGER": pager})
    expect("ring (ddp) trains" in shown and "step time, mean" in shown, shown[:500])


@test
def a_terminal_shows_a_line_with_a_bar_for_each_job():
    """The bars are drawn a few times per second, so the run goes on until one of them has a rate."""
    words = ["run", *[word for word in LENET if word != "--quiet"], "--steps", "20000"]
    line = r"\[#*-*\] \d+/\d+ +[\d.]+ \w+ left +loss [\d.]+ +\d+(\.\d)? samples/s"
    shown = on_terminal(words, 60, {"NO_COLOR": "1"}, until=line)
    for job in ("none", "all-cores", "ps", "ring"):
        found = re.findall(r"\x1b\[K(%s +\[#*-*\] \d+/\d+.*)\n" % job, shown)
        expect(found and all(len(line) < 80 for line in found), f"no line of {job}", shown[:2000])
    expect(re.search(line, shown), "time left, loss and rate", shown[:3000])
    expect(shown.rindex("\x1b[J") > shown.rindex("[-"), "lines that are removed at the end", shown[-500:])


@test
def a_run_in_virtual_time_shows_a_line_with_a_bar():
    shown = on_terminal(["run", "--model", "resnet50", "--device", "sim:dgx1-v100", "--gpus", "8", "--steps", "60"], 60, {"NO_COLOR": "1"})
    for job in ("none", "ps", "ring"):
        found = re.findall(r"\x1b\[K(%s +\[#*-*\] \d+/\d+.*)\n" % job, shown)
        expect(found and all(len(line) < 80 for line in found), f"no line of {job}", shown[:2000])
    lines = re.findall(r"\r\x1b\[K(none|ps|ring) +\[(#*)(-*)\]", shown)[-3:]
    expect_equal([name for name, _, _ in lines], ["none", "ps", "ring"], "a line of each job, the ones that have ended, too")
    expect(not lines[0][2] and not lines[1][2], "full bars of the jobs that have ended", shown[-500:])
    expect(shown.rindex("\x1b[J") > shown.rindex("[-"), "lines that are removed at the end", shown[-500:])
    quiet = on_terminal(["run", "--model", "resnet50", "--device", "sim:dgx1-v100", "--gpus", "8", "--quiet"], 60, {"NO_COLOR": "1"})
    expect("[--" not in quiet, "a bar with --quiet", quiet[:500])


@more_test
def a_sweep_shows_a_bar():
    with tempfile.TemporaryDirectory() as folder:
        # A bar is drawn at most ten times per second, so the runs take seconds on any machine. They end when the bar
        # has been seen.
        words = ["sweep", "--vary", "gpus=2,4,6,8", "--mode", "ring,ps", "--model", "resnet18", "--device", "sim:dgx1-v100", "-o", os.path.join(folder, "s")]
        bar = r"\r\x1b\[Ksweep +\[#*-*\] \d+/8[^\r]*left"
        shown = on_terminal([*words, "--steps", "2000"], 60, {"NO_COLOR": "1"}, until=bar)
        expect(re.search(bar, shown), "a bar and the time left", shown[:2000])
    with tempfile.TemporaryDirectory() as folder:
        shown = on_terminal([*words[:-1], os.path.join(folder, "s"), "--steps", "2"], 60, {"NO_COLOR": "1"})
        expect("harness: sweep: 8 of 8 runs, 0 failed" in shown, "the last line", shown)


@more_cases([("a real run", ["lenet", "--data", "synthetic", "--gpus", "2", "--slow", "0:20,1:20", "--steps", "1000000"],
         r"harness: progress: \d+ s: ring \d+/\d+ loss [\d.]+ \d+ samples/s; about [\d.]+ \w+ left; with --steps \d+ about a minute"),
        ("virtual time", ["resnet50", "--device", "sim:dgx1-v100-4xib100", "--gpus", "32", "--steps", "100000"],
         r"harness: progress: ring +\[#*-*\] \d+/\d+ +[\d.]+ \w+ left +\d+ samples/s")], at_once=2, at_more=1)
def elsewhere_a_line_is_written_every_ten_seconds(words, pattern):
    with Run("--mode", "ring", "--model", *words) as run:
        run.wait_for_line("harness: progress: ", limit=120)
        shown = run.text(run.err_file)
    line = next(line for line in shown.splitlines() if line.startswith("harness: progress: "))
    expect(re.fullmatch(pattern, line), line)


@cases([("a terminal", {}, True), ("NO_COLOR", {"NO_COLOR": "1"}, False), ("a dumb terminal", {"TERM": "dumb"}, False)])
def colors_are_for_terminals_that_have_them(env, colored):
    shown = on_terminal(["run", *SIM, "--gpus", "8"], 60, env)
    expect_equal("\x1b[33mSIMULATED" in shown, colored, "a color", shown)
    expect_equal("\x1b[" in shown, colored, "any color", shown)


main()
