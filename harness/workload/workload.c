#include "harness/workload/workload_impl.h"

#include <stdlib.h>

const char *const workload_part_names[WORKLOAD_PARTS] = {"data",          "forward",   "backward",
                                                         "communication", "optimizer", "other"};

void workload_free(workload *w)
{
    nn_model_free(&w->model);
    json_decref(w->source);
    *w = (workload){0};
}

int64_t workload_step_ns(const workload *w)
{
    int64_t sum = 0;
    for (int p = 0; p < WORKLOAD_PARTS; p++) sum += w->part_ns[p];
    return sum;
}

/* ---- building --------------------------------------------------------------------------------- */

status workload_begin(workload *w, const char *name, int64_t batch, int segments)
{
    TRY(nn_model_create(name, &w->model));
    nn_recording *r = calloc(1, sizeof *r);
    w->model->recording = r;
    if (r) r->segments = calloc((size_t)segments + 1, sizeof *r->segments);
    if (!r || !r->segments) return fail(STATUS_SYSTEM, "no memory for a workload");
    r->batch = batch;
    w->input_elements = w->rows = w->classes = r->ranks = 1;
    return STATUS_OK;
}

status workload_add_param(workload *w, const char *name, shape s, int64_t bytes, int unit)
{
    nn_model *m = w->model;
    int index = nn_declare_param(m, name, s, nn_init_default());
    if (index == NN_NONE) return nn_model_finish(m, NN_NONE, NN_LOSS_CROSS_ENTROPY);
    nn_param *p = &m->params[index];
    m->parameter_elements -= p->elements;
    p->elements = (bytes + (int64_t)sizeof(float) - 1) / (int64_t)sizeof(float);
    m->parameter_elements += p->elements;
    p->unit = unit;
    return STATUS_OK;
}

nn_segment *workload_add_segment(workload *w, int uses, int ready)
{
    nn_recording *r = w->model->recording;
    nn_segment *s = &r->segments[r->segment_count];
    *s = (nn_segment){.uses = calloc((size_t)uses + 1, sizeof *s->uses),
                      .ready = calloc((size_t)ready + 1, sizeof *s->ready)};
    r->segment_count++;
    return s->uses && s->ready ? s : NULL;
}

status workload_finish(workload *w)
{
    nn_model *m = w->model;
    bool tokens = w->rows > 1 && w->rows == w->input_elements;
    nn_ref input = tokens ? nn_input_tokens(m, w->rows, 2) : nn_input_features(m, w->input_elements);
    if (input == NN_NONE) return nn_model_finish(m, input, NN_LOSS_CROSS_ENTROPY);
    m->output = input;
    m->loss = NN_LOSS_CROSS_ENTROPY;
    m->classes = w->classes;
    m->rows_per_sample = w->rows;
    return STATUS_OK;
}

/* ---- checks ----------------------------------------------------------------------------------- */

static status check_segments(const workload *w, const char *name, int64_t sums[2])
{
    const nn_recording *r = w->model->recording;
    int params = w->model->param_count;
    char *ready = calloc((size_t)params + 1, 1);
    if (!ready) return fail(STATUS_SYSTEM, "no memory for a workload");
    status rc = STATUS_OK;
    int64_t live = 0;
    int backward = r->forward_count + r->loss_count;
    for (int i = 0; i < r->segment_count && rc == STATUS_OK; i++) {
        const nn_segment *s = &r->segments[i];
        sums[i >= backward] += s->kernel_ns + s->idle_ns;
        if (s->peak_bytes < s->live_bytes || s->peak_bytes < live)
            rc = fail(STATUS_DATA,
                      "%s: segment %d: expected peak_bytes of at least those before and after, got %lld",
                      name, i, (long long)s->peak_bytes);
        live = s->live_bytes;
        for (int j = 0; j < s->ready_count && rc == STATUS_OK; j++) {
            if (i < backward)
                rc = fail(STATUS_DATA, "%s: segment %d: expected no gradient in the forward pass", name, i);
            else if (ready[s->ready[j]]++)
                rc = fail(STATUS_DATA, "%s: segment %d: parameter %d is ready for the second time", name, i,
                          s->ready[j]);
        }
    }
    free(ready);
    return rc;
}

status workload_check(const workload *w, const char *name)
{
    int64_t sums[2] = {0};
    const nn_recording *r = w->model->recording;
    if (w->model->param_count == 0) return fail(STATUS_DATA, "%s: expected parameters, got none", name);
    int backward = r->segment_count - r->forward_count - r->loss_count;
    if (r->forward_count == 0 || backward == 0)
        return fail(STATUS_DATA, "%s: expected segments of both passes, got %d and %d", name,
                    r->forward_count, backward);
    TRY(check_segments(w, name, sums));
    for (int pass = 0; pass < 2; pass++)
        if (sums[pass] != w->part_ns[WORKLOAD_FORWARD + pass])
            return fail(STATUS_DATA, "%s: expected segments of the %s pass that add up to %lld ns, got %lld",
                        name, workload_part_names[WORKLOAD_FORWARD + pass],
                        (long long)w->part_ns[WORKLOAD_FORWARD + pass], (long long)sums[pass]);
    return STATUS_OK;
}

/* ---- the job ---------------------------------------------------------------------------------- */

static void scale(workload *w, double efficiency)
{
    nn_recording *r = w->model->recording;
    w->part_ns[WORKLOAD_OPTIMIZER] = (int64_t)((double)w->part_ns[WORKLOAD_OPTIMIZER] / efficiency + 0.5);
    for (int i = 0; i < r->segment_count && efficiency != 1; i++)
        r->segments[i].kernel_ns = (int64_t)((double)r->segments[i].kernel_ns / efficiency + 0.5);
}

/* The wait for data and the rest of the step go to the first segment. */
static nn_model *take_model(workload *w)
{
    nn_model *m = w->model;
    m->recording->update_ns = w->part_ns[WORKLOAD_OPTIMIZER];
    /* If the size of a sample is known, the replay copies the batch itself. */
    if (w->input_elements == 1)
        m->recording->segments[0].idle_ns += w->part_ns[WORKLOAD_DATA] + w->part_ns[WORKLOAD_OTHER];
    w->model = NULL;
    return m;
}

status workload_replay(const char *spec, double efficiency, nn_model **out)
{
    workload w;
    status rc = workload_open(spec, &w);
    if (rc == STATUS_OK) {
        scale(&w, efficiency);
        *out = take_model(&w);
    }
    workload_free(&w);
    return rc;
}
