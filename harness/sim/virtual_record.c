/* --workload-out: the times and the memory of a step of one GPU, as a workload. A virtual job of one GPU runs
 * the model, and its compute stream says when each operation ran. */
#include "harness/sim/virtual_job_impl.h"

#include "common/device/sim/device_sim.h"
#include "common/nn/program.h"
#include "harness/result/output.h"
#include "harness/workload/workload_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A kernel of the compute stream. Times in ns. */
typedef struct kernel_use {
    const char *what;
    int64_t begin, end;
} kernel_use;

/* The kernels of a job, and the workload that is made from a step. */
typedef struct recording_job {
    kernel_use *kernels; /* [count] */
    int64_t count, capacity;
    int64_t begin_ns, end_ns; /* the first measured step, which is recorded */
    workload out;
    bool out_of_memory;
} recording_job;

static void on_kernel(void *context, const char *what, int64_t begin_ns, int64_t end_ns)
{
    recording_job *r = context;
    if (r->end_ns > 0) return;
    if (r->count == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 1024;
        kernel_use *more = realloc(r->kernels, (size_t)capacity * sizeof *more);
        r->out_of_memory = r->out_of_memory || !more;
        if (!more) return;
        r->kernels = more;
        r->capacity = capacity;
    }
    r->kernels[r->count++] = (kernel_use){what, begin_ns, end_ns};
}

static void on_step(void *context, const step_result *s)
{
    recording_job *r = context;
    if (r->end_ns > 0) return; /* the last step loads no batch ahead */
    r->begin_ns = s->begin_ns;
    r->end_ns = s->end_ns;
}

/* Returns the index of the kernel of the program's first operation in the recorded step, or -1. The kernels
 * of a program are one sequence of the stream. */
static int64_t find_program(const recording_job *r, const nn_program *p)
{
    for (int64_t at = r->count - p->op_count; at >= 0; at--) {
        int op = 0;
        while (op < p->op_count && strcmp(r->kernels[at + op].what, op_name(p->ops[op].desc.kind)) == 0) op++;
        if (op == p->op_count) return at;
    }
    return -1;
}

/* Returns true if a new segment begins with the operation. */
static bool cuts(const nn_program *p, int op)
{
    const nn_op *before = &p->ops[op - 1];
    return op == p->forward_end || op == p->loss_end || p->ops[op].need_count > 0 ||
           before->ready_count > 0 || before->release_count > 0;
}

/* Adds the indices that the list does not contain yet. */
static void add_indices(int *list, int *count, const int *from, int added)
{
    for (int i = 0; i < added; i++) {
        int at = 0;
        while (at < *count && list[at] != from[i]) at++;
        list[at] = from[i];
        *count += at == *count;
    }
}

typedef struct segments {
    nn_segment *now;
    double arithmetic, traffic; /* sums over the kernels' time */
    int64_t live;
} segments;

static void end_segment(segments *s)
{
    if (!s->now) return;
    double ns = fmax(1, (double)s->now->kernel_ns);
    s->now->arithmetic = (float)fmin(1, s->arithmetic / ns);
    s->now->traffic = (float)fmin(1, s->traffic / ns);
    s->now->live_bytes = s->live;
    s->arithmetic = s->traffic = 0;
}

/* Adds an operation to the segment. `before` is the end of the previous operation. */
static void add_op(segments *s, const nn_program *p, int op, const kernel_use *k, int64_t before,
                   sim_parts parts)
{
    const nn_op *o = &p->ops[op];
    nn_segment *now = s->now;
    now->kernel_ns += k->end - k->begin;
    now->idle_ns += k->begin - before;
    s->arithmetic += parts.arithmetic * (double)(k->end - k->begin);
    s->traffic += parts.traffic * (double)(k->end - k->begin);
    for (int v = 0; v < o->live_count; v++) s->live += p->values[p->births[o->live_first + v]].bytes;
    if (s->live > now->peak_bytes) now->peak_bytes = s->live;
    for (int v = 0; v < o->dead_count; v++) s->live -= p->values[p->deaths[o->dead_first + v]].bytes;
    add_indices(now->uses, &now->use_count, p->needs + o->need_first, o->need_count);
    add_indices(now->uses, &now->use_count, p->releases + o->release_first, o->release_count);
    add_indices(now->ready, &now->ready_count, p->ready_order + o->ready_first, o->ready_count);
}

static status make_segments(const recording_job *job, const nn_program *p, const simulation *machines,
                            int64_t first, workload *w)
{
    segments s = {0};
    nn_recording *r = w->model->recording;
    int64_t before = job->kernels[first].begin;
    for (int op = 0; op < p->op_count; op++) {
        if (op == 0 || cuts(p, op)) {
            end_segment(&s);
            int64_t peak = s.live;
            s.now = workload_add_segment(w, p->model->param_count, p->model->param_count);
            if (!s.now) return fail(STATUS_SYSTEM, "no memory for a workload");
            s.now->peak_bytes = peak;
            if (op == p->forward_end) r->forward_count = r->segment_count - 1;
            if (op == p->loss_end) r->loss_count = r->segment_count - 1 - r->forward_count;
        }
        const kernel_use *k = &job->kernels[first + op];
        add_op(&s, p, op, k, before,
               sim_price_parts(machines->profile, machines->config.precision, &p->ops[op].desc));
        before = k->end;
    }
    end_segment(&s);
    return STATUS_OK;
}

static bool is_update(const char *kernel)
{
    return strcmp(kernel, op_name(OP_sgd)) == 0 || strcmp(kernel, op_name(OP_adam)) == 0;
}

/* Copies the parameters, units and buffers. */
static status copy_model(const nn_model *m, workload *w)
{
    for (int u = 0; u < m->unit_count; u++) nn_unit(w->model, m->units[u]);
    for (const nn_param *p = m->params; p < m->params + m->param_count; p++)
        TRY(workload_add_param(w, p->name, p->shape, p->elements * (int64_t)sizeof(float), p->unit));
    for (int i = 0; i < m->buffer_count; i++)
        nn_declare_buffer(w->model, m->buffers[i].name, m->buffers[i].elements);
    return STATUS_OK;
}

static void set_parts(const recording_job *r, const nn_program *p, int64_t first, workload *w)
{
    const kernel_use *k = r->kernels + first, *end = r->kernels + r->count;
    int64_t *part = w->part_ns, sum = 0;
    for (int i = 0; i < w->model->recording->segment_count; i++) {
        const nn_segment *s = &w->model->recording->segments[i];
        int pass = i < w->model->recording->forward_count + w->model->recording->loss_count
                       ? WORKLOAD_FORWARD
                       : WORKLOAD_BACKWARD;
        part[pass] += s->kernel_ns + s->idle_ns;
        w->part_idle_ns[pass] += s->idle_ns;
    }
    for (k += p->op_count; k < end; k++)
        if (is_update(k->what)) part[WORKLOAD_OPTIMIZER] += k->end - k->begin;
    for (int i = 0; i < WORKLOAD_PARTS; i++) sum += part[i];
    part[WORKLOAD_OTHER] = part[WORKLOAD_OTHER] + r->end_ns - r->begin_ns - sum;
}

/* Makes the workload when rank 0 has taken its last step. */
static status on_end(void *context, trainer *t)
{
    recording_job *r = context;
    const nn_program *p = trainer_program(t);
    const nn_model *m = p->model;
    workload *w = &r->out;
    int64_t first = find_program(r, p);
    if (r->out_of_memory) return fail(STATUS_SYSTEM, "no memory for a workload");
    if (first < 0) return fail(STATUS_INTERNAL, "the compute stream did not run the program of %s", m->name);
    const optimizer_options *o = optimizer_get_options(trainer_optimizer(t));
    TRY(workload_begin(w, m->name, p->config.batch, p->op_count));
    TRY(copy_model(m, w));
    TRY(make_segments(r, p, sim_device_simulation(trainer_device(t)), first, w));
    w->input_elements = shape_elements(m->layers[0].sample);
    w->rows = m->rows_per_sample;
    w->classes = m->classes;
    w->peak_bytes = trainer_ledger(t)->total.peak;
    w->state_count = optimizer_state_count(o);
    snprintf(w->optimizer, sizeof w->optimizer, "%s", optimizer_names[o->kind]);
    snprintf(w->gradient_type, sizeof w->gradient_type, "%s", dtype_name(DTYPE_F32));
    set_parts(r, p, first, w);
    return STATUS_OK;
}

status virtual_record(const run_config *c, const run_plan *plan, const char *path)
{
    recording_job r = {0};
    run_job job = {0};
    const virtual_variant records = {.step = on_step, .kernel = on_kernel, .ended = on_end, .context = &r};
    const virtual_job_config one = {.run = c,
                                    .plan = plan,
                                    .engine = ENGINE_NONE,
                                    .profile = run_config_profile(c),
                                    .variant = &records,
                                    .warmup = 2,
                                    .steps = 2};
    if (run_config_precision(c) == DEVICE_PRECISION_BF16 || c->run.accumulate > 1 || c->run.stages > 1)
        return fail(STATUS_USAGE,
                    "--workload-out: expected a run without --bf16, --fp16, --accumulate and --stages");
    status rc = virtual_job_run(&one, &job, NULL, 0);
    if (rc == STATUS_OK) {
        r.out.source = json_pack("{s:s, s:s}", "kind", "run", "device", c->run.device);
        TRY_GOTO(rc, workload_finish(&r.out), out);
        TRY_GOTO(rc, workload_check(&r.out, "--workload-out"), out);
        rc = output_json(workload_to_json(&r.out), path);
    }
out:
    json_decref(job.result);
    free(job.trace);
    free(r.kernels);
    workload_free(&r.out);
    return rc;
}
