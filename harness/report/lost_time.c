#include "harness/report/lost_time.h"

#include "harness/report/report.h"

#include <math.h>

const lost_cause_info lost_causes[LOST_CAUSES] = {
    [LOST_NEIGHBORS] = {"neighbors_s", "neighbors", "neighbors", "other ranks compute"},
    [LOST_EXCHANGE] = {"exchange_s", "slowed", "contention with exchange", "computation, by exchange"},
    [LOST_UPDATE] = {"update_s", "update", "update", "negative if shards or servers share it"},
    [LOST_ENGINE] = {"engine_s", "copies", "copies by the engine", "by the engine"},
    [LOST_COMMUNICATION] = {"communication_s", "exposed", "exposed communication",
                            "waiting for communication"},
    [LOST_WAITING] = {"waiting_s", "waiting", "waiting for other ranks", "for other ranks"},
    [LOST_DATA] = {"data_s", "data", "loading data", "waiting for the loader"},
    [LOST_PYTHON] = {"python_s", "Python", "dp's Python process", "what dp's process adds"}};

static double passes(const json_t *job)
{
    return report_phase(job, "forward_s") + report_phase(job, "backward_s");
}

/* Returns the mean over the steps of a rank's passes. */
static double passes_of_rank(const json_t *rank)
{
    const json_t *forward = json_object_get(rank, "forward_s"),
                 *backward = json_object_get(rank, "backward_s");
    double sum = 0;
    for (size_t i = 0; i < json_array_size(forward); i++)
        sum += json_number_value(json_array_get(forward, i)) + json_number_value(json_array_get(backward, i));
    return sum / (double)json_array_size(forward);
}

/* Returns by how much the passes of a rank, as a mean over the ranks, are longer because of --slow. Returns 0
 * if all ranks or none of them are slow, as the rank alone may be, and for dp. */
static double late_passes(const json_t *job)
{
    const json_t *ranks = json_object_get(job, "ranks"), *rank;
    double all = 0, usual = 0;
    size_t r, count = json_array_size(ranks), usual_count = 0;
    json_array_foreach((json_t *)ranks, r, rank)
    {
        bool slow = report_number_at(rank, "slow_factor") > 1;
        double seconds = passes_of_rank(rank);
        all += seconds;
        usual += slow ? 0 : seconds;
        usual_count += !slow;
    }
    if (usual_count == 0 || usual_count == count || report_ranks_of_step(job, ranks) < count) return 0;
    return all / (double)count - usual / (double)usual_count;
}

lost_time lost_time_between(const json_t *job, const json_t *alone, const json_t *isolated, int simulated)
{
    const json_t *beside = isolated ? isolated : alone, *scheme = json_object_get(job, "without_python");
    lost_time l = {.step_s = report_phase(job, "step_s"), .alone_s = report_phase(alone, "step_s")};
    if (!scheme) scheme = job;
    double neighbors = passes(beside) + report_phase(beside, "optimizer_s") - passes(alone) -
                       report_phase(alone, "optimizer_s");
    l.of[LOST_NEIGHBORS] = simulated ? 0 : isolated ? neighbors : NAN;
    double late = simulated && !(report_largest(json_object_get(alone, "ranks"), "slow_factor") > 1)
                      ? late_passes(job)
                      : 0;
    l.of[LOST_EXCHANGE] = passes(scheme) - passes(beside) - late;
    l.of[LOST_UPDATE] = report_phase(scheme, "optimizer_s") - report_phase(beside, "optimizer_s");
    l.of[LOST_COMMUNICATION] =
        report_phase(scheme, "exposed_communication_s") - report_phase(alone, "exposed_communication_s");
    l.of[LOST_WAITING] = report_phase(scheme, "waiting_s") - report_phase(alone, "waiting_s") + late;
    l.of[LOST_ENGINE] = report_phase(scheme, "other_s") - report_phase(alone, "other_s");
    l.of[LOST_DATA] = report_phase(job, "data_s") - report_phase(alone, "data_s");
    l.of[LOST_PYTHON] = l.step_s - report_phase(job, "data_s") -
                        (report_phase(scheme, "step_s") - report_phase(scheme, "data_s"));
    if (isnan(passes(scheme) + passes(beside) + passes(alone))) l.step_s = NAN;
    return l;
}

json_t *lost_time_to_json(const lost_time *l)
{
    if (isnan(l->step_s)) return json_null();
    json_t *out = json_pack("{s:f, s:f, s:f}", "step_s", l->step_s, "alone_s", l->alone_s, "total_s",
                            l->step_s - l->alone_s);
    for (int c = 0; c < LOST_CAUSES; c++)
        json_object_set_new(out, lost_causes[c].key, report_json_number(l->of[c]));
    return out;
}

lost_time lost_time_from_json(const json_t *lost)
{
    lost_time l = {.step_s = report_number_at(lost, "step_s"), .alone_s = report_number_at(lost, "alone_s")};
    for (int c = 0; c < LOST_CAUSES; c++) l.of[c] = report_number_at(lost, lost_causes[c].key);
    return l;
}
