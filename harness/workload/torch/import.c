#include "harness/workload/torch/trace.h"
#include "harness/workload/workload_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct importer {
    torch_job job;
    torch_recording *rec; /* of the lowest rank */
    torch_names names;
    double scale;
    json_t *missing;
} importer;

static void add_missing(importer *m, bool missing, const char *text)
{
    if (missing) json_array_append_new(m->missing, json_string(text));
}

/* ---- segments ---------------------------------------------------------------------------------------- */

/* Makes a forward segment for each time in `uses`, which begins then, and a backward segment for each time in
 * `ready`, which ends then. The last backward segment contains the rest. Adds the begins to `cuts`. */
static status make_segments(importer *m, workload *w, torch_pairs *uses, torch_pairs *ready,
                            torch_pairs *cuts)
{
    nn_recording *r = w->model->recording;
    nn_segment *segment = NULL;
    for (int i = 0; i < m->rec->step->gradient_count; i++) {
        const torch_gradient *g = &m->rec->step->gradients[i];
        if (g->parameter < 0) continue;
        TRY(torch_pairs_add(uses, g->used_ns, g->parameter));
        TRY(torch_pairs_add(ready, g->event.end_ns, g->parameter));
    }
    torch_pairs_sort(uses);
    for (int i = 0; i < uses->count; i++) {
        int end = torch_count_until(uses->list, uses->count, sizeof(torch_pair), uses->list[i].key);
        if (i == 0 || uses->list[i].key > uses->list[i - 1].key) {
            TRY(torch_pairs_add(cuts, uses->list[i].key, 0));
            segment = workload_add_segment(w, end - i, 0);
        }
        if (!segment) return fail(STATUS_SYSTEM, "no memory for a segment");
        segment->uses[segment->use_count++] = (int)uses->list[i].value;
    }
    r->forward_count = r->segment_count;
    for (int i = 0; i <= ready->count; i++) {
        segment = workload_add_segment(w, 1, 1);
        if (!segment) return fail(STATUS_SYSTEM, "no memory for a segment");
        if (i == ready->count) break;
        segment->uses[segment->use_count++] = segment->ready[segment->ready_count++] =
            (int)ready->list[i].value;
    }
    for (int i = 0; i < m->rec->step->slice_count; i++) {
        const torch_slice *slice = &m->rec->step->slices[i];
        bool forward = slice->part == WORKLOAD_FORWARD;
        if (!forward && slice->part != WORKLOAD_BACKWARD) continue;
        const torch_pairs *list = forward ? cuts : ready;
        int index = torch_count_until(list->list, list->count, sizeof(torch_pair), slice->host_ns);
        segment = &r->segments[forward ? index - (index > 0) : r->forward_count + index];
        segment->kernel_ns += slice->kernel_ns;
        segment->idle_ns += slice->idle_ns;
        segment->arithmetic += (float)slice->matrix_ns;
    }
    segment = &r->segments[r->segment_count - 1];
    if (segment->kernel_ns > 0 || segment->idle_ns > 0) return STATUS_OK;
    free(segment->uses);
    free(segment->ready);
    r->segment_count--;
    return STATUS_OK;
}

/* Sets memory and kinds of work. Activations grow in the forward pass, and shrink in the backward pass, in
 * proportion to the kernels' time. Matrix multiplications are limited by arithmetic, and read and write
 * memory for a part of their time. */
static void finish_segments(importer *m, workload *w)
{
    nn_recording *r = w->model->recording;
    int64_t fixed = (2 + w->state_count) * 4 * w->model->parameter_elements + m->names.frozen_bytes, sum = 0;
    for (int i = 0; i < w->model->buffer_count; i++) fixed += 4 * w->model->buffers[i].elements;
    int64_t most = w->peak_bytes > fixed ? w->peak_bytes - fixed : 0, last = m->names.frozen_bytes;
    add_missing(m, w->peak_bytes > 0 && most == 0, "activations (the peak is below the parameters' memory)");
    for (int i = 0; i < r->segment_count; i++) {
        nn_segment *s = &r->segments[i];
        bool forward = i < r->forward_count;
        int64_t total = m->rec->kernel_ns[forward ? WORKLOAD_FORWARD : WORKLOAD_BACKWARD];
        if (i == r->forward_count) sum = 0;
        sum += s->kernel_ns;
        double done = total > 0 ? (double)sum / (double)total : 1;
        s->live_bytes = m->names.frozen_bytes + (int64_t)((forward ? done : 1 - done) * (double)most);
        s->peak_bytes = s->live_bytes > last ? s->live_bytes : last;
        last = s->live_bytes;
        s->arithmetic = s->kernel_ns > 0 ? fminf(s->arithmetic / (float)s->kernel_ns, 1) : 0;
        s->traffic = 1 - 0.6F * s->arithmetic;
    }
}

/* ---- description ------------------------------------------------------------------------------------- */

static void describe_job(importer *m, workload *w)
{
    static const char *const optimizers[][2] = {{"AdamW", "adamw"}, {"Adam", "adam"}, {"SGD", "sgd"}};
    const torch_gradient *g = m->rec->step->gradients;
    const json_t *d = m->rec->trace.description;
    const char *class = json_string_value(json_object_get(d, "optimizer"));
    const char *type = json_string_value(json_object_get(d, "gradient_type"));
    for (int i = 2; i >= 0; i--)
        if (strstr(class ? class : m->rec->trace.optimizer, optimizers[i][0])) {
            snprintf(w->optimizer, sizeof w->optimizer, "%s", optimizers[i][1]);
            w->state_count = i < 2 ? 2 : 1;
        }
    if (!type) type = g->event.element_bytes != 2 ? "float32" : g->event.half ? "float16" : "bfloat16";
    bool known = strcmp(type, "float16") == 0 || strcmp(type, "bfloat16") == 0;
    snprintf(w->gradient_type, sizeof w->gradient_type, "%s", known ? type : "float32");
    w->peak_bytes = (int64_t)torch_number(&m->rec->trace, "peak_bytes");
    bool unknown = false;
    for (int i = 0; i < m->rec->step->collective_count; i++)
        unknown |= m->rec->step->collectives[i].call.elements < 0;
    add_missing(m, g->event.shape < 0, "shapes of gradients (record_shapes=True)");
    add_missing(m, !m->rec->trace.has_gpu && strcmp(m->rec->trace.device, "CPU") != 0,
                "kernels (ProfilerActivity.CUDA)");
    add_missing(m, unknown, "elements of collectives (record_shapes=True)");
    add_missing(m, !d, "names, samples, peak memory and the step without profiler (add_metadata_json)");
    add_missing(m, d && torch_number(&m->rec->trace, "batch") == 0,
                "samples (a number as \"batch\" in add_metadata_json)");
    add_missing(m, d && w->peak_bytes == 0, "peak memory (\"peak_bytes\" in add_metadata_json)");
    add_missing(m, d && m->rec->measured_ns == 0,
                "the step without profiler (\"step_ms\" in add_metadata_json)");
    add_missing(m, m->rec->measured_ns > 0 && !m->rec->adjusted,
                "the profiler's time (\"step_ms\" is below the kernels')");
}

static json_t *describe_source(const importer *m, const char *const *paths, int count)
{
    json_t *files = json_array(), *times = json_array(), *collectives = json_array();
    for (int i = 0; i < count; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s", paths[i]);
        json_array_append_new(files, json_string(text_printable(path, false)));
    }
    for (int i = 0; i < m->rec->step_count; i++)
        json_array_append_new(times, json_integer(m->rec->steps[i].end_ns - m->rec->steps[i].begin_ns));
    for (int i = 0; i < m->rec->step->collective_count; i++) {
        const torch_collective *c = &m->rec->step->collectives[i];
        json_array_append_new(collectives, json_pack("{s:s, s:I, s:i, s:i, s:I, s:I}", "name",
                                                     torch_collective_names[c->call.collective], "elements",
                                                     (json_int_t)c->call.elements, "element_bytes",
                                                     (int)c->call.element_bytes, "ranks",
                                                     c->call.group > 0 ? c->call.group : m->rec->trace.world,
                                                     "ns", (json_int_t)(c->end_ns - c->begin_ns),
                                                     "transfer_ns", (json_int_t)torch_transfer(&m->job, i)));
    }
    int rank = (int)(m->rec - m->job.ranks);
    json_t *waiting = m->job.count > 1 ? json_integer(torch_waiting(&m->job, rank)) : json_null();
    return json_pack("{s:s, s:o, s:s, s:i, s:i, s:O, s:I, s:o, s:I, s:f, s:b, s:b, s:i, s:I, s:o, s:o}",
                     "kind", "trace", "files", files, "device", m->rec->trace.device, "ranks",
                     m->rec->trace.world, "rank", m->rec->trace.rank, "missing", m->missing, "step",
                     (json_int_t)m->rec->step->number, "step_times_ns", times, "recorded_step_ns",
                     (json_int_t)m->rec->recorded_ns, "scale", m->scale, "profiler_removed", m->rec->adjusted,
                     "compiled", m->rec->trace.compiled, "micro_batches", m->rec->step->micro_batches,
                     "recomputed_ns", (json_int_t)m->rec->step->recomputed_ns, "waiting_ns", waiting,
                     "collectives", collectives);
}

/* ---- report ------------------------------------------------------------------------------------------ */

static void report(const importer *m, const workload *w, text_buffer *out)
{
    const torch_step *s = m->rec->step;
    torch_report_step(m->rec, out);
    if (m->scale != 1) text_append(out, "the times of kernels are multiplied by %g\n", m->scale);
    if (m->rec->trace.compiled)
        text_append(out, "compiled model: gradients are ready when their graph ends\n");
    if (s->passes.count > 1)
        text_append(out, "%d backward passes, of which all but the last count as forward\n", s->passes.count);
    torch_report_parts(m->rec, out);
    text_append(out, "\n  %-16s %d of %d, %lld elements, %d with names\n",
                s->gradients->event.shape < 0 ? "reductions" : "gradients", w->model->param_count,
                s->accumulations, (long long)w->model->parameter_elements, m->names.named);
    text_append(out, "  %-16s %d\n", "units", w->model->unit_count);
    if (m->names.without_gradient > 0)
        text_append(out, "  %-16s %d\n", "without gradient", m->names.without_gradient);
    if (m->names.left_out > 0)
        text_append(out, "  %-16s %d gradients of other tensors, or of a parameter again\n", "left out",
                    m->names.left_out);
    for (size_t i = 0; i < json_array_size(m->missing); i++)
        text_append(out, "%s%s", i ? "; " : "missing: ", json_string_value(json_array_get(m->missing, i)));
    text_append(out, "%s", json_array_size(m->missing) > 0 ? "\n" : "");
}

/* ---- import ------------------------------------------------------------------------------------------ */

static status make_workload(importer *m, workload *w)
{
    torch_step *s = m->rec->step;
    const char *slash = strrchr(m->rec->trace.name, '/'), *file = slash ? slash + 1 : m->rec->trace.name;
    char name[64];
    if (s->accumulations == 0)
        return fail(
            STATUS_DATA,
            "expected gradients of loss.backward() in ProfilerStep#%lld, got none; torch.autograd.grad() "
            "and torch.func.grad() are not supported",
            (long long)s->number);
    if (s->gradient_count == 0)
        return fail(STATUS_DATA,
                    "expected shapes of gradients or of reductions; record with record_shapes=True");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
    for (char *c = name; *c; c++)
        if (*c & 0x80) *c = '?';
    int64_t batch = (int64_t)fmax(torch_number(&m->rec->trace, "batch"), 1);
    TRY(workload_begin(w, text_printable(name, false), batch, 2 * s->gradient_count + 1));
    TRY(torch_add_parameters(&m->rec->trace, s, w, &m->names));
    for (int part = 0; part < WORKLOAD_PARTS; part++) {
        w->part_idle_ns[part] = m->rec->idle_ns[part];
        w->part_ns[part] = m->rec->kernel_ns[part] + m->rec->idle_ns[part];
    }
    torch_pairs uses = {0}, ready = {0}, cuts = {0};
    status rc = make_segments(m, w, &uses, &ready, &cuts);
    free(uses.list);
    free(ready.list);
    free(cuts.list);
    TRY(rc);
    describe_job(m, w);
    finish_segments(m, w);
    return STATUS_OK;
}

status torch_import(const char *const *paths, int count, double scale, workload *w, text_buffer *out)
{
    importer m = {.scale = scale, .missing = json_array()};
    *w = (workload){0};
    status rc = torch_job_open(paths, count, scale, &m.job);
    if (rc == STATUS_OK) {
        m.rec = m.job.ranks;
        for (int i = 1; i < count; i++)
            if (m.job.ranks[i].trace.rank < m.rec->trace.rank) m.rec = &m.job.ranks[i];
        rc = make_workload(&m, w);
        if (rc != STATUS_OK) error_context("%s", m.rec->trace.name);
    }
    if (rc == STATUS_OK) {
        w->source = describe_source(&m, paths, count);
        report(&m, w, out);
    }
    torch_job_close(&m.job);
    json_decref(m.missing);
    return rc;
}
