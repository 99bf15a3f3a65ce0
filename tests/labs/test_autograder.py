"""The autograder for Gradescope in a bare Debian 12, as Gradescope runs it: the archive unpacked into /autograder/source, setup.sh once,
run_autograder next to it for each submission."""
import json
import os
import shutil
import subprocess
import tempfile
import zipfile

from labs import LABS, Student, read, write
from tap import Skip, expect, expect_equal, long_test, main
from test_reports import validate_gradescope

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def inside(root, *words):
    """In namespaces of its own, with nothing of the tester's environment."""
    script = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, root, *words], capture_output=True, text=True,
                          env={"PATH": PATH, "HOME": "/root"}, stdin=subprocess.DEVNULL, timeout=900)
    expect_equal(done.returncode, 0, f"{words}: exit code", done.stdout[-3000:], done.stderr[-3000:])


def bare_debian(root):
    if os.getuid() != 0 or not shutil.which("debootstrap"):
        raise Skip("needs root and debootstrap")
    made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], capture_output=True, text=True)
    if made.returncode != 0:
        raise Skip("debootstrap: no packages: " + made.stdout[-200:])
    shutil.copy("/etc/resolv.conf", os.path.join(root, "etc"))


def autograde(root, lab, solved):
    base = os.path.join(root, "autograder")
    shutil.rmtree(base, ignore_errors=True)
    os.makedirs(os.path.join(base, "results"))
    with Student(lab) as student:
        if solved:
            student.solve()
        path = os.path.join(student.home, "autograder.zip")
        student.run("autograder", str(lab.number), "--format", "gradescope", "--out", path, code=0)
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                os.chmod(archive.extract(entry, os.path.join(base, "source")), entry.external_attr >> 16 & 0o777)
        shutil.copy(os.path.join(base, "source", "run_autograder"), base)
        shutil.copytree(student.folder, os.path.join(base, "submission"))
        write(json.dumps({"id": 7, "users": [{"email": student.student, "id": 1}]}), base, "submission_metadata.json")
    inside(root, "bash", "/autograder/source/setup.sh")
    inside(root, "/autograder/run_autograder")
    report = json.loads(read(base, "results", "results.json"))
    validate_gradescope(report)
    return report


@long_test
def every_autograder_runs_in_a_bare_debian():
    with tempfile.TemporaryDirectory(prefix="bare-debian-") as folder:
        root = os.path.join(folder, "root")
        bare_debian(root)
        for lab in LABS:
            report = autograde(root, lab, solved=True)
            expect(report["score"] >= 100, f"{lab.name}: the solution has full points", json.dumps(report, indent=1))
        report = autograde(root, LABS[0], solved=False)
        expect(report["score"] < 30, f"{LABS[0].name}: starter files", json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
