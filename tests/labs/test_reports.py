"""What students and instructors do around a check: list, start, pack, reports for Gradescope and PrairieLearn, an autograder."""
import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
import zipfile

from labs import LABS, SOURCE, Student, read, unpack, write
from program import PROGRAM, SANITIZED
from tap import Skip, cases, expect, expect_equal, main, module_or_skip, test

RING = next(lab for lab in LABS if lab.number == 3)

# The documented fields: name -> (required, type, accepted values or None).
GRADESCOPE = {"score": (True, (int, float), None), "execution_time": (False, (int, float), None),
              "output": (False, str, None), "output_format": (False, str, {"text", "html", "simple_format", "md", "ansi"}),
              "visibility": (False, str, {"hidden", "after_due_date", "after_published", "visible"}),
              "stdout_visibility": (False, str, {"hidden", "after_due_date", "after_published", "visible"}),
              "extra_data": (False, dict, None), "tests": (True, list, None), "leaderboard": (False, list, None)}
GRADESCOPE_TEST = {"score": (True, (int, float), None), "max_score": (True, (int, float), None),
                   "status": (False, str, {"passed", "failed"}), "name": (True, str, None), "number": (False, str, None),
                   "output": (False, str, None), "output_format": GRADESCOPE["output_format"], "tags": (False, list, None),
                   "visibility": GRADESCOPE["visibility"], "extra_data": (False, dict, None)}
LEADERBOARD = {"name": (True, str, None), "value": (True, (int, float, str), None), "order": (False, str, {"asc", "desc"})}
PRAIRIELEARN = {"score": (True, (int, float), None), "gradable": (True, bool, None), "message": (False, str, None),
                "output": (False, str, None), "tests": (False, list, None), "images": (False, list, None),
                "format_errors": (False, (str, list), None)}
PRAIRIELEARN_TEST = {"name": (True, str, None), "description": (False, str, None), "points": (True, (int, float), None),
                     "max_points": (True, (int, float), None), "message": (False, str, None), "output": (False, str, None)}


def validate(value, fields, where):
    for name, (required, kind, accepted) in fields.items():
        expect(not required or name in value, f"{where}: {name} is missing", value)
        if name in value:
            expect(isinstance(value[name], kind), f"{where}: {name} is {value[name]!r}", value)
            expect(accepted is None or value[name] in accepted, f"{where}: {name} is {value[name]!r}")
    expect_equal(sorted(set(value) - set(fields)), [], f"{where}: fields that are not documented")


def validate_schema(report, name):
    """By the file that is installed."""
    validator = module_or_skip("jsonschema", "python3-jsonschema").Draft202012Validator
    with open(os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "docs/schemas", name + ".schema.json"), encoding="utf-8") as file:
        errors = list(validator(json.load(file)).iter_errors(report))
    expect(not errors, *[f"{name}: {'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in errors[:5]])


def validate_gradescope(report):
    validate_schema(report, "lab-gradescope")
    validate(report, GRADESCOPE, "results.json")
    for test_ in report["tests"]:
        validate(test_, GRADESCOPE_TEST, "tests")
    for row in report["leaderboard"]:
        validate(row, LEADERBOARD, "leaderboard")
    expect(abs(report["score"] - sum(t["score"] for t in report["tests"])) < 1e-9, "the score is the sum", report)


def validate_prairielearn(report):
    validate_schema(report, "lab-prairielearn")
    validate(report, PRAIRIELEARN, "results.json")
    for test_ in report["tests"]:
        validate(test_, PRAIRIELEARN_TEST, "tests")


@test
def results_for_gradescope_have_its_documented_fields():
    with Student(RING) as student:
        student.solve(order="0 1")
        hidden = os.path.join(student.home, "hidden")
        os.mkdir(hidden)
        write("5 4 10\n", hidden, "3-ring.txt")
        done = student.run("check", "3", student.folder, "--format", "gradescope", "--hidden", hidden, "-k", "two,speed,why,hidden", code=1)
        report = json.loads(done.stdout)
        validate_gradescope(report)
        expect_equal([t["visibility"] for t in report["tests"]], ["visible"] * 3 + ["after_published"], "visibility")
        expect_equal([row["name"] for row in report["leaderboard"]], ["time / reference's time"], "leaderboard")


@test
def results_for_prairielearn_have_its_documented_fields():
    with Student(RING) as student:
        student.solve(order="0 1")
        start = "int rank = lab_rank(ring)"
        student.put(RING.solution().replace(start, 'for (int i = 0; i < 100000; i++) puts("much \\x01 \\xff");\n' + start).replace("#include <stdlib.h>", "#include <stdio.h>\n#include <stdlib.h>"))
        done = student.run("check", "3", student.folder, "--format", "prairielearn", "-k", "two,why", code=1)
        report = json.loads(done.stdout)
        validate_prairielearn(report)
        expect(0 < report["score"] < 1, "score", report)
        expect(len(done.stdout) < 1 << 20, "at most 1 MB")


@test
def results_as_json_are_those_of_the_schema():
    with Student(RING) as student:
        student.solve(order="0 1")
        done = student.run("check", "3", student.folder, "--format", "json", "-k", "two,why", code=1)
        report = json.loads(done.stdout)
        validate_schema(report, "lab")
        expect_equal({t["part"]: t["status"] for t in report["tests"]}, {"two": "passed", "why": "failed"}, "tests")


@cases([("json", "lab"), ("gradescope", "lab-gradescope"), ("prairielearn", "lab-prairielearn")])
def an_id_that_is_no_utf_8_and_hours_that_are_no_number_do_not_prevent_a_report(schema):
    with Student(RING) as student:
        student.solve()
        text = read(student.folder, "answers.txt")
        with open(os.path.join(student.folder, "answers.txt"), "wb") as file:
            file.write(text.replace(student.student, "ada").encode().replace(b"= ada", b"= \xff\xfe"))
        write("inf", student.folder, "time.txt")
        done = student.run("check", "3", student.folder, "--format", schema.removeprefix("lab-").replace("lab", "json"), "-k", "steps,why", code=1)
        report = json.loads(done.stdout)
        validate_schema(report, schema)
        expect(report["score"] > 0, "the rest is scored", report)


@test
def starting_a_lab_never_overwrites():
    with Student(RING) as student:
        student.put("mine")
        done = student.run("start", "3", student.folder, code=0)
        expect("kept" in done.text and "ring.c" in done.text, "the message", done.text)
        expect_equal(read(student.folder, "ring.c"), "mine", "the student's file")


@test
def a_start_that_could_not_write_a_file_leaves_none():
    """As on a full disk. The second start would keep what the first one left."""
    with tempfile.TemporaryDirectory() as folder:
        start = [PROGRAM, "lab", "start", "1", os.path.join(folder, "full")]
        full = subprocess.run(start, capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
        expect_equal((full.returncode, os.listdir(os.path.join(folder, "full"))), (74, []), "exit code and files", full.stderr)
        subprocess.run(start, check=True, capture_output=True)
        subprocess.run([*start[:-1], os.path.join(folder, "whole")], check=True, capture_output=True)
        expect_equal(*(read(folder, name, "count.c") for name in ("full", "whole")), "the starter file")


@test
def the_commands_that_start_and_check_suggest_run_as_they_are():
    with Student(RING) as student:
        text = student.run("start", "3", "my ring", code=0).text
        suggested = re.findall(r"then (harness .*)", text)
        text = student.run("check", "3", "my ring", code=1).text
        suggested += re.findall(r"try: (harness .*)", text)[:2]
        expect_equal(suggested, [f"harness lab check 3 'my ring'{part}" for part in ("", " -k two", " -k even")], "commands", text)
        expect(re.search(r"^compiles .* OK +\((?!0\.0)\d", text, re.M), "the time of compiling is shown", text)
        student.run("start", "3", code=0)
        expect_equal(student.run("check", "3", "-k", "compiles", folder=os.path.join(student.home, "3-ring")).returncode, 0, "inside the folder")
        expect("try: harness lab check 3 -k two\n" in student.run("check", "3", code=1).text, "without DIR for the default folder")


@test
def a_warning_is_shown_and_costs_2_points():
    with Student(RING) as student:
        student.put(RING.solution() + "static int unused(void) { return 0; }\n")
        done = student.check("-k", "compiles,steps")
        compiles = done.parts["compiles"]
        expect_equal([compiles["score"], done.parts["steps"]["score"], done.returncode], [3, 10, 1], "scores, exit code", done.text)
        expect("unused-function" in compiles["output"], "the warning", done.text)


@test
def a_packed_folder_is_the_same_every_time_and_holds_no_built_files():
    with Student(RING) as student:
        student.solve()
        write("x", student.folder, "ring.o")
        os.mkdir(os.path.join(student.folder, "build"))
        packed = []
        for name in ("one.zip", "two.zip"):
            path = os.path.join(student.home, name)
            student.run("pack", student.folder, "--out", path, code=0)
            os.utime(os.path.join(student.folder, "ring.c"), (1, 1))
            with open(path, "rb") as file:
                packed.append(file.read())
        expect(packed[0] == packed[1], "both are equal")
        unpacked = os.path.join(student.home, "unpacked")
        unpack(path, unpacked)
        expect_equal(sorted(os.listdir(unpacked)), ["README.md", "answers.txt", "figure.svg", "ring.c", "time.txt"], "files")
        expect_equal(read(unpacked, "ring.c"), RING.solution(), "a file")


@test
def the_list_shows_points_time_and_state():
    with Student(RING) as student:
        shutil.move(student.folder, os.path.join(student.home, "3-ring"))
        text = student.run("list", code=0).text
        row = next(line for line in text.splitlines() if " ring " in line)
        expect(" 100 " in row and " started " in row, "the row of lab 3", text)


@test
def a_wrong_command_line_is_refused_with_what_is_expected():
    rows = [(["check", "9"], "lab: expected the number of a lab, one of "), (["chek"], "did you mean 'check'"),
            (["check", "3", ".", "-k", "uneve"], "uneven"), (["autograder", "3"], "--format: expected gradescope or prairielearn"),
            (["check"], "lab: check: expected the number of a lab")]
    with Student(RING) as student:
        for words, message in rows:
            done = student.run(*words, code=64)
            expect(message in done.text, f"{words}: {message!r}", done.text)
        done = student.run("check", "3", "nowhere", code=65)
        expect("nowhere" in done.text, "a folder that is not there", done.text)


# Two labs, and the examples of the instructor's page.
HIDDEN = [("parts of lab 1", 1, "7 ring hidden-1\n3 servers hidden-2\n"), ("lab 6", 6, "5 rule hidden-1\n")] + [
    (f"the example of lab {n}", int(n), line.strip() + "\n") for n, line in re.findall(r"^    # (\d)-\w+\.txt: .*\n(.*)", read(SOURCE, "labs", "INSTRUCTOR.md"), re.M)]


@cases(HIDDEN)
def hidden_tests_of_any_lab_count_and_show_nothing(number, lines):
    lab = next(lab for lab in LABS if lab.number == number)
    with Student(lab) as student:
        student.solve()
        write("# points, and what is tested\n" + lines, student.home, f"{lab.name}.txt")
        done = student.check("-k", "hidden", "--hidden", student.home)
        expect_equal([(t["name"], t["score"], t["max_score"], t["output"], t["cost"]) for t in done.report["tests"]],
                     [(f"hidden test {i + 1}", float(line.split()[0]), float(line.split()[0]), "", "") for i, line in enumerate(lines.splitlines())], "tests")
        source = read(SOURCE, "labs", lab.name, lab.source)
        student.put(source)
        done = student.check("-k", "hidden", "--hidden", student.home)
        expect_equal({(t["score"], t["output"], t["cost"]) for t in done.report["tests"]}, {(0.0, "", "")}, "starter files", done.text)
        expect("hidden-1" not in done.text, "the id is not shown", done.text)


@test
def hidden_tests_that_cannot_run_are_refused():
    for number, line, message in ((8, "5 regret other", "a part of lab 8 that runs code"), (1, "5 why other", "a part of lab 1 that runs code"),
                                  (1, "reducer 5", "expected POINTS and")):
        lab = next(lab for lab in LABS if lab.number == number)
        with Student(lab) as student:
            write(line, student.home, f"{lab.name}.txt")
            done = student.run("check", str(number), student.folder, "-k", "hidden", "--hidden", student.home, code=65)
            expect(message in done.text, f"{message!r}", done.text)
            os.remove(os.path.join(student.home, f"{lab.name}.txt"))
            done = student.run("autograder", str(number), "--format", "gradescope", "--hidden", student.home, code=65)
            expect(lab.name + ".txt" in done.text, "an autograder without the lab's hidden tests", done.text)


@cases([(lab.name, lab) for lab in LABS])
def a_handout_states_its_time_and_has_every_section(lab):
    text = read(SOURCE, "labs", lab.name, "README.md")
    hours = re.search(r"^Time: (\d to \d) hours\.", text, re.M)[1]
    row = next(line for line in subprocess.run([PROGRAM, "lab", "list"], check=True, capture_output=True, text=True).stdout.splitlines() if f" {lab.name[2:]} " in line)
    expect(f" {hours} " in row and re.search(rf"^\| {lab.number} {lab.name[2:]} \| .* \| {hours} \|$", read(SOURCE, "labs", "INSTRUCTOR.md"), re.M), "hours", hours, row)
    names, bodies = zip(*re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    expect_equal(names, ("Background", "Task", "What is graded", "Hints", "Questions", "References"), "sections")
    expect(len(re.findall(r"^\d\. ", bodies[3], re.M)) >= 4 and re.search(r"To think\sabout: ", bodies[4]), "hints and questions", text)
    references = re.split(r"^- ", bodies[5], flags=re.M)[1:]
    expect(len(references) >= 3 and all(re.search(r"\b(19|20)\d\d\b", line) for line in references), "references with a year", references)


@test
def the_first_commands_of_the_instructors_page_solve_a_lab():
    lines = re.findall(r"^    (.*)", re.split("Try one first|`tests/labs/N-name/`", read(SOURCE, "labs", "INSTRUCTOR.md"))[1], re.M)
    expect_equal(len(lines), 4, f"commands: {lines}")
    with tempfile.TemporaryDirectory() as sources:
        os.symlink(os.path.join(SOURCE, "tests"), os.path.join(sources, "tests"))

        def shell(script):
            return subprocess.run(["sh", "-ec", script], cwd=sources, check=True, capture_output=True, text=True,
                                  env=dict(os.environ, PATH=os.path.dirname(PROGRAM) + ":" + os.environ["PATH"])).stdout
        shown = re.findall(r"^(\w+) = (.*)", shell("\n".join(lines[:3])), re.M)
        answers = read(sources, "3-ring", "answers.txt")
        for key, value in shown:
            answers = re.sub(rf"^{key} =$", f"{key} = {value}", answers, flags=re.M)
        write(answers, sources, "3-ring", "answers.txt")
        shell(lines[3] + " -k two,why")


@test
def a_program_built_on_debian_12_starts_with_the_c_library_that_instructors_are_told():
    if SANITIZED or "VERSION_ID=\"12\"" not in read("/etc/os-release") or not shutil.which("objdump"):
        raise Skip("needs Debian 12, a program without sanitizers, and objdump")
    symbols = subprocess.run(["objdump", "-T", PROGRAM], check=True, capture_output=True, text=True).stdout
    told = re.search(r"new enough\s+for the programs in the archive \((.*?)\)", read(SOURCE, "labs", "INSTRUCTOR.md"))[1]
    newer = [v for v in set(re.findall(r"\bGLIBC_(\d+\.\d+)", symbols)) if [int(n) for n in v.split(".")] > [int(n) for n in told.split(".")]]
    expect("GLIBC_2.34" in symbols and not newer, f"versions after {told}: {newer}")


@test
def the_instructors_table_of_mistakes_quotes_messages_of_mutants():
    rows = re.findall(r"^\| (\d) \| .* \| (.*) \|$", read(SOURCE, "labs", "INSTRUCTOR.md"), re.M)
    expect(len(rows) >= 20 and {int(number) for number, _ in rows} == {lab.number for lab in LABS}, "a row for every lab", rows)
    for number, cell in rows:
        quoted = re.findall(r"``(.+?)``|`([^`]+)`", cell)[-1]
        message = quoted[0] or quoted[1]
        known = [text for lab in LABS if lab.number == int(number) for m in lab.mutants for text in m["parts"].values()]
        expect(any(text.strip("` ") in message or message in text for text in known), f"lab {number}: {message!r} is what the grader says to a mutant", known)


@cases([("gradescope", "run_autograder"), ("prairielearn", "run.sh")])
def an_autograder_holds_all_that_it_needs(run):
    kind = "gradescope" if run == "run_autograder" else "prairielearn"
    with Student(RING) as student:
        student.solve()
        hidden = os.path.join(student.home, "my tests")
        os.mkdir(hidden)
        write("5 4 10\n", hidden, "3-ring.txt")
        path = os.path.join(student.home, "autograder.zip")
        student.run("autograder", "3", "--format", kind, "--hidden", hidden, "--out", path, code=0)
        with zipfile.ZipFile(path) as archive:
            expect_equal(archive.testzip(), None, "every file's checksum")
            names = archive.namelist()
        for name in ("setup.sh", run, "bin/harness", "share/psring/labs/lab.h", "share/psring/wine_data.csv", "share/psring/profiles/dgx1-v100-4xib100.json",
                     "hidden/3-ring.txt"):
            expect(name in names, f"{name} is in the archive", names)


@test
def a_gradescope_autograder_writes_its_results_of_a_packed_lab():
    """As Gradescope does it: source/ holds the unpacked archive, run_autograder lies next to it."""
    with Student(RING) as student:
        student.solve()
        base = os.path.join(student.home, "autograder")
        os.mkdir(base)
        os.chmod(base, 0o777)
        path = os.path.join(student.home, "autograder.zip")
        student.run("autograder", "3", "--format", "gradescope", "--out", path, code=0)
        unpack(path, os.path.join(base, "source"))
        shutil.copy(os.path.join(base, "source", "run_autograder"), base)
        write("#error\n", student.folder, "further.c")
        packed = os.path.join(student.home, "3-ring.zip")
        student.run("pack", student.folder, "--out", packed, code=0)
        unpack(packed, os.path.join(base, "submission"))
        os.chmod(os.path.join(base, "submission"), 0o777)
        write(json.dumps({"id": 7, "users": [{"email": student.student, "id": 1}, {"email": "x@y", "id": 2}]}), base, "submission_metadata.json")
        subprocess.run([*student.as_user, os.path.join(base, "run_autograder")], check=True, capture_output=True, cwd="/")
        report = json.loads(read(base, "results", "results.json"))
        validate_gradescope(report)
        expect(report["score"] >= 100, "the solution has full points", json.dumps(report, indent=1))
        expect_equal(report["extra_data"]["student"], student.student, "the id is the e-mail address")


if __name__ == "__main__":
    main()
