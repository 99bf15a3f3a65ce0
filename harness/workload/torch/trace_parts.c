#include "harness/workload/torch/trace.h"

#include <math.h>
#include <stdlib.h>

double torch_number(const torch_trace *t, const char *key)
{
    double value = json_number_value(json_object_get(t->description, key));
    return value > 0 && value < 1e12 ? value : 0;
}

/* Kinds of times. Copies of the batch and waits for collectives are not kernels of the model. */
enum { KERNELS = 1, IDLE = 2, WAITS = 4 };

/* Returns the i-th time of the slices, two per slice, or NULL if it is of another kind. */
static int64_t *time_of(const torch_step *s, int i, int kinds)
{
    torch_slice *slice = &s->slices[i / 2];
    bool wait = slice->part == WORKLOAD_DATA || slice->part == WORKLOAD_COMMUNICATION;
    if (i % 2) return kinds & IDLE ? &slice->idle_ns : NULL;
    return kinds & (wait ? WAITS : KERNELS) ? &slice->kernel_ns : NULL;
}

static int64_t sum_times(const torch_step *s, int kinds)
{
    int64_t sum = 0, *ns;
    for (int i = 0; i < 2 * s->slice_count; i++)
        if ((ns = time_of(s, i, kinds))) sum += *ns;
    return sum;
}

/* Multiplies the times so that their sum becomes `wanted`, to the nanosecond. */
static void stretch(torch_step *s, int kinds, int64_t wanted)
{
    int64_t sum = sum_times(s, kinds), seen = 0, given = 0, *ns;
    for (int i = 0; i < 2 * s->slice_count && sum > 0; i++) {
        if (!(ns = time_of(s, i, kinds))) continue;
        seen += *ns;
        int64_t until = (int64_t)((long double)seen / (long double)sum * (long double)wanted);
        *ns = until - given;
        given = until;
    }
}

/* Removes the profiler's time, and multiplies the times of kernels. The profiler delays the host: without a
 * GPU all times shrink, and with a GPU only its idle times. */
static void adjust_times(torch_recording *r, double scale)
{
    int64_t idle = sum_times(r->step, IDLE);
    bool gpu = r->trace.has_gpu;
    r->measured_ns = llround(torch_number(&r->trace, "step_ms") * 1e6);
    int64_t wanted = r->measured_ns - (gpu ? r->recorded_ns - idle : 0);
    r->adjusted = r->measured_ns > 0 && (!gpu || (wanted >= 0 && idle > 0));
    if (r->adjusted) stretch(r->step, gpu ? IDLE : KERNELS | IDLE | WAITS, wanted);
    double scaled = scale * (double)sum_times(r->step, KERNELS);
    if (scale != 1) stretch(r->step, KERNELS, llround(fmin(scaled, 1e18)));
}

status torch_split_step(torch_recording *r, const int64_t *number, double scale)
{
    TRY(torch_find_steps(&r->trace, &r->steps, &r->step_count));
    TRY(torch_typical_step(&r->trace, r->steps, r->step_count, &r->step));
    for (int i = 0; number && i < r->step_count; i++)
        if (r->steps[i].number == *number) r->step = &r->steps[i];
    if (number && r->step->number != *number)
        return fail(STATUS_DATA, "expected ProfilerStep#%lld, which the first trace has", (long long)*number);
    r->recorded_ns = r->step->end_ns - r->step->begin_ns;
    TRY(torch_split_time(&r->trace, r->step));
    adjust_times(r, scale);
    for (int i = 0; i < r->step->slice_count; i++) {
        const torch_slice *slice = &r->step->slices[i];
        r->kernel_ns[slice->part] += slice->kernel_ns;
        r->idle_ns[slice->part] += slice->idle_ns;
        r->step_ns += slice->kernel_ns + slice->idle_ns;
    }
    free(r->trace.events);
    r->trace.events = NULL;
    return STATUS_OK;
}

void torch_report_step(const torch_recording *r, text_buffer *out)
{
    const torch_step *s = r->step;
    text_append(out, "%s: rank %d of %d, %s\n", r->trace.name, r->trace.rank, r->trace.world,
                r->trace.device);
    text_append(out, "ProfilerStep#%lld, one of %d recorded step%s: %.3f ms\n", (long long)s->number,
                r->step_count, r->step_count == 1 ? "" : "s", (double)r->recorded_ns / 1e6);
    if (r->trace.has_gpu)
        text_append(
            out, "first to last kernel: %.3f ms: %.3f computation, %.3f only communication, %.3f idle\n",
            (double)s->span_ns / 1e6, (double)s->busy_ns / 1e6, (double)s->communication_only_ns / 1e6,
            (double)(s->span_ns - s->busy_ns - s->communication_only_ns) / 1e6);
    if (r->adjusted)
        text_append(out, "without profiler: %.3f ms; %s are multiplied to add up to this step\n",
                    (double)r->measured_ns / 1e6, r->trace.has_gpu ? "idle times" : "all times");
}

void torch_report_parts(const torch_recording *r, text_buffer *out)
{
    int64_t kernels = 0, idle = 0;
    text_append(out, "\n  %-16s %12s %8s %12s %12s\n", "part", "time, ms", "% of step", "kernels", "idle");
    for (int part = 0; part <= WORKLOAD_PARTS; part++) {
        int64_t k = part < WORKLOAD_PARTS ? r->kernel_ns[part] : kernels;
        int64_t i = part < WORKLOAD_PARTS ? r->idle_ns[part] : idle;
        text_append(out, "  %-16s %12.3f %9.1f %12.3f %12.3f\n",
                    part < WORKLOAD_PARTS ? workload_part_names[part] : "step", (double)(k + i) / 1e6,
                    100 * (double)(k + i) / (double)r->step_ns, (double)k / 1e6, (double)i / 1e6);
        kernels += k;
        idle += i;
    }
}
