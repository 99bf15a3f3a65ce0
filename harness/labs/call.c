#include "harness/labs/call.h"

#include "labs/lab.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

status calls_open(grader *g, student_calls **out)
{
    char words[1][64] = {""};
    *out = calloc(1, sizeof **out);
    if (!*out) return fail(STATUS_SYSTEM, "lab: no memory for the results");
    return students_start(g, false, 1, words, -1, &(*out)->s);
}

static void on_result(void *context, students *s, int rank, runner_message m, const char *data)
{
    student_calls *c = context;
    (void)rank;
    if (m.kind != RUNNER_RESULT || m.n != m.code || m.n > CALL_MOST_RESULTS ||
        m.bytes != (m.n > 0 ? m.n * (int64_t)sizeof(double) : 0)) {
        snprintf(s->failure, sizeof s->failure, "a message that no function of lab.h sends");
        return;
    }
    c->count = (int)m.n;
    memcpy(c->result, data, (size_t)m.bytes);
    s->finished = true;
}

status calls_make(student_calls *c, lab_test *t, int which, const double *in, int n)
{
    students_send(&c->s, 0, (runner_message){RUNNER_CASE, which, n, n * (int64_t)sizeof *in}, in);
    TRY(students_serve(&c->s, on_result, c));
    if (c->s.failure[0])
        test_fail(t, "%s", c->s.failure);
    else if (c->count == LAB_EMISSING || (c->count == 1 && c->result[0] == LAB_EMISSING))
        test_fail(t, "the function has not been written yet (LAB_EMISSING)");
    else if (c->count < 0)
        test_fail(t, "the function returned %d", c->count);
    return STATUS_OK;
}

void calls_close(student_calls **c, lab_test *t)
{
    if (!*c) return;
    if (t->failed) students_printed(&(*c)->s, t);
    students_end(&(*c)->s);
    free(*c);
    *c = NULL;
}

status program_json(const char *const words[], json_t **out)
{
    const char *argv[40] = {"harness"};
    int ends[2], how = 0, argc = 1;
    json_error_t error;
    while (words[argc - 1] && argc < 39) argv[argc] = words[argc - 1], argc++;
    if (pipe2(ends, O_CLOEXEC) != 0) return fail_errno(STATUS_SYSTEM, "lab: a pipe for the program");
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv("/proc/self/exe", (char *const *)argv);
        _exit(127);
    }
    close(ends[1]);
    FILE *stream = pid > 0 ? fdopen(ends[0], "r") : NULL;
    *out = stream ? json_loadf(stream, 0, &error) : NULL;
    if (stream)
        fclose(stream);
    else
        close(ends[0]);
    while (pid > 0 && waitpid(pid, &how, 0) < 0 && errno == EINTR) continue;
    if (grader_interrupted) return fail(STATUS_STOPPED, "lab: stopped");
    if (pid > 0 && *out && how == 0) return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return fail(STATUS_INTERNAL, "lab: harness %s ... has printed no result", words[0]);
}
