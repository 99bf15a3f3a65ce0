#include "harness/sim/virtual_job_impl.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ----------------------------------------------------------------------------- */

status virtual_trace_open(const virtual_job_config *config, int world, virtual_trace *out)
{
    enum { KERNELS = 200, KERNELS_PER_PARAMETER = 24 }; /* Room for kernels, per batch. */
    const run_config *c = config->run;
    const nn_model *model = config->plan->model;
    *out = (virtual_trace){.engine = config->engine, .to_file = c->run.trace != NULL};
    int most = out->to_file ? VIRTUAL_TRACE_RANKS : VIRTUAL_TIMELINE_RANKS;
    out->rank_count = world < most ? world : most;
    if (out->to_file && out->rank_count < world)
        log_info("the time line shows ranks 0 to %d of %d", VIRTUAL_TRACE_RANKS - 1, world);
    out->ranks = calloc((size_t)out->rank_count, sizeof *out->ranks);
    if (!out->ranks) return fail(STATUS_SYSTEM, "no memory to trace %d ranks", out->rank_count);
    int64_t kernels = (KERNELS + KERNELS_PER_PARAMETER * (int64_t)model->param_count) * c->run.accumulate;
    for (int r = 0; r < out->rank_count; r++) {
        TRY(rank_trace_open(c, model, kernels, r == 0, &out->ranks[r]));
        rank_trace_choose(&out->ranks[r], config->warmup);
    }
    return STATUS_OK;
}

void virtual_trace_close(virtual_trace *t)
{
    for (int r = 0; t->ranks && r < t->rank_count; r++) trace_close(&t->ranks[r].recorder);
    for (int32_t i = 0; t->links && i < t->link_count; i++) free(t->links[i].uses);
    free(t->ranks);
    free(t->links);
    *t = (virtual_trace){0};
}

/* ---- recording ---------------------------------------------------------------------------------- */

static void on_ran(void *context, int rank, int stream, const char *what, sim_time begin, sim_time end)
{
    virtual_trace *t = context;
    if (rank >= t->rank_count || strcmp(what, SIM_WAIT) == 0) return; /* The train loop records its waits. */
    trace_track row = stream == DEVICE_STREAM_COPY            ? TRACE_COPY_STREAM
                      : stream == DEVICE_STREAM_COMMUNICATION ? TRACE_COMMUNICATION
                                                              : TRACE_COMPUTE_STREAM;
    trace_slice(t->ranks[rank].recorder, row, what, TRACE_NO_INDEX, sim_to_ns(begin), sim_to_ns(end));
}

/* Adds a use. Uses arrive in the order in which they end. Overlapping uses are merged. */
static void add_use(virtual_trace *t, link_row *l, link_use u)
{
    while (l->count > 0 && l->uses[l->count - 1].end > u.begin) {
        const link_use *last = &l->uses[--l->count];
        u = (link_use){last->begin < u.begin ? last->begin : u.begin, u.end, last->bytes + u.bytes,
                       last->transfers + u.transfers, last->what};
    }
    if (l->count == l->capacity) {
        int64_t capacity = l->capacity ? 2 * l->capacity : 64;
        link_use *uses = realloc(l->uses, (size_t)capacity * sizeof *uses);
        t->out_of_memory = t->out_of_memory || !uses;
        if (!uses) return;
        l->uses = uses;
        l->capacity = capacity;
    }
    l->uses[l->count++] = u;
}

static void on_passed(void *context, int32_t resource, const char *what, sim_time begin, sim_time end,
                      double bytes)
{
    virtual_trace *t = context;
    if (resource >= t->link_count || !trace_is_on(t->ranks[0].recorder)) return;
    add_use(t, &t->links[resource], (link_use){begin, end, bytes, 1, what});
}

status virtual_trace_watch(virtual_trace *t, simulation *s)
{
    if (!t->to_file) return STATUS_OK;
    int machines = s->topology->machines < VIRTUAL_TRACE_RANKS ? s->topology->machines : VIRTUAL_TRACE_RANKS;
    t->simulation = s;
    t->link_count = machines * s->topology->per_machine;
    t->links = calloc((size_t)t->link_count, sizeof *t->links);
    if (!t->links) return fail(STATUS_SYSTEM, "no memory to trace %d links", t->link_count);
    s->recorder = (sim_recorder){on_ran, t};
    s->network.meter = (sim_meter){on_passed, t};
    return STATUS_OK;
}

/* ---- writing ------------------------------------------------------------------------------------ */

static void write_use(const link_use *u, int process, int row, double capacity, text_buffer *out)
{
    int64_t begin = sim_to_ns(u->begin), ns = sim_to_ns(u->end) - begin;
    char name[64];
    snprintf(name, sizeof name, "%s", u->what);
    if (u->transfers > 1) snprintf(name, sizeof name, "%" PRId64 " transfers", u->transfers);
    text_append(
        out, "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"link\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64 ".%03d,",
        name, process, row, begin / 1000, (int)(begin % 1000));
    text_append(
        out, "\"dur\":%" PRId64 ".%03d,\"args\":{\"bytes\":%.0f,\"transfers\":%" PRId64 ",\"used\":%.4f}},\n",
        ns / 1000, (int)(ns % 1000), u->bytes, u->transfers,
        u->bytes / (capacity * (double)(u->end - u->begin)));
}

static void write_machine(const virtual_trace *t, int machine, text_buffer *out)
{
    const sim_topology *topology = t->simulation->topology;
    int process = (ENGINE_COUNT + t->engine) * TRACE_MOST_RANKS + machine + 1;
    bool named = false;
    for (int i = 0; i < topology->per_machine; i++) {
        int32_t resource = machine * topology->per_machine + i;
        const link_row *l = &t->links[resource];
        char name[64];
        if (l->count == 0) continue;
        snprintf(name, sizeof name, "%s links of machine %d", engine_table[t->engine]->name, machine);
        if (!named) trace_write_name(process, 0, name, process, out);
        named = true;
        sim_topology_resource_name(topology, resource, name, sizeof name);
        trace_write_name(process, i + 1, name, i + 1, out);
        for (int64_t u = 0; u < l->count; u++)
            write_use(&l->uses[u], process, i + 1, topology->capacities[resource], out);
    }
}

status virtual_trace_write(const virtual_trace *t, text_buffer *out)
{
    if (!t->to_file) return STATUS_OK;
    for (int r = 0; r < t->rank_count && r < simulation_present(t->simulation); r++)
        rank_trace_write(&t->ranks[r], t->engine, r, out);
    for (int m = 0; m * t->simulation->topology->per_machine < t->link_count; m++) write_machine(t, m, out);
    return out->out_of_memory || t->out_of_memory ? fail(STATUS_SYSTEM, "no memory for a trace") : STATUS_OK;
}
