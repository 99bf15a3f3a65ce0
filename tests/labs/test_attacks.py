"""Code that attacks the grader loses its own points at most: the rest is scored, and nothing is left behind."""
import os
import re
import signal
import subprocess

from labs import LABS, SOURCE, Student, read, user_who_is_not_root, write
from tap import cases, expect, expect_equal, long_cases, main, test

RING = next(lab for lab in LABS if lab.number == 3)
SECRET = "4711 is hidden"
LOOP = "still computing after 2 s of processor time: does a loop not end?"
WAIT = "nothing has happened for 3 s"

HEADERS = """
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static int deep(int n) { volatile char a[4096]; a[0] = (char)n; return deep(n + 1) + a[0]; }
static int never;
"""

# The first statements of the student's function, and a piece of the message of the part that runs it. None means that
# the attack changes nothing, so no points are lost.
ATTACKS = [
    ("an endless loop", "for (;;) continue;", LOOP),
    ("a fork bomb", "for (int i = 0; i < 100000; i++) fork();", None),
    ("an allocation of 100 GiB", "char *p = malloc((size_t)100 << 30); if (p) memset(p, 1, (size_t)100 << 30);", None),
    ("allocations until there is no memory", "for (char *p; (p = malloc(64 << 20));) *p = 1;", None),
    ("closing all descriptors", "for (int fd = 0; fd < 1024; fd++) close(fd);", None),
    ("printing a score", 'printf("Score: 100/100\\n");', None),
    ("printing for ever", 'for (;;) puts("Score: 100/100");', LOOP),
    ("writing the result file", 'int fd = open("../../report.json", O_WRONLY | O_CREAT, 0666); if (fd >= 0) { write(fd, "{}", 2); abort(); }', None),
    ("opening the grader's descriptors", 'char p[64]; for (int fd = 0; fd < 64; fd++) { sprintf(p, "/proc/%d/fd/%d", getppid(), fd);'
     ' if (open(p, O_RDWR) >= 0 || open(p, O_RDONLY) >= 0) abort(); }', None),
    ("reading the grader's memory", 'char p[64]; sprintf(p, "/proc/%d/mem", getppid()); if (open(p, O_RDONLY) >= 0) abort();', None),
    ("tracing the grader", "if (ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0) abort();", None),
    ("exit(0)", "exit(0);", "exit code 0 before it returned a result"),
    ("killing itself", "raise(SIGKILL);", "killed by signal 9"),
    ("aborting", "abort();", "signal 6"),
    ("killing everything", "kill(-1, SIGKILL); kill(getppid(), SIGKILL);", None),
    ("catching every signal", "for (int s = 1; s < 65; s++) signal(s, SIG_IGN); for (;;) continue;", LOOP),
    ("raising its limits", "setrlimit(RLIMIT_CPU, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}); for (;;) continue;", LOOP),
    ("filling the disk", 'int fd = open("fill", O_WRONLY | O_CREAT, 0666); if (fd >= 0) abort();', None),
    ("sockets", "if (socket(AF_INET, SOCK_STREAM, 0) >= 0 || socket(AF_UNIX, SOCK_STREAM, 0) >= 0) abort();", None),
    ("starting a program", 'execl("/bin/sh", "sh", "-c", "sleep 100", (char *)0);', None),
    ("recursion without end", "deep(1);", "stack-overflow"),
    ("waiting for ever, after a second of computing", "while (clock() < CLOCKS_PER_SEC) continue; syscall(SYS_futex, &never, FUTEX_WAIT, 0, NULL, NULL, 0);", WAIT),
    ("stopping itself", "raise(SIGSTOP);", WAIT),
    ("messages that lab.h cannot send", "char m[24]; memset(m, 0x7f, sizeof m); write(3, m, sizeof m);", "are possible"),
    ("reading what nobody writes", "char c; read(0, &c, 1);", None),
]
REFUSED = " ".join("{ %s }" % code for _, code, message in ATTACKS if message is None)
# In lab 3 rank 0 attacks in the sum of 8 elements among 2 ranks, which is in part `two`.
RING_ATTACKS = ATTACKS + [("writing after the end", "x[n] = 1;", "heap-buffer-overflow: WRITE of size 4 in student_all_reduce() (ring.c:")]


def attacked(code, headers=HEADERS):
    """The solution of lab 3, with the attack at the start of its function."""
    start = "int rank = lab_rank(ring), size"
    text = RING.solution()
    expect(start in text, "the solution's first line")
    return headers + text.replace(start, f"if (lab_rank(ring) == 0 && lab_size(ring) == 2 && n == 8) {{ {code} }}\n    {start}")


def check_attack(student, code, message):
    student.put(attacked(code))
    done = student.check("-k", "two,steps,why")
    two = done.parts["two"]
    expect_equal(done.parts["steps"]["score"], 10, "the rest is scored", done.text)
    expect_equal(done.parts["why"]["score"], 10, "the questions are scored", done.text)
    if message is None:
        expect_equal(two["score"], 10, "no points are lost", done.text)
    else:
        expect(two["score"] == 0 and message in two["output"], f"the message holds {message!r}", done.text)
    expect("\nScore: 100/100" not in done.text, "the student's line is not one of the report", done.text)
    expect_equal(student.left_behind(), [], "left behind")
    expect_equal(sorted(os.listdir(student.folder)), ["README.md", "answers.txt", "figure.svg", "ring.c", "time.txt"], "files of the student")


@test
def attacks_that_the_system_refuses_cost_nothing_even_all_at_once():
    with Student(RING) as student:
        student.solve()
        check_attack(student, REFUSED, None)


@cases([attack for attack in RING_ATTACKS if attack[2] not in (None, LOOP)] + [attack for attack in ATTACKS if attack[2] == LOOP][-1:])
def an_attack_loses_its_own_points_at_most(code, message):
    with Student(RING) as student:
        student.solve()
        check_attack(student, code, message)


@long_cases(RING_ATTACKS)
def alone_an_attack_loses_its_own_points_at_most(code, message):
    an_attack_loses_its_own_points_at_most(code, message)


# For the other labs: the function that attacks, the part that runs it, and a part that does not run it.
TARGETS = [(1, "student_reducer_bytes", "reducer", "ring"), (2, "student_serve", "equal", "why"), (4, "student_message_time", "message", "fit"),
           (5, "student_assign", "assign", "launch"), (6, "student_save", "resume", "rule"), (7, "student_memory", "ddp", "step")]
TARGETS = [(lab.name, lab, *target[1:]) for lab in LABS for target in TARGETS if target[0] == lab.number]


def attack_with(lab, function, part, other, code, message):
    with Student(lab) as student:
        student.solve()
        text, found = re.subn(rf"(\n\w[\w ]*\b{function}\([^)]*\)\n{{\n)", r"\1    attack();\n", lab.solution())
        expect_equal(found, 1, f"definitions of {function}()")
        student.put(HEADERS + "static void attack(void) { static int done; if (done++) return; %s }\n" % code + text)
        done = student.check("-k", f"{part},{other}")
        expect_equal(done.parts[other]["score"], done.parts[other]["max_score"], "the rest is scored", done.text)
        if message is None:
            expect_equal(done.parts[part]["score"], done.parts[part]["max_score"], "no points are lost", done.text)
        else:
            expect(done.parts[part]["score"] == 0 and message in done.parts[part]["output"], f"the message holds {message!r}", done.text)
        expect("\nScore: 100/100" not in done.text, "the student's line is not one of the report", done.text)
        expect_equal(student.left_behind(), [], "left behind")


@cases(TARGETS, at_more=2)
def in_every_lab_refused_attacks_cost_nothing_and_exit_costs_one_part(lab, function, part, other):
    attack_with(lab, function, part, other, REFUSED, None)
    attack_with(lab, function, part, other, "exit(0);", "exit code 0 before it returned a result")


@long_cases([(f"{target[0]}, {name}", *target[1:], code, message) for target in TARGETS for name, code, message in ATTACKS if message is not None])
def in_every_lab_an_attack_loses_its_own_points_at_most(lab, function, part, other, code, message):
    attack_with(lab, function, part, other, code, message)


def make_fifo(path, _):
    os.mkfifo(path)


def make_link(path, secret):
    os.symlink(secret, path)


def make_large(path, _):
    write("policy = ddp\n" * (1 << 18), path)


def make_folder(path, _):
    os.mkdir(path)


@cases([("a pipe", make_fifo), ("a link to hidden tests", make_link), ("3 MiB", make_large), ("a folder", make_folder)])
def answers_that_are_no_file_of_the_student_lose_only_what_they_answer(make):
    lab = next(lab for lab in LABS if lab.number == 8)
    with Student(lab) as student:
        student.solve()
        secret = os.path.join(student.home, "secret.txt")
        write(SECRET + " policy = " + SECRET, secret)
        for name, lost, kept in (("answers.txt", "fits", "defence"), ("defence.md", "defence", "fits")):
            path = os.path.join(student.folder, name)
            text = read(path)
            os.remove(path)
            make(path, secret)
            done = student.check("-k", "fits,defence", "--student", student.student)
            expect_equal([done.parts[part]["score"] for part in (lost, kept)], [0, done.parts[kept]["max_score"]], f"scores without {name}", done.text)
            expect(SECRET not in done.text, "the link's target is not shown", done.text)
            if os.path.isdir(path):
                os.rmdir(path)
            else:
                os.remove(path)
            write(text, path)
        expect_equal(student.left_behind(), [], "left behind")


@test
def the_students_table_of_messages_has_those_of_attacks_and_mutants():
    rows = re.findall(r"^\| `(.+?)` \| ", read(SOURCE, "labs", "README.md"), re.M)
    known = [attack[2] for attack in RING_ATTACKS if attack[2]] + [text for m in RING.mutants for text in m["parts"].values()]
    expect(len(rows) >= 6, "rows", rows)
    for row in rows:
        expect(row == "unprotected: ..." or any(text in row or row in text for text in known), row, *known)


@cases([(value, value) for value in ("nan", "inf", "0x1p9999")])
def an_answer_that_is_no_number_gets_no_points(value):
    lab = next(lab for lab in LABS if lab.number == 7)
    with Student(lab) as student:
        student.solve()
        student.answer(**dict.fromkeys(("ddp_gib", "zero1_gib", "zero3_gib", "least_ranks", "sent_ratio"), value))
        why = student.check("-k", "why").parts["why"]
        expect(why["score"] == 0 and why["output"].count(f"{value} is wrong") == 5, "the questions", why)


@cases([(stop.name, stop) for stop in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)])
def a_check_that_is_stopped_leaves_nothing_behind(stop):
    """SIGPIPE: whoever reads the report has gone, as after `harness lab check 3 | head -n 1`."""
    with Student(RING) as student:
        check = subprocess.Popen([*student.as_user, student.program, "lab", "check", "3", student.folder], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=dict(os.environ, TMPDIR=student.tmp))
        expect(b"lab 3" in check.stdout.readline(), "the first line")
        check.stdout.close()
        if stop != signal.SIGPIPE:
            check.send_signal(stop)
        printed = check.stderr.read()
        expect(check.wait() > 1, "exit code", check.returncode, printed)
        expect_equal(student.left_behind(), [], "left behind", printed)


@test
def attacks_by_a_user_who_is_not_root():
    program, as_user = user_who_is_not_root()
    with Student(RING, program=program, as_user=as_user) as student:
        student.solve()
        check_attack(student, REFUSED, None)
        for name, code, message in RING_ATTACKS:
            if name in ("exit(0)", "writing after the end"):
                check_attack(student, code, message)


FORGED = """
#include <unistd.h>
static void forge(unsigned state)
{
    static const int64_t numbers[] = {0, 1, 2, -1, 7, 1091, 1LL << 31, 1LL << 32, -(1LL << 40)}, sizes[] = {0, 0, 4, 48, 4364, -1, 90000};
    static const unsigned char data[90000];
    struct { int32_t kind, code; int64_t n, bytes; } m;
    for (int k = 0; k < 300; k++) {
        state = state * 1103515245u + 12345u;
        m.kind = (int)(state >> 16) % 9, m.code = (int)(state >> 20) % 3 - 1;
        m.n = numbers[(state >> 12) % 9], m.bytes = sizes[(state >> 8) % 7];
        if (write(3, &m, sizeof m) < 0 || (m.bytes > 0 && write(3, data, (size_t)m.bytes) < 0)) return;
    }
}
"""
FIRST_LINES = [(5, "    int *pending = calloc"), (6, "    int rc = LAB_OK, *waits"), (7, "    size_t size = (size_t)lab_group_size")]


@cases([(lab.name, lab, line) for lab in LABS for number, line in FIRST_LINES if lab.number == number])
def forged_messages_lose_points_and_the_grader_goes_on(lab, line):
    with Student(lab) as student:
        student.solve()
        expect_equal(lab.solution().count(line), 1, "the line")
        student.put(lab.solution().replace(line, f"    forge(17);\n{line}").replace("#include <lab.h>", "#include <lab.h>\n" + FORGED))
        done = student.check()
        expect_equal(done.returncode, 1, "exit code", done.text)
        expect(done.parts["compiles"]["score"] == done.parts["compiles"]["max_score"] and done.report["score"] < 100, "scores", done.text)
        expect(done.parts["why"]["score"] == done.parts["why"]["max_score"], "the questions are scored", done.text)
        expect_equal(student.left_behind(), [], "left behind")


@test
def neither_code_nor_compiler_can_read_hidden_tests():
    with Student(RING) as student:
        student.solve()
        hidden = os.path.join(student.home, "hidden")
        os.mkdir(hidden)
        path = os.path.join(hidden, "3-ring.txt")
        write(f"# {SECRET}\n5 4 10\n5 3 0\n", path)
        good = student.check("-k", "hidden", "--hidden", hidden)
        expect_equal(good.returncode, 0, "the solution passes the hidden tests", good.text)
        expect_equal(good.report["score"], 15 - 5, "their points", good.text)
        spies = {
            "open() in a constructor": f'__attribute__((constructor)) static void spy(void) {{ char t[99] = ""; int fd = open("{path}", O_RDONLY);'
                                       ' read(fd, t, 98); puts(t); abort(); }\n',
            "#include": f'#include "{path}"\n',
            ".incbin": f'__asm__(".data\\nspied: .incbin \\"{path}\\"\\n.text");\n',
        }
        for name, code in spies.items():
            student.put(HEADERS + code + RING.solution())
            done = student.check("-k", "compiles,two,hidden", "--hidden", hidden)
            expect(SECRET not in done.text and "5 4 10" not in done.text, f"{name} shows the hidden tests", done.text)
            expect(done.report["score"] < done.report["max_score"], f"{name}: points are lost", done.text)
        student.solve()
        os.remove(os.path.join(student.folder, "ring.c"))
        os.symlink(path, os.path.join(student.folder, "ring.c"))
        done = student.check("-k", "compiles,two", "--hidden", hidden)
        expect(SECRET not in done.text, "a link to the hidden tests shows them", done.text)


@test
def a_file_that_keeps_the_compiler_busy_or_is_no_file_loses_only_the_code_parts():
    with Student(RING) as student:
        student.solve()
        os.remove(os.path.join(student.folder, "ring.c"))
        os.mkfifo(os.path.join(student.folder, "ring.c"))
        done = student.check("-k", "compiles,two,why")
        expect_equal([done.parts[p]["score"] for p in ("compiles", "two", "why")], [0, 0, 10], "scores", done.text)
        expect("expected a file" in done.text, "the message", done.text)
        os.remove(os.path.join(student.folder, "ring.c"))
        student.put('#include "ring.c"\n')
        done = student.check("-k", "compiles,two,why")
        expect_equal([done.parts[p]["score"] for p in ("compiles", "two", "why")], [0, 0, 10], "scores", done.text)
        student.put("char large[1 << 30] = {1};\n" + RING.solution())  # more than the compiler may write
        done = student.check("-k", "compiles,two,why")
        expect_equal([done.parts[p]["score"] for p in ("compiles", "two", "why")], [0, 0, 10], "scores", done.text)
        expect_equal(student.left_behind(), [], "left behind")


if __name__ == "__main__":
    main()
