/* Reports a check as text, as JSON, and in the results.json of Gradescope and PrairieLearn. */
#include "harness/labs/grader.h"

#include <string.h>

const char *const report_formats[] = {"text", "json", "gradescope", "prairielearn", NULL};
enum { TEXT, JSON, GRADESCOPE, PRAIRIELEARN };

void report_begin(const grader *g, text_buffer *out)
{
    text_append(out, "== lab %d: %s ==\n", g->lab->number, g->lab->title);
    if (g->unprotected[0]) text_append(out, "unprotected: %s\n", g->unprotected);
}

void report_test(const grader *g, const lab_test *t, text_buffer *out)
{
    static const char dots[] = ".................................................";
    size_t used = strlen(t->title), width = 44;
    text_append(out, "%s %.*s %s (%.1f s) %5.4g/%.4g", t->title, used < width ? (int)(width - used) : 3, dots,
                t->failed ? "FAIL" : "OK  ", t->seconds, t->score, t->points);
    if (t->cost[0]) text_append(out, "   %s", t->cost);
    text_append(out, "\n");
    if (t->hidden || !t->failed) return;
    for (const char *line = t->details.data; line && *line;) {
        int length = (int)strcspn(line, "\n");
        text_append(out, "    %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
    if (g->only) return;
    text_append(out, "    try: harness lab check %d ", g->lab->number);
    if (g->folder_given) {
        text_append_shell_word(out, g->folder);
        text_append(out, " ");
    }
    text_append(out, "-k %s\n", t->key);
}

void report_end(const grader *g, text_buffer *out)
{
    if (g->hours < 0) text_append(out, "time.txt: expected the hours that you spent, one number\n");
    text_append(out, "Score: %.4g/%.4g   (time: %.0f s)\n", g->score, g->points, g->seconds);
}

/* Returns the output that a student may read: the details of a visible test that failed, else the cost. */
static const char *output_of(const lab_test *t)
{
    return t->failed && !t->hidden && t->details.data ? t->details.data : t->cost;
}

static json_t *text_of(const char *text)
{
    json_t *value = json_string(text); /* NULL if a student printed text that is not UTF-8 */
    return value ? value : json_string("(not UTF-8)");
}

static json_t *tests_as_json(const grader *g)
{
    json_t *tests = json_array();
    for (int i = 0; i < g->test_count; i++) {
        const lab_test *t = &g->tests[i];
        json_array_append_new(tests, json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:s, s:o}", "part", t->key,
                                               "name", t->title, "status", t->failed ? "failed" : "passed",
                                               "score", t->score, "max_score", t->points, "time_s",
                                               t->seconds, "cost", t->cost, "output", text_of(output_of(t))));
    }
    return tests;
}

static json_t *as_json(const grader *g)
{
    return json_pack("{s:i, s:s, s:o, s:f, s:f, s:f, s:s, s:f, s:o}", "lab", g->lab->number, "name",
                     g->lab->name, "student", text_of(g->student), "score", g->score, "max_score", g->points,
                     "time_s", g->seconds, "unprotected", g->unprotected, "hours", g->hours, "tests",
                     tests_as_json(g));
}

/* https://gradescope-autograders.readthedocs.io, "Specifications" */
static json_t *as_gradescope(const grader *g)
{
    json_t *tests = json_array(), *leaderboard = json_array();
    for (int i = 0; i < g->test_count; i++) {
        const lab_test *t = &g->tests[i];
        json_t *test =
            json_pack("{s:f, s:f, s:s, s:s, s:o, s:o, s:s, s:s, s:{s:s, s:f}}", "score", t->score,
                      "max_score", t->points, "status", t->failed ? "failed" : "passed", "name", t->title,
                      "number", json_sprintf("%d.%d", g->lab->number, i + 1), "output", text_of(output_of(t)),
                      "output_format", "text", "visibility", t->hidden ? "after_published" : "visible",
                      "extra_data", "part", t->key, "time_s", t->seconds);
        json_array_append_new(tests, test);
        if (g->lab->leaderboard && t->ratio > 0)
            json_array_append_new(leaderboard, json_pack("{s:s, s:f, s:s}", "name", g->lab->leaderboard,
                                                         "value", t->ratio, "order", "asc"));
    }
    return json_pack("{s:f, s:f, s:s, s:s, s:{s:o, s:s, s:f}, s:o, s:o}", "score", g->score, "execution_time",
                     g->seconds, "visibility", "visible", "stdout_visibility", "hidden", "extra_data",
                     "student", text_of(g->student), "unprotected", g->unprotected, "hours", g->hours,
                     "tests", tests, "leaderboard", leaderboard);
}

/* https://prairielearn.readthedocs.io, "External grading" */
static json_t *as_prairielearn(const grader *g)
{
    json_t *tests = json_array();
    double score = g->points > 0 ? g->score / g->points : 0;
    for (int i = 0; i < g->test_count; i++) {
        const lab_test *t = &g->tests[i];
        json_array_append_new(tests,
                              json_pack("{s:s, s:s, s:f, s:f, s:s, s:o}", "name", t->title, "description",
                                        t->key, "points", t->score, "max_points", t->points, "message",
                                        t->cost, "output", text_of(output_of(t))));
    }
    return json_pack("{s:f, s:b, s:s, s:o, s:o}", "score", score > 1 ? 1.0 : score, "gradable", 1, "message",
                     g->unprotected, "output", text_of(g->compiler.data ? g->compiler.data : ""), "tests",
                     tests);
}

json_t *report_json(const grader *g, int format)
{
    return format == GRADESCOPE ? as_gradescope(g) : format == PRAIRIELEARN ? as_prairielearn(g) : as_json(g);
}
