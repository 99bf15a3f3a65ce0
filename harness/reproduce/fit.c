#include "harness/reproduce/fit.h"

#include <math.h>

static void set_factor(compute_fit *fit, double factor)
{
    fit->factor = factor;
    for (int i = 0; i < FIT_CONSTANTS; i++)
        fit->overrides[i] = (sim_override){
            .constant = (sim_constant)(SIM_CONVOLUTION_FORWARD + i), .value = factor, .multiplies = true};
}

void compute_fit_apply(const compute_fit *fit, virtual_workload *w)
{
    w->machine.overrides = fit->overrides;
    w->machine.override_count = FIT_CONSTANTS;
}

status compute_fit_find(const virtual_workload *one_gpu, double step_ms, virtual_figures *scratch,
                        compute_fit *out)
{
    enum { ROUNDS = 20 };
    virtual_workload w = *one_gpu;
    set_factor(out, 1);
    compute_fit_apply(out, &w);
    for (int i = 0; i < ROUNDS; i++) {
        TRY(virtual_measure(&w, scratch));
        if (fabs(scratch->step_ms / step_ms - 1) < 1e-4) return STATUS_OK;
        set_factor(out, out->factor * scratch->step_ms /
                            step_ms); /* time goes with 1 / factor, but for launches */
    }
    return fail(STATUS_CONFIG, "profile %s: expected a step of %.3f ms on one GPU, the nearest that its compute gives is %.3f",
                w.machine.profile, step_ms, scratch->step_ms);
}
