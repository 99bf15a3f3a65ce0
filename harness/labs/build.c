/* Compiles a student's code: with sanitizers to check it, without to time it. */
#include "harness/labs/students.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOOL_SECONDS = 60, TOOL_MOST_PRINTED = 16 << 10 };

static void become_tool(const grader *g, char *const argv[], int printed)
{
    int null = open("/dev/null", O_RDONLY);
    char folder[PATH_MAX + 16];
    dup2(null, STDIN_FILENO);
    dup2(printed, STDOUT_FILENO);
    dup2(printed, STDERR_FILENO);
    close_range(3, ~0u, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
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

status tool_run(const grader *g, char *const argv[], text_buffer *printed, int *code)
{
    int ends[2], how;
    if (pipe2(ends, O_CLOEXEC) != 0) return fail_errno(STATUS_SYSTEM, "lab: a pipe for %s", argv[0]);
    pid_t pid = fork();
    if (pid == 0) become_tool(g, argv, ends[1]);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return fail_errno(STATUS_SYSTEM, "lab: a process for %s", argv[0]);
    }
    char bytes[4096];
    struct pollfd polled = {ends[0], POLLIN, 0};
    while (!grader_interrupted && poll(&polled, 1, 1000 * TOOL_SECONDS) > 0) {
        ssize_t n = read(ends[0], bytes, sizeof bytes);
        if (n <= 0) break;
        if (printed->length < TOOL_MOST_PRINTED) text_append(printed, "%.*s", (int)n, bytes);
    }
    close(ends[0]);
    int64_t until =
        clock_now_ns() + 2 * NS_PER_S; /* it has closed its streams: it ends by itself, or is ended */
    pid_t ended;
    while ((ended = waitpid(pid, &how, WNOHANG)) == 0 && clock_now_ns() < until) clock_sleep_ns(NS_PER_MS);
    kill(-pid, SIGKILL); /* its own children as well */
    while (ended <= 0 && (ended = waitpid(pid, &how, 0)) < 0 && errno == EINTR) continue;
    *code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    return grader_interrupted ? fail(STATUS_STOPPED, "lab: stopped") : STATUS_OK;
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
    bool written = file && fwrite(text.data ? text.data : "", 1, text.length, file) == text.length;
    if (file && fclose(file) != 0) written = false;
    text_free(&text);
    g->compiles = written;
    return written ? STATUS_OK : fail_errno(STATUS_CANNOT_CREATE, "%s", path);
}

status grader_build(grader *g, bool fast)
{
    char root[PATH_MAX + 8], labs[PATH_MAX + 16], main_file[PATH_MAX + 32], lab_file[PATH_MAX + 64];
    const char *program = fast ? "fast" : "checked", *object = fast ? "fast.o" : "checked.o";
    int code = 0;
    bool *built = fast ? &g->built_fast : &g->built;
    if (*built) return STATUS_OK;
    *built = true;
    if (!fast) TRY(copy_source(g));
    if (!g->compiles) return STATUS_OK;
    snprintf(root, sizeof root, "-I%s", g->data);
    snprintf(labs, sizeof labs, "-I%s/labs", g->data);
    snprintf(main_file, sizeof main_file, "%s/labs/runner/runner.c", g->data);
    snprintf(lab_file, sizeof lab_file, "%s/labs/runner/%s.c", g->data, g->lab->runner);
    char *const modes[2][4] = {{(char *)"-O1", (char *)"-fsanitize=address,undefined",
                                (char *)"-fno-sanitize-recover=all", (char *)"-fno-omit-frame-pointer"},
                               {(char *)"-O2", (char *)"-pipe", (char *)"-pipe", (char *)"-pipe"}};
    char *const *m = modes[fast];
    char *compile[] = {(char *)"cc",
                       (char *)"-std=c11",
                       (char *)"-D_GNU_SOURCE",
                       (char *)"-g",
                       (char *)"-ffp-contract=off",
                       m[0],
                       m[1],
                       m[2],
                       m[3],
                       (char *)"-Wall",
                       (char *)"-Wextra",
                       root,
                       labs,
                       (char *)"-c",
                       (char *)g->lab->source,
                       (char *)"-o",
                       (char *)object,
                       NULL};
    text_buffer ignored = {0};
    TRY(tool_run(g, compile, fast ? &ignored : &g->compiler, &code));
    if (code == 0) {
        char *link[] = {(char *)"cc",
                        (char *)"-std=c11",
                        (char *)"-D_GNU_SOURCE",
                        (char *)"-g",
                        m[0],
                        m[1],
                        m[2],
                        m[3],
                        root,
                        labs,
                        main_file,
                        lab_file,
                        (char *)object,
                        (char *)"-o",
                        (char *)program,
                        (char *)"-lm",
                        NULL};
        TRY(tool_run(g, link, fast ? &ignored : &g->compiler, &code));
    }
    text_free(&ignored);
    g->compiles = g->compiles && code == 0;
    if (code == 127)
        text_append(&g->compiler, "cc: the C compiler cannot be run: install gcc and libc6-dev\n");
    return STATUS_OK;
}
