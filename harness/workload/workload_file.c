/* The file of a workload: docs/schemas/workload.schema.json. */
#include "harness/workload/workload_impl.h"

#include "common/base/input.h"

#include <stdio.h>
#include <string.h>

/* Limits of a file. The largest models have a few thousand parameters. */
enum { MOST_BYTES = 64 << 20, MOST_ITEMS = 1 << 20 };
#define MOST_NUMBER (INT64_C(1) << 53)

/* ---- writing ---------------------------------------------------------------------------------- */

static json_t *indices(const int *of, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(list, json_integer(of[i]));
    return list;
}

static json_t *params_to_json(const nn_model *m)
{
    json_t *list = json_array();
    for (int i = 0; i < m->param_count; i++) {
        const nn_param *p = &m->params[i];
        json_t *dims = json_array();
        for (int d = 0; d < p->shape.rank; d++) json_array_append_new(dims, json_integer(p->shape.dims[d]));
        json_array_append_new(list, json_pack("{s:s, s:o, s:I, s:o}", "name", p->name, "shape", dims, "bytes",
                                              (json_int_t)(p->elements * (int64_t)sizeof(float)), "unit",
                                              p->unit == NN_NONE ? json_null() : json_integer(p->unit)));
    }
    return list;
}

static json_t *segments_to_json(const nn_segment *s, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++, s++)
        json_array_append_new(
            list, json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o}", "kernel_ns", (json_int_t)s->kernel_ns,
                            "idle_ns", (json_int_t)s->idle_ns, "live_bytes", (json_int_t)s->live_bytes,
                            "peak_bytes", (json_int_t)s->peak_bytes, "arithmetic", (double)s->arithmetic,
                            "traffic", (double)s->traffic, "uses", indices(s->uses, s->use_count), "ready",
                            indices(s->ready, s->ready_count)));
    return list;
}

json_t *workload_to_json(const workload *w)
{
    const nn_model *m = w->model;
    const nn_recording *r = m->recording;
    int backward = r->forward_count + r->loss_count;
    json_t *units = json_array(), *buffers = json_array(), *parts = json_object(), *idle = json_object();
    for (int u = 0; u < m->unit_count; u++) json_array_append_new(units, json_string(m->units[u]));
    for (int b = 0; b < m->buffer_count; b++)
        json_array_append_new(buffers, json_pack("{s:s, s:I}", "name", m->buffers[b].name, "elements",
                                                 (json_int_t)m->buffers[b].elements));
    for (int p = 0; p < WORKLOAD_PARTS; p++) {
        json_object_set_new(parts, workload_part_names[p], json_integer(w->part_ns[p]));
        json_object_set_new(idle, workload_part_names[p], json_integer(w->part_idle_ns[p]));
    }
    return json_pack("{s:i, s:s, s:O*, s:I, s:I, s:o, s:o, s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, "
                     "s:o, s:o, s:o}",
                     "schema_version", WORKLOAD_SCHEMA_VERSION, "model", m->name, "source", w->source,
                     "batch", (json_int_t)r->batch, "step_ns", (json_int_t)workload_step_ns(w), "parts_ns",
                     parts, "parts_idle_ns", idle, "optimizer", w->optimizer, "optimizer_states",
                     w->state_count, "gradient_type", w->gradient_type, "peak_bytes",
                     (json_int_t)w->peak_bytes, "input_elements", (json_int_t)w->input_elements, "rows",
                     (json_int_t)w->rows, "classes", (json_int_t)w->classes, "parameters", params_to_json(m),
                     "units", units, "buffers", buffers, "forward",
                     segments_to_json(r->segments, r->forward_count), "loss",
                     segments_to_json(r->segments + r->forward_count, r->loss_count), "backward",
                     segments_to_json(r->segments + backward, r->segment_count - backward));
}

/* ---- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    const char *name;
    workload *out;
} reader;

static status wrong(const reader *in, const char *key, const char *expected)
{
    return fail(STATUS_DATA, "%s: %s: expected %s; see docs/schemas/workload.schema.json", in->name, key,
                expected);
}

static status read_integer(const reader *in, const json_t *at, const char *key, int64_t low, int64_t high,
                           int64_t *out)
{
    const json_t *value = json_object_get(at, key);
    char expected[80];
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)low, (long long)high);
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= low && *out <= high ? STATUS_OK : wrong(in, key, expected);
}

static status read_text(const reader *in, const json_t *at, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(at, key));
    if (!text || strlen(text) >= size) return wrong(in, key, "a short text");
    snprintf(out, size, "%s", text);
    text_printable(out, false);
    return STATUS_OK;
}

static status read_array(const reader *in, const json_t *at, const char *key, const json_t **out)
{
    *out = json_object_get(at, key);
    return json_is_array(*out) && json_array_size(*out) <= MOST_ITEMS ? STATUS_OK : wrong(in, key, "a list");
}

static status read_indices(const reader *in, const json_t *list, const char *key, int *out)
{
    const json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;
        if (value < 0 || value >= in->out->model->param_count) return wrong(in, key, "indices of parameters");
        out[i] = (int)value;
    }
    return STATUS_OK;
}

static status read_segments(const reader *in, const json_t *list)
{
    const json_t *item, *uses, *ready;
    size_t i;
    json_array_foreach(list, i, item)
    {
        TRY(read_array(in, item, "uses", &uses));
        TRY(read_array(in, item, "ready", &ready));
        nn_segment *s =
            workload_add_segment(in->out, (int)json_array_size(uses), (int)json_array_size(ready));
        if (!s) return fail(STATUS_SYSTEM, "no memory for %s", in->name);
        s->use_count = (int)json_array_size(uses);
        s->ready_count = (int)json_array_size(ready);
        TRY(read_indices(in, uses, "uses", s->uses));
        TRY(read_indices(in, ready, "ready", s->ready));
        TRY(read_integer(in, item, "kernel_ns", 0, MOST_NUMBER, &s->kernel_ns));
        TRY(read_integer(in, item, "idle_ns", 0, MOST_NUMBER, &s->idle_ns));
        TRY(read_integer(in, item, "live_bytes", 0, MOST_NUMBER, &s->live_bytes));
        TRY(read_integer(in, item, "peak_bytes", 0, MOST_NUMBER, &s->peak_bytes));
        s->arithmetic = (float)json_number_value(json_object_get(item, "arithmetic"));
        s->traffic = (float)json_number_value(json_object_get(item, "traffic"));
        if (!(s->arithmetic >= 0 && s->arithmetic <= 1 && s->traffic >= 0 && s->traffic <= 1))
            return wrong(in, "arithmetic and traffic", "fractions from 0 to 1");
    }
    return STATUS_OK;
}

static status read_param(const reader *in, const json_t *item)
{
    shape s = {0};
    char name[NN_NAME_MAX];
    int64_t bytes, unit = NN_NONE, dim;
    const json_t *dims, *value;
    size_t d;
    TRY(read_text(in, item, "name", name, sizeof name));
    TRY(read_array(in, item, "shape", &dims));
    if (json_array_size(dims) > SHAPE_MAX_RANK) return wrong(in, "shape", "at most 4 dimensions");
    json_array_foreach(dims, d, value)
    {
        dim = json_integer_value(value);
        if (!json_is_integer(value) || dim < 1 || dim > SHAPE_MOST_ELEMENTS)
            return wrong(in, "shape", "dimensions of at least 1");
        s.dims[s.rank++] = dim;
    }
    if (shape_elements(s) > SHAPE_MOST_ELEMENTS) return wrong(in, "shape", "fewer elements");
    TRY(read_integer(in, item, "bytes", 1, 8 * shape_elements(s) + 8, &bytes));
    if (!json_is_null(json_object_get(item, "unit")))
        TRY(read_integer(in, item, "unit", 0, in->out->model->unit_count - 1, &unit));
    return workload_add_param(in->out, name, s, bytes, (int)unit);
}

static status read_model(const reader *in, const json_t *file)
{
    const json_t *list, *item;
    nn_model *m = in->out->model;
    size_t i;
    TRY(read_array(in, file, "units", &list));
    json_array_foreach(list, i, item)
    {
        if (!json_is_string(item) || json_string_length(item) >= NN_NAME_MAX)
            return wrong(in, "units", "short texts");
        nn_unit(m, json_string_value(item));
    }
    TRY(read_array(in, file, "parameters", &list));
    json_array_foreach(list, i, item) TRY(read_param(in, item));
    TRY(read_array(in, file, "buffers", &list));
    json_array_foreach(list, i, item)
    {
        char name[NN_NAME_MAX];
        int64_t elements;
        TRY(read_text(in, item, "name", name, sizeof name));
        TRY(read_integer(in, item, "elements", 1, SHAPE_MOST_ELEMENTS, &elements));
        nn_declare_buffer(m, name, elements);
    }
    return STATUS_OK;
}

static status read_parts(const reader *in, const json_t *file)
{
    workload *w = in->out;
    int64_t step;
    for (int p = 0; p < WORKLOAD_PARTS; p++) {
        const json_t *all = json_object_get(file, "parts_ns"), *idle = json_object_get(file, "parts_idle_ns");
        TRY(read_integer(in, all, workload_part_names[p], 0, MOST_NUMBER, &w->part_ns[p]));
        TRY(read_integer(in, idle, workload_part_names[p], 0, w->part_ns[p], &w->part_idle_ns[p]));
    }
    TRY(read_integer(in, file, "step_ns", 0, MOST_NUMBER, &step));
    return step == workload_step_ns(w) ? STATUS_OK : wrong(in, "step_ns", "the sum of parts_ns");
}

static status read_workload(const reader *in, const json_t *file)
{
    workload *w = in->out;
    char model[64];
    int64_t version, batch, states;
    const json_t *forward, *loss, *backward;
    if (!json_is_object(file) || json_object_get(file, "traceEvents"))
        return wrong(in, "the file", "a workload, which harness import makes of a trace");
    TRY(read_integer(in, file, "schema_version", WORKLOAD_SCHEMA_VERSION, WORKLOAD_SCHEMA_VERSION, &version));
    TRY(read_text(in, file, "model", model, sizeof model));
    TRY(read_integer(in, file, "batch", 1, INT32_MAX, &batch));
    TRY(read_array(in, file, "forward", &forward));
    TRY(read_array(in, file, "loss", &loss));
    TRY(read_array(in, file, "backward", &backward));
    int count = (int)json_array_size(forward), losses = (int)json_array_size(loss);
    TRY(workload_begin(w, model, batch, count + losses + (int)json_array_size(backward)));
    w->source = json_incref(json_object_get(file, "source"));
    const json_t *ranks = json_object_get(w->source, "ranks");
    if (ranks) w->model->recording->ranks = json_integer_value(ranks);
    TRY(read_parts(in, file));
    TRY(read_text(in, file, "optimizer", w->optimizer, sizeof w->optimizer));
    TRY(read_text(in, file, "gradient_type", w->gradient_type, sizeof w->gradient_type));
    TRY(read_integer(in, file, "optimizer_states", 0, 8, &states));
    w->state_count = (int)states;
    TRY(read_integer(in, file, "peak_bytes", 0, MOST_NUMBER, &w->peak_bytes));
    TRY(read_integer(in, file, "input_elements", 1, SHAPE_MOST_ELEMENTS, &w->input_elements));
    TRY(read_integer(in, file, "rows", 1, INT32_MAX, &w->rows));
    TRY(read_integer(in, file, "classes", 1, INT32_MAX, &w->classes));
    TRY(read_model(in, file));
    w->model->recording->forward_count = count;
    w->model->recording->loss_count = losses;
    TRY(read_segments(in, forward));
    TRY(read_segments(in, loss));
    TRY(read_segments(in, backward));
    TRY(workload_finish(w));
    return workload_check(w, in->name);
}

status workload_open(const char *spec, workload *out)
{
    *out = (workload){0};
    if (strchr(spec, '=')) return workload_from_numbers(spec, out);
    json_t *file = NULL;
    reader in = {spec, out};
    TRY(input_json(spec, MOST_BYTES, &file));
    status rc = read_workload(&in, file);
    json_decref(file);
    return rc;
}
