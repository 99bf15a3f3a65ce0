"""A student's way through the labs with commands of their own: every command of labs/README.md and of the handout, in a fresh folder."""
import os
import re
import shutil
import subprocess

from labs import LABS, SOURCE, Student, read
from tap import cases, expect, expect_equal, long_cases, main


def commands(*path):
    return re.findall(r"^ {4,}(harness .*)$", read(SOURCE, "labs", *path), re.M)


def walk(student, folder, lines):
    """Runs each line in a shell; {line: exit code}."""
    programs = os.path.join(folder, "bin")
    os.makedirs(programs, exist_ok=True)
    if not os.path.lexists(os.path.join(programs, "harness")):
        os.symlink(student.program, os.path.join(programs, "harness"))
    codes = {}
    for line in lines:
        done = subprocess.run([*student.as_user, "sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=300,
                              env=dict(os.environ, PATH=programs + ":" + os.environ["PATH"]))
        codes[line] = done.returncode
        expected = (0, 1) if " lab check " in line else (0,)
        expect(done.returncode in expected, f"{line}: exit code {done.returncode}", done.stdout, done.stderr)
    return codes


@cases([(lab.name, lab) for lab in LABS if lab.number == 1])
@long_cases([(lab.name, lab) for lab in LABS if lab.number != 1])  # many checks of all parts
def every_command_of_the_handout_does_what_it_says(lab):
    part = lab.mutants[0]["parts"]
    start = [re.sub(r"\b3\b(?!-)", str(lab.number), line).replace("3-ring", lab.name).replace("-k uneven", "-k " + next(iter(part)))
             for line in commands("README.md")]
    handout = commands(lab.name, "README.md")
    expect(len(start) == 5 and len(handout) >= 2, "the commands", start, handout)
    with Student(lab) as student:
        folder = os.path.join(student.home, "fresh")
        os.mkdir(folder)
        os.chmod(folder, 0o777)
        codes = walk(student, folder, start + handout)
        checks = [line for line in codes if " lab check " in line]
        expect_equal([codes[line] for line in checks], [1] * len(checks), "exit codes of checks before the lab is solved")
        mine, student.folder = student.folder, os.path.join(folder, lab.name)
        expect_equal(sorted(os.listdir(student.folder)), sorted(os.listdir(mine)), "files of the started lab")
        student.solve()
        codes = walk(student, folder, checks)
        expect_equal([codes[line] for line in checks], [0] * len(checks), "exit codes of checks after it is solved")
        expect(os.path.exists(os.path.join(folder, lab.name + ".zip")), "the packed folder")
        shutil.rmtree(mine)


if __name__ == "__main__":
    main()
