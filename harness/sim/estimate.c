/* Estimates how long a run on processors takes, before it begins. */
#include "harness/sim/estimate.h"

#include "common/base/clock.h"
#include "common/ops/op.h"
#include "harness/launch/processors.h"
#include "harness/sim/calibrate_impl.h"

#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A run that takes less than this time at 200 GFLOP/s per thread is not estimated. Training on a processor
 * reaches 30 to 150. */
static const double least_s = 10, most_flops = 200e9;

/* Limits of the number of samples of the measured step, and of its operations. BatchNorm needs two samples.
 */
enum { LEAST_SAMPLES = 2, MOST_SAMPLES = 8 };
static const double measured_flops = 50e9;

/* Returns the operations of a training step with one sample. The backward pass has twice as many as the
 * forward pass. Returns 0 if the model does not compile. */
static double flops_of_sample(const nn_model *model)
{
    nn_program *p = NULL;
    nn_program_config config = {.batch = LEAST_SAMPLES, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    double flops = 0;
    if (nn_program_compile(model, &config, &p) != STATUS_OK) error_clear();
    for (int i = 0; p && i < p->forward_end; i++) flops += op_cost_of(&p->ops[i].desc).flops;
    nn_program_free(&p);
    return 3 * flops / LEAST_SAMPLES;
}

/* Measures a training step with `batch` samples. Returns NaN if it cannot run. */
static double measure_step(const model_options *model, int64_t batch, int threads)
{
    calibration_workload w = {*model, batch};
    calibration_run r;
    int64_t begin_ns = 0;
    status rc = calibration_open_cpu(&r, &w, threads);
    for (int i = 0; i < 2 && rc == STATUS_OK; i++) { /* The first step is slow. */
        begin_ns = clock_now_ns();
        rc = calibration_step(&r, CALIBRATION_ALONE, -1);
    }
    return rc == STATUS_OK ? 1e-9 * (double)(clock_now_ns() - begin_ns) : NAN;
}

/* Measures in a separate process, since the launcher must not have threads. */
static double measure_apart(const model_options *model, int64_t batch, int threads)
{
    int ends[2];
    double seconds = NAN;
    if (pipe(ends) != 0) return NAN;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* The measurement ends with the launcher. */
        double measured = measure_step(model, batch, threads);
        _exit(write(ends[1], &measured, sizeof measured) != (ssize_t)sizeof measured);
    }
    close(ends[1]);
    if (child > 0 && read(ends[0], &seconds, sizeof seconds) != (ssize_t)sizeof seconds) seconds = NAN;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    return seconds;
}

/* Returns the options of the planned model, whose shapes may come from the data. */
static model_options planned_model(const run_config *c, const nn_model *model)
{
    model_options m = c->model;
    shape sample = model->layers[0].sample;
    if (model->input_kind == NN_INPUT_IMAGE) m.image = sample.dims[0];
    if (model->input_kind == NN_INPUT_TOKENS)
        m.sequence = sample.dims[0];
    else
        m.classes = model->classes;
    return m;
}

double run_estimate_s(const run_config *c, const run_plan *plan)
{
    model_options model = planned_model(c, plan->model);
    int processors = processors_usable(), threads = 0;
    double samples = 0; /* samples that a rank of `threads` threads would train in the same time */
    for (int j = 0; j < JOB_COUNT; j++) {
        if (!run_config_uses(c, j)) continue;
        int own = run_config_threads(c, j);
        if (threads == 0) threads = own;
        samples += (double)(plan->total_steps[j] * run_config_batch(c, j) * c->run.accumulate) *
                   fmax(1, (double)run_config_world(c, j) * own / processors) * threads / own;
    }
    double flops = flops_of_sample(plan->model);
    if (flops * samples / (threads * most_flops) < least_s) return NAN;
    int64_t batch = (int64_t)fmin(MOST_SAMPLES, fmax(LEAST_SAMPLES, measured_flops / flops));
    return samples / (double)batch * measure_apart(&model, batch, threads);
}
