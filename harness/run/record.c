#include "harness/run/record.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static const char *const phase_keys[RECORD_PHASES] = {
#define RECORD_KEY(name, text) [RECORD_##name] = text,
    RECORD_PHASE_LIST(RECORD_KEY)
#undef RECORD_KEY
};

status record_init(record *r, int64_t steps, int64_t evaluations)
{
    *r = (record){.capacity = steps, .evaluation_capacity = evaluations};
    bool complete = true;
    for (int p = 0; p < RECORD_PHASES; p++) {
        r->phases[p] = calloc((size_t)steps + 1, sizeof *r->phases[p]);
        complete = complete && r->phases[p];
    }
    r->losses = calloc((size_t)steps + 1, sizeof *r->losses);
    r->steps = calloc((size_t)steps + 1, sizeof *r->steps);
    r->evaluations = calloc((size_t)evaluations + 1, sizeof *r->evaluations);
    if (complete && r->losses && r->steps && r->evaluations) return STATUS_OK;
    record_deinit(r);
    return fail(STATUS_SYSTEM, "no memory to record %lld steps", (long long)steps);
}

void record_deinit(record *r)
{
    for (int p = 0; p < RECORD_PHASES; p++) free(r->phases[p]);
    free(r->losses);
    free(r->steps);
    free(r->evaluations);
    *r = (record){0};
}

void record_step(record *r, const step_result *result)
{
    assert(r->count < r->capacity);
    const step_times *t = &result->times;
    int64_t at = r->count++;
    r->steps[at] = result->index;
#define RECORD_STORE(name, text) r->phases[RECORD_##name][at] = t->name;
    RECORD_PHASE_LIST(RECORD_STORE)
#undef RECORD_STORE
    r->losses[at] = result->loss;
    r->samples += result->samples;
}

void record_evaluation_result(record *r, record_evaluation e)
{
    assert(r->evaluation_count < r->evaluation_capacity);
    r->evaluations[r->evaluation_count++] = e;
}

static json_t *integers(const int64_t *values, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; array && i < count; i++) json_array_append_new(array, json_integer(values[i]));
    return array;
}

json_t *record_seconds(int64_t ns)
{
    return json_real((double)ns / 1e9);
}

static json_t *times(const int64_t *values, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; array && i < count; i++)
        json_array_append_new(array, values[i] == STEP_NOT_MEASURED ? json_null() : record_seconds(values[i]));
    return array;
}

/* JSON has no NaN: a loss that is none becomes null. */
static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *reals(const double *values, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; array && i < count; i++) json_array_append_new(array, real_or_null(values[i]));
    return array;
}

status record_to_json(const record *r, json_t *rank)
{
    int bad = 0;
    for (int p = 0; p < RECORD_PHASES; p++)
        bad |= json_object_set_new(rank, phase_keys[p], times(r->phases[p], r->count));
    bad |= json_object_set_new(rank, "losses", reals(r->losses, r->count));
    bad |= json_object_set_new(rank, "measured_steps", json_integer(r->count));
    bad |= json_object_set_new(rank, "step_index", integers(r->steps, r->count));
    bad |= json_object_set_new(rank, "samples", json_integer(r->samples));
    bad |= json_object_set_new(rank, "wall_s", record_seconds(r->wall_ns));
    bad |= json_object_set_new(rank, "bytes_sent", json_integer(r->bytes_sent));
    bad |= json_object_set_new(rank, "bytes_received", json_integer(r->bytes_received));
    bad |= json_object_set_new(rank, "messages_sent", json_integer(r->messages_sent));
    bad |= json_object_set_new(rank, "messages_received", json_integer(r->messages_received));
    bad |= json_object_set_new(rank, "updates_skipped", json_integer(r->updates_skipped));
    json_t *evaluations = json_array();
    for (int64_t i = 0; evaluations && i < r->evaluation_count; i++) {
        const record_evaluation *e = &r->evaluations[i];
        bad |= json_array_append_new(evaluations, json_pack("{s:I, s:o, s:o, s:I}", "step", (json_int_t)e->step, "loss",
                                                            real_or_null(e->loss), "accuracy", real_or_null(e->accuracy),
                                                            "samples", (json_int_t)e->samples));
    }
    bad |= json_object_set_new(rank, "evaluations", evaluations);
    return bad ? fail(STATUS_SYSTEM, "no memory for the results") : STATUS_OK;
}

static json_t *account_to_json(const ledger_account *a)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:s}", "current_bytes", (json_int_t)a->current, "peak_bytes",
                     (json_int_t)a->peak, "reserved_current_bytes", (json_int_t)a->reserved_current,
                     "reserved_peak_bytes", (json_int_t)a->reserved_peak, "peak_phase",
                     ledger_phase_name(a->peak_phase));
}

static json_t *classes_to_json(const int64_t *bytes)
{
    json_t *object = json_object();
    for (int c = 0; object && c < LEDGER_CLASS_COUNT; c++)
        json_object_set_new(object, ledger_class_name((ledger_class)c), json_integer(bytes[c]));
    return object;
}

json_t *ledger_to_json(const ledger *l)
{
    json_t *classes = json_object(), *phases = json_object();
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        json_object_set_new(classes, ledger_class_name((ledger_class)c), account_to_json(&l->classes[c]));
    for (int p = 0; p < LEDGER_PHASE_COUNT; p++) {
        if (l->phase_peak[p] == 0) continue;
        json_object_set_new(phases, ledger_phase_name((ledger_phase)p),
                            json_pack("{s:I, s:o, s:I, s:o}", "peak_bytes", (json_int_t)l->phase_peak[p],
                                      "peak_classes", classes_to_json(l->phase_peak_classes[p]), "end_bytes",
                                      (json_int_t)l->phase_end[p], "end_classes",
                                      classes_to_json(l->phase_end_classes[p])));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "total", account_to_json(&l->total), "peak_classes",
                     classes_to_json(l->peak_classes), "classes", classes, "phases", phases);
}
