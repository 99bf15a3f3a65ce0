"""What the tests of the labs share: the table of labs, a student's folder with a solution, and a check of it.

With LABS_BY_USER=UID in the environment every student is that user, who starts the program of an autograder."""
import atexit
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile

import solve
from program import PROGRAM
from tap import expect

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("SOURCE_DIR") or os.path.dirname(os.path.dirname(HERE))


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def write(text, *path):
    with open(os.path.join(*path), "w", encoding="utf-8") as file:
        file.write(text)


def unpack(archive, folder):
    with zipfile.ZipFile(archive) as archive:
        for entry in archive.infolist():
            os.chmod(archive.extract(entry, folder), entry.external_attr >> 16 & 0o777)


class Lab:
    """A folder N-name here: the solution's files, and mutants.json."""

    def __init__(self, folder):
        self.name = os.path.basename(folder)
        self.number = int(self.name.split("-")[0])
        self.folder = folder
        sources = sorted(glob.glob(os.path.join(SOURCE, "labs", self.name, "*.c")))
        self.source = os.path.basename(sources[0]) if sources else None
        self.mutants = json.loads(read(folder, "mutants.json"))
        # The rows "| `one`, `two` | 10 each | ..." of the handout: {part: points}.
        rows = re.findall(r"^\| (`.*?) \| (\d+)(?: each)? \|", read(SOURCE, "labs", self.name, "README.md"), re.M)
        self.parts = {part: float(points) for parts, points in rows for part in re.findall(r"`(\w+)`", parts)}

    def solution(self):
        return read(self.folder, self.source) if self.source else ""

    def mutant(self, name):
        """The files of a mutant, {name: text}, and the words of the message in each part that the mutant must
        fail."""
        m = next(m for m in self.mutants if m["name"] == name)
        if "answers" in m:
            return {}, m["parts"], m["answers"]
        text = read(self.folder, m["file"]) if "file" in m else self.solution()
        if "from" in m:
            expect(text.count(m["from"]) == 1, f"{self.name}: mutant '{name}': the line occurs {text.count(m['from'])} times")
            text = text.replace(m["from"], m["to"])
        return {self.source: text}, m["parts"], {}


LABS = [Lab(folder) for folder in sorted(glob.glob(os.path.join(HERE, "[1-8]-*")))]


@functools.cache
def user_who_is_not_root(uid="65534"):
    """The program and its data in a folder that this user may read, and the words in front of a command that run it
    as this user."""
    folder = tempfile.mkdtemp(prefix="lab program ü ")
    atexit.register(shutil.rmtree, folder)
    os.chmod(folder, 0o755)
    path = os.path.join(folder, "autograder.zip")
    subprocess.run([PROGRAM, "lab", "autograder", "1", "--format", "gradescope", "--out", path], check=True, capture_output=True)
    unpack(path, folder)
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if os.getuid() == 0 else []
    return os.path.join(folder, "bin", "harness"), words


class Student:
    """A folder in which a student works, started with the program."""

    def __init__(self, lab, student="ada@example.org", program=PROGRAM, as_user=()):
        if "LABS_BY_USER" in os.environ:
            program, as_user = user_who_is_not_root(os.environ["LABS_BY_USER"])
        self.lab, self.student, self.program, self.as_user = lab, student, program, list(as_user)
        self.home = tempfile.mkdtemp(prefix="lab student ü ")
        self.folder = os.path.join(self.home, "mine")
        self.tmp = os.path.join(self.home, "tmp")
        os.chmod(self.home, 0o777)
        os.mkdir(self.tmp)
        os.chmod(self.tmp, 0o777)
        self.run("start", str(lab.number), self.folder, "--student", student, code=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home, ignore_errors=True)

    def run(self, *words, code=None, limit=300, folder=None):
        done = subprocess.run([*self.as_user, self.program, "lab", *words], cwd=folder or self.home, capture_output=True, timeout=limit,
                              env=dict(os.environ, TMPDIR=self.tmp), stdin=subprocess.DEVNULL)
        done.text = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
        expect(code is None or done.returncode == code, f"lab {' '.join(words)}: exit code {done.returncode}, expected {code}",
               done.text)
        return done

    def solve(self, **changes):
        """Puts the solution's code and answers and the hours into the folder. `changes` replaces answers."""
        if self.lab.source:
            write(self.lab.solution(), self.folder, self.lab.source)
        for name in set(os.listdir(self.lab.folder)) & set(os.listdir(self.folder)):
            shutil.copy(os.path.join(self.lab.folder, name), self.folder)
        self.answer(**changes)
        write("2.5\n", self.folder, "time.txt")

    def answer(self, **changes):
        path = os.path.join(self.folder, "answers.txt")
        if os.path.exists(path):
            text = read(path)
            answers = dict(solve.answers(self.lab.number, text), **changes)
            for key, value in answers.items():
                text = re.sub(rf"^{key} *=.*$", lambda _: f"{key} = {value}", text, flags=re.M)
            write(text, path)

    def put(self, text):
        write(text, self.folder, self.lab.source)

    def check(self, *words, limit=300):
        """{part: test} of the JSON report, with the report itself and the exit code."""
        report = os.path.join(self.home, "report.json")
        done = self.run("check", str(self.lab.number), self.folder, "--format", "json", "--out", report, *words, limit=limit)
        expect(done.returncode in (0, 1), f"the check of lab {self.lab.number} ends with a score", done.text)
        done.report = json.loads(read(report))
        done.parts = {test["part"]: test for test in done.report["tests"]}
        os.remove(report)
        return done

    def left_behind(self):
        """Files of the grader, and processes that were started in its folder."""
        found = [os.path.join(self.tmp, name) for name in os.listdir(self.tmp)]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.tmp.encode() in open(f"/proc/{pid}/cmdline", "rb").read():
                    found.append(f"process {pid}")
            except OSError:
                pass
        return found
