#include "harness/workload/torch/trace.h"
#include "harness/workload/workload_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A parameter of the job: one that add_metadata_json() lists, or the owner of a gradient without a name. */
typedef struct entry {
    const char *name; /* NULL if unknown */
    shape shape;
    int gradient; /* index, or -1 */
    int module;   /* first entry of the same module */
    int bytes;    /* size of an element, or 0 without a name */
    bool trained;
} entry;

typedef struct matching {
    const torch_trace *t;
    torch_step *s;
    torch_pairs uses; /* sequence numbers and indices of gradients, in the order of use */
    entry *entries;   /* [count] */
    int count;
} matching;

static bool same_shape(const shape *a, const shape *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof a->dims[0]) == 0;
}

static torch_gradient *gradient_of(const matching *m, int use)
{
    return &m->s->gradients[m->uses.list[use].value];
}

/* Returns true if a pass before the last computed the gradient. */
static bool is_earlier(const matching *m, const torch_gradient *g)
{
    return g->event.end_ns < m->s->backward_ns;
}

/* ---- names ------------------------------------------------------------------------------------------- */

static status read_names(matching *m)
{
    const json_t *list = json_object_get(m->t->description, "parameters");
    if (json_array_size(list) > TORCH_MOST_PARAMETERS)
        return fail(STATUS_DATA, "expected at most %d parameters", TORCH_MOST_PARAMETERS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        if (torch_is_empty(json_array_get(row, 1))) continue;
        entry *e = &m->entries[m->count], *last = e - (m->count > 0);
        *e = (entry){.name = json_string_value(json_array_get(row, 0)),
                     .gradient = -1,
                     .module = m->count,
                     .trained = json_is_true(json_array_get(row, 3))};
        const char *type = json_string_value(json_array_get(row, 2));
        e->bytes = type ? torch_type_bytes(type) : 0;
        if (!e->name || !type || !torch_read_shape(json_array_get(row, 1), &e->shape))
            return fail(STATUS_DATA,
                        "\"harness\": parameter %zu: expected [name, shape, type, requires_grad]", i);
        const char *dot = strrchr(e->name, '.');
        size_t length = dot ? (size_t)(dot - e->name) + 1 : 0;
        if (strncmp(e->name, last->name, length) == 0 && !strchr(last->name + length, '.'))
            e->module = last->module;
        m->count++;
    }
    return STATUS_OK;
}

/* Gives the gradients of uses[first..end) to the parameters entries[from..to). Returns false, and gives none,
 * if `whole` and not all parameters find one of their shape. */
static bool give(matching *m, int first, int end, int from, int to, bool whole)
{
    int given = 0;
    for (int i = from; i < to; i++)
        for (int use = first; use < end && m->entries[i].trained && m->entries[i].gradient < 0; use++) {
            torch_gradient *g = gradient_of(m, use);
            if (g->event.shape < 0) continue;
            if (g->parameter >= 0 || !same_shape(&m->t->shapes[g->event.shape], &m->entries[i].shape))
                continue;
            g->parameter = i;
            m->entries[i].gradient = (int)m->uses.list[use].value;
            given++;
        }
    for (int i = from; i < to && whole && given < to - from; i++) {
        if (m->entries[i].gradient >= 0) m->s->gradients[m->entries[i].gradient].parameter = -1;
        m->entries[i].gradient = -1;
    }
    return given == to - from;
}

/* Names the gradients. Gradients of the last pass are first. A call of an operation, such as linear, uses the
 * parameters of a module, whose shapes are the call's. If several modules have these shapes, the first in the
 * list is used first. Gradients that remain go to the first parameter with their shape. */
static void match_names(matching *m)
{
    for (int from = 0, to; from < m->count; from = to) {
        for (to = from + 1; to < m->count && m->entries[to].module == from; to++) continue;
        bool found = false;
        for (int first = 0, end; first < m->uses.count && !found; first = end) {
            int64_t call = gradient_of(m, first)->call_ns;
            for (end = first + 1; end < m->uses.count && gradient_of(m, end)->call_ns == call; end++)
                continue;
            if (end - first == to - from) found = give(m, first, end, from, to, true);
        }
    }
    give(m, 0, m->uses.count, 0, m->count, false);
}

/* Returns true if gradients have names, and each trained parameter has a gradient. */
static bool all_found(const matching *m)
{
    int found = 0, trained = 0;
    for (int i = 0; i < m->count; i++) {
        found += m->entries[i].gradient >= 0;
        trained += m->entries[i].trained;
    }
    return found > 0 && found == trained;
}

/* ---- units ------------------------------------------------------------------------------------------- */

/* Returns the length of the prefix that ends with the first numbered module, "layers.0." in
 * "layers.0.mlp.weight" or "encoder_layer_0." in "encoder_layer_0.mlp.weight". Returns 0 if there is none. */
static size_t unit_prefix(const char *name)
{
    for (const char *part = name, *dot; (dot = strchr(part, '.')); part = dot + 1) {
        const char *digits = dot;
        while (digits > part && isdigit((unsigned char)digits[-1])) digits--;
        bool number = digits == part && dot > part;
        bool suffix = digits < dot && digits > part && digits[-1] == '_' && strchr(dot + 1, '.');
        if (number || suffix) return (size_t)(dot + 1 - name);
    }
    return 0;
}

/* Finds the longest run of parameters whose shapes repeat with a period, as in a stack of equal blocks. Sets
 * *first, *end and *period, which is 0 if no shapes repeat. */
static void find_blocks(const matching *m, int *first, int *end, int *period)
{
    *first = *end = *period = 0;
    for (int p = 2; 2 * p <= m->count; p++)
        for (int i = 0, run = 0; i + p < m->count; i++) {
            run = same_shape(&m->entries[i].shape, &m->entries[i + p].shape) ? run + 1 : 0;
            if (run < p || run + p <= *end - *first) continue;
            *first = i + 1 - run;
            *end = i + 1 + p;
            *period = p;
        }
}

/* Copies a name. The end of a long name says more than its beginning. */
static void copy_name(char to[NN_NAME_MAX], const char *name)
{
    size_t length = strlen(name);
    if (length >= NN_NAME_MAX) name += length + 1 - NN_NAME_MAX;
    while ((*name & 0xc0) == 0x80) name++; /* the rest of a character of UTF-8 */
    snprintf(to, NN_NAME_MAX, "%s", name);
    text_printable(to, false);
}

/* Returns the index of the unit that the first `length` characters of a name begin, or NN_NONE if there are
 * none. */
static int unit_of(nn_model *m, const char *name, size_t length)
{
    char prefix[NN_NAME_MAX];
    if (length == 0) return NN_NONE;
    snprintf(prefix, sizeof prefix, "%.*s", (int)length, name);
    for (int u = 0; u < m->unit_count; u++)
        if (strcmp(m->units[u], prefix) == 0) return u;
    nn_unit(m, prefix);
    return m->unit_count - 1;
}

/* Adds the parameter. A parameter without a name is shown by its shape: "block0.p3 [64, 3, 7, 7]". */
static status add_parameter(workload *w, const entry *e, const torch_gradient *g, int block)
{
    char name[NN_NAME_MAX];
    size_t used = 0, unit = 0;
    if (e->name) {
        copy_name(name, e->name);
        unit = unit_prefix(name);
    } else {
        if (block >= 0) unit = used = (size_t)snprintf(name, sizeof name, "block%d.", block);
        used += (size_t)snprintf(name + used, sizeof name - used, "p%d", w->model->param_count);
        for (int i = 0; i < e->shape.rank && used < 72; i++)
            used += (size_t)snprintf(name + used, sizeof name - used, "%s%lld%s", i ? ", " : " [",
                                     (long long)e->shape.dims[i], i + 1 < e->shape.rank ? "" : "]");
    }
    int64_t bytes = g->event.elements * g->event.element_bytes;
    return workload_add_param(w, name, e->shape, bytes, unit_of(w->model, name, unit));
}

/* Adds the buffers that add_metadata_json() lists. */
static status add_buffers(const torch_trace *t, nn_model *m)
{
    const json_t *list = json_object_get(t->description, "buffers"), *row;
    size_t i;
    json_array_foreach(list, i, row)
    {
        const char *name = json_string_value(json_array_get(row, 0));
        const char *type = json_string_value(json_array_get(row, 2));
        json_int_t elements = json_integer_value(json_array_get(row, 1));
        if (elements == 0 && json_is_integer(json_array_get(row, 1))) continue;
        if (!name || !type || elements < 1 || elements > SHAPE_MOST_ELEMENTS >> 20 ||
            i >= TORCH_MOST_PARAMETERS)
            return fail(STATUS_DATA, "\"harness\": buffer %zu: expected [name, elements, type]", i);
        char copy[NN_NAME_MAX];
        copy_name(copy, name);
        nn_declare_buffer(m, copy, (torch_type_bytes(type) * elements + 3) / 4);
    }
    return STATUS_OK;
}

static status add_all(matching *m, workload *w, torch_names *names)
{
    int first, end, period;
    int64_t elements = 0;
    for (int i = 0; i < m->s->gradient_count; i++) {
        m->s->gradients[i].parameter = -1;
        int64_t after = is_earlier(m, &m->s->gradients[i]) ? INT64_C(1) << 62 : 0;
        TRY(torch_pairs_add(&m->uses, after | m->s->gradients[i].sequence, i));
    }
    torch_pairs_sort(&m->uses);
    TRY(read_names(m));
    TRY(add_buffers(m->t, w->model));
    match_names(m);
    bool complete = all_found(m);
    for (int i = 0; i < m->uses.count; i++) {
        torch_gradient *g = gradient_of(m, i);
        if (g->parameter >= 0) continue;
        names->left_out += complete || is_earlier(m, g);
        if (complete || is_earlier(m, g)) continue;
        g->parameter = m->count;
        m->entries[m->count] =
            (entry){.gradient = (int)m->uses.list[i].value, .shape = {1, {g->event.elements}}};
        if (g->event.shape >= 0) m->entries[m->count].shape = m->t->shapes[g->event.shape];
        m->count++;
    }
    find_blocks(m, &first, &end, &period);
    for (int i = 0; i < m->count; i++) {
        const entry *e = &m->entries[i];
        names->named += e->name && e->gradient >= 0;
        names->without_gradient += e->trained && e->gradient < 0;
        elements += shape_elements(e->shape);
        if (elements > SHAPE_MOST_ELEMENTS)
            return fail(STATUS_DATA, "expected at most 2^44 elements of parameters");
        if (e->gradient < 0) names->frozen_bytes += e->bytes * shape_elements(e->shape);
        if (e->gradient < 0) continue;
        torch_gradient *g = &m->s->gradients[e->gradient];
        g->parameter = w->model->param_count;
        bool within = period > 0 && i >= first && i < end - (end - first) % period;
        TRY(add_parameter(w, e, g, within ? (i - first) / period : -1));
    }
    return STATUS_OK;
}

status torch_add_parameters(const torch_trace *t, torch_step *s, workload *w, torch_names *names)
{
    *names = (torch_names){0};
    matching m = {.t = t, .s = s, .entries = calloc(2 * TORCH_MOST_PARAMETERS, sizeof(entry))};
    status rc = m.entries ? add_all(&m, w, names) : fail(STATUS_SYSTEM, "no memory for parameters");
    free(m.uses.list);
    free(m.entries);
    return rc;
}
