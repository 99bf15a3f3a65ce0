/* Compiles a student's code: with sanitizers to check it, without them to time it. */
#include "harness/labs/students.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOOL_SECONDS = 60, TOOL_MOST_PRINTED = 16 << 10 };

static void become_tool(const grader *g, char *const argv[], int printed)
{
    char folder[PATH_MAX + 16];
    child_begin(printed);
    close_range(3, ~0u, 0);
    setrlimit(RLIMIT_CPU, &(struct rlimit){TOOL_SECONDS, TOOL_SECONDS});
    setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)4 << 30, (rlim_t)4 << 30});
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){256 << 20, 256 << 20});
    snprintf(folder, sizeof folder, "TMPDIR=%s", g->build);
    if (chdir(g->build) != 0) _exit(127);
    clearenv();
    putenv(folder);
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
    setenv("LC_ALL", "C", 1);
    limit_files(g, true);
    execvp(argv[0], argv);
    _exit(127);
}

typedef struct tool {
    pid_t pid;
    int printed_fd;
} tool;

static status tool_start(const grader *g, char *const argv[], tool *t)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return fail_errno(STATUS_SYSTEM, "lab: a pipe for %s", argv[0]);
    *t = (tool){fork(), ends[0]};
    if (t->pid == 0) become_tool(g, argv, ends[1]);
    close(ends[1]);
    if (t->pid > 0) return STATUS_OK;
    close(ends[0]);
    return fail_errno(STATUS_SYSTEM, "lab: a process for %s", argv[0]);
}

static status tool_finish(tool *t, text_buffer *printed, int *code)
{
    int how;
    char bytes[4096];
    struct pollfd polled = {t->printed_fd, POLLIN, 0};
    int64_t until = clock_now_ns() + TOOL_SECONDS * NS_PER_S, left;
    while (!grader_interrupted && (left = until - clock_now_ns()) > 0 &&
           poll(&polled, 1, (int)(left / NS_PER_MS) + 1) > 0) {
        ssize_t n = read(t->printed_fd, bytes, sizeof bytes);
        if (n <= 0) break;
        if (printed->length < TOOL_MOST_PRINTED) text_append(printed, "%.*s", (int)n, bytes);
    }
    close(t->printed_fd);
    pid_t ended;
    while ((ended = waitpid(t->pid, &how, WNOHANG)) == 0 && !grader_interrupted && clock_now_ns() < until)
        clock_sleep_ns(NS_PER_MS);
    if (ended <= 0) kill(t->pid, SIGKILL); /* the child may not have a process group yet */
    kill(-t->pid, SIGKILL);                /* kills the tool's children, too, which this process inherits */
    while (ended <= 0 && (ended = waitpid(t->pid, &how, 0)) < 0 && errno == EINTR) continue;
    while (waitpid(-t->pid, NULL, 0) > 0 || errno == EINTR) continue;
    *code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    return grader_interrupted ? fail(STATUS_STOPPED, "lab: stopped") : STATUS_OK;
}

status tool_run(const grader *g, char *const argv[], text_buffer *printed, int *code)
{
    tool t;
    TRY(tool_start(g, argv, &t));
    return tool_finish(&t, printed, code);
}

static status copy_source(grader *g)
{
    char path[PATH_MAX + 64];
    text_buffer text = {0};
    status rc = grader_read_file(g->folder, g->lab->source, &text);
    if (rc == STATUS_DATA) {
        text_append(&g->compiler, "%s; `harness lab start %d` copies it\n", error_message(), g->lab->number);
        error_clear();
        return STATUS_OK;
    }
    TRY(rc);
    snprintf(path, sizeof path, "%s/%s", g->build, g->lab->source);
    FILE *file = fopen(path, "w");
    bool written = file && fwrite(text.data, 1, text.length, file) == text.length;
    if (file && fclose(file) != 0) written = false;
    text_free(&text);
    g->compiles = written;
    return written ? STATUS_OK : fail_errno(STATUS_CANNOT_CREATE, "%s", path);
}

/* The runner needs only the address sanitizer, which sees the runner's writes through a student's pointers.
 * The undefined behavior sanitizer would double the compile time. */
static const char *const checked_mode[] = {"-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
                                           "-fno-omit-frame-pointer", NULL},
                         *const runner_mode[] = {"-O1", "-fsanitize=address", "-fno-omit-frame-pointer",
                                                 NULL},
                         *const fast_mode[] = {"-O2", NULL};

static status start_compiler(const grader *g, const char *const *mode, const char *const words[], tool *t)
{
    char root[PATH_MAX + 8], labs[PATH_MAX + 16];
    snprintf(root, sizeof root, "-I%s", g->data);
    snprintf(labs, sizeof labs, "-I%s/labs", g->data);
    const char *argv[32] = {"cc", "-std=c11", "-D_GNU_SOURCE", "-ffp-contract=off", root, labs};
    int n = 6;
    for (; *mode; mode++) argv[n++] = *mode;
    for (; *words; words++) argv[n++] = *words;
    return tool_start(g, (char *const *)argv, t);
}

/* Compiles the student's file and the runner at the same time, because both take about as long. */
static status compile_and_link(grader *g, bool fast, text_buffer *printed, int *code)
{
    char main_file[PATH_MAX + 32], lab_file[PATH_MAX + 64];
    const char *program = fast ? "fast" : "checked", *object = fast ? "fast.o" : "checked.o";
    const char *const *mode = fast ? fast_mode : checked_mode;
    int runner_code = 1;
    tool student, runner;
    text_buffer of_runner = {0};
    snprintf(main_file, sizeof main_file, "%s/labs/runner/runner.c", g->data);
    snprintf(lab_file, sizeof lab_file, "%s/labs/runner/%s.c", g->data, g->lab->name);
    TRY(start_compiler(
        g, mode, (const char *const[]){"-g", "-Wall", "-Wextra", "-c", g->lab->source, "-o", object, NULL},
        &student));
    status rc = start_compiler(
        g, fast ? fast_mode : runner_mode,
        (const char *const[]){"-include", main_file, "-c", lab_file, "-o", "runner.o", NULL}, &runner);
    status ended = tool_finish(&student, printed, code);
    if (rc == STATUS_OK) rc = tool_finish(&runner, &of_runner, &runner_code);
    if (*code == 0) text_append(printed, "%s", of_runner.data ? of_runner.data : "");
    text_free(&of_runner);
    if (ended != STATUS_OK || rc != STATUS_OK) return ended != STATUS_OK ? ended : rc;
    if (*code == 0) *code = runner_code;
    if (*code != 0) return STATUS_OK;
    TRY(start_compiler(g, mode, (const char *const[]){object, "runner.o", "-o", program, "-lm", NULL},
                       &student));
    return tool_finish(&student, printed, code);
}

status grader_build(grader *g, bool fast, text_buffer *printed)
{
    bool *built = fast ? &g->built_fast : &g->built, *compiles = fast ? &g->compiles_fast : &g->compiles;
    int code = 0;
    if (*built) return STATUS_OK;
    *built = true;
    if (!fast) TRY(copy_source(g));
    if (!g->compiles) return STATUS_OK;
    status rc = compile_and_link(g, fast, printed, &code);
    *compiles = code == 0;
    if (code == 127)
        text_append(printed, "cc: the C compiler cannot be run: install gcc and libc6-dev\n");
    else if (code > 128)
        text_append(printed, "cc: killed by signal %d\n", code - 128);
    return rc;
}
