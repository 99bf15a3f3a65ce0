#include "harness/run/ps_result.h"

#include "ps/ps.h"

#include <string.h>

static bool is_ps(const sync_engine *e)
{
    return strcmp(e->type->name, sync_ps.name) == 0;
}

json_t *ps_result_staleness(sync_engine *e)
{
    if (!is_ps(e)) return json_null();
    ps_report report;
    ps_read_report(e, &report);
    json_t *histogram = json_array();
    int last = report.most < PS_STALENESS_BINS - 1 ? (int)report.most : PS_STALENESS_BINS - 1;
    for (int i = 0; histogram && i <= last && report.reads > 0; i++)
        json_array_append_new(histogram, json_integer(report.stale[i]));
    return json_pack("{s:I, s:I, s:f, s:o}", "reads", (json_int_t)report.reads, "largest",
                     (json_int_t)report.most, "mean", report.mean, "histogram", histogram);
}

json_t *ps_result_updates(const sync_engine *e)
{
    if (!is_ps(e)) return json_null();
    return json_string(ps_updates_on_gpu(e) ? "gpu" : "host");
}

/* ---- memory by phase --------------------------------------------------------------------------- */

/* At the end of a phase, workspace aside: libraries' scratch is no part of the formula. */
static int64_t held(const json_t *rank, ps_dp_phase phase)
{
    const char *name = ledger_phase_name(ps_dp_phase_describe(phase)->phase);
    const json_t *phases = json_object_get(json_object_get(rank, "memory"), "phases"),
                 *p = json_object_get(phases, name);
    json_t *scratch = json_object_get(json_object_get(p, "end_classes"), ledger_class_name(LEDGER_WORKSPACE));
    return json_integer_value(json_object_get(p, "end_bytes")) - json_integer_value(scratch);
}

static json_t *phase_to_json(const json_t *ranks, const ps_dp_sizes *sizes, ps_dp_phase phase)
{
    const ps_dp_phase_info *info = ps_dp_phase_describe(phase);
    json_int_t device0 = held(json_array_get(ranks, 0), phase), other = held(json_array_get(ranks, 1), phase);
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "phase", info->name, "formula",
                     ps_dp_formula(sizes, phase), "formula_bytes",
                     (json_int_t)ps_dp_difference(sizes, phase), "device0_bytes", device0, "other_bytes",
                     other, "difference_bytes", device0 - other);
}

bool ps_result_sizes(sync_engine *e, ps_dp_sizes *out)
{
    return is_ps(e) && ps_dp_read_sizes(e, out);
}

status ps_result_add_memory(json_t *job, const json_t *ranks, const ps_dp_sizes *sizes)
{
    json_t *out = json_null();
    if (sizes) {
        const ps_dp_sizes s = *sizes;
        json_t *phases = json_array();
        for (int p = 0; phases && p < PS_DP_PHASE_COUNT; p++)
            json_array_append_new(phases, phase_to_json(ranks, &s, (ps_dp_phase)p));
        out = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "lifetimes",
                        s.lean ? "lean" : "torch", "parameters_bytes", (json_int_t)s.parameters,
                        "kept_gradients_bytes", (json_int_t)s.kept, "optimizer_state_bytes",
                        (json_int_t)s.state, "outputs_bytes", (json_int_t)s.outputs, "loss_outputs_bytes",
                        (json_int_t)s.wide_outputs, "other_output_bytes",
                        (json_int_t)s.other_output, "buffers_bytes", (json_int_t)s.buffers, "batch_bytes",
                        (json_int_t)s.batch, "ahead_bytes", (json_int_t)s.ahead, "phases", phases);
    }
    if (json_object_set_new(job, "dataparallel_memory", out) != 0)
        return fail(STATUS_SYSTEM, "no memory for the results");
    return STATUS_OK;
}
