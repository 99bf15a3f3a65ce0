/* Times every operation in training steps of ResNet-50 and BERT-base with the GPU's clock. An efficiency is
 * the sum of the roofline times of a class, divided by the sum of the measured times. A class has two
 * efficiencies: one for operations limited by arithmetic, one for operations limited by memory. */
#include "harness/sim/calibrate_impl.h"

enum { WARM = 3, OF_PEAK = 0, OF_MEMORY = 1 };

static const calibration_workload on_gpu[] = {
    {{.name = "resnet50"}, 64}, {{.name = "bert_base", .head = MODEL_HEAD_CLS, .sequence = 128}, 16}};
/* Workloads that are small enough for the emulator. */
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

static status add_workload(device *d, device_stream *s, const calibration_workload *w,
                           const calibration_rates *rates, calibration_sums *out)
{
    calibration_run r;
    status rc = calibration_open(&r, d, s, w, DEVICE_MEMORY_PRIVATE, true);
    for (int i = -WARM; i < CALIBRATION_REPEATS && rc == STATUS_OK; i++)
        rc = calibration_step(&r, CALIBRATION_ALONE, i);
    if (rc == STATUS_OK) calibration_add_run(&r, rates, out);
    calibration_close(&r);
    return rc;
}

status calibrate_gpu_operations(device *d, device_stream *s, gpu_calibration *c)
{
    calibration_sums all = {0};
    calibration_rates rates = {c->peak_tflops, c->memory_gbs, c->kernel_us, c->emulated ? 0 : c->kernel_us};
    for (int i = 0; i < WORKLOADS; i++)
        TRY(add_workload(d, s, c->emulated ? &on_emulator[i] : &on_gpu[i], &rates, &all));
    for (int k = 0; k < SIM_EFFICIENCIES; k++) {
        double *e = c->efficiency[k];
        for (int side = 0; side < 2; side++)
            if (all.measured_s[k][side] > 0) e[side] = all.roofline_s[k][side] / all.measured_s[k][side];
        if (e[OF_PEAK] == 0) e[OF_PEAK] = e[OF_MEMORY]; /* No operation of the class had this limit. */
        if (e[OF_MEMORY] == 0) e[OF_MEMORY] = e[OF_PEAK];
    }
    return STATUS_OK;
}
