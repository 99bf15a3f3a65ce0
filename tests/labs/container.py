"""labs/Dockerfile without an engine: its instructions in their order, each stage in a Debian 12 in a folder; then a student's
first commands in the image."""
import fnmatch
import os
import re
import subprocess

from debian import inside, make_debian
from labs import LABS, SOURCE, Student, read
from tap import expect, expect_equal

RING = next(lab for lab in LABS if lab.number == 3)


def instructions():
    text = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", read(SOURCE, "labs/Dockerfile"), flags=re.M))
    return [line.split(None, 1) for line in text.splitlines() if line]


def copy_context(to):
    patterns = read(SOURCE, ".dockerignore").split()
    for name in os.listdir(SOURCE):
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            subprocess.run(["cp", "-a", os.path.join(SOURCE, name), to], check=True)


def build(folder, *options):
    """Root, working directory and user of the last stage. `options` are the options of debootstrap."""
    base, stages = os.path.join(folder, "debian"), {}
    make_debian(base, *options)
    for word, rest in instructions():
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            expect_equal(image, "debian:12", "the base image")
            root, where, user = os.path.join(folder, name or "image"), "/", "root"
            stages[name] = root
            subprocess.run(["cp", "-a", base, root], check=True)
        elif word == "WORKDIR":
            where = rest
            os.makedirs(root + where, exist_ok=True)
        elif word == "USER":
            user = rest
        elif word == "RUN":
            inside(root, "sh", "-c", rest, user=user, folder=where, limit=7200)
        elif word == "COPY" and rest.startswith("--from="):
            stage, source, to = rest[len("--from="):].split()
            subprocess.run(["cp", "-a", f"{stages[stage]}{source}/.", root + to], check=True)
        elif word == "COPY":
            expect_equal(rest, ". /src", "what is copied")
            os.mkdir(root + "/src")
            copy_context(root + "/src")
        else:
            expect_equal([word, rest], ["CMD", '["bash"]'], "the instruction")
    return root, where, user


def walk(root, folder, user, confined=True):
    """Starts and solves a lab there as `user`; returns whether students' processes are confined there."""
    def harness(*words, code=0):
        return inside(root, "harness", "lab", *words, user=user, folder=folder, code=code)
    expect(" ring " in harness("list"), "the labs are listed")
    harness("start", "3", "--student", "you@example.org")
    expect("has not been written yet" in harness("check", "3", code=1), "the starter files are checked")
    student = Student.__new__(Student)
    student.lab, student.folder = RING, os.path.join(root, folder[1:], RING.name)
    student.solve()
    text = harness("check", "3", "-k", "compiles,two,even,uneven,large,bytes,steps,scratch,why")
    expect_equal("unprotected" not in text, confined, "the student's process is confined", text)
    harness("pack", "3-ring")
