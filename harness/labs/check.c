/* Runs a lab's parts one after another and adds up their points. */
#include "harness/labs/students.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "harness/run/output.h"
#include "labs/runner/confine.h"

#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void append_line(text_buffer *out, const char *format, va_list arguments)
{
    char line[4096];
    vsnprintf(line, sizeof line, format, arguments);
    text_append(out, "%s\n", line);
}

void test_fail(lab_test *t, const char *format, ...)
{
    va_list arguments;
    t->failed = true;
    va_start(arguments, format);
    append_line(&t->details, format, arguments);
    va_end(arguments);
}

void test_note(lab_test *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    append_line(&t->details, format, arguments);
    va_end(arguments);
}

static const char *given_answer(const grader *g, lab_test *t, const char *key)
{
    const char *given = grader_answer(g, key);
    if (!given || !given[0]) {
        test_fail(t, "answers.txt: %s: no answer yet", key);
        return NULL;
    }
    return given;
}

bool is_within(double value, double expected, double tolerance)
{
    return fabs(value - expected) <= tolerance * fabs(expected);
}

bool test_answer_number(const grader *g, lab_test *t, const char *key, double expected, double tolerance,
                        const char *hint)
{
    const char *given = given_answer(g, t, key);
    char *end;
    if (!given) return false;
    double value = strtod(given, &end);
    if (*end || end == given)
        test_fail(t, "answers.txt: %s: expected a number, got '%s'", key, given);
    else if (!is_within(value, expected, tolerance))
        test_fail(t, "answers.txt: %s: %s is wrong: %s", key, given, hint);
    else
        return true;
    return false;
}

bool test_answer_text(const grader *g, lab_test *t, const char *key, const char *expected, const char *hint)
{
    const char *given = given_answer(g, t, key);
    char words[256] = "", *end = words; /* single spaces, no commas */
    if (!given) return false;
    for (const char *c = given; *c && end < words + sizeof words - 1; c++) {
        bool space = *c == ' ' || *c == ',' || *c == '\t';
        if (!space)
            *end++ = *c;
        else if (end > words && end[-1] != ' ')
            *end++ = ' ';
    }
    *end = 0;
    if (strcasecmp(words, expected) == 0) return true;
    test_fail(t, "answers.txt: %s: '%s' is wrong: %s", key, given, hint);
    return false;
}

/* ---- set-up ---- */

static void on_signal(int number)
{
    grader_interrupted = number;
}

/* Tries a protection in a child, because neither protection can be taken back. */
static bool child_succeeds(const grader *g, bool files)
{
    int how = 1;
    pid_t pid = fork();
    if (pid == 0) _exit(files ? limit_files(g, false) != 0 : confine(CONFINE_SET_UP) != 0);
    return pid > 0 && waitpid(pid, &how, 0) == pid && how == 0;
}

static status open_grader(grader *g)
{
    static const int stops[] = {SIGHUP, SIGINT, SIGPIPE, SIGTERM};
    const char *temporary = getenv("TMPDIR");
    /* No other process of this user may read this process's memory or its files in /proc. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* makes a compiler's orphans children of this process */
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++)
        sigaction(stops[i], &(struct sigaction){.sa_handler = on_signal}, NULL);
    TRY(grader_data_folder(g->data));
    snprintf(g->build, sizeof g->build, "%s/psring-lab-XXXXXX",
             temporary && temporary[0] == '/' ? temporary : "/tmp");
    if (!mkdtemp(g->build)) {
        fail_errno(STATUS_CANNOT_CREATE, "lab: a folder for the programs, %s", g->build);
        g->build[0] = 0;
        return STATUS_CANNOT_CREATE;
    }
    if (!child_succeeds(g, false))
        snprintf(g->unprotected, sizeof g->unprotected, "this kernel has no seccomp filters");
    else if (!child_succeeds(g, true))
        snprintf(g->unprotected, sizeof g->unprotected,
                 "this kernel has no Landlock: hidden tests are readable while code compiles");
    TRY(grader_read_answers(g));
    g->seed = random_fnv1a64(g->student);
    return STATUS_OK;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s;
    (void)type;
    (void)at;
    return remove(path), 0;
}

void grader_close(grader *g)
{
    if (g->build[0]) nftw(g->build, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    text_free(&g->compiler);
    for (int i = 0; i < g->answer_count; i++) free(g->answers[i][0]);
    for (int i = 0; i < g->test_count; i++) text_free(&g->tests[i].details);
}

/* ---- tests ---- */

static status print(text_buffer *out, bool text)
{
    if (text) return output_text(out);
    text_free(out);
    return STATUS_OK;
}

static lab_test *begin_test(grader *g, const char *key, const char *title, double points)
{
    lab_test *t = &g->tests[g->test_count++];
    *t = (lab_test){.key = key, .points = points, .seconds = (double)clock_now_ns() / 1e9};
    snprintf(t->title, sizeof t->title, "%s", title);
    return t;
}

static status end_test(grader *g, lab_test *t, bool text)
{
    text_buffer out = {0};
    t->seconds = (double)clock_now_ns() / 1e9 - t->seconds;
    if (!t->failed && t->score == 0) t->score = t->points;
    report_test(g, t, &out);
    return print(&out, text);
}

static bool wanted(const grader *g, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = g->only; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, key, length) == 0 && (at[length] == ',' || !at[length])) return true;
    return !g->only;
}

/* Returns true if a requested part runs the student's code, which must then be compiled. */
static bool needs_code(const grader *g)
{
    bool needed = g->lab->source && (wanted(g, "compiles") || (g->hidden && wanted(g, "hidden")));
    for (int p = 0; p < g->lab->part_count; p++)
        needed = needed || (!g->lab->parts[p].answers && wanted(g, g->lab->parts[p].key));
    return needed;
}

static status check_compiles(grader *g, bool text)
{
    lab_test *t = NULL;
    if (wanted(g, "compiles")) t = begin_test(g, "compiles", "compiles without warnings", LAB_COMPILE_POINTS);
    TRY(grader_build(g, false, &g->compiler));
    if (!t) return STATUS_OK;
    if (!g->compiles || g->compiler.length > 0) {
        t->failed = true;
        text_append(&t->details, "%s", g->compiler.data ? g->compiler.data : "");
        if (g->compiles) t->score = t->points - 2;
    }
    return end_test(g, t, text);
}

static status check_part(grader *g, const lab_part *p, bool text)
{
    lab_test *t = begin_test(g, p->key, p->title, p->points);
    if (g->lab->source && !p->answers && !g->compiles)
        test_fail(t, "not run: %s does not compile", g->lab->source);
    else
        TRY(p->run(g, t));
    return end_test(g, t, text);
}

/* Runs a line "PART ID": the part with the cases of a student's id that only the instructor knows. Other
 * words are the lab's. */
static status run_hidden(grader *g, lab_test *t, const char *words)
{
    char key[64] = "", id[128] = "";
    if (sscanf(words, "%63s %127s", key, id) == 2)
        for (int p = 0; p < g->lab->part_count; p++)
            if (strcmp(g->lab->parts[p].key, key) == 0 && !g->lab->parts[p].answers) {
                uint64_t seed = g->seed;
                g->seed = random_fnv1a64(id);
                status rc = g->lab->parts[p].run(g, t);
                g->seed = seed;
                return rc;
            }
    if (g->lab->hidden) return g->lab->hidden(g, t, words);
    return fail(STATUS_DATA,
                "--hidden: expected POINTS PART ID, a part of lab %d that runs code, got '... %s'",
                g->lab->number, words);
}

/* Runs the instructor's lines "POINTS WORDS..." in HIDDEN/N-name.txt. '#' begins a comment. */
static status check_hidden(grader *g, bool text)
{
    char name[64], *rest = NULL;
    text_buffer lines = {0};
    if (!g->hidden || !wanted(g, "hidden")) return STATUS_OK;
    snprintf(name, sizeof name, "%d-%s.txt", g->lab->number, g->lab->name);
    TRY(grader_read_file(g->hidden, name, &lines));
    status rc = STATUS_OK;
    int number = 1;
    for (char *line = strtok_r(lines.data, "\n", &rest); line && rc == STATUS_OK;
         line = strtok_r(NULL, "\n", &rest)) {
        char *words, title[32];
        double points = strtod(line, &words);
        if (line[0] == '#' || line[0] == '\r') continue;
        if (words == line || g->test_count == LAB_MOST_TESTS) {
            rc = fail(STATUS_DATA,
                      "--hidden: %s: expected POINTS and the test's values, at most %d tests, got '%s'", name,
                      LAB_MOST_TESTS, line);
            break;
        }
        snprintf(title, sizeof title, "hidden test %d", number++);
        lab_test *t = begin_test(g, "hidden", title, points);
        t->hidden = true;
        if (g->lab->source && !g->compiles)
            test_fail(t, "not run: %s does not compile", g->lab->source);
        else
            rc = run_hidden(g, t, words + strspn(words, " \t"));
        t->cost[0] = 0; /* a cost would show the test's values */
        t->ratio = 0;
        if (rc == STATUS_OK) rc = end_test(g, t, text);
    }
    text_free(&lines);
    return rc;
}

static status check_only(const grader *g)
{
    const char *keys[LAB_MOST_TESTS] = {"compiles", "hidden"};
    int count = 2, index;
    for (int p = 0; p < g->lab->part_count; p++) keys[count++] = g->lab->parts[p].key;
    for (const char *at = g->only; at && *at; at += strcspn(at, ","), at += *at == ',') {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(at, ","), at);
        TRY(text_parse_choice("-k", key, keys, sizeof *keys, (size_t)count, &index));
    }
    return STATUS_OK;
}

status grader_check(grader *g, bool text)
{
    text_buffer out = {0};
    int64_t begin = clock_now_ns();
    TRY(check_only(g));
    TRY(open_grader(g));
    report_begin(g, &out);
    TRY(print(&out, text));
    if (needs_code(g)) TRY(check_compiles(g, text));
    for (int p = 0; p < g->lab->part_count; p++)
        if (wanted(g, g->lab->parts[p].key)) TRY(check_part(g, &g->lab->parts[p], text));
    TRY(check_hidden(g, text));
    g->seconds = (double)(clock_now_ns() - begin) / 1e9;
    out = (text_buffer){0};
    report_end(g, &out);
    return print(&out, text);
}

double grader_score(const grader *g)
{
    double score = 0;
    for (int i = 0; i < g->test_count; i++) score += g->tests[i].score;
    return score;
}

double grader_points(const grader *g)
{
    double points = 0;
    for (int i = 0; i < g->test_count; i++) points += g->tests[i].points;
    return points;
}
