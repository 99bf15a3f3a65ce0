#include "harness/labs/students.h"

#include "common/base/clock.h"
#include "harness/launch/launch.h"
#include "labs/runner/confine.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MOST_PRINTED = 16 << 10, MOST_READ = 256 << 10, MOST_MESSAGE = 64 << 20 };

volatile int grader_interrupted;

static char *const environment[] = {(char *)"PATH=/usr/local/bin:/usr/bin:/bin", (char *)"LC_ALL=C",
                                    (char *)"ASAN_OPTIONS=symbolize=0:detect_leaks=0:allocator_may_return_"
                                            "null=1:max_allocation_size_mb=1024:exitcode=99",
                                    (char *)"UBSAN_OPTIONS=symbolize=0", NULL};

static void limit(int what, rlim_t value)
{
    setrlimit(what, &(struct rlimit){value, value});
}

void child_begin(int printed)
{
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(printed, STDOUT_FILENO);
    dup2(printed, STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
}

/* Sets up the child: sets the limits, connects descriptors 1 and 2 to the pipe, moves the given descriptors
 * to 3 and 4, closes all others, and executes the program. */
static void become_student(const students *s, int socket, int printed, int shared, char *words[])
{
    char program[PATH_MAX + 16], *argv[] = {program, words[0], words[1], words[2], NULL};
    /* Moves the descriptors out of the range 0 to 4. */
    socket = fcntl(socket, F_DUPFD, 10);
    printed = fcntl(printed, F_DUPFD, 10);
    if (shared >= 0) shared = fcntl(shared, F_DUPFD, 10);
    child_begin(printed);
    dup2(socket, RUNNER_SOCKET);
    if (shared >= 0) dup2(shared, RUNNER_SHARED);
    close_range(shared >= 0 ? RUNNER_SHARED + 1 : RUNNER_SOCKET + 1, ~0u, 0);
    personality(ADDR_NO_RANDOMIZE); /* random addresses make some versions of the sanitizer fail */
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 64 << 10); /* above 0, because qemu writes a file when the sanitizer reads /proc */
    limit(RLIMIT_CPU, STUDENT_CPU_SECONDS);
    limit(RLIMIT_STACK, 1 << 20);
    snprintf(program, sizeof program, "%s/%s", s->g->build, s->timed ? "fast" : "checked");
    if (chdir(s->g->build) == 0) {
        limit_files(s->g, false);
        confine(CONFINE_BEFORE_EXEC);
        execve(program, argv, environment);
    }
    dprintf(STDERR_FILENO, "%s: %s\n", program, strerror(errno));
    _exit(98);
}

static status start_process(students *s, int count, int64_t capacity, int shared)
{
    int ends[2], printed[2];
    char rank[16], size[16], elements[24], *words[] = {rank, size, elements};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return fail_errno(STATUS_SYSTEM, "lab: a socket for the student's process");
    if (pipe2(printed, O_CLOEXEC | O_NONBLOCK) != 0)
        return fail_errno(STATUS_SYSTEM, "lab: a pipe for the student's process");
    snprintf(rank, sizeof rank, "%d", s->count);
    snprintf(size, sizeof size, "%d", count);
    snprintf(elements, sizeof elements, "%lld", (long long)capacity);
    student_process *p = &s->process[s->count++];
    p->socket = ends[0];
    p->printed_fd = printed[0];
    fcntl(p->socket, F_SETFL, O_NONBLOCK);
    p->pid = fork();
    if (p->pid == 0) become_student(s, ends[1], printed[1], shared, words);
    close(ends[1]);
    close(printed[1]);
    return p->pid > 0 ? STATUS_OK : fail_errno(STATUS_SYSTEM, "lab: a process for the student's code");
}

status students_start_timed(grader *g, lab_test *t, int count, int64_t capacity, int shared, students **out)
{
    students_end(g);
    students *s = *out = g->students = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "lab: no memory for the student's processes");
    s->g = g;
    s->t = t;
    s->timed = capacity > 0;
    while (s->count < count) TRY(start_process(s, count, capacity, shared));
    return STATUS_OK;
}

status students_start(grader *g, lab_test *t, int count, students **out)
{
    return students_start_timed(g, t, count, 0, -1, out);
}

void students_fail(students *s, const char *format, ...)
{
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    test_fail(s->t, "%s%s", s->where, line);
    s->finished = true;
}

/* ---- messages ---- */

static bool reserve(char **memory, size_t size)
{
    char *grown = realloc(*memory, size);
    if (grown) *memory = grown;
    return grown;
}

static void flush(student_process *p)
{
    while (p->out_sent < p->out_size) {
        ssize_t sent = send(p->socket, p->out + p->out_sent, p->out_size - p->out_sent, MSG_NOSIGNAL);
        if (sent <= 0) return; /* sent later, or never if the process has ended */
        p->out_sent += (size_t)sent;
    }
    p->out_size = p->out_sent = 0;
}

void students_send_two(students *s, int rank, runner_message m, const void *head, size_t head_bytes,
                       const void *data, size_t bytes)
{
    student_process *p = &s->process[rank];
    m.bytes = (int64_t)(head_bytes + bytes);
    if (!reserve(&p->out, p->out_size + sizeof m + head_bytes + bytes)) {
        s->out_of_memory = true;
        return;
    }
    char *out = mempcpy(p->out + p->out_size, &m, sizeof m);
    if (head_bytes > 0) out = mempcpy(out, head, head_bytes);
    if (bytes > 0) out = mempcpy(out, data, bytes);
    p->out_size = (size_t)(out - p->out);
    flush(p);
}

void students_send(students *s, int rank, runner_message m, const void *data)
{
    students_send_two(s, rank, m, NULL, 0, data, (size_t)m.bytes);
}

void students_answer(students *s, int rank, int code, int64_t n)
{
    students_send(s, rank, (runner_message){0, code, n, 0}, NULL);
}

/* Keeps the first 16 KiB of a process's output, and reads the rest so that printing never blocks the
 * process. */
static void read_printed(student_process *p)
{
    char bytes[4096];
    for (ssize_t n; (n = read(p->printed_fd, bytes, sizeof bytes)) > 0;) {
        for (ssize_t i = 0; i < n; i++)
            if (!bytes[i]) bytes[i] = '?';
        if (p->printed.length < MOST_PRINTED) text_append(&p->printed, "%.*s", (int)n, bytes);
    }
}

/* Finds the place of a sanitizer's report in the student's file. The place is the first of the report's
 * frames "(PROGRAM+0xOFFSET)" that lies in this file. */
static void place_of_report(const students *s, const char *report, char *out, size_t size)
{
    char program[PATH_MAX + 16], offsets[16][24],
        *argv[24] = {(char *)"addr2line", (char *)"-s", (char *)"-f", (char *)"-e", program};
    int count = 0, code;
    text_buffer lines = {0};
    snprintf(program, sizeof program, "%s/checked", s->g->build);
    for (const char *at = report; count < 16 && (at = strstr(at, "/checked+0x")); at++) {
        snprintf(offsets[count], sizeof offsets[count], "%.*s", (int)strcspn(at + 9, ")"), at + 9);
        argv[5 + count] = offsets[count];
        count++;
    }
    out[0] = 0;
    if (count == 0 || tool_run(s->g, argv, &lines, &code) != STATUS_OK || !lines.data) return;
    char *rest = NULL, *function = strtok_r(lines.data, "\n", &rest), *where;
    while (!out[0] && function && (where = strtok_r(NULL, "\n", &rest))) {
        if (strncmp(where, s->g->lab->source, strlen(s->g->lab->source)) == 0)
            snprintf(out, size, " in %s() (%.*s)", function, (int)strcspn(where, " "), where);
        function = strtok_r(NULL, "\n", &rest);
    }
    text_free(&lines);
}

static void explain_sanitizer(const students *s, int rank, char *out, size_t size)
{
    const char *text = s->process[rank].printed.data ? s->process[rank].printed.data : "";
    const char *error = strstr(text, "runtime error: "), *kind = strstr(text, "AddressSanitizer: "),
               *access = strstr(text, "WRITE of size ");
    char where[200];
    if (error) {
        while (error > text && error[-1] != '\n') error--;
        snprintf(out, size, "%.*s", (int)strcspn(error, "\n"), error);
        return;
    }
    if (!kind) return;
    kind += strlen("AddressSanitizer: ");
    int length = (int)strcspn(kind, "\n");
    const char *end = strstr(kind, " on ");
    if (end && end < kind + length) length = (int)(end - kind);
    if (!access) access = strstr(text, "READ of size ");
    if (!access) access = "";
    place_of_report(s, text, where, sizeof where);
    snprintf(out, size, "%.*s%s%.*s%s", length, kind, access[0] ? ": " : "", (int)strcspn(access, "a\n"),
             access, where); /* "WRITE of size 4 at 0x..." */
    for (char *c = out; *c; c++)
        if (c[0] == ' ' && c[1] == ' ') memmove(c, c + 1, strlen(c));
}

/* Explains the end of a process whose socket has closed. */
static void explain_end(students *s, int rank)
{
    student_process *p = &s->process[rank];
    char report[600] = "", who[32] = "";
    int how = 0;
    struct rusage use = {0};
    int64_t until = clock_now_ns() + 2 * NS_PER_S;
    pid_t ended;
    while ((ended = wait4(p->pid, &how, WNOHANG, &use)) == 0 && clock_now_ns() < until)
        clock_sleep_ns(NS_PER_MS);
    if (ended == 0) { /* the process has closed its socket and goes on */
        kill(-p->pid, SIGKILL);
        wait4(p->pid, &how, 0, &use);
    }
    p->pid = 0;
    read_printed(p);
    if (s->count > 1) snprintf(who, sizeof who, "rank %d: ", rank);
    explain_sanitizer(s, rank, report, sizeof report);
    double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    if (report[0])
        students_fail(s, "%s%s", who, report);
    else if (WIFSIGNALED(how) && cpu > STUDENT_CPU_SECONDS - 0.5)
        students_fail(s, "%sstill computing after %d s of processor time: does a loop not end?", who,
                      STUDENT_CPU_SECONDS);
    else if (WIFSIGNALED(how))
        students_fail(s, "%sthe process was killed by signal %d (%s)", who, WTERMSIG(how),
                      strsignal(WTERMSIG(how)));
    else
        students_fail(s, "%sthe process ended with exit code %d before it returned a result", who,
                      WEXITSTATUS(how));
}

/* Handles every complete message. Returns false if the process has closed its end of the
 * socket, or if recv() has failed. */
static bool receive(students *s, int rank)
{
    student_process *p = &s->process[rank];
    for (;;) {
        if (!reserve(&p->in, p->in_size + MOST_READ)) {
            s->out_of_memory = true;
            return true;
        }
        ssize_t n = recv(p->socket, p->in + p->in_size, MOST_READ, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (n < 0) return true;
        p->in_size += (size_t)n;
        size_t used = 0;
        runner_message m;
        while (!s->finished && p->in_size - used >= sizeof m) {
            memcpy(&m, p->in + used, sizeof m);
            if (m.bytes < 0 || m.bytes > MOST_MESSAGE) {
                students_fail(s, "rank %d: a message of %lld bytes: at most %d are possible", rank,
                              (long long)m.bytes, MOST_MESSAGE);
                return true;
            }
            if (p->in_size - used < sizeof m + (size_t)m.bytes) break;
            s->handler(s->context, s, rank, m, p->in + used + sizeof m);
            used += sizeof m + (size_t)m.bytes;
        }
        memmove(p->in, p->in + used, p->in_size - used);
        p->in_size -= used;
        if (s->finished) return true;
    }
}

/* Returns true if every process sleeps or is stopped, according to /proc. No process then works on its next
 * message. */
static bool all_wait(const students *s)
{
    for (int r = 0; r < s->count; r++) {
        unsigned flags;
        char state = launch_process_state(s->process[r].pid, &flags);
        if (!state || strchr("RD", state)) return false;
    }
    return true;
}

status students_serve(students *s, student_handler *handler, void *context)
{
    s->handler = handler;
    s->context = context;
    s->finished = false;
    int waited = 0, silent = 0; /* seconds */
    while (!s->finished) {
        struct pollfd polled[2 * STUDENTS_MOST];
        for (int r = 0; r < s->count; r++) {
            student_process *p = &s->process[r];
            polled[2 * r] =
                (struct pollfd){p->socket, (short)(POLLIN | (p->out_sent < p->out_size ? POLLOUT : 0)), 0};
            polled[2 * r + 1] = (struct pollfd){p->printed_fd, POLLIN, 0};
        }
        int ready = poll(polled, (nfds_t)(2 * s->count), 1000);
        if (grader_interrupted) return fail(STATUS_STOPPED, "lab: stopped");
        silent = ready > 0 ? 0 : silent + 1;
        waited = ready > 0 || !all_wait(s) ? 0 : waited + 1;
        if (waited == STUDENT_WAIT_SECONDS || silent == STUDENT_SILENCE_SECONDS)
            students_fail(s, "nothing has happened for %d s: is the function waiting for something?",
                          waited == STUDENT_WAIT_SECONDS ? waited : silent);
        for (int r = 0; ready > 0 && r < s->count && !s->finished; r++) {
            if (polled[2 * r + 1].revents) {
                read_printed(&s->process[r]);
                if (polled[2 * r + 1].revents & POLLHUP)
                    s->process[r].printed_fd = (close(s->process[r].printed_fd), -1);
            }
            if (polled[2 * r].revents & POLLOUT) flush(&s->process[r]);
            if (polled[2 * r].revents & (POLLIN | POLLHUP) && !receive(s, r)) explain_end(s, r);
        }
        if (s->out_of_memory)
            return fail(STATUS_SYSTEM, "lab: no memory for the messages of the student's processes");
    }
    return STATUS_OK;
}

/* Adds the output of the processes to the test's details, at most ten lines. */
static void show_printed(const students *s)
{
    int left = 10;
    for (int r = 0; r < s->count; r++) {
        const char *line = s->process[r].printed.data;
        if (!line || strstr(line, "AddressSanitizer") || strstr(line, "runtime error: ")) continue;
        while (*line && left-- > 0) {
            int length = (int)strcspn(line, "\n");
            text_append(&s->t->details, "rank %d printed | %.*s\n", r, length < 200 ? length : 200, line);
            line += length + (line[length] == '\n');
        }
    }
}

void students_end(grader *g)
{
    students *s = g->students;
    if (!s) return;
    if (s->t->failed && !s->timed) show_printed(s);
    for (int r = 0; r < s->count; r++) {
        student_process *p = &s->process[r];
        if (p->pid > 0) {
            kill(-p->pid, SIGKILL);
            kill(p->pid, SIGKILL);
            waitpid(p->pid, NULL, 0);
        }
        if (p->printed_fd >= 0) close(p->printed_fd);
        close(p->socket);
        free(p->in);
        free(p->out);
        text_free(&p->printed);
    }
    free(s);
    g->students = NULL;
}
