/* Operations within training steps against a roofline: what each class of them gets of the machine. */
#include "common/sim/price.h"
#include "harness/sim/calibrate_impl.h"

#include <stdbool.h>

enum { WARM = 3 };
#define SHORTEST_S 50e-6

/* What is added up over the operations of a class: measured time, and what a roofline of efficiency 1 gives.
 */
typedef struct sums {
    double measured_s[CALIBRATED_CLASSES], roofline_s[CALIBRATED_CLASSES];
} sums;

static void take_peak(calibration_run *r, calibration *c)
{
    for (int i = 0; i < r->work.program->op_count; i++) {
        double s = calibration_op_ns(r, CALIBRATION_ALONE, i) * 1e-9;
        op_cost cost = op_cost_of(&r->work.program->ops[i].desc);
        double tflops = cost.flops / s * 1e-12, gbs = (cost.bytes_read + cost.bytes_written) / s * 1e-9;
        bool long_enough = s > SHORTEST_S; /* to be timed well */
        if (long_enough && tflops > c->peak_tflops) c->peak_tflops = tflops;
        if (long_enough && gbs > c->memory_gbs) c->memory_gbs = gbs;
        if (c->launch_us == 0 || s * 1e6 < c->launch_us) c->launch_us = s * 1e6;
    }
}

static void add_op(const calibration *c, const op_desc *op, double s, sums *out)
{
    op_cost cost = op_cost_of(op);
    int class = (int)sim_efficiency_of(op->kind) - SIM_CONVOLUTION_FORWARD;
    double arithmetic = cost.flops / (c->peak_tflops * 1e12);
    double traffic = (cost.bytes_read + cost.bytes_written) / (c->memory_gbs * 1e9);
    double net = s - c->launch_us * 1e-6;
    out->measured_s[class] += net > 0 ? net : 0;
    out->roofline_s[class] += arithmetic > traffic ? arithmetic : traffic;
}

static void add_run(calibration_run *r, const calibration *c, sums *out)
{
    int64_t logical = r->work.params->model->parameter_elements;
    op_desc update = {.kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = logical}};
    for (int i = 0; i < r->work.program->op_count; i++)
        add_op(c, &r->work.program->ops[i].desc, calibration_op_ns(r, CALIBRATION_ALONE, i) * 1e-9, out);
    add_op(c, &update, calibration_update_ns(r, CALIBRATION_ALONE) * 1e-9, out);
}

/* The models take turns, so that both meet what the processor's clock does meanwhile. */
static status run_steps(calibration_run runs[CALIBRATION_MODELS])
{
    for (int begin = 0; begin < CALIBRATION_REPEATS; begin += CALIBRATION_BLOCK)
        for (int m = 0; m < CALIBRATION_MODELS; m++) {
            for (int i = -WARM; i < 0; i++) TRY(calibration_step(&runs[m], CALIBRATION_ALONE, i));
            for (int i = begin; i < begin + CALIBRATION_BLOCK; i++) TRY(calibration_step(&runs[m], CALIBRATION_ALONE, i));
        }
    return STATUS_OK;
}

status calibrate_operations(calibration *c)
{
    calibration_run runs[CALIBRATION_MODELS];
    sums all = {{0}, {0}};
    status rc = STATUS_OK;
    int opened = 0;
    for (; opened < CALIBRATION_MODELS && rc == STATUS_OK; opened++)
        rc = calibration_open(&runs[opened], opened, c->threads);
    if (rc == STATUS_OK) rc = run_steps(runs);
    for (int i = 0; i < CALIBRATION_MODELS && rc == STATUS_OK; i++) take_peak(&runs[i], c);
    for (int i = 0; i < CALIBRATION_MODELS && rc == STATUS_OK; i++) add_run(&runs[i], c, &all);
    for (int k = 0; k < CALIBRATED_CLASSES && rc == STATUS_OK; k++)
        if (all.measured_s[k] > 0) c->efficiency[k] = all.roofline_s[k] / all.measured_s[k];
    for (int i = 0; i < opened; i++) calibration_close(&runs[i]);
    return rc;
}
