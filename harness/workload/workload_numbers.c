/* A workload of a few numbers: "params=350M,units=24,step=412ms,peak=31GiB". The units are equal, and a unit
 * is cut into equal parameters, so that gradients become ready at equal distances in the backward pass. */
#include "harness/workload/workload_impl.h"

#include "common/base/text.h"
#include "common/optim/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PARAMS_PER_UNIT = 8,
    MOST_UNITS = 10000,
    /* Without update=, the update moves its bytes at the rate of a GPU's memory. */
    UPDATE_BYTES_PER_NS = 1000
};

typedef struct numbers {
    double params, forward;
    int64_t units, batch, step_ns, update_ns, peak;
    int optimizer, gradients;
} numbers;

static const int optimizer_states[] = {0, 2, 2};
static const char *const type_names[] = {"float32", "bfloat16", "float16"};
static const int type_sizes[] = {4, 2, 2};

/* Parses "350M", "7B" or "25000000". */
static status parse_count(const char *what, const char *text, double *out)
{
    char digits[40], *unit;
    snprintf(digits, sizeof digits, "%s", text);
    size_t length = strlen(digits);
    double factor = 1;
    static const char units[] = "KMGBT";
    static const double factors[] = {1e3, 1e6, 1e9, 1e9, 1e12};
    if (length > 1 && (unit = strchr(units, digits[length - 1])) != NULL) {
        factor = factors[unit - units];
        digits[length - 1] = '\0';
    }
    TRY(text_parse_double(what, digits, 1e-9, 1e13, out));
    *out = round(*out * factor);
    return *out >= 1 && *out <= 1e13
               ? STATUS_OK
               : fail(STATUS_USAGE, "%s: expected 1 to 10T parameters, got '%s'", what, text);
}

static status set_number(numbers *n, const char *key, const char *value)
{
    char what[48];
    snprintf(what, sizeof what, "--workload: %.20s", key);
    if (strcmp(key, "params") == 0) return parse_count(what, value, &n->params);
    if (strcmp(key, "units") == 0) return text_parse_int(what, value, 1, MOST_UNITS, &n->units);
    if (strcmp(key, "step") == 0) return text_parse_duration_ns(what, value, &n->step_ns);
    if (strcmp(key, "peak") == 0) return text_parse_bytes(what, value, &n->peak);
    if (strcmp(key, "update") == 0) return text_parse_duration_ns(what, value, &n->update_ns);
    if (strcmp(key, "batch") == 0) return text_parse_int(what, value, 1, INT32_MAX, &n->batch);
    if (strcmp(key, "forward") == 0) return text_parse_double(what, value, 0.01, 0.99, &n->forward);
    if (strcmp(key, "gradients") == 0)
        return text_parse_choice(what, value, type_names, sizeof *type_names, 3, &n->gradients);
    if (strcmp(key, "optimizer") == 0)
        return text_parse_choice(what, value, optimizer_names, sizeof *optimizer_names, 3, &n->optimizer);
    return fail(
        STATUS_USAGE,
        "--workload: expected params=, units=, step=, peak=, batch=, forward=, update=, gradients= or "
        "optimizer=, got '%.40s='",
        key);
}

static status parse(const char *text, numbers *n)
{
    char copy[512], *rest = NULL;
    if (strlen(text) >= sizeof copy)
        return fail(STATUS_USAGE, "--workload: expected at most %zu characters, got %zu", sizeof copy - 1,
                    strlen(text));
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(word, '=');
        if (!equals) return fail(STATUS_USAGE, "--workload: expected NAME=VALUE, got '%.40s'", word);
        *equals = '\0';
        TRY(set_number(n, word, equals + 1));
    }
    if (n->params > 0 && n->units > 0 && n->step_ns > 0 && n->peak > 0) return STATUS_OK;
    return fail(STATUS_USAGE,
                "--workload: expected a file, or params=, units=, step= and peak= such as "
                "params=350M,units=24,step=412ms,peak=31GiB, got '%.80s'",
                text);
}

/* Returns the part of `whole` that ends with share `index` of `count` equal shares. */
static int64_t share(int64_t whole, int64_t index, int64_t count)
{
    double end = floor((double)whole * (double)(index + 1) / (double)count);
    return (int64_t)(end - floor((double)whole * (double)index / (double)count));
}

static status add_params(const numbers *n, workload *w)
{
    int64_t count = n->units * PARAMS_PER_UNIT;
    for (int64_t i = 0; i < count; i++) {
        char name[NN_NAME_MAX];
        int64_t unit = i / PARAMS_PER_UNIT, elements = share((int64_t)n->params, i, count);
        snprintf(name, sizeof name, "unit%lld.", (long long)unit);
        if (i % PARAMS_PER_UNIT == 0) nn_unit(w->model, name);
        snprintf(name, sizeof name, "unit%lld.%lld", (long long)unit, (long long)(i % PARAMS_PER_UNIT));
        if (elements < 1)
            return fail(STATUS_USAGE, "--workload: params: expected at least %lld for %lld units",
                        (long long)count, (long long)n->units);
        int64_t bytes = elements * type_sizes[n->gradients];
        TRY(workload_add_param(w, name, shape_1d(elements), bytes, (int)unit));
    }
    return STATUS_OK;
}

/* Activations grow in equal parts in the forward pass, and shrink in equal parts in the backward pass. */
static status add_segments(const numbers *n, workload *w, int64_t activations)
{
    int count = w->model->param_count, units = (int)n->units;
    int64_t live = 0;
    for (int u = 0; u < units; u++) {
        nn_segment *s = workload_add_segment(w, PARAMS_PER_UNIT, 0);
        if (!s) return fail(STATUS_SYSTEM, "no memory for a workload");
        s->arithmetic = s->traffic = 1;
        s->kernel_ns = share(w->part_ns[WORKLOAD_FORWARD], u, units);
        s->live_bytes = s->peak_bytes = live += share(activations, u, units);
        for (int i = 0; i < PARAMS_PER_UNIT; i++) s->uses[s->use_count++] = u * PARAMS_PER_UNIT + i;
    }
    w->model->recording->forward_count = units;
    for (int i = 0; i < count; i++) {
        nn_segment *s = workload_add_segment(w, 1, 1);
        if (!s) return fail(STATUS_SYSTEM, "no memory for a workload");
        s->arithmetic = s->traffic = 1;
        s->kernel_ns = share(w->part_ns[WORKLOAD_BACKWARD], i, count);
        s->peak_bytes = live;
        s->live_bytes = live -= share(activations, i, count);
        s->uses[s->use_count++] = s->ready[s->ready_count++] = count - 1 - i;
    }
    return STATUS_OK;
}

status workload_from_numbers(const char *text, workload *w)
{
    enum { READS_AND_WRITES = 3 }; /* gradient, parameter read and written; each state read and written */
    numbers n = {.forward = 1.0 / 3, .batch = 1, .optimizer = 2};
    TRY(parse(text, &n));
    int64_t states = optimizer_states[n.optimizer], size = type_sizes[n.gradients];
    int64_t held = (int64_t)n.params * size * (2 + states);
    if (held > n.peak) {
        char least[32];
        return fail(STATUS_USAGE,
                    "--workload: peak: expected at least the %s of parameters, gradients and state of %s",
                    text_format_bytes(least, sizeof least, (double)held), optimizer_names[n.optimizer]);
    }
    int64_t update = n.update_ns;
    if (!update) update = (int64_t)n.params * size * (READS_AND_WRITES + 2 * states) / UPDATE_BYTES_PER_NS;
    if (update >= n.step_ns / 2)
        return fail(STATUS_USAGE, "--workload: step: expected at least twice the update, %.3f ms",
                    1e-6 * (double)update);
    TRY(workload_begin(w, text, n.batch, (int)(n.units * (1 + PARAMS_PER_UNIT))));
    w->part_ns[WORKLOAD_OPTIMIZER] = update;
    w->part_ns[WORKLOAD_FORWARD] = (int64_t)((double)(n.step_ns - update) * n.forward);
    w->part_ns[WORKLOAD_BACKWARD] = n.step_ns - update - w->part_ns[WORKLOAD_FORWARD];
    w->peak_bytes = n.peak;
    w->state_count = (int)states;
    snprintf(w->optimizer, sizeof w->optimizer, "%s", optimizer_names[n.optimizer]);
    snprintf(w->gradient_type, sizeof w->gradient_type, "%s", type_names[n.gradients]);
    w->source = json_pack("{s:s, s:s}", "kind", "numbers", "text", text);
    TRY(add_params(&n, w));
    TRY(add_segments(&n, w, n.peak - held));
    TRY(workload_finish(w));
    return workload_check(w, "--workload");
}
