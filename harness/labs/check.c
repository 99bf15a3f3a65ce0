/* Runs a lab's parts one after another and adds up their points. */
#include "harness/labs/ranks.h"
#include "harness/labs/students.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "harness/result/output.h"
#include "labs/runner/confine.h"

#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

void draw_order(uint64_t start, uint64_t index, int count, int *order)
{
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int other = (int)random_below(start, index + (uint64_t)i, (uint64_t)i + 1), swap = order[i];
        order[i] = order[other];
        order[other] = swap;
    }
}

bool is_near(float got, double want, double tolerance)
{
    return fabs((double)got - want) <= tolerance * (fabs(want) + 1e-3);
}

void test_fail(lab_test *t, const char *format, ...)
{
    char line[4096];
    va_list arguments;
    t->failed = true;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    text_append(&t->details, "%s\n", line);
}

bool is_within(double value, double expected, double tolerance)
{
    return fabs(value - expected) <= tolerance * fabs(expected);
}

const char *test_given_answer(const grader *g, lab_test *t, const char *key)
{
    const char *given = grader_answer(g, key);
    if (given && given[0]) return given;
    test_fail(t, "answers.txt: %s: no answer yet", key);
    return NULL;
}

bool test_answer_text(const grader *g, lab_test *t, const char *key, const char *expected, const char *hint)
{
    const char *given = test_given_answer(g, t, key);
    /* The answer, in which a single space replaces each run of spaces, tabs and commas. */
    char words[256] = "", *end = words;
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

void test_answers(const grader *g, lab_test *t, double points, const lab_answer *answers, int count)
{
    for (const lab_answer *a = answers; a < answers + count; a++) {
        const char *given = test_given_answer(g, t, a->key);
        char *end;
        if (!given) continue;
        double value = strtod(given, &end);
        if (*end || end == given)
            test_fail(t, "answers.txt: %s: expected a number, got '%s'", a->key, given);
        else if (!is_within(value, a->number, a->tolerance))
            test_fail(t, "answers.txt: %s: %s is wrong: %s", a->key, given, a->hint);
        else
            t->score += points;
    }
}

/* Indices into grader.chosen. */
enum { COMPILES, HIDDEN, FIRST_PART };

/* ---- set-up ---- */

static void on_signal(int number)
{
    grader_interrupted = number;
}

/* Tries limit_files() or confine() in a child process, because a process cannot lift these limits again. */
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
    grader_read_answers(g);
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

static void release(grader *g)
{
    students_end(g);
    lab_ranks_close(g);
}

void grader_close(grader *g)
{
    release(g);
    if (g->build[0]) nftw(g->build, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    text_free(&g->compiler);
    text_free(&g->answers_text);
    for (int i = 0; i < g->test_count; i++) text_free(&g->tests[i].details);
}

/* ---- tests ---- */

static status print(const grader *g, text_buffer *out)
{
    if (g->prints) return output_text(out);
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

static status end_test(grader *g, lab_test *t)
{
    text_buffer out = {0};
    release(g);
    t->seconds = (double)clock_now_ns() / 1e9 - t->seconds;
    if (!t->failed && t->score == 0) t->score = t->points;
    g->score += t->score;
    g->points += t->points;
    report_test(g, t, &out);
    return print(g, &out);
}

static status check_compiles(grader *g)
{
    lab_test *t = NULL;
    if (g->chosen[COMPILES]) t = begin_test(g, "compiles", "compiles without warnings", LAB_COMPILE_POINTS);
    TRY(grader_build(g, false, &g->compiler));
    if (!t) return STATUS_OK;
    if (!g->compiles || g->compiler.length > 0) {
        t->failed = true;
        text_append(&t->details, "%s", g->compiler.data ? g->compiler.data : "");
        if (g->compiles) t->score = t->points - 2;
    }
    return end_test(g, t);
}

/* Fails a test that needs the student's code if this code does not compile. */
static bool can_run(const grader *g, lab_test *t)
{
    if (!g->lab->source || g->compiles) return true;
    test_fail(t, "not run: %s does not compile", g->lab->source);
    return false;
}

static status check_part(grader *g, const lab_part *p)
{
    lab_test *t = begin_test(g, p->key, p->title, p->points);
    t->variant = p->variant;
    if (p->answers || can_run(g, t)) TRY(p->run(g, t));
    return end_test(g, t);
}

/* Runs one line of the instructor's file. "PART ID" runs the part, with cases drawn from ID, an id that only
 * the instructor knows. Any other line is passed to the lab's `hidden`. */
static status run_hidden(grader *g, lab_test *t, const char *words)
{
    char key[64] = "", id[128] = "";
    int count = sscanf(words, "%63s %127s", key, id);
    for (const lab_part *p = g->lab->parts; p->key && count == 2; p++) {
        if (strcmp(p->key, key) != 0 || p->answers) continue;
        uint64_t seed = g->seed;
        g->seed = random_fnv1a64(id);
        t->variant = p->variant;
        status rc = p->run(g, t);
        g->seed = seed;
        return rc;
    }
    if (g->lab->hidden) return g->lab->hidden(g, t, words);
    return fail(STATUS_DATA,
                "--hidden: expected POINTS PART ID, a part of lab %d that runs code, got '... %s'",
                g->lab->number, words);
}

/* Runs the instructor's lines "POINTS WORDS..." in HIDDEN/N-name.txt. '#' begins a comment. */
static status check_hidden(grader *g)
{
    char name[64], *rest = NULL;
    text_buffer lines = {0};
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
        if (can_run(g, t)) rc = run_hidden(g, t, words + strspn(words, " \t"));
        t->cost[0] = 0; /* The cost could reveal the values of the hidden test. */
        t->ratio = 0;
        if (rc == STATUS_OK) rc = end_test(g, t);
    }
    text_free(&lines);
    return rc;
}

/* Chooses the parts that -k names, or all parts without -k. */
static status choose_parts(grader *g)
{
    const char *keys[LAB_MOST_TESTS] = {[COMPILES] = "compiles", [HIDDEN] = "hidden"};
    int count = FIRST_PART, index;
    for (const lab_part *p = g->lab->parts; p->key; p++) keys[count++] = p->key;
    for (int i = 0; i < count; i++) g->chosen[i] = !g->only;
    for (const char *at = g->only; at && *at; at += strcspn(at, ","), at += *at == ',') {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(at, ","), at);
        TRY(text_parse_choice("-k", key, keys, sizeof *keys, (size_t)count, &index));
        g->chosen[index] = true;
    }
    g->chosen[HIDDEN] = g->chosen[HIDDEN] && g->hidden;
    return STATUS_OK;
}

status grader_check(grader *g)
{
    const lab *l = g->lab;
    text_buffer out = {0};
    int64_t begin = clock_now_ns();
    TRY(choose_parts(g));
    TRY(open_grader(g));
    report_begin(g, &out);
    TRY(print(g, &out));
    bool needs_code = l->source && (g->chosen[COMPILES] || g->chosen[HIDDEN]);
    for (int p = 0; l->parts[p].key; p++)
        needs_code = needs_code || (g->chosen[FIRST_PART + p] && !l->parts[p].answers);
    if (needs_code) TRY(check_compiles(g));
    for (int p = 0; l->parts[p].key; p++)
        if (g->chosen[FIRST_PART + p]) TRY(check_part(g, &l->parts[p]));
    if (g->chosen[HIDDEN]) TRY(check_hidden(g));
    g->seconds = (double)(clock_now_ns() - begin) / 1e9;
    report_end(g, &out);
    return print(g, &out);
}
