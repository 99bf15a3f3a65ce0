/* Executes the runs of a sweep as child processes, one real run or several virtual runs at a time. */
#include "common/base/clock.h"
#include "common/base/input.h"
#include "common/base/random.h"
#include "common/data/sampler.h"
#include "common/device/host/host.h"
#include "harness/launch/progress.h"
#include "harness/result/output.h"
#include "harness/result/result_check.h"
#include "harness/sweep/sweep.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_CHILDREN = 64 };
#define PROGRESS_NS (10 * NS_PER_S)             /* Time between two progress lines. */
#define PROGRESS_ON_TERMINAL_NS (NS_PER_S / 10) /* Time between two updates of the progress bar. */

typedef struct child {
    pid_t pid;
    int point, round;
    int errors; /* Memory file that receives stderr. */
} child;

typedef struct running {
    const sweep *sweep;
    sweep_outcome *out;
    child children[MOST_CHILDREN];
    int child_count;
    /* Numbers of real [0] and virtual [1] runs. `due` counts the runs without a result when this process
     * began, and `done` the runs that have ended since then. */
    int due[2], done[2];
    bool kind;        /* True if the present runs are virtual. */
    int64_t began_ns; /* Time at which the first run of this kind began. */
    int64_t shown_ns;
    bool is_terminal;
    sigset_t signals, before;
} running;

/* Executes the run in the child process. Returns only on failure. */
static void become_run(const running *r, const char *program, const char *const *words, int errors,
                       pid_t parent)
{
    int nothing = open("/dev/null", O_RDWR);
    setpgid(0, 0); /* The sweep receives the terminal's signals and passes them on. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) return;
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0 ||
        dup2(errors, STDERR_FILENO) < 0)
        return;
    sigprocmask(SIG_SETMASK, &r->before, NULL);
    execv(program, (char *const *)words);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

json_t *sweep_failures(const sweep *s)
{
    char path[PATH_MAX];
    json_t *file, *list;
    snprintf(path, sizeof path, "%s/failures.json", s->folder);
    if (input_json(path, RESULT_MOST_BYTES, &file) != STATUS_OK) error_clear();
    list = json_object_get(file, "failures");
    json_t *failures = json_is_array(list) ? json_incref(list) : json_array();
    json_decref(file);
    return failures;
}

static status write_failures(const running *r)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/failures.json", r->sweep->folder);
    if (json_array_size(r->out->failures) > 0)
        return output_json(json_pack("{s:i, s:O}", "schema_version", 1, "failures", r->out->failures), path);
    unlink(path);
    return STATUS_OK;
}

/* Removes the recorded failure of a run. Returns true if there was one. */
static bool forget_failure(const running *r, int point, int round)
{
    size_t i;
    json_t *failure;
    json_array_foreach(r->out->failures, i, failure)
    {
        if (json_integer_value(json_object_get(failure, "point")) != point ||
            json_integer_value(json_object_get(failure, "round")) != round)
            continue;
        json_array_remove(r->out->failures, i);
        return true;
    }
    return false;
}

/* ---- one run ----------------------------------------------------------------------------------------- */

static status start(running *r, int point, int round)
{
    const sweep *s = r->sweep;
    char path[PATH_MAX];
    json_t *words = NULL;
    const char **list = NULL;
    child c = {.point = point, .round = round, .errors = memfd_create("harness-sweep", MFD_CLOEXEC)};
    pid_t parent = getpid();
    status rc = c.errors < 0 ? fail_errno(STATUS_SYSTEM, "memory for a run's messages") : STATUS_OK;
    if (rc == STATUS_OK) rc = sweep_words(s, point, &words);
    if (rc == STATUS_OK) {
        json_array_append_new(words, json_string("--json"));
        json_array_append_new(words, json_string_nocheck(sweep_file(s, point, round, path, sizeof path)));
        json_array_append_new(words, json_string("--quiet"));
        list = sweep_words_of(words);
        if (!list) rc = sweep_no_memory();
    }
    if (rc == STATUS_OK && (c.pid = fork()) == 0) {
        become_run(r, sweep_program(s, point), list, c.errors, parent);
        _exit(127);
    }
    if (rc == STATUS_OK && c.pid < 0) rc = fail_errno(STATUS_SYSTEM, "a process for a run");
    if (rc == STATUS_OK)
        r->children[r->child_count++] = c;
    else if (c.errors >= 0)
        close(c.errors);
    free(list);
    json_decref(words);
    return rc;
}

/* Copies the last line that begins with "harness: ", without this prefix. */
static void last_message(int errors, char *out, size_t size)
{
    char text[4096];
    off_t end = lseek(errors, 0, SEEK_END),
          begin = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t length = pread(errors, text, sizeof text - 1, begin);
    text[length > 0 ? length : 0] = '\0';
    snprintf(out, size, "no message");
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        static const char program[] = "harness: ";
        if (strncmp(line, program, sizeof program - 1) == 0)
            snprintf(out, size, "%s", line + sizeof program - 1);
    }
}

static status note_end(running *r, child c, int ended)
{
    char path[PATH_MAX], message[512];
    json_t *result = sweep_result(r->sweep, c.point, c.round);
    /* A run that was stopped after it had written its result is finished. */
    bool good = result && ((WIFEXITED(ended) && WEXITSTATUS(ended) == 0) || r->out->signal);
    int code = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
    json_decref(result);
    last_message(c.errors, message, sizeof message);
    close(c.errors);
    if (good) {
        r->done[r->kind]++;
        return forget_failure(r, c.point, c.round) ? write_failures(r) : STATUS_OK;
    }
    unlink(sweep_file(r->sweep, c.point, c.round, path, sizeof path));
    if (r->out->signal) return STATUS_OK; /* The next sweep in this folder repeats the run. */
    r->done[r->kind]++;
    r->out->failed++;
    forget_failure(r, c.point, c.round);
    if (json_array_append_new(r->out->failures, json_pack("{s:i, s:i, s:i, s:s}", "point", c.point, "round",
                                                          c.round, "exit_code", code, "message", message)) !=
        0)
        return fail(STATUS_SYSTEM, "no memory for the failures of the sweep");
    return write_failures(r);
}

/* ---- all runs ---------------------------------------------------------------------------------------- */

/* Estimates the time left for runs of the present kind, in ns. NaN if unknown. */
static double time_left(const running *r)
{
    int done = r->done[r->kind], left = r->due[r->kind] - done;
    return done > 0 && left > 0 ? (double)(clock_now_ns() - r->began_ns) / done * left : NAN;
}

static void draw_progress(const running *r, int done, int all)
{
    struct winsize window;
    int columns =
        ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 24 ? window.ws_col - 12 : 68;
    char line[256], failed[24] = "";
    if (r->out->failed > 0) snprintf(failed, sizeof failed, " %d failed", r->out->failed);
    const job_view runs = {"sweep", done, all, 1e-9 * time_left(r), NAN, NAN};
    fprintf(stderr, "\r\033[K%s%s", run_progress_line(line, sizeof line, columns, &runs), failed);
}

static void write_progress(const running *r, int done, int all)
{
    char left[64] = "", text[32];
    if (!isnan(time_left(r)))
        snprintf(left, sizeof left, ", about %s left%s",
                 text_format_duration(text, sizeof text, time_left(r)),
                 r->kind && r->due[0] > 0 ? " of the virtual ones" : "");
    fprintf(stderr, "harness: sweep: %d of %d runs, %d failed%s\n", done, all, r->out->failed, left);
}

/* Shows a bar on a terminal, else a line every 10 s. If `ends` is true, writes a line at once. */
static void show_progress(running *r, bool ends)
{
    int64_t now = clock_now_ns();
    int done = r->done[0] + r->done[1] + r->out->kept, all = r->due[0] + r->due[1] + r->out->kept;
    if (!ends && now - r->shown_ns < (r->is_terminal ? PROGRESS_ON_TERMINAL_NS : PROGRESS_NS)) return;
    r->shown_ns = now;
    if (r->is_terminal && ends) fprintf(stderr, "\r\033[K");
    if (r->is_terminal && !ends)
        draw_progress(r, done, all);
    else
        write_progress(r, done, all);
}

static void pass_on(running *r, int number)
{
    if (!r->out->signal) r->out->signal = number;
    for (int i = 0; i < r->child_count; i++) kill(r->children[i].pid, number);
}

static status wait_below(running *r, int most)
{
    while (r->child_count >= most && r->child_count > 0) {
        int ended, number = sigtimedwait(&r->signals, NULL, &(struct timespec){.tv_sec = 1});
        if (number > 0 && number != SIGCHLD) pass_on(r, number);
        for (int i = r->child_count - 1; i >= 0; i--) {
            child c = r->children[i];
            if (waitpid(c.pid, &ended, WNOHANG) != c.pid) continue;
            r->children[i] = r->children[--r->child_count];
            TRY(note_end(r, c, ended));
        }
        show_progress(r, false);
    }
    return STATUS_OK;
}

/* A run without a result. */
typedef struct due_run {
    int point, round;
    bool is_virtual;
} due_run;

/* Lists the runs without a result in the order in which they run, with virtual runs first. The order of a
 * round is a permutation of the points that depends only on the round. *count is the number of these runs,
 * and *kept the number of runs with a result. The caller frees *out. */
static status list_due(const sweep *s, due_run **out, int *count, int *kept)
{
    size_t points = (size_t)s->points;
    due_run *due = malloc(points * (size_t)s->rounds * sizeof *due);
    int32_t *order = malloc(points * sizeof *order);
    status rc = due && order ? STATUS_OK : sweep_no_memory();
    *count = *kept = 0;
    for (int i = 0; i < 2 * s->rounds && rc == STATUS_OK; i++) {
        bool kind = i < s->rounds;
        int round = i % s->rounds;
        permutation_fill(order, s->points, random_start((uint64_t)round, random_fnv1a64("sweep.order")));
        for (int k = 0; k < s->points; k++) {
            if (!sweep_has(s, order[k]) || (s->is_virtual && s->is_virtual[order[k]]) != kind) continue;
            json_t *result = sweep_result(s, order[k], round);
            if (result)
                (*kept)++;
            else
                due[(*count)++] = (due_run){order[k], round, kind};
            json_decref(result);
        }
    }
    free(order);
    *out = due;
    return rc;
}

/* Executes the runs in order. Real runs start when all virtual ones have ended. */
static status run_all(running *r, const due_run *due, int count)
{
    int processors = host_processors();
    for (int i = 0; i < count; i++) r->due[due[i].is_virtual]++;
    for (int i = 0; i < count; i++) {
        bool kind = due[i].is_virtual;
        if (i == 0 || kind != r->kind) {
            TRY(wait_below(r, 1));
            r->kind = kind;
            r->began_ns = clock_now_ns();
        }
        TRY(wait_below(r, !kind ? 1 : processors < MOST_CHILDREN ? processors : MOST_CHILDREN));
        if (r->out->signal) return STATUS_OK;
        TRY(start(r, due[i].point, due[i].round));
    }
    return wait_below(r, 1);
}

status sweep_run(const sweep *s, sweep_outcome *out)
{
    static const int handled[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
    *out = (sweep_outcome){.failures = sweep_failures(s)};
    running r = {.sweep = s, .out = out, .shown_ns = clock_now_ns(), .is_terminal = isatty(STDERR_FILENO)};
    due_run *due = NULL;
    int count;
    sigemptyset(&r.signals);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++) sigaddset(&r.signals, handled[i]);
    sigprocmask(SIG_BLOCK, &r.signals, &r.before);
    status rc = list_due(s, &due, &count, &out->kept);
    if (rc == STATUS_OK) rc = run_all(&r, due, count);
    if (rc != STATUS_OK) pass_on(&r, SIGTERM);
    while (r.child_count > 0) {
        child c = r.children[--r.child_count];
        waitpid(c.pid, NULL, 0);
        close(c.errors);
    }
    sigprocmask(SIG_SETMASK, &r.before, NULL);
    if (rc == STATUS_OK && count > 0) show_progress(&r, true);
    free(due);
    return rc;
}

status sweep_list(const sweep *s, text_buffer *out)
{
    due_run *due;
    int count, kept;
    status rc = list_due(s, &due, &count, &kept);
    for (int i = 0; i < count && rc == STATUS_OK; i++) {
        json_t *words = NULL, *word;
        size_t w;
        rc = sweep_words(s, due[i].point, &words);
        json_array_foreach(words, w, word)
        {
            if (w > 0) text_append(out, " ");
            text_append_shell_word(out, json_string_value(word));
        }
        text_append(out, "\n");
        json_decref(words);
    }
    free(due);
    return rc;
}
