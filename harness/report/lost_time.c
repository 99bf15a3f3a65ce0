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

lost_time lost_time_between(const json_t *job, const json_t *alone, const json_t *isolated, int simulated)
{
    const json_t *beside = isolated ? isolated : alone, *scheme = json_object_get(job, "without_python");
    lost_time l = {.step_s = report_phase(job, "step_s"), .alone_s = report_phase(alone, "step_s")};
    if (!scheme) scheme = job;
    double neighbors = passes(beside) + report_phase(beside, "optimizer_s") - passes(alone) -
                       report_phase(alone, "optimizer_s");
    l.of[LOST_NEIGHBORS] = simulated ? 0 : isolated ? neighbors : NAN;
    l.of[LOST_EXCHANGE] = passes(scheme) - passes(beside);
    l.of[LOST_UPDATE] = report_phase(scheme, "optimizer_s") - report_phase(beside, "optimizer_s");
    l.of[LOST_COMMUNICATION] =
        report_phase(scheme, "exposed_communication_s") - report_phase(alone, "exposed_communication_s");
    l.of[LOST_WAITING] = report_phase(scheme, "waiting_s") - report_phase(alone, "waiting_s");
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
