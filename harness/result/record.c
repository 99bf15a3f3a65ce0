#include "harness/result/record.h"

#include "harness/report/report.h"
#include "ps/ps.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const record_phases[RECORD_PHASES] = {"step_s",
                                                  "data_s",
                                                  "forward_s",
                                                  "backward_s",
                                                  "exposed_communication_s",
                                                  "waiting_s",
                                                  "optimizer_s",
                                                  "other_s",
                                                  "communication_s",
                                                  "hidden_communication_s",
                                                  "hidden_while_computing_s",
                                                  "hidden_while_waiting_s",
                                                  "slowdown_s",
                                                  "batch_copy_s",
                                                  "first_to_backward_end_s",
                                                  "last_bucket_s"};

void record_counters(record *r, trainer *t, bool keep)
{
    sync_counters now, *sum = &r->counters;
    const sync_counters *before = &r->seen;
    int64_t cpu_ns = trainer_cpu_ns(t);
    trainer_counters(t, &now);
    if (keep) {
        sum->update_aside_ns += now.update_aside_ns - before->update_aside_ns;
        sum->agents_cpu_ns += now.agents_cpu_ns - before->agents_cpu_ns;
        sum->bytes_sent += now.bytes_sent - before->bytes_sent;
        sum->bytes_received += now.bytes_received - before->bytes_received;
        sum->messages_sent += now.messages_sent - before->messages_sent;
        sum->messages_received += now.messages_received - before->messages_received;
        sum->pushes_overtaken += now.pushes_overtaken - before->pushes_overtaken;
        r->cpu_ns += cpu_ns - r->seen_cpu_ns;
    }
    if (cpu_ns == STEP_NOT_MEASURED) r->cpu_ns = STEP_NOT_MEASURED;
    sum->updates_skipped = now.updates_skipped;
    r->seen = now;
    r->seen_cpu_ns = cpu_ns;
}

void record_evaluation_result(record *r, record_evaluation e)
{
    bool last_stays = r->evaluation_count == 0 || (r->evaluated - 1) % r->evaluation_stride == 0;
    if (!last_stays) r->evaluation_count--;
    if (r->evaluation_count == r->evaluation_capacity) {
        r->evaluation_stride *= 2;
        r->evaluation_count = (r->evaluation_count + 1) / 2;
        for (int64_t i = 1; i < r->evaluation_count; i++) r->evaluations[i] = r->evaluations[2 * i];
    }
    r->evaluated++;
    r->evaluations[r->evaluation_count++] = e;
}

json_t *record_seconds(int64_t ns)
{
    return json_real((double)ns / 1e9);
}

/* Adds an array for each figure of the kept steps, or of the stretches. */
static void add_columns(recorded_step *steps, int64_t count, const clock_alignment *clock, json_t *to)
{
    static const char *const keys[] = {"step_index", "step_begin_s", "step_end_s", "step_samples", "losses"};
    enum { KEYS = sizeof keys / sizeof keys[0], ALL = KEYS + RECORD_PHASES };
    json_t *columns[ALL];
    for (int c = 0; c < ALL; c++)
        json_object_set_new(to, c < KEYS ? keys[c] : record_phases[c - KEYS], columns[c] = json_array());
    for (recorded_step *s = steps; s < steps + count; s++) {
        json_t *row[ALL] = {json_integer(s->index), record_seconds(clock_on_rank_0(clock, s->begin_ns)),
                            record_seconds(clock_on_rank_0(clock, s->end_ns)), json_integer(s->samples),
                            report_json_number(s->loss)};
        for (int p = 0; p < RECORD_PHASES; p++) {
            int64_t ns = record_times(&s->times)[p];
            row[KEYS + p] = ns == STEP_NOT_MEASURED ? json_null() : record_seconds(ns);
        }
        for (int c = 0; c < ALL; c++) json_array_append_new(columns[c], row[c]);
    }
}

/* Returns "stretches", or null if all steps are kept. */
static json_t *stretches_to_json(const record *r, const clock_alignment *clock)
{
    recorded_step rows[RECORD_STRETCHES];
    if (r->level == 0) return json_null();
    json_t *steps = json_array(), *gaps = json_array(), *of = json_object(), *known[RECORD_PHASES];
    bool partly[RECORD_PHASES] = {false};
    for (int p = 0; p < RECORD_PHASES; p++) known[p] = json_array();
    for (int64_t i = 0; i < r->stretch_count; i++) {
        record_stretch *s = &r->stretches[i];
        rows[i] = s->sum;
        rows[i].loss = s->losses > 0 ? s->sum.loss / (double)s->losses : (double)NAN;
        json_array_append_new(steps, json_integer(s->steps));
        json_array_append_new(gaps, record_seconds(s->gaps_ns));
        for (int p = 0; p < RECORD_PHASES; p++) {
            int64_t count = record_times(&s->known)[p];
            json_array_append_new(known[p], json_integer(count));
            if (count == 0) record_times(&rows[i].times)[p] = STEP_NOT_MEASURED;
            partly[p] = partly[p] || (count > 0 && count < s->steps);
        }
    }
    for (int p = 0; p < RECORD_PHASES; p++) {
        if (partly[p]) json_object_set(of, record_phases[p], known[p]);
        json_decref(known[p]);
    }
    json_t *out = json_pack("{s:o, s:o, s:o}", "steps", steps, "gaps_s", gaps, "known", of);
    add_columns(rows, r->stretch_count, clock, out);
    return out;
}

/* Returns {rank: time} for the ranks that this rank waited for. */
static json_t *waited_to_json(const record *r)
{
    json_t *object = json_object();
    char rank[16];
    for (int i = 0; i < r->world; i++) {
        if (r->waited_ns[i] == 0) continue;
        snprintf(rank, sizeof rank, "%d", i);
        json_object_set_new(object, rank, record_seconds(r->waited_ns[i]));
    }
    return object;
}

static json_t *clock_to_json(const record *r, const clock_alignment *clock)
{
    json_t *error = r->waiting_error_ns < 0 ? json_null() : record_seconds(r->waiting_error_ns);
    return json_pack("{s:b, s:o, s:o, s:o}", "aligned", (int)clock->aligned, "offset_s",
                     record_seconds(clock->end_offset_ns), "error_s", record_seconds(clock->error_ns),
                     "waiting_error_s", error);
}

void record_to_json(const record *r, const clock_alignment *clock, json_t *rank)
{
    add_columns(r->steps, r->kept, clock, rank);
    json_t *waited = json_array();
    for (int64_t i = 0; i < r->kept; i++) {
        int of = r->steps[i].waited_for;
        json_array_append_new(waited, of == ANATOMY_NOBODY ? json_null() : json_integer(of));
    }
    const sync_counters *c = &r->counters;
    int64_t off_cpu_ns = r->wall_ns > r->cpu_ns ? r->wall_ns - r->cpu_ns : 0;
    json_t *off_cpu = r->cpu_ns == STEP_NOT_MEASURED ? json_null() : record_seconds(off_cpu_ns);
    json_object_update_new(
        rank, json_pack("{s:o, s:o, s:o, s:I, s:I, s:o, s:I, s:o}", "clock", clock_to_json(r, clock),
                        "loss_last", report_json_number(r->count ? r->last_loss : NAN), "stretches",
                        stretches_to_json(r, clock), "merged_calls", (json_int_t)r->merged_calls,
                        "measured_steps", (json_int_t)r->count, "waited_for", waited, "samples",
                        (json_int_t)r->samples, "wall_s", record_seconds(r->wall_ns)));
    json_object_update_new(
        rank, json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:I}", "bytes_sent",
                        (json_int_t)c->bytes_sent, "bytes_received", (json_int_t)c->bytes_received,
                        "messages_sent", (json_int_t)c->messages_sent, "messages_received",
                        (json_int_t)c->messages_received, "update_aside_s",
                        record_seconds(c->update_aside_ns), "agents_cpu_s", record_seconds(c->agents_cpu_ns),
                        "off_cpu_s", off_cpu, "waited_for_s", waited_to_json(r), "pushes_overtaken",
                        (json_int_t)c->pushes_overtaken, "updates_skipped", (json_int_t)c->updates_skipped));
    json_t *evaluations = json_array();
    for (int64_t i = 0; i < r->evaluation_count; i++) {
        const record_evaluation *e = &r->evaluations[i];
        json_array_append_new(evaluations,
                              json_pack("{s:I, s:o, s:o, s:o, s:I}", "step", (json_int_t)e->step,
                                        "training_s", record_seconds(e->trained_ns), "loss",
                                        report_json_number(e->loss), "accuracy",
                                        report_json_number(e->accuracy), "samples", (json_int_t)e->samples));
    }
    json_object_set_new(rank, "evaluations", evaluations);
}

static json_t *account_to_json(const ledger_account *a)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:s}", "current_bytes", (json_int_t)a->current, "peak_bytes",
                     (json_int_t)a->peak, "reserved_current_bytes", (json_int_t)a->reserved_current,
                     "reserved_peak_bytes", (json_int_t)a->reserved_peak, "peak_phase",
                     ledger_phase_name(a->peak_phase));
}

static json_t *classes_to_json(const int64_t *bytes)
{
    json_t *object = json_object();
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        json_object_set_new(object, ledger_class_name((ledger_class)c), json_integer(bytes[c]));
    return object;
}

json_t *ledger_to_json(const ledger *l)
{
    json_t *classes = json_object(), *phases = json_object();
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        json_object_set_new(classes, ledger_class_name((ledger_class)c), account_to_json(&l->classes[c]));
    for (int p = 0; p < LEDGER_PHASE_COUNT; p++) {
        if (l->phase_peak[p] == 0) continue;
        json_object_set_new(phases, ledger_phase_name((ledger_phase)p),
                            json_pack("{s:I, s:o, s:I, s:o}", "peak_bytes", (json_int_t)l->phase_peak[p],
                                      "peak_classes", classes_to_json(l->phase_peak_classes[p]), "end_bytes",
                                      (json_int_t)l->phase_end[p], "end_classes",
                                      classes_to_json(l->phase_end_classes[p])));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "total", account_to_json(&l->total), "peak_classes",
                     classes_to_json(l->peak_classes), "classes", classes, "phases", phases);
}

/* ---- buckets --------------------------------------------------------------------- */

void overlap_measure(overlap *o, const sync_engine *engine, step_result *result, bool measured)
{
    if (engine->type != &sync_ring) return;
    int count = ring_bucket_records(engine, o->seen, o->records, o->capacity);
    /* Leaves out the last records if they belong to a later step, which has already begun. */
    while (count > 0 && o->records[count - 1].step > result->index) count--;
    if (count == 0) return;
    const ring_bucket_record *last = &o->records[count - 1];
    int64_t overlap_ns = result->backward_end_ns - o->records[0].started_ns;
    for (int i = 0; measured && i < count; i++) {
        o->by[o->records[i].algorithm].calls++;
        o->by[o->records[i].algorithm].bytes += o->records[i].bytes;
    }
    o->seen = last->id;
    o->last_bucket_bytes = last->bytes;
    result->times.first_to_backward_end = overlap_ns > 0 ? overlap_ns : 0;
    result->times.last_bucket = last->finished_ns - last->started_ns;
}

static bool is_ps(const sync_engine *e)
{
    return strcmp(e->type->name, sync_ps.name) == 0;
}

void overlap_to_json(const overlap *o, const sync_engine *engine, json_t *rank)
{
    int64_t bound = engine->type == &sync_ring ? ring_link_bound_ns(engine, o->last_bucket_bytes) : 0;
    json_object_set_new(rank, "last_bucket_bytes",
                        o->last_bucket_bytes > 0 ? json_integer(o->last_bucket_bytes) : json_null());
    json_object_set_new(rank, "last_bucket_bound_s", bound > 0 ? record_seconds(bound) : json_null());
}

static json_t *algorithms_to_json(const record *r)
{
    json_t *rows = json_array();
    const overlap *o = &r->overlap;
    double steps = (double)r->count;
    for (int a = 0; a < COLLECTIVE_ALGORITHM_COUNT; a++)
        if (o->by[a].calls > 0)
            json_array_append_new(rows,
                                  json_pack("{s:s, s:f, s:f}", "algorithm", collective_algorithm_names[a],
                                            "calls_per_step", (double)o->by[a].calls / steps,
                                            "bytes_per_step", (double)o->by[a].bytes / steps));
    return rows;
}

void engine_exchange_to_json(const sync_engine *e, const record *first, json_t *job)
{
    const ring_settings *s = e->type == &sync_ring && e->context.world > 1 ? ring_get_settings(e) : NULL;
    const char *transport = NULL, *payload = NULL;
    if (is_ps(e)) ps_read_ways(e, &transport, &payload);
    json_object_update_new(job,
                           json_pack("{s:s?, s:s?, s:o, s:s?, s:s?}", "collective", s ? s->collective : NULL,
                                     "algorithm", s ? collective_algorithm_names[s->algorithm] : NULL,
                                     "algorithms", s ? algorithms_to_json(first) : json_null(), "transport",
                                     transport, "payload", payload));
}

/* ---- parameter server ------------------------------------------------------------------------- */

json_t *ps_result_staleness(sync_engine *e)
{
    if (!is_ps(e)) return json_null();
    ps_report report;
    ps_read_report(e, &report);
    json_t *histogram = json_array();
    int last = report.most < PS_STALENESS_BINS - 1 ? (int)report.most : PS_STALENESS_BINS - 1;
    for (int i = 0; i <= last && report.reads > 0; i++)
        json_array_append_new(histogram, json_integer(report.stale[i]));
    return json_pack("{s:I, s:I, s:f, s:o}", "reads", (json_int_t)report.reads, "largest",
                     (json_int_t)report.most, "mean", report.mean, "histogram", histogram);
}

json_t *engine_settings_to_json(const sync_engine *e)
{
    text_buffer lines = {0};
    if (is_ps(e))
        ps_write_settings(e, &lines);
    else if (e->type == &sync_ring)
        ring_settings_write(ring_get_settings(e), &lines);
    if (!lines.data) return json_null();
    json_t *settings = json_object();
    for (char *at = lines.data, *end; (end = strchr(at, '\n')); at = end + 1) {
        char *value = strchr(at, '=');
        *end = *value = '\0';
        json_object_set_new(settings, at, json_string(value + 1));
    }
    text_free(&lines);
    return settings;
}

/* ---- memory by phase --------------------------------------------------------------------------- */

/* Returns the bytes that a rank holds at the end of a phase. Leaves out workspace, because the formula does
 * not include the scratch memory of libraries. */
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
                     ps_dp_formula(sizes, phase), "formula_bytes", (json_int_t)ps_dp_difference(sizes, phase),
                     "device0_bytes", device0, "other_bytes", other, "difference_bytes", device0 - other);
}

void ps_result_add_memory(json_t *job, const json_t *ranks, const ps_dp_sizes *sizes)
{
    json_t *out = json_null();
    if (sizes) {
        json_t *phases = json_array();
        for (int p = 0; p < PS_DP_PHASE_COUNT; p++)
            json_array_append_new(phases, phase_to_json(ranks, sizes, (ps_dp_phase)p));
        out = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "lifetimes",
                        sizes->lean ? "lean" : "torch", "parameters_bytes", (json_int_t)sizes->parameters,
                        "kept_gradients_bytes", (json_int_t)sizes->kept, "optimizer_state_bytes",
                        (json_int_t)sizes->state, "outputs_bytes", (json_int_t)sizes->outputs,
                        "loss_outputs_bytes", (json_int_t)sizes->loss_outputs, "other_output_bytes",
                        (json_int_t)sizes->other_output, "buffers_bytes", (json_int_t)sizes->buffers,
                        "batch_bytes", (json_int_t)sizes->batch, "ahead_bytes", (json_int_t)sizes->ahead,
                        "phases", phases);
    }
    json_object_set_new(job, "dataparallel_memory", out);
}
