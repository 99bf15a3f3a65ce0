#include "harness/workload/torch/trace.h"

typedef struct explainer {
    torch_job job;
    json_t *facts;
    text_buffer text; /* the next fact */
} explainer;

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static double percent(int64_t part, int64_t whole)
{
    return 100 * (double)part / (double)whole;
}

/* ---- collectives ------------------------------------------------------------------------------------- */

/* Returns the bytes of a collective's input, or -1 if they are unknown. */
static int64_t bytes_of(const torch_collective *c)
{
    return c->call.elements < 0 ? -1 : c->call.elements * c->call.element_bytes;
}

/* Returns "5.0 MiB", or "?" if the bytes are unknown. */
static const char *format_bytes(char size[48], int64_t bytes)
{
    return bytes < 0 ? "?" : text_format_bytes(size, 48, (double)bytes);
}

/* ---- facts ------------------------------------------------------------------------------------------- */

/* Adds the fact that e->text states. */
static void add_fact(explainer *e, const char *fact)
{
    json_array_append_new(e->facts, json_pack("{s:s, s:s}", "fact", fact, "text", e->text.data));
    text_free(&e->text);
}

/* Finds exchanges of gradients before the last micro-batch, and the exchange of a single unit of FSDP. */
static void find_exchanges(explainer *e)
{
    const torch_step *s = e->job.ranks[0].step;
    int exchanges = 0, reductions = 0, scatters = 0, last = 0;
    double exposed_ms = 0;
    for (int i = 0; i < s->collective_count; i++) {
        const torch_collective *c = &s->collectives[i];
        if (c->micro_batch == 0) continue;
        exchanges += c->micro_batch != last;
        last = c->micro_batch;
        reductions++;
        scatters += c->call.collective == TORCH_REDUCE_SCATTER;
        exposed_ms += ms(c->exposed_ns);
    }
    if (exchanges > 1 && exchanges <= s->micro_batches) {
        text_append(&e->text,
                    "%d micro-batches exchange gradients %d times, in %d collectives that are exposed for "
                    "%.3f ms: %s for all but the last leaves one exchange.",
                    s->micro_batches, exchanges, reductions, exposed_ms,
                    scatters ? "set_requires_gradient_sync(False)" : "no_sync()");
        add_fact(e, "reductions_per_micro_batch");
    }
    if (scatters > 0 && scatters == exchanges && e->job.ranks[0].trace.seen[TORCH_SHARDING]) {
        text_append(&e->text,
                    "FSDP has a single unit: %d reduce-scatter per backward pass, exposed for %.3f ms. "
                    "fully_shard() of each block before that of the model makes a unit per block, whose "
                    "collectives overlap the computation of other blocks.",
                    scatters / exchanges, exposed_ms);
        add_fact(e, "single_unit");
    }
}

/* Finds gradients that become ready together, when the last compiled graph of the backward pass ends. */
static void find_late_gradients(explainer *e)
{
    const torch_step *s = e->job.ranks[0].step;
    int64_t sum = 0, late = 0;
    int count = 0, last = s->gradient_count - 1;
    for (int i = last; i >= 0; i--) {
        const torch_gradient *g = &s->gradients[i];
        bool together = count == last - i && g->sequence == s->gradients[last].sequence;
        sum += g->event.elements * g->event.element_bytes;
        if (together) late = sum;
        count += together;
    }
    if (!e->job.ranks[0].trace.compiled || count < 3 || late <= sum / 2) return;
    text_append(
        &e->text,
        "%d of %d gradients, %.0f %% of their bytes, become ready together after %.3f of %.3f ms of the "
        "backward pass, when a compiled graph ends. torch.compile(DDP(model)) with a smaller "
        "bucket_cap_mb makes a graph per bucket, so the exchange can begin earlier.",
        count, last + 1, percent(late, sum), ms(s->gradients[last + 1 - count].event.end_ns - s->backward_ns),
        ms(s->backward_end_ns - s->backward_ns));
    add_fact(e, "gradients_at_the_end");
}

/* Finds waits of the GPU for its host, and of the step for the data loader. */
static void find_waits(explainer *e)
{
    const torch_recording *r = &e->job.ranks[0];
    int64_t whole = r->step->span_ns - (r->adjusted ? r->recorded_ns - r->measured_ns : 0);
    int64_t idle = whole - r->step->busy_ns - r->step->communication_only_ns;
    int64_t data = r->kernel_ns[WORKLOAD_DATA] + r->idle_ns[WORKLOAD_DATA];
    if (r->trace.has_gpu && idle > whole / 5) {
        text_append(&e->text,
                    "The GPU waits for its host for %.3f of %.3f ms (%.0f %%): a larger batch, "
                    "torch.compile or CUDA graphs need fewer launches for the same computation.",
                    ms(idle), ms(whole), percent(idle, whole));
        add_fact(e, "gpu_waits_for_host");
    }
    if (r->trace.seen[TORCH_LOADER] && data > r->step_ns / 10) {
        text_append(&e->text,
                    "The step waits for data for %.3f of %.3f ms (%.0f %%): more workers of the DataLoader "
                    "(num_workers) prepare the next batches during the step.",
                    ms(data), ms(r->step_ns), percent(data, r->step_ns));
        add_fact(e, "data_wait");
    }
}

/* Finds a rank that waits less for the others than each of them. */
static void find_late_rank(explainer *e)
{
    const torch_step *s = e->job.ranks[0].step;
    int64_t least = INT64_MAX, second = INT64_MAX;
    int late = 0;
    for (int rank = 0; rank < e->job.count; rank++) {
        int64_t waiting = torch_waiting(&e->job, rank);
        if (waiting < least) {
            late = rank;
            second = least;
            least = waiting;
        } else if (waiting < second) {
            second = waiting;
        }
    }
    if (e->job.count == 1 || second - least <= (s->end_ns - s->begin_ns) / 5) return;
    text_append(&e->text,
                "Rank %d is later than the other ranks by %.3f of %.3f ms, for which their collectives "
                "wait: compare its parts with those of another rank.",
                e->job.ranks[late].trace.rank, ms(second - least), ms(s->end_ns - s->begin_ns));
    add_fact(e, "late_rank");
}

/* ---- result ------------------------------------------------------------------------------------------ */

static json_t *seconds(int64_t ns)
{
    return json_real((double)ns / 1e9);
}

static json_t *known(int64_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

static json_t *rank_to_json(const explainer *e, int rank)
{
    const torch_recording *r = &e->job.ranks[rank];
    json_t *parts = json_object(), *idle = json_object();
    for (int part = 0; part < WORKLOAD_PARTS; part++) {
        json_object_set_new(parts, workload_part_names[part], seconds(r->kernel_ns[part] + r->idle_ns[part]));
        json_object_set_new(idle, workload_part_names[part], seconds(r->idle_ns[part]));
    }
    return json_pack("{s:i, s:i, s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "rank", r->trace.rank, "ranks",
                     r->trace.world, "device", r->trace.device, "step", (json_int_t)r->step->number, "step_s",
                     seconds(r->step_ns), "recorded_step_s", seconds(r->recorded_ns), "parts_s", parts,
                     "parts_idle_s", idle, "waiting_s",
                     e->job.count > 1 ? seconds(torch_waiting(&e->job, rank)) : json_null());
}

static json_t *collective_to_json(const explainer *e, int i)
{
    const torch_collective *c = &e->job.ranks[0].step->collectives[i];
    json_t *durations = json_array();
    for (int rank = 0; rank < e->job.count; rank++)
        json_array_append_new(durations, seconds(torch_duration(&e->job, rank, i)));
    return json_pack("{s:s, s:o, s:o, s:i, s:o, s:o, s:o}", "name",
                     torch_collective_names[c->call.collective], "elements", known(c->call.elements), "bytes",
                     known(bytes_of(c)), "micro_batch", c->micro_batch, "exposed_s", seconds(c->exposed_ns),
                     "duration_s", durations, "transfer_s",
                     e->job.count > 1 ? seconds(torch_transfer(&e->job, i)) : json_null());
}

/* Lists the collectives that take at least a hundredth of the step. */
static void report_collectives(const explainer *e, text_buffer *out)
{
    const torch_step *s = e->job.ranks[0].step;
    char size[48];
    text_append(out, "  %-18s %11s %10s %9s %9s%s\n", "collective, ms", "elements", "size", "duration",
                "exposed", e->job.count > 1 ? "  transfer" : "");
    for (int i = 0; i < s->collective_count; i++) {
        const torch_collective *c = &s->collectives[i];
        if (torch_duration(&e->job, 0, i) < (s->end_ns - s->begin_ns) / 100) continue;
        text_append(out, "  %3d %-14s %11lld %10s %9.3f %9.3f", i + 1,
                    torch_collective_names[c->call.collective], (long long)c->call.elements,
                    format_bytes(size, bytes_of(c)), ms(torch_duration(&e->job, 0, i)), ms(c->exposed_ns));
        if (e->job.count > 1) text_append(out, " %9.3f", ms(torch_transfer(&e->job, i)));
        text_append(out, "\n");
    }
}

/* Adds the report. `largest` is the index of the collective with the longest exposed time, or -1. */
static void report(const explainer *e, int largest, text_buffer *out)
{
    const torch_recording *first = &e->job.ranks[0];
    char size[48];
    for (int rank = 0; rank < e->job.count; rank++) {
        torch_report_step(&e->job.ranks[rank], out);
        torch_report_parts(&e->job.ranks[rank], out);
        if (e->job.count > 1)
            text_append(out, "  %-16s %12.3f as recorded\n", "waiting", ms(torch_waiting(&e->job, rank)));
        text_append(out, "\n");
    }
    if (first->step->collective_count > 0) report_collectives(e, out);
    if (largest >= 0) {
        const torch_collective *c = &first->step->collectives[largest];
        text_append(out, "Largest exposed collective: %d, %s of %s%s, %.3f of %.3f ms\n", largest + 1,
                    torch_collective_names[c->call.collective], c->micro_batch ? "a bucket of " : "",
                    format_bytes(size, bytes_of(c)), ms(c->exposed_ns),
                    ms(torch_duration(&e->job, 0, largest)));
    }
    if (e->job.count == 1 && first->trace.world > 1)
        text_append(out,
                    "One rank does not tell transfer from waiting for other ranks. Add the traces of the "
                    "other ranks, %d in total, recorded in the same steps.\n",
                    first->trace.world);
    bool found = json_array_size(e->facts) > 0;
    text_append(out, found ? "\nWhat the trace shows:\n" : "\nNo known fault is found.\n");
    for (size_t i = 0; i < json_array_size(e->facts); i++)
        text_append(out, "- %s\n", json_string_value(json_object_get(json_array_get(e->facts, i), "text")));
}

static json_t *explain(const explainer *e, text_buffer *out)
{
    const torch_step *s = e->job.ranks[0].step;
    json_t *ranks = json_array(), *collectives = json_array();
    int largest = -1;
    for (int i = 0; i < e->job.count; i++) json_array_append_new(ranks, rank_to_json(e, i));
    for (int i = 0; i < s->collective_count; i++) {
        json_array_append_new(collectives, collective_to_json(e, i));
        if (s->collectives[i].exposed_ns > (largest < 0 ? 0 : s->collectives[largest].exposed_ns))
            largest = i;
    }
    report(e, largest, out);
    return json_pack("{s:i, s:o, s:o, s:o, s:O}", "schema_version", 1, "ranks", ranks, "collectives",
                     collectives, "largest_exposed", known(largest), "facts", e->facts);
}

/* ---- explain ----------------------------------------------------------------------------------------- */

status torch_explain(const char *const *paths, int count, json_t **json, text_buffer *out)
{
    explainer e = {.facts = json_array()};
    status rc = torch_job_open(paths, count, 1, &e.job);
    if (rc == STATUS_OK) {
        find_exchanges(&e);
        find_late_gradients(&e);
        find_waits(&e);
        find_late_rank(&e);
        *json = explain(&e, out);
    }
    torch_job_close(&e.job);
    json_decref(e.facts);
    return rc;
}
