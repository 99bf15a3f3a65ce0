"""harness sweep: a grid of runs that survives interruptions, and a table of what they show."""
import collections
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

from program import PROGRAM, Run, SLOWER, Watch, harness
from tap import cases, expect, expect_equal, long_test, main, more_test, test

VIRTUAL = ["--device", "sim:dgx1-v100", "--model", "resnet18", "--steps", "4"]
GRID = ["--mode", "ps,ring", "--vary", "gpus=2,3,4,5,6,8", "--vary", "batch=8,16,32,48,64,96", *VIRTUAL]  # 72 points
REAL = ["--model", "wine_mlp", "--data", "wine", "--gpus", "2", "--steps", "5", "--threads", "1"]


def folder():
    return tempfile.TemporaryDirectory(prefix="sweep-test-")


def runs_in(path):
    """{name: (inode, time of change)} of the finished runs."""
    inside = os.path.join(path, "runs")
    names = os.listdir(inside) if os.path.isdir(inside) else []
    found = {}
    for name in names:
        if name.endswith(".json"):
            about = os.stat(os.path.join(inside, name))
            found[name] = (about.st_ino, about.st_mtime_ns)
    return found


def sweep(path, *words, limit=300, **more):
    return harness("sweep", *words, "-o", path, limit=limit, **more)


def wait_for_runs(run, path, count):
    until = time.monotonic() + 300 * SLOWER
    while len(runs_in(path)) < count:
        expect(time.monotonic() < until and run.process.poll() is None, f"expected {count} finished runs", run.peek())
        time.sleep(0.002)


@long_test
def a_sweep_of_72_virtual_points_that_was_killed_ends_with_the_table_of_an_undisturbed_one():
    with folder() as undisturbed, folder() as killed:
        whole = sweep(undisturbed, *GRID, limit=90)  # promised: 30 s
        expect_equal(whole.code, 0, "exit code", whole)
        expect_equal(len(runs_in(undisturbed)), 72, "runs")
        watch = Watch()
        with Run("sweep", *GRID, "-o", killed) as run:
            wait_for_runs(run, killed, 20)
            run.kill(run.pid, signal.SIGKILL)
            run.process.wait()
            watch.check(run)
        before = runs_in(killed)
        expect(20 <= len(before) < 72, f"expected a sweep that was killed in the middle, found {len(before)} runs")
        again = sweep(killed, *GRID, limit=90)
        expect_equal(again.code, 0, "exit code", again)
        after = runs_in(killed)
        expect_equal(len(after), 72, "runs")
        expect_equal({name: after[name] for name in before}, before, "runs that had ended are not run again")
        expect_equal(again.out, whole.out, "table")
        for name in after:
            with open(os.path.join(killed, "runs", name), encoding="utf-8") as file:
                expect_equal(len(json.load(file)["jobs"]), 1, f"jobs of {name}")


@test
def every_round_runs_each_point_once_in_an_order_of_its_own():
    with folder() as path:
        result = sweep(path, *GRID, "--repeat", "3", "--dry-run")
        expect_equal(result.code, 0, "exit code", result)
        lines = result.out.splitlines()
        expect_equal(len(lines), 3 * 72, "runs")
        rounds = [lines[i:i + 72] for i in range(0, 216, 72)]
        expect_equal([len(set(points)) for points in rounds], [72] * 3, "different points per round")
        expect_equal(set(rounds[0]), set(rounds[1]), "points of the rounds")
        expect(rounds[0] != rounds[1] and rounds[0] != sorted(rounds[0]), "expected another order in each round")
        expect_equal(runs_in(path), {}, "runs of a dry run")
        expect_equal(lines[0].split()[:2], ["harness", "run"], "the command")


@more_test
def the_table_is_that_of_the_runs():
    with folder() as path:
        result = sweep(path, *REAL, "--mode", "ring,ps", "--vary", "batch=8,16", "--repeat", "3")
        expect_equal(result.code, 0, "exit code", result)
        with open(os.path.join(path, "table.json"), encoding="utf-8") as file:
            table = json.load(file)
        rates = collections.defaultdict(list)
        for name in runs_in(path):
            with open(os.path.join(path, "runs", name), encoding="utf-8") as file:
                run = json.load(file)
            rates[(run["jobs"][0]["engine"], run["configuration"]["batch"])].append(
                run["jobs"][0]["throughput"]["samples_per_s"])
        expect_equal(len(table["points"]), 4, "points")
        rows = [line.split() for line in result.out.splitlines()[1:5]]
        for point, row in zip(table["points"], rows):
            values = sorted(rates[(point["values"]["mode"], point["values"]["batch"])])
            expect_equal(len(values), 3, "rounds")
            expect_equal(point["samples_per_s"]["median"], values[1], f"median of {point['values']}")
            expect(values[0] <= point["samples_per_s"]["low"] <= values[1] <= point["samples_per_s"]["high"] <= values[2],
                   f"interval of {point}")
            expect_equal(float(row[2]), round(values[1], 0 if values[1] >= 100 else 2), "median in the text", result)
        best = max(table["points"], key=lambda p: p["samples_per_s"]["median"])
        expect_equal(table["points"][table["best"]["row"]], best, "best point")
        expect_equal(table["best"]["verdict"], "too few rounds", "three rounds give no verdict")
        expect_equal((table["best"]["tests"], table["best"]["least_rounds"]), (3, 10), "the best of four points takes more rounds than one of two")
        expect(table["best"]["p"] >= 3 * 2 / 2 ** 3, "p is corrected for three other points", table["best"])
        expect("not shown by 3 rounds: at least 10 are needed" in result.out and "for a choice among 4 points" in result.out, "the text says so", result)


@test
def a_sweep_over_policies_names_the_fastest_for_each_value_and_where_it_changes():
    with folder() as path:
        done = sweep(path, "--vary", "link=1Gb/s,100Gb/s", "--vary", "policy=sync,ddp,zero3", "--device", "sim:dgx1-v100-4xib100", "--gpus", "16",
                     "--model", "gpt2", "--batch", "1", "--steps", "3")
        rates = {tuple(point["values"].values()): point["samples_per_s"]["median"] for point in table_in(path)["points"]}
    winners = []
    for link in ("1Gb/s", "100Gb/s"):
        (rate, best), (second, other), _ = sorted(((rates[link, policy], policy) for policy in ("sync", "ddp", "zero3")), reverse=True)
        winners.append(best)
        expect(f"  link={link}: policy={best}, {rate / second:.3f} times policy={other}\n" in done.out, "the fastest", done, rates)
    expect_equal("It changes between link=1Gb/s and link=100Gb/s." in done.out, winners[0] != winners[1], "where it changes", done)
    expect("best: " not in done.out, "the link is no scheme", done)


@test
def an_axis_that_one_engine_does_not_have_belongs_to_the_scheme():
    with folder() as path:
        done = sweep(path, "--vary", "servers=1,8", "--mode", "ps,ring", "--policy", "ps=sync", "--device", "sim:dgx1-v100", "--gpus", "8",
                     "--model", "lenet", "--steps", "3")
        points = table_in(path)["points"]
    best = max(points, key=lambda point: point["samples_per_s"]["median"])
    words = " ".join(f"{name}={value}" for name, value in best["values"].items() if value is not None)
    expect(f"best: {words}\n" in done.out and "fastest scheme" not in done.out, "one winner", words, done)


@test
def options_of_one_engine_are_left_out_for_the_other():
    with folder() as path:
        result = sweep(path, *VIRTUAL, "--vary", "bucket-cap-mb=1,25", "--vary", "gpus=2,4", "--mode", "ps,ring")
        expect_equal(result.code, 0, "exit code", result)
        rows = [line.split()[:3] for line in result.out.splitlines()[1:7]]
        expect_equal(sorted(rows), sorted([["-", "2", "ps"], ["-", "4", "ps"], ["1", "2", "ring"], ["25", "2", "ring"],
                                           ["1", "4", "ring"], ["25", "4", "ring"]]), "points", result)


@cases([
    ("a value in a word of its own", ["--bucket-cap-mb", "5"], "bucket-cap-mb", "5"),
    ("a value after an equals sign", ["--bucket-cap-mb=5"], "bucket-cap-mb", "5"),
    ("a name with underscores", ["--bucket_cap_mb=5"], "bucket-cap-mb", "5"),
    ("a flag", ["--bucket-view"], "bucket-view", "yes"),
    ("a flag with a value", ["--bucket-view=yes"], "bucket-view", "yes"),
    ("a flag that is off", ["--no-bucket-view"], "bucket-view", "no"),
    ("a policy", ["--policy", "zero1"], "policy", "zero1"),
    ("a policy with its engine and keys", ["--policy=ring=ddp:order=ready"], "policy", "ring=ddp:order=ready")])
def an_option_of_one_engine_that_all_runs_share_is_left_out_for_the_other(words, name, value):
    with folder() as path:
        result = sweep(path, *VIRTUAL, *words, "--vary", "gpus=2", "--mode", "ps,ring")
        expect_equal(result.code, 0, "exit code", result)
        found = {}
        for run in runs_in(path):
            with open(os.path.join(path, "runs", run), encoding="utf-8") as file:
                configuration = json.load(file)["configuration"]
            found[configuration["mode"]] = configuration.get(name)
        default = "no" if name == "bucket-view" else None
        expect_equal(found["ring"] or default, value, "ring", result)
        expect(found["ps"] != value or value == default, f"ps has {found['ps']}", result)


@test
def a_flag_is_varied_over_yes_and_no():
    with folder() as path:
        result = sweep(path, *VIRTUAL, "--vary", "bucket-view=yes,no", "--mode", "ring")
        expect_equal(result.code, 0, "exit code", result)
        expect_equal([line.split()[0] for line in result.out.splitlines()[1:3]], ["yes", "no"], "points", result)
        views = {}
        for name in runs_in(path):
            with open(os.path.join(path, "runs", name), encoding="utf-8") as file:
                views[name[:10]] = json.load(file)["configuration"]["bucket-view"]
        expect_equal(views, {"point-0000": "yes", "point-0001": "no"}, "the flag of each run")


@test
def a_run_that_fails_is_recorded_and_the_others_go_on():
    with folder() as path:
        result = sweep(path, *VIRTUAL, "--vary", "gpus=2,9,4", "--mode", "ring")  # the machine has 8 GPUs
        expect_equal(result.code, 1, "exit code", result)
        lines = result.out.splitlines()
        failed = [line for line in lines if re.match(r"9 .*failed \(78\): ", line)]
        expect_equal(len(failed), 1, "rows of failed points", result)
        expect_equal(len(runs_in(path)), 2, "results", result)
        again = sweep(path, *VIRTUAL, "--vary", "gpus=2,9,4", "--mode", "ring")
        expect_equal(again.code, 1, "a point without result is tried again", again)
        expect_equal(len(failures_in(path)), 1, "a failure is recorded once", failures_in(path))


def failures_in(path):
    name = os.path.join(path, "failures.json")
    if not os.path.exists(name):
        return []
    with open(name, encoding="utf-8") as file:
        return json.load(file)["failures"]


@test
def a_failure_is_recorded_at_once_and_shown_after_an_interruption():
    """Runs with a missing file fail while others still take long. The sweep is then killed, and its second start is
    interrupted."""
    words = ["--model", "wine_mlp", "--gpus", "2", "--threads", "1", "--mode", "ring", "--steps", "500", "--vary", "data=idx:no,none;wine",
             "--vary", "seed=1,2,3,4"]
    with folder() as path:
        with Run("sweep", *words, "-o", path) as run:
            until = time.monotonic() + 300 * SLOWER
            while not failures_in(path):
                expect(time.monotonic() < until and run.process.poll() is None, "expected a recorded failure", run.peek())
                time.sleep(0.002)
            run.kill(run.pid, signal.SIGKILL)
            run.process.wait()
        expect("No such file" in failures_in(path)[0]["message"], "the failure", failures_in(path))
        finished = len(runs_in(path))
        killed = harness("report", path)
        if finished:
            expect_equal(killed.code, 0, "exit code", killed)
            expect("failed (65)" in killed.out and len(re.findall(r"^wine +\d +[\d.]+ ", killed.out, re.M)) == finished, "the table after a kill", killed)
        else:
            expect_equal((killed.code, "expected a finished run" in killed.err), (65, True), "exit code", killed)
        with Run("sweep", *words, "-o", path) as run:
            wait_for_runs(run, path, finished + 1)
            run.kill(run.pid, signal.SIGINT)
            result = run.wait(120)
        expect_equal(result.code, 130, "exit code", result)
        rows = [line.split() for line in result.out.splitlines() if line.startswith(("idx:no,none ", "wine "))]
        expect_equal([row[:2] for row in rows], [[data, seed] for data in ("idx:no,none", "wine") for seed in "1234"], "the table of what there is", result)
        failed = [row[2] == "failed" for row in rows]
        expect(any(failed) and not any(failed[4:]), "failures", result)
        expect_equal(sum(row[2] not in ("failed", "-") for row in rows), len(runs_in(path)), "finished points", result)
        expect(any(row[2] == "-" for row in rows), "points that were not reached", result)
        expect("the sweep was interrupted" in result.err, "what to do next", result)
        with open(path + "/table.json", encoding="utf-8") as file:
            table = json.load(file)
        expect_equal([point["failure"] is not None for point in table["points"]], failed, "table.json")


@test
def a_dry_run_prints_commands_that_a_shell_runs():
    with folder() as path:
        words = ["--vary", "link=10Gbit/s,50us;1Gbit/s,50us", "--vary", "gpus=2,4", "--mode", "ring", "--device", "sim:v100-pcie-10gbe", "--model", "lenet",
                 "--steps", "2", "--data", "synthetic:1x28x28:10"]
        result = sweep(path, *words, "--dry-run")
        expect_equal(result.code, 0, "exit code", result)
        lines = result.out.splitlines()
        expect_equal(len(lines), 4, "commands", result)
        for line in lines:
            read = subprocess.run(["bash", "-c", f'set -- {line}; printf "%s\\n" "$@"'], capture_output=True, text=True, check=True).stdout.splitlines()
            expect_equal(read[:2], ["harness", "run"], "the command")
            again = harness(*read[1:], "--json", "-", "--quiet")
            expect_equal(again.code, 0, "exit code", again)
            expect(f"--gpus={again.json()['options']['gpus']}" in read and f"--link={again.json()['options']['link']}" in read, "its options", line)
        quoted = sweep(path, *VIRTUAL, "--mode", "ring", "--vary", "gpus=2", "--vary", "load=it's a $file,other", "--dry-run")
        found = [shlex.split(line) for line in quoted.out.splitlines()]
        expect(any("--load=it's a $file" in read for read in found), "quotes and blanks", quoted)


@test
def virtual_runs_come_first_in_a_dry_run_as_in_a_sweep():
    with folder() as path:
        result = sweep(path, "--vary", "device=cpu,sim:dgx1-v100", "--vary", "gpus=2,4", "--model", "lenet", "--data", "synthetic:1x28x28:10", "--mode",
                       "ring", "--repeat", "2", "--dry-run")
        kinds = ["--device=cpu" in line for line in result.out.splitlines()]
        expect_equal(kinds, [False] * 4 + [True] * 4, "real runs", result)


@more_test
def real_work_runs_one_run_at_a_time():
    with folder() as path:
        most = 0
        with Run("sweep", *REAL, "--mode", "ring,ps", "--vary", "batch=4,8", "--repeat", "2", "-o", path) as run:
            while run.process.poll() is None:
                jobs = {line for pid in run.processes() for line in launcher(pid, run.pid)}
                most = max(most, len(jobs))
                time.sleep(0.001)
            expect_equal(run.process.returncode, 0, "exit code", run.peek())
        expect_equal(most, 1, "runs at a time")
        expect_equal(len(runs_in(path)), 8, "runs")


def launcher(pid, sweep_pid):
    """[pid] if the process is a run that the sweep has started."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return []
    return [pid] if int(fields[1]) == sweep_pid and fields[0] != "Z" else []


@cases([("SIGINT", signal.SIGINT, 130), ("SIGTERM", signal.SIGTERM, 143)], at_check=1)
def a_signal_ends_the_sweep_and_the_next_start_goes_on(number, code):
    words = [*REAL[:-4], "--steps", "1000", "--mode", "ring,ps", "--vary", "batch=4,8"]
    with folder() as path:
        watch = Watch()
        with Run("sweep", *words, "-o", path) as run:
            wait_for_runs(run, path, 1)
            run.kill(run.pid, number)
            result = run.wait(120)
            expect_equal(result.code, code, "exit code", result)
            watch.check(run)
        finished = runs_in(path)
        expect(1 <= len(finished) < 4, f"expected a sweep that was ended in the middle, found {len(finished)} runs")
        again = sweep(path, *words)
        expect_equal(again.code, 0, "exit code", again)
        expect_equal({name: runs_in(path)[name] for name in finished}, finished, "finished runs")
        expect_equal(len(runs_in(path)), 4, "runs")


@test
def a_truncated_result_is_run_again():
    with folder() as path:
        words = [*VIRTUAL, "--vary", "gpus=2,4", "--mode", "ring"]
        expect_equal(sweep(path, *words).code, 0, "exit code")
        name = os.path.join(path, "runs", sorted(runs_in(path))[0])
        os.truncate(name, 100)
        expect_equal(sweep(path, *words).code, 0, "exit code")
        with open(name, encoding="utf-8") as file:
            expect_equal(len(json.load(file)["jobs"]), 1, "jobs")


@test
def two_sweeps_never_share_a_folder():
    with folder() as path:
        words = [*VIRTUAL, "--vary", "gpus=2,4", "--mode", "ring"]
        expect_equal(sweep(path, *words).code, 0, "exit code")
        other = sweep(path, *VIRTUAL, "--vary", "gpus=2,8", "--mode", "ring")
        expect_equal(other.code, 78, "another sweep", other)
        expect_equal(len(other.lines()), 1, "lines on stderr", other)
        more = sweep(path, *words, "--repeat", "2")
        expect_equal(more.code, 0, "more rounds of the same sweep", more)
        expect_equal(len(runs_in(path)), 4, "runs")
        with Run("sweep", *REAL[:-4], "--steps", "3000", "--mode", "ring", "--vary", "batch=4,8", "-o", path + "/real") as run:
            until = time.monotonic() + 120 * SLOWER
            while not os.path.exists(path + "/real/sweep.json") and time.monotonic() < until:
                time.sleep(0.002)
            second = sweep(path + "/real", *REAL, "--mode", "ring", "--vary", "batch=4,8")
            expect_equal(second.code, 78, "a second process", second)
            expect("another sweep is running" in second.err, "the reason", second)
            run.kill(run.pid, signal.SIGTERM)
            run.wait(120)


# ---- --config ------------------------------------------------------------------------------------

FILE = """# of sweep and of run
vary = ["link=1Gbit/s,50us;10Gbit/s,50us", "gpus=2,4"]
mode = "ps,ring"
policy = "ps=sync,ring=ddp"
device = "sim:v100-pcie-10gbe"
model = "lenet"
drop_last = true
steps = 2
repeat = 2
"""
FILE_WORDS = ["--vary", "link=1Gbit/s,50us;10Gbit/s,50us", "--vary", "gpus=2,4", "--mode", "ps,ring", "--policy", "ps=sync,ring=ddp", "--device",
              "sim:v100-pcie-10gbe", "--model", "lenet", "--drop-last", "--steps", "2", "--repeat", "2"]


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def table_in(path):
    with open(os.path.join(path, "table.json"), encoding="utf-8") as file:
        return json.load(file)


@more_test
def a_sweep_of_a_file_is_that_of_the_command_line():
    with folder() as path:
        toml = write(path + "/sweep.toml", FILE)
        by_file, by_words = sweep(path + "/file", "--config", toml), sweep(path + "/words", *FILE_WORDS)
        expect_equal((by_file.code, by_words.code), (0, 0), "exit codes", by_file, by_words)
        expect_equal(by_file.out, by_words.out, "tables")
        of_file, of_words = table_in(path + "/file"), table_in(path + "/words")
        expect_equal([of_file[k] for k in ("options", "points", "best")], [of_words[k] for k in ("options", "points", "best")], "table.json")
        before = runs_in(path + "/words")
        expect_equal(len(before), 16, "runs")
        again = sweep(path + "/words", "--config", toml)
        expect_equal(again.code, 0, "the same sweep goes on in its folder", again)
        expect_equal(runs_in(path + "/words"), before, "finished runs")
        other = sweep(path + "/words", "--config", write(path + "/other.toml", FILE.replace("steps = 2", "steps = 3")))
        expect_equal((other.code, "got another one" in other.err), (78, True), "a file that has changed", other)
        result = sweep(path + "/again", "--config", path + "/words/table.json")
        expect_equal(result.code, 0, "the table of a sweep as its file", result)
        expect_equal(table_in(path + "/again")["points"], of_words["points"], "points")


@test
def the_command_line_of_a_sweep_comes_after_its_file():
    with folder() as path:
        toml = write(path + "/sweep.toml", FILE)
        found = [frozenset(shlex.split(line)[2:]) for line in sweep(path + "/s", "--config", toml, "--gpus", "8", "--vary", "link=2Gbit/s;4Gbit/s", "--mode", "ring",
                                                              "--repeat", "1", "--steps", "3", "--dry-run").out.splitlines()]
        words = ["--policy=ps=sync,ring=ddp", "--device=sim:v100-pcie-10gbe", "--model=lenet", "--drop_last=yes", "--steps=2", "--gpus", "8", "--mode", "ring",
                 "--steps", "3"]
        expect_equal(set(found), {frozenset([*words, f"--link={link}"]) for link in ("2Gbit/s", "4Gbit/s")}, "commands")
        one = sweep(path + "/one", *VIRTUAL, "--config", write(path + "/one.json", '{"vary": "gpus=2,4", "mode": "ring", "out": "/none/there"}'))
        expect_equal((one.code, len(runs_in(path + "/one"))), (0, 2), "one axis as a text, and the folder of the command line", one)


@cases([("a wrong name", "vary = ['gpus=2,4']\nbukcet-cap-mb = 5", 64, "sweep.toml:2:1: unknown option '--bukcet-cap-mb'; did you mean --bucket-cap-mb?"),
        ("a wrong name of the sweep's", "model = 'lenet'\n\nvarry = ['gpus=2,4']", 64, "sweep.toml:3:1: unknown option '--varry'; did you mean --vary?"),
        ("a wrong value", "vary = 'gpus=2,4'\nrepeat = 0", 64, "sweep.toml:2:1: --repeat: expected"), ("a list", "vary = 'gpus=2'\nmodel = ['lenet']", 65, "sweep.toml:2:1: model: expected a text"),
        ("a wrong axis", "vary = ['gpus=2', 'batch']", 64, "sweep.toml:1:1: --vary: expected NAME=VALUE"), ("an axis twice", "vary = ['gpus=2', 'gpus=4']", 64, "sweep.toml:1:1: --vary: expected an option once"),
        ("an output", "vary = 'gpus=2,4'\njson = 'x'", 64, "unexpected option --json"), ("no file", None, 65, "sweep.toml: cannot be opened: No such file")])
def a_file_of_a_sweep_that_is_wrong_is_refused_with_its_line(content, code, message):
    with folder() as path:
        if content:
            write(path + "/sweep.toml", content)
        result = sweep(path + "/s", "--config", path + "/sweep.toml", "--device", "sim")
        expect_equal(result.code, code, "exit code", result)
        expect(message in result.err and len(result.lines()) == 1, f"expected {message!r}", result)
        expect(not os.path.exists(path + "/s"), "files")


@test
def the_table_of_a_sweep_that_was_killed_has_its_command():
    with folder() as path:
        words = [*VIRTUAL, "--vary", "gpus=2,4", "--mode", "ring"]
        whole = sweep(path, *words)
        expect_equal(whole.code, 0, "exit code", whole)
        command = table_in(path)["command"]
        os.remove(path + "/table.json")
        expect_equal(harness("report", path, "-o", path + "/page.html").code, 0, "exit code")
        with open(path + "/page.html", encoding="utf-8") as file:
            text = re.sub(r"<[^>]*>", "", re.search(r'<pre class="command".*?</pre>', file.read(), re.S)[0])
        expect_equal(text.split(), ["harness", *command], "command")


@test
def results_of_another_build_are_not_taken_over():
    with folder() as path:
        program, out = os.path.join(path, "harness"), os.path.join(path, "out")
        words = [program, "sweep", *VIRTUAL, "--vary", "gpus=2,4", "--mode", "ring", "-o", out]
        shutil.copy(PROGRAM, program)
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        expect_equal(run.returncode, 0, "exit code", run.stderr)
        expect_equal(subprocess.run([*words, "--repeat", "2"], capture_output=True, check=False).returncode, 0, "the same program")
        with open(program, "ab") as file:
            file.write(b"rebuilt")
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        expect_equal(run.returncode, 78, "another program", run.stderr)
        expect("got another build" in run.stderr, "the reason", run.stderr)


@cases([("no axis", ["--mode", "ring"], "--vary"),
        ("an unknown option", ["--vary", "bukket-cap-mb=1,2"], "bukket-cap-mb"),
        ("a value that is none", ["--vary", "gpus=2,many"], "many"),
        ("an empty value", ["--vary", "gpus=2,,4"], "gpus=2,,4"),
        ("the same option twice", ["--vary", "gpus=2,4", "--vary", "gpus=8"], "gpus"),
        ("several engines in one run", ["--mode", "both", "--vary", "gpus=2,4"], "--mode"),
        ("a result", ["--vary", "gpus=2,4", "--mode", "ring", "--json", "out"], "unexpected option --json"),
        ("a page", ["--vary", "gpus=2,4", "--mode", "ring", "--report", "out.html"], "unexpected option --report"),
        ("a trace", ["--vary", "gpus=2,4", "--mode", "ring", "--trace", "out.json"], "unexpected option --trace"),
        ("a checkpoint", ["--device", "cpu", "--vary", "gpus=2,4", "--mode", "ring", "--save", "out"], "unexpected option --save"),
        ("a plan", ["--vary", "gpus=2,4", "--mode", "ring", "--plan"], "unexpected option --plan"),
        ("too many rounds", ["--vary", "gpus=2,4", "--repeat", "0"], "--repeat")])
def wrong_words_are_refused_before_anything_runs(words, part):
    with folder() as path:
        result = sweep(os.path.join(path, "sweep"), *VIRTUAL, *words)
        expect_equal(result.code, 64, "exit code", result)
        expect_equal(len(result.lines()), 1, "lines on stderr", result)
        expect(part in result.err, f"expected {part!r}", result)
        expect_equal(os.listdir(path), [], "files")


main()
