/* Training steps of a ResNet-18 and a small BERT on one rank, every operation timed. */
#include "common/base/clock.h"
#include "harness/sim/calibrate_impl.h"

#include <stdlib.h>

static const calibration_workload workloads[CALIBRATION_MODELS] = {
    {{.name = "resnet18", .image = 32, .classes = 10}, 32},
    {{.name = "bert", .head = MODEL_HEAD_CLS}, 8},
};

static int64_t *times_of(const calibration_run *r, calibration_setting setting, int op)
{
    return &r->times[((int64_t)op * CALIBRATION_SETTINGS + setting) * CALIBRATION_REPEATS];
}

static void after_op(void *context, const nn_op *op)
{
    calibration_run *r = context;
    int64_t now = clock_now_ns();
    if (r->repeat >= 0) times_of(r, r->setting, (int)(op - r->work.program->ops))[r->repeat] = now - r->since;
    r->since = clock_now_ns();
}

/* ---- life ------------------------------------------------------------------------------------- */

status calibration_model(int model, nn_model **out)
{
    return model_build(&workloads[model].model, out);
}

void calibration_close(calibration_run *r)
{
    optimizer_close(&r->optimizer);
    calibration_program_close(&r->work);
    device_stream_close(&r->stream);
    device_close(&r->device);
    free(r->times);
}

status calibration_open(calibration_run *r, int model, int threads)
{
    device_config device = {.name = "cpu", .world = 1, .threads = threads};
    *r = (calibration_run){.repeat = -1};
    TRY(device_open(&device, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    TRY(calibration_program_open(&r->work, r->device, r->stream, &workloads[model], DEVICE_MEMORY_SHARED));
    const param_set *set = r->work.params;
    optimizer_options options = optimizer_defaults(OPTIMIZER_SGD);
    TRY(optimizer_open(r->device, &options, set->type, set->arena_elements, set->model->parameter_elements, &r->ledger,
                       &r->optimizer));
    r->times = calloc((size_t)r->work.program->op_count * CALIBRATION_SETTINGS * CALIBRATION_REPEATS, sizeof *r->times);
    return r->times ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for times");
}

/* ---- steps ------------------------------------------------------------------------------------ */

static status update(calibration_run *r)
{
    param_set *set = r->work.params;
    piece_list all = param_set_pieces(set, 0, set->model->param_count);
    int64_t begin = clock_now_ns();
    TRY(optimizer_update(r->optimizer, r->stream, set->params.data, set->grads.data, all, 0, 0.0, 1.0));
    if (r->repeat >= 0) r->updates[r->setting][r->repeat] = clock_now_ns() - begin;
    return STATUS_OK;
}

status calibration_step(calibration_run *r, calibration_setting setting, int repeat)
{
    r->setting = setting;
    r->repeat = repeat;
    r->since = clock_now_ns();
    TRY(calibration_program_run(&r->work, after_op, r, &r->ledger));
    return update(r);
}

double calibration_op_ns(calibration_run *r, calibration_setting setting, int op)
{
    return calibration_median(times_of(r, setting, op), CALIBRATION_REPEATS);
}

double calibration_update_ns(calibration_run *r, calibration_setting setting)
{
    return calibration_median(r->updates[setting], CALIBRATION_REPEATS);
}
