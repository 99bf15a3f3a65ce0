/* Times operations in training steps and fits the efficiency of each class against a roofline. */
#include "common/sim/price.h"
#include "harness/report/significance.h"
#include "harness/sim/calibrate_impl.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { WARM = 3, FIRST_MARK = 16 };
#define SHORTEST_S 50e-6

static void take_peak(calibration_run *r, calibration *c)
{
    for (int i = 0; i < r->program->op_count; i++) {
        double s = calibration_op_ns(r, CALIBRATION_ALONE, i) * 1e-9;
        op_cost cost = op_cost_of(&r->program->ops[i].desc);
        double tflops = cost.flops / s * 1e-12, gbs = (cost.bytes_read + cost.bytes_written) / s * 1e-9;
        bool long_enough = s > SHORTEST_S;
        sim_constant efficiency = sim_efficiency_of(&r->program->ops[i].desc);
        bool counts = efficiency != SIM_CONVOLUTION_3X3_FORWARD && efficiency != SIM_CONVOLUTION_3X3_BACKWARD;
        if (long_enough && counts && tflops > c->peak_tflops) c->peak_tflops = tflops;
        if (long_enough && gbs > c->memory_gbs) c->memory_gbs = gbs;
        if (c->launch_us == 0 || s * 1e6 < c->launch_us) c->launch_us = s * 1e6;
    }
}

void calibration_add_op(const op_desc *op, double s, const calibration_rates *rates, calibration_sums *sums)
{
    op_cost cost = op_cost_of(op);
    int class = (int)sim_efficiency_of(op) - SIM_CONVOLUTION_FORWARD;
    double arithmetic = cost.flops / (rates->peak_tflops * 1e12);
    double traffic = (cost.bytes_read + cost.bytes_written) / (rates->memory_gbs * 1e9);
    int side = arithmetic > traffic ? 0 : 1;
    if (fmax(arithmetic, traffic) < rates->least_us * 1e-6) return;
    double net = s - rates->launch_us * 1e-6;
    sums->measured_s[class][side] += net > 0 ? net : 0;
    sums->roofline_s[class][side] += side == 0 ? arithmetic : traffic;
    sums->traffic_s[class] += traffic;
    sums->weight_bytes[class] += sim_weight_bytes(op);
}

void calibration_add_run(calibration_run *r, const calibration_rates *rates, calibration_sums *sums)
{
    static const op_kind kinds[] = {OP_sgd, OP_adam};
    int count = r->program->op_count;
    for (int i = 0; i < count; i++)
        calibration_add_op(&r->program->ops[i].desc, calibration_op_ns(r, CALIBRATION_ALONE, i) * 1e-9, rates,
                           sums);
    for (int k = 0; k < 2 && r->optimizers[k]; k++) {
        op_desc update = {
            .kind = kinds[k], .type = DTYPE_F32, .u.optimizer = {.count = r->model->parameter_elements}};
        calibration_add_op(&update, calibration_op_ns(r, CALIBRATION_ALONE, count + k) * 1e-9, rates, sums);
    }
}

/* Sums over the operations of one class of convolutions, forward or backward, except 3 x 3 convolutions. The
 * time to compute a convolution grows with the batch, and the growth of this time gives the efficiency. The
 * time to read the weights is the same for any batch. Convolutions of 3 x 3 are not fitted: the smallest
 * images of the calibration's ResNet are mostly padding, so their times do not hold for larger images. */
typedef struct class_fit {
    double measured_s, roofline_s, weight_bytes, fixed_s;
} class_fit;

static class_fit fit(const calibration_sums sums[2], int class)
{
    double s[2], roofline[2];
    class_fit out = {0};
    for (int i = 0; i < 2; i++) {
        s[i] = sums[i].measured_s[class][0] + sums[i].measured_s[class][1];
        roofline[i] = sums[i].roofline_s[class][0] + sums[i].roofline_s[class][1];
        out.measured_s += s[i];
        out.roofline_s += roofline[i];
        out.weight_bytes += sums[i].weight_bytes[class];
    }
    if (roofline[0] > roofline[1])
        out.fixed_s = out.measured_s - out.roofline_s * (s[0] - s[1]) / (roofline[0] - roofline[1]);
    return out;
}

static void take_weights(const calibration_sums sums[2], calibration *c)
{
    static const int classes[] = {0, SIM_CONVOLUTION_BACKWARD - SIM_CONVOLUTION_FORWARD};
    double fixed_s = 0, bytes = 0;
    class_fit fits[2];
    for (int i = 0; i < 2; i++) {
        fits[i] = fit(sums, classes[i]);
        fixed_s += fits[i].fixed_s;
        bytes += fits[i].weight_bytes;
    }
    if (fixed_s <= 0 || bytes <= 0) return;
    c->weight_gbs = bytes / fixed_s * 1e-9;
    for (int i = 0; i < 2; i++) {
        double left = fits[i].measured_s - fits[i].weight_bytes * fixed_s / bytes,
               *e = c->efficiency[classes[i]];
        if (left > 0) e[0] = e[1] = fits[i].roofline_s / left;
    }
}

/* Sets the memory efficiency of GEMMs from GEMMs with few rows, whose time is the time to read the
 * weights. */
static void take_products(const calibration_sums *few_rows, calibration *c)
{
    for (int k = SIM_GEMM_FORWARD - SIM_CONVOLUTION_FORWARD; k <= SIM_GEMM_BACKWARD - SIM_CONVOLUTION_FORWARD;
         k++) {
        double measured_s = few_rows->measured_s[k][0] + few_rows->measured_s[k][1];
        if (measured_s > 0) c->efficiency[k][1] = few_rows->traffic_s[k] / measured_s;
    }
}

/* Runs the workloads alternately, so that a change of the processor's clock affects all of them. */
static status run_steps(calibration_run runs[CALIBRATION_WORKLOADS])
{
    for (int begin = 0; begin < CALIBRATION_REPEATS; begin += CALIBRATION_BLOCK)
        for (int m = 0; m < CALIBRATION_WORKLOADS; m++)
            for (int i = -WARM; i < CALIBRATION_BLOCK; i++)
                TRY(calibration_step(&runs[m], CALIBRATION_ALONE, i < 0 ? i : begin + i));
    return STATUS_OK;
}

status calibrate_operations(calibration *c)
{
    calibration_run runs[CALIBRATION_WORKLOADS] = {0};
    calibration_sums sums[2] = {0}; /* Large batch, small batch. */
    status rc = STATUS_OK;
    for (int i = 0; i < CALIBRATION_WORKLOADS && rc == STATUS_OK; i++)
        rc = calibration_open_cpu(&runs[i], &calibration_workloads[i], c->threads);
    if (rc == STATUS_OK) rc = run_steps(runs);
    for (int i = 0; i < CALIBRATION_WORKLOADS && rc == STATUS_OK; i++) take_peak(&runs[i], c);
    calibration_rates rates = {c->peak_tflops, c->memory_gbs, c->launch_us, 0};
    for (int i = 0; i < CALIBRATION_WORKLOADS && rc == STATUS_OK; i++)
        calibration_add_run(&runs[i], &rates, &sums[i / CALIBRATION_MODELS]);
    for (int k = 0; k < SIM_EFFICIENCIES && rc == STATUS_OK; k++) {
        double measured = sums[0].measured_s[k][0] + sums[0].measured_s[k][1];
        double roofline = sums[0].roofline_s[k][0] + sums[0].roofline_s[k][1];
        if (measured > 0) c->efficiency[k][0] = c->efficiency[k][1] = roofline / measured;
    }
    if (rc == STATUS_OK) take_weights(sums, c);
    if (rc == STATUS_OK) take_products(&sums[1], c);
    for (int i = 0; i < CALIBRATION_WORKLOADS; i++) calibration_close_cpu(&runs[i]);
    return rc;
}

/* ---- Training steps of a ResNet-18 and a small BERT on one rank, every operation timed ---- */

const calibration_workload calibration_workloads[CALIBRATION_WORKLOADS] = {
    {{.name = "resnet18", .image = 32, .classes = 10}, 32},
    {{.name = "bert", .head = MODEL_HEAD_MLM}, 8}, /* The loss has a class per word. */
    {{.name = "resnet18", .image = 32, .classes = 10}, 8},
    {{.name = "bert",
      .head = MODEL_HEAD_CLS,
      .layers = 2,
      .hidden = 1024,
      .heads = 16,
      .vocabulary = 1024,
      .sequence = 8},
     1},
};

static double *times_of(const calibration_run *r, calibration_setting setting, int op)
{
    return &r->times[((int64_t)op * CALIBRATION_SETTINGS + setting) * CALIBRATION_REPEATS];
}

/* ---- open and close --------------------------------------------------------------------------- */

static status open_memory(calibration_run *r, int64_t batch)
{
    const nn_model *m = r->model;
    device *d = r->device;
    nn_memory *memory = &r->memory;
    memory->activation_bytes = r->program->activation_bytes;
    memory->workspace_bytes = (int64_t)nn_instance_workspace(r->instance);
    size_t input = (size_t)(batch * shape_elements(m->layers[0].sample)) * sizeof(float);
    size_t target = (size_t)(batch * m->rows_per_sample) * sizeof(int32_t);
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->activation_bytes, &memory->activations));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)memory->workspace_bytes, &memory->workspace));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, 2 * sizeof(double), &memory->loss));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, input, &r->input));
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, target, &r->target));
    nn_bindings bindings = {.memory = memory, .input = r->input.data, .target = r->target.data};
    return nn_instance_bind(r->instance, &bindings);
}

status calibration_open(calibration_run *r, device *d, device_stream *s, const calibration_workload *w,
                        device_memory_kind kind, bool adam)
{
    static const optimizer_kind kinds[] = {OPTIMIZER_SGD, OPTIMIZER_ADAM};
    nn_program_config program = {.batch = w->batch, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    param_set_config params = {.param_kind = kind, .grad_kind = kind, .gradients = true};
    *r = (calibration_run){.device = d, .stream = s};
    TRY(model_build(&w->model, &r->model));
    TRY(nn_program_compile(r->model, &program, &r->program));
    TRY(param_set_open(d, r->model, r->program, &params, &r->params));
    TRY(param_set_initialize(r->params, s, 1));
    TRY(nn_instance_open(d, s, r->program, r->params, &r->instance));
    TRY(open_memory(r, w->batch));
    for (int k = 0; k <= adam; k++) {
        optimizer_options options = optimizer_defaults(kinds[k]);
        TRY(optimizer_open(d, &options, r->params->type, r->params->arena_elements,
                           r->model->parameter_elements, &r->ledger, &r->optimizers[k]));
    }
    int count = r->program->op_count;
    if (FIRST_MARK + count + 2 >= DEVICE_MARKS)
        return fail(STATUS_INTERNAL, "%s has %d operations, more than there are marks", r->model->name,
                    count);
    r->times = calloc((size_t)(count + 2) * CALIBRATION_SETTINGS * CALIBRATION_REPEATS, sizeof *r->times);
    return r->times ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for times");
}

void calibration_close(calibration_run *r)
{
    for (int k = 0; k < 2; k++) optimizer_close(&r->optimizers[k]);
    nn_instance_close(&r->instance);
    param_set_close(&r->params);
    nn_program_free(&r->program);
    nn_model_free(&r->model);
    device_free(r->device, &r->memory.activations);
    device_free(r->device, &r->memory.workspace);
    device_free(r->device, &r->memory.loss);
    device_free(r->device, &r->input);
    device_free(r->device, &r->target);
    free(r->times);
}

status calibration_open_cpu(calibration_run *r, const calibration_workload *w, int threads)
{
    device_config config = {.name = "cpu", .world = 1, .threads = threads};
    *r = (calibration_run){0};
    TRY(device_open(&config, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    return calibration_open(r, r->device, r->stream, w, DEVICE_MEMORY_SHARED, false);
}

void calibration_close_cpu(calibration_run *r)
{
    calibration_close(r);
    device_stream_close(&r->stream);
    device_close(&r->device);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static void mark_op(void *context, const nn_op *op)
{
    const calibration_run *r = context;
    device_mark(r->stream, FIRST_MARK + 1 + (int)(op - r->program->ops));
}

status calibration_step(calibration_run *r, calibration_setting setting, int repeat)
{
    nn_observer observer = {.context = r, .after_op = mark_op};
    op_scalars scalars = {.loss_normalizer = 1};
    param_set *set = r->params;
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    int count = r->program->op_count;
    TRY(device_mark(r->stream, 0));
    TRY(device_mark(r->stream, FIRST_MARK));
    TRY(nn_run(r->instance, NN_FORWARD, NN_BACKWARD, &observer, &scalars, &r->ledger));
    for (int k = 0; k < 2 && r->optimizers[k]; k++, count++) {
        TRY(optimizer_update(r->optimizers[k], r->stream, set->params.data, set->grads.data, all, 0, 0.0,
                             1.0));
        TRY(device_mark(r->stream, FIRST_MARK + 1 + count));
    }
    TRY(device_stream_synchronize(r->stream));
    for (int i = 0; i < count && repeat >= 0; i++)
        times_of(r, setting, i)[repeat] = (double)(device_mark_ns(r->stream, FIRST_MARK + 1 + i) -
                                                   device_mark_ns(r->stream, FIRST_MARK + i));
    return STATUS_OK;
}

double calibration_op_ns(calibration_run *r, calibration_setting setting, int op)
{
    return median_of(times_of(r, setting, op), CALIBRATION_REPEATS);
}
