/* Times every operation in training steps of ResNet-50 and BERT-base with the GPU's clock. An efficiency
 * is the sum of the roofline times of a class over the sum of the measured times. A class has two
 * efficiencies: one for operations limited by arithmetic, one for operations limited by memory. */
#include "common/optim/optimizer.h"
#include "harness/sim/calibrate_gpu.h"

#include <stdlib.h>

enum { REPEATS = 7, WARM = 3, FIRST_MARK = 16, OF_PEAK = 0, OF_MEMORY = 1 };

static const calibration_workload on_gpu[] = {
    {{.name = "resnet50"}, 64}, {{.name = "bert_base", .head = MODEL_HEAD_CLS, .sequence = 128}, 16}};
/* Small enough for the emulator. */
static const calibration_workload on_emulator[] = {{{.name = "lenet"}, 2},
                                                   {{.name = "bert",
                                                     .head = MODEL_HEAD_CLS,
                                                     .layers = 1,
                                                     .hidden = 32,
                                                     .heads = 2,
                                                     .vocabulary = 64,
                                                     .sequence = 8},
                                                    2}};
enum { WORKLOADS = sizeof on_gpu / sizeof on_gpu[0] };

typedef struct run {
    calibration_program work;
    int64_t *times; /* [op_count][REPEATS] ns */
} run;

/* ---- open and close -------------------------------------------------------------------------------------
 */

static void close_run(run *r)
{
    calibration_program_close(&r->work);
    free(r->times);
}

static status open_run(run *r, device *d, device_stream *s, const calibration_workload *w)
{
    *r = (run){0};
    TRY(calibration_program_open(&r->work, d, s, w, DEVICE_MEMORY_PRIVATE));
    int count = r->work.program->op_count;
    if (count + FIRST_MARK >= DEVICE_MARKS)
        return fail(STATUS_INTERNAL, "%s has %d operations, more than there are marks", r->work.model->name,
                    count);
    r->times = calloc((size_t)count * REPEATS, sizeof *r->times);
    return r->times ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for times");
}

/* ---- steps ------------------------------------------------------------------------------------ */

static void mark_op(void *context, const nn_op *op)
{
    const calibration_program *p = context;
    device_mark(p->stream, FIRST_MARK + 1 + (int)(op - p->program->ops));
}

/* Runs a step. `repeat` is -1 in steps that do not count. */
static status run_step(run *r, int repeat)
{
    calibration_program *p = &r->work;
    ledger l = {0};
    TRY(device_mark(p->stream, 0));
    TRY(device_mark(p->stream, FIRST_MARK));
    TRY(calibration_program_run(p, mark_op, p, &l));
    TRY(device_stream_synchronize(p->stream));
    for (int i = 0; i < p->program->op_count && repeat >= 0; i++)
        r->times[(int64_t)i * REPEATS + repeat] =
            device_mark_ns(p->stream, FIRST_MARK + 1 + i) - device_mark_ns(p->stream, FIRST_MARK + i);
    return STATUS_OK;
}

static void add_op(const gpu_calibration *c, const op_desc *op, int64_t *times, calibration_sums *out)
{
    calibration_add_op(op, calibration_median(times, REPEATS) * 1e-9, c->peak_tflops, c->memory_gbs,
                       c->kernel_us, c->emulated ? 0 : c->kernel_us, out);
}

static status add_update(calibration_program *p, const gpu_calibration *c, optimizer_kind kind,
                         calibration_sums *out)
{
    optimizer_options options = optimizer_defaults(kind);
    const param_set *set = p->params;
    int64_t logical = set->model->parameter_elements, times[REPEATS];
    ledger l = {0};
    optimizer *o = NULL;
    TRY(optimizer_open(p->device, &options, set->type, set->arena_elements, logical, &l, &o));
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    status rc = STATUS_OK;
    for (int i = -1; i < REPEATS && rc == STATUS_OK; i++) {
        rc = device_mark(p->stream, FIRST_MARK);
        if (rc == STATUS_OK)
            rc = optimizer_update(o, p->stream, set->params.data, set->grads.data, all, i + 1, 0.0, 1.0);
        if (rc == STATUS_OK) rc = device_mark(p->stream, FIRST_MARK + 1);
        if (rc == STATUS_OK) rc = device_stream_synchronize(p->stream);
        if (i >= 0)
            times[i] = device_mark_ns(p->stream, FIRST_MARK + 1) - device_mark_ns(p->stream, FIRST_MARK);
    }
    op_desc update = {.kind = kind == OPTIMIZER_SGD ? OP_sgd : OP_adam,
                      .type = DTYPE_F32,
                      .u.optimizer = {.count = logical}};
    if (rc == STATUS_OK) add_op(c, &update, times, out);
    optimizer_close(&o);
    return rc;
}

static status add_workload(device *d, device_stream *s, const calibration_workload *w,
                           const gpu_calibration *c, calibration_sums *out)
{
    run r;
    status rc = open_run(&r, d, s, w);
    const nn_program *program = r.work.program;
    for (int i = -WARM; i < REPEATS && rc == STATUS_OK; i++) rc = run_step(&r, i < 0 ? -1 : i);
    for (int i = 0; rc == STATUS_OK && i < program->op_count; i++)
        add_op(c, &program->ops[i].desc, &r.times[(int64_t)i * REPEATS], out);
    if (rc == STATUS_OK) rc = add_update(&r.work, c, OPTIMIZER_SGD, out);
    if (rc == STATUS_OK) rc = add_update(&r.work, c, OPTIMIZER_ADAM, out);
    close_run(&r);
    return rc;
}

status calibrate_gpu_operations(device *d, device_stream *s, gpu_calibration *c)
{
    calibration_sums all = {0};
    for (int i = 0; i < WORKLOADS; i++)
        TRY(add_workload(d, s, c->emulated ? &on_emulator[i] : &on_gpu[i], c, &all));
    for (int k = 0; k < SIM_EFFICIENCIES; k++) {
        double *e = c->efficiency[k];
        for (int side = 0; side < 2; side++)
            if (all.measured_s[k][side] > 0) e[side] = all.roofline_s[k][side] / all.measured_s[k][side];
        if (e[OF_PEAK] == 0) e[OF_PEAK] = e[OF_MEMORY]; /* No operation of the class had this limit. */
        if (e[OF_MEMORY] == 0) e[OF_MEMORY] = e[OF_PEAK];
    }
    return STATUS_OK;
}
