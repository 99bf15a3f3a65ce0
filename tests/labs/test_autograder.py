"""The autograders in a bare Debian 12. As Gradescope runs it: the archive unpacked into /autograder/source, setup.sh once, run_autograder
next to it for each submission. As PrairieLearn runs it: the archive in /grade/serverFilesCourse, the files of the student in /grade/student."""
import json
import os
import shutil
import tempfile

from debian import inside, make_debian
from labs import LABS, Student, read, unpack, write
from tap import expect, expect_equal, long_test, main
from test_reports import validate_gradescope, validate_prairielearn


def pack(lab, form, solved, source, submission):
    """The autograder's archive unpacked into `source`, and a student's files in `submission`; the student's id."""
    with Student(lab) as student:
        if solved:
            student.solve()
        path = os.path.join(student.home, "autograder.zip")
        student.run("autograder", str(lab.number), "--format", form, "--out", path, code=0)
        unpack(path, source)
        shutil.copytree(student.folder, submission)
        return student.student


def autograde(root, lab, solved):
    base = os.path.join(root, "autograder")
    shutil.rmtree(base, ignore_errors=True)
    os.makedirs(os.path.join(base, "results"))
    student = pack(lab, "gradescope", solved, os.path.join(base, "source"), os.path.join(base, "submission"))
    shutil.copy(os.path.join(base, "source", "run_autograder"), base)
    write(json.dumps({"id": 7, "users": [{"email": student, "id": 1}]}), base, "submission_metadata.json")
    inside(root, "bash", "/autograder/source/setup.sh")
    inside(root, "/autograder/run_autograder")
    report = json.loads(read(base, "results", "results.json"))
    validate_gradescope(report)
    return report


def autograde_prairielearn(root, lab):
    base = os.path.join(root, "grade")
    source = os.path.join(base, "serverFilesCourse", "labs-grader")
    pack(lab, "prairielearn", True, source, os.path.join(base, "student"))
    inside(root, "bash", "/grade/serverFilesCourse/labs-grader/setup.sh")
    inside(root, "/grade/serverFilesCourse/labs-grader/run.sh")
    report = json.loads(read(base, "results", "results.json"))
    validate_prairielearn(report)
    return report


@long_test
def every_autograder_runs_in_a_bare_debian():
    with tempfile.TemporaryDirectory(prefix="bare-debian-") as folder:
        root = os.path.join(folder, "root")
        make_debian(root)
        for lab in LABS:
            report = autograde(root, lab, solved=True)
            expect(report["score"] >= 100, f"{lab.name}: the solution has full points", json.dumps(report, indent=1))
        report = autograde(root, LABS[0], solved=False)
        expect(report["score"] < 30, f"{LABS[0].name}: starter files", json.dumps(report, indent=1))
        report = autograde_prairielearn(root, LABS[2])
        expect_equal(report["score"], 1, f"{LABS[2].name} with PrairieLearn", json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
