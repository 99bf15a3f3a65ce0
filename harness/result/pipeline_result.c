/* Computes the "pipeline" of a job: the stages, their times, and the share of the time in which each stage
 * was idle. */
#include "harness/result/run_result.h"

#include "common/pipeline/schedule.h"
#include "harness/report/report.h"

#include <math.h>

/* Times in which ranks were idle and busy, summed over all steps and over the ranks of one stage or of all
 * stages. */
typedef struct share {
    double idle_s, busy_s;
} share;

/* Returns the idle and busy times of a stage. Adds each time per step to `row`, as the mean over the ranks of
 * the stage, or null if the time was not measured. */
static share add_times(json_t *row, const json_t *ranks, int stage, int replicas)
{
    static const char *const keys[] = {"forward_s", "backward_s", "exposed_communication_s", "waiting_s"};
    enum { FORWARD, BACKWARD, EXPOSED, WAITING, TIMES };
    double sums[TIMES] = {0}, steps[TIMES] = {0}, known;
    share out = {0};
    for (int r = stage * replicas; r < (stage + 1) * replicas; r++) {
        const json_t *rank = json_array_get(ranks, (size_t)r);
        double own[TIMES];
        for (int i = 0; i < TIMES; i++) {
            sums[i] += own[i] = report_steps_sum(rank, keys[i], 0, 1, &known);
            steps[i] += known;
        }
        out.idle_s += own[WAITING] + own[EXPOSED];
        out.busy_s += own[FORWARD] + own[BACKWARD];
    }
    for (int i = 0; i < TIMES; i++) json_object_set_new(row, keys[i], report_json_number(sums[i] / steps[i]));
    return out;
}

/* Returns the largest number at `path` of the ranks of the stage. */
static json_int_t peak(const json_t *ranks, int stage, int replicas, const char *path)
{
    double most = 0;
    for (int r = stage * replicas; r < (stage + 1) * replicas; r++)
        most = fmax(most, report_number_at(json_array_get(ranks, (size_t)r), path));
    return (json_int_t)most;
}

status job_result_add_pipeline(json_t *job, const json_t *ranks, const nn_model *m, const run_config *c)
{
    nn_cut cut;
    TRY(nn_cut_model(m, (int)c->run.stages, &cut));
    pipeline_shape shape = {(pipeline_schedule)c->run.schedule, cut.count, (int)c->run.accumulate};
    int replicas = (int)json_array_size(ranks) / cut.count;
    json_t *stages = json_array();
    share all = {0};
    for (int s = 0; s < cut.count; s++) {
        const nn_stage *stage = &cut.stages[s];
        json_t *row =
            json_pack("{s:s, s:I, s:f, s:i, s:I, s:I, s:n}", "begins_at", m->layers[stage->begin].name,
                      "parameters", (json_int_t)stage->parameters, "flop_per_sample", stage->flops,
                      "live_micro_batches", pipeline_live(&shape, s), "activations_peak_bytes",
                      peak(ranks, s, replicas, "memory.classes.activations.peak_bytes"), "memory_peak_bytes",
                      peak(ranks, s, replicas, "memory.total.peak_bytes"), "idle");
        share own = add_times(row, ranks, s, replicas);
        json_object_set_new(row, "idle", report_json_number(own.idle_s / (own.idle_s + own.busy_s)));
        all.idle_s += own.idle_s;
        all.busy_s += own.busy_s;
        json_array_append_new(stages, row);
    }
    const char *on = run_config_devices(c) > 1 ? "devices" : "ranks";
    json_t *pipeline =
        json_pack("{s:s, s:s, s:i, s:i, s:o, s:f, s:o}", "on", on, "schedule",
                  pipeline_schedule_names[shape.schedule], "micro_batches", shape.batches, "replicas",
                  replicas, "bubble", report_json_number(all.idle_s / (all.idle_s + all.busy_s)),
                  "bubble_of_equal_stages", pipeline_bubble(&shape), "stages", stages);
    json_object_set_new(job, "pipeline", pipeline);
    return STATUS_OK;
}
