/* Points of a sweep, their command lines and their files. */
#include "common/base/input.h"
#include "common/base/log.h"
#include "harness/options/run_options.h"
#include "harness/result/output.h"
#include "harness/result/result_check.h"
#include "harness/sweep/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

status sweep_no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the sweep");
}

status sweep_vary(sweep *s, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1])
        return fail(STATUS_USAGE, "--vary: expected NAME=VALUE,VALUE,..., got '%s'", text);
    if (s->axis_count == SWEEP_MOST_AXES)
        return fail(STATUS_USAGE, "--vary: expected at most %d options", SWEEP_MOST_AXES);
    sweep_axis *axis = &s->axes[s->axis_count];
    axis->text = strdup(text);
    if (!axis->text) return sweep_no_memory();
    s->axis_count++;
    axis->name = axis->text;
    char *values = axis->text + (equals - text);
    *values++ = '\0';
    if (sweep_axis_named(s, axis->name) < s->axis_count - 1)
        return fail(STATUS_USAGE, "--vary: expected an option once, got '%s' twice", axis->name);
    const char *separator = strchr(values, ';') ? ";" : ",";
    for (char *rest = values, *value; (value = strsep(&rest, separator));) {
        if (!*value) return fail(STATUS_USAGE, "--vary: expected a value between separators, got '%s'", text);
        if (axis->count == SWEEP_MOST_VALUES)
            return fail(STATUS_USAGE, "--vary: expected at most %d values, got more for '%s'",
                        SWEEP_MOST_VALUES, axis->name);
        axis->values[axis->count++] = value;
    }
    return STATUS_OK;
}

void sweep_free(sweep *s)
{
    for (int i = 0; i < s->axis_count; i++) free(s->axes[i].text);
    free(s->words);
    free(s->is_virtual);
    *s = (sweep){0};
}

static int index_at(const sweep *s, int point, int axis)
{
    for (int i = s->axis_count - 1; i > axis; i--) point /= s->axes[i].count;
    return point % s->axes[axis].count;
}

int sweep_axis_named(const sweep *s, const char *name)
{
    for (int i = 0; i < s->axis_count; i++)
        if (strcmp(s->axes[i].name, name) == 0) return i;
    return -1;
}

/* Returns the engine of a point, from the axis `mode` or the axis `policy`. Returns NULL if neither axis
 * determines the engine. */
static const char *engine_of_point(const sweep *s, int point)
{
    int mode = sweep_axis_named(s, "mode"), policy = sweep_axis_named(s, "policy"), engine;
    if (mode >= 0) return s->axes[mode].values[index_at(s, point, mode)];
    if (policy < 0 || s->has_mode) return NULL;
    if (engine_of_policy(s->axes[policy].values[index_at(s, point, policy)], &engine) == STATUS_OK)
        return engine_table[engine]->name;
    error_clear(); /* sweep_check() reports the error. */
    return NULL;
}

static bool applies(const sweep *s, int point, int axis)
{
    const char *engine = s->axes[axis].engine ? engine_of_point(s, point) : NULL;
    return !engine || strcmp(engine, s->axes[axis].engine) == 0;
}

const char *sweep_value(const sweep *s, int point, int axis)
{
    return applies(s, point, axis) ? s->axes[axis].values[index_at(s, point, axis)] : NULL;
}

bool sweep_has(const sweep *s, int point)
{
    for (int i = 0; i < s->axis_count; i++)
        if (!applies(s, point, i) && index_at(s, point, i) > 0) return false;
    return true;
}

/* Returns the engine that has the option `name`, or NULL if all engines have it. */
static const char *engine_of_option(const char *name)
{
    for (int e = 0; e < ENGINE_COUNT; e++)
        for (size_t i = 0; engine_table[e]->options && i < engine_table[e]->options->count; i++)
            if (strcmp(engine_table[e]->options->options[i].name, name) == 0) return engine_table[e]->name;
    return NULL;
}

/* Adds the words of the command line that all points share. If `engine` is not NULL, the point runs only this
 * engine, so leaves out the options of other engines, which `harness run` would refuse. */
static status add_shared_words(const sweep *s, const char *engine, json_t *out)
{
    static const option policy_option = {"policy", OPTION_TEXT, .argument = "a policy"};
    static const option_table policy_table = {"policy", &policy_option, 1};
    run_config *scratch = calloc(1, sizeof *scratch);
    const char **words = malloc((size_t)(s->word_count + 1) * sizeof *words), *policy = NULL;
    option_binding others[ENGINE_COUNT + 1] = {{.table = &policy_table, .storage = &policy}};
    text_buffer policies = {0};
    size_t other_count = engine ? 1 : 0;
    int count = 0;
    status rc = scratch && words ? run_config_init(scratch) : sweep_no_memory();
    for (int e = 0; e < ENGINE_COUNT && engine; e++)
        if (strcmp(engine_table[e]->name, engine) != 0)
            others[other_count++] = scratch->bindings[BINDING_COUNT - ENGINE_COUNT + e];
    if (rc == STATUS_OK)
        rc =
            options_take(others, other_count, s->word_count, (char *const *)s->words, (char **)words, &count);
    for (int i = 0; i < count && rc == STATUS_OK; i++)
        json_array_append_new(out, json_string_nocheck(words[i]));
    if (rc == STATUS_OK && policy && engine_policies_of(policy, engine, &policies)) {
        json_array_append_new(out, json_string("--policy"));
        json_array_append_new(out, json_string(policies.data));
    }
    text_free(&policies);
    free(words);
    free(scratch);
    return rc;
}

status sweep_words(const sweep *s, int point, json_t **out)
{
    const char *engine = engine_of_point(s, point);
    json_t *words = json_pack("[s, s]", "harness", "run");
    status rc = add_shared_words(s, engine, words);
    for (int i = 0; i < s->axis_count; i++)
        if (sweep_value(s, point, i) && !(s->builds && i == 0))
            json_array_append_new(words, json_sprintf("--%s=%s", s->axes[i].name, sweep_value(s, point, i)));
    if (engine && sweep_axis_named(s, "mode") < 0)
        json_array_append_new(words, json_sprintf("--mode=%s", engine));
    *out = words;
    return rc;
}

bool sweep_has_option(const sweep *s, const char *name)
{
    size_t length = strlen(name);
    if (sweep_axis_named(s, name) >= 0) return true;
    for (int i = 0; i < s->word_count; i++)
        if (strncmp(s->words[i], "--", 2) == 0 && strncmp(s->words[i] + 2, name, length) == 0 &&
            (!s->words[i][2 + length] || s->words[i][2 + length] == '='))
            return true;
    return false;
}

/* Refuses options that no run of a sweep may have: outputs to one file, and --plan. */
static status refuse_outputs(const run_config *c)
{
    const struct {
        const char *name;
        bool given;
    } outputs[] = {{"json", c->run.json},
                   {"report", c->run.report},
                   {"trace", c->run.trace},
                   {"save", c->checkpoint.save},
                   {"plan", c->run.plan}};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        if (outputs[i].given) return fail(STATUS_USAGE, "sweep: unexpected option --%s", outputs[i].name);
    return STATUS_OK;
}

/* Checks the command line of a point, and sets s->is_virtual of the point. */
static status check_point(sweep *s, int point)
{
    run_config *config = calloc(1, sizeof *config);
    json_t *words = NULL;
    status rc = sweep_words(s, point, &words);
    const char **list = sweep_words_of(words);
    if (rc == STATUS_OK) rc = config && list ? run_config_init(config) : sweep_no_memory();
    if (rc == STATUS_OK)
        rc = run_config_parse(config, (int)json_array_size(words) - 2, (char *const *)list + 2);
    if (rc == STATUS_OK && config->run.mode >= ENGINE_COUNT)
        rc = fail(STATUS_USAGE, "sweep: --mode: expected one engine per run, as in --mode ps,ring");
    if (rc == STATUS_OK) rc = refuse_outputs(config);
    s->is_virtual[point] = rc == STATUS_OK && run_config_is_virtual(config);
    free(list);
    free(config);
    json_decref(words);
    return rc;
}

status sweep_check(sweep *s)
{
    int policy = sweep_axis_named(s, "policy"), engine;
    s->has_mode = sweep_has_option(s, "mode");
    for (int i = 0; !s->has_mode && policy >= 0 && i < s->axes[policy].count; i++)
        TRY(engine_of_policy(s->axes[policy].values[i], &engine));
    if (!s->has_mode && policy < 0) TRY(sweep_vary(s, "mode=ps,ring"));
    int64_t points = 1;
    for (int i = 0; i < s->axis_count; i++) {
        s->axes[i].engine = engine_of_option(s->axes[i].name);
        points *= s->axes[i].count;
    }
    if (points > SWEEP_MOST_POINTS)
        return fail(STATUS_USAGE, "--vary: expected at most %d points, got %lld", SWEEP_MOST_POINTS,
                    (long long)points);
    s->points = (int)points;
    s->is_virtual = calloc((size_t)points, sizeof *s->is_virtual);
    if (!s->is_virtual) return sweep_no_memory();
    for (int p = 0; p < s->points; p++) {
        status rc = sweep_has(s, p) ? check_point(s, p) : STATUS_OK;
        /* If valid values cannot run together, the point fails when it runs, and the table shows the
         * failure. */
        if (rc != STATUS_OK && rc != STATUS_CONFIG) return rc;
        error_clear();
    }
    return STATUS_OK;
}

/* ---- files ------------------------------------------------------------------------------------------- */

char *sweep_file(const sweep *s, int point, int round, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s/runs/point-%04d-round-%03d.json", s->folder, point, round);
    return buffer;
}

status sweep_read_result(const sweep *s, int point, int round, json_t **out)
{
    char path[PATH_MAX];
    *out = NULL;
    if (access(sweep_file(s, point, round, path, sizeof path), F_OK) != 0) return STATUS_OK;
    TRY(result_read(path, false, out));
    const json_t *job = json_array_get(json_object_get(*out, "jobs"), 0);
    if (job && !json_is_true(json_object_get(*out, "stopped_early"))) return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return STATUS_OK;
}

json_t *sweep_result(const sweep *s, int point, int round)
{
    json_t *result;
    if (sweep_read_result(s, point, round, &result) != STATUS_OK) {
        log_warn("%s: the run has no valid result", error_message());
        error_clear();
    }
    return result;
}

static status read_definition(const char *path, json_t **out)
{
    enum { MOST_BYTES = 16 << 20 };
    *out = NULL;
    return access(path, F_OK) == 0 ? input_json(path, MOST_BYTES, out) : STATUS_OK;
}

/* Makes the definition of the sweep, the content of sweep.json. */
static status define(const sweep *s, json_t **out)
{
    json_t *axes = json_array(), *programs = NULL;
    for (int i = 0; i < s->axis_count; i++) {
        json_t *values = json_array();
        for (int v = 0; v < s->axes[i].count; v++)
            json_array_append_new(values, json_string(s->axes[i].values[v]));
        json_array_append_new(axes, json_pack("{s:s, s:o}", "option", s->axes[i].name, "values", values));
    }
    status rc = sweep_programs(s, &programs);
    *out = json_pack("{s:i, s:o, s:o, s:o}", "schema_version", 1, "vary", axes, "options",
                     sweep_shared_words(s), "programs", programs);
    return rc;
}

status sweep_read(const char *folder, json_t **definition, sweep *out)
{
    char path[PATH_MAX];
    size_t i, v;
    json_t *axis, *value;
    *out = (sweep){.folder = folder, .points = 1};
    snprintf(path, sizeof path, "%s/sweep.json", folder);
    TRY(read_definition(path, definition));
    const json_t *axes = json_object_get(*definition, "vary");
    if (!*definition) return STATUS_OK;
    if (json_array_size(axes) == 0 || json_array_size(axes) > SWEEP_MOST_AXES)
        return fail(STATUS_DATA, "%s: expected the definition of a sweep", path);
    json_array_foreach(axes, i, axis)
    {
        const json_t *values = json_object_get(axis, "values");
        const char *name = json_string_value(json_object_get(axis, "option"));
        size_t count = json_array_size(values);
        if (!name || count == 0 || count > SWEEP_MOST_VALUES || out->points * (int)count > SWEEP_MOST_POINTS)
            return fail(STATUS_DATA, "%s: expected the definition of a sweep", path);
        sweep_axis *a = &out->axes[out->axis_count++];
        *a = (sweep_axis){.name = name, .count = (int)count, .engine = engine_of_option(name)};
        json_array_foreach(values, v, value) a->values[v] =
            json_is_string(value) ? json_string_value(value) : "";
        out->points *= a->count;
    }
    const json_t *words = json_object_get(*definition, "options");
    out->words = sweep_words_of(words);
    out->word_count = out->words ? (int)json_array_size(words) : 0;
    out->has_mode = sweep_has_option(out, "mode");
    for (int p = 0; p < out->points; p++)
        while (out->rounds < SWEEP_MOST_ROUNDS &&
               access(sweep_file(out, p, out->rounds, path, sizeof path), F_OK) == 0)
            out->rounds++;
    return STATUS_OK;
}

static status make_folder(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return STATUS_OK;
    return fail_errno(STATUS_CANNOT_CREATE, "%s", path);
}

static status lock_folder(const sweep *s, int *lock)
{
    *lock = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0) return fail_errno(STATUS_CANNOT_CREATE, "%s", s->folder);
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) return STATUS_OK;
    close(*lock);
    if (errno == EWOULDBLOCK)
        return fail(STATUS_CONFIG, "%s: another sweep is running in this folder", s->folder);
    return fail_errno(STATUS_CANNOT_CREATE, "%s", s->folder);
}

status sweep_open_folder(const sweep *s, int *lock)
{
    char path[PATH_MAX];
    if (strlen(s->folder) > PATH_MAX - 64)
        return fail(STATUS_CANNOT_CREATE, "%s: the name is too long", s->folder);
    TRY(make_folder(s->folder));
    TRY(lock_folder(s, lock));
    snprintf(path, sizeof path, "%s/runs", s->folder);
    status rc = make_folder(path);
    snprintf(path, sizeof path, "%s/sweep.json", s->folder);
    json_t *now = NULL, *before = NULL;
    if (rc == STATUS_OK) rc = read_definition(path, &before);
    if (rc == STATUS_OK) rc = define(s, &now);
    if (rc == STATUS_OK && before && !sweep_is_same(now, before))
        rc = fail(STATUS_CONFIG,
                  "%s: expected the sweep that was started in this folder (%s), got another one", s->folder,
                  path);
    if (rc == STATUS_OK && before &&
        !json_equal(json_object_get(now, "programs"), json_object_get(before, "programs")))
        rc = fail(STATUS_CONFIG,
                  "%s: expected the program that started this sweep (%s), got another build; "
                  "use another folder (-o DIR)",
                  s->folder, path);
    if (rc == STATUS_OK && !before) rc = output_json(json_incref(now), path);
    json_decref(now);
    json_decref(before);
    if (rc != STATUS_OK) close(*lock);
    return rc;
}
