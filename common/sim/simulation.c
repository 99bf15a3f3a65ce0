#include "common/sim/simulation.h"

#include "common/base/text.h"

#include <stdlib.h>

/* ---- actors ----------------------------------------------------------------------------------- */

static void on_wake(void *context)
{
    sim_actor *a = context;
    simulation *s = a->simulation;
    a->time = sim_later(a->time, s->queue.now);
    a->woken = true;
    a->waits_for = NULL;
    if (!a->run || s->failure != STATUS_OK) return;
    s->current = a;
    status rc = a->run(a->context);
    s->current = NULL;
    if (rc != STATUS_OK && rc != STATUS_AGAIN) s->failure = rc;
}

status sim_actor_open(simulation *s, sim_actor *a, int rank, const char *name)
{
    *a = (sim_actor){.simulation = NULL, .name = name, .rank = rank, .woken = true};
    TRY(sim_event_init(&s->queue, &a->event, rank, on_wake, a));
    a->simulation = s;
    a->time = s->queue.now;
    a->next = s->actors;
    if (s->actors) s->actors->previous = a;
    s->actors = a;
    return STATUS_OK;
}

void sim_actor_close(sim_actor *a)
{
    simulation *s = a->simulation;
    if (!s) return;
    sim_event_deinit(&s->queue, &a->event);
    if (a->next) a->next->previous = a->previous;
    if (a->previous)
        a->previous->next = a->next;
    else
        s->actors = a->next;
    *a = (sim_actor){0};
}

void sim_actor_set_run(sim_actor *a, status (*run)(void *context), void *context)
{
    a->run = run;
    a->context = context;
}

void sim_actor_wake(sim_actor *a, sim_time at)
{
    sim_queue *q = &a->simulation->queue;
    at = sim_later(at, a->time);
    if (at < sim_event_time(q, &a->event)) sim_event_schedule(q, &a->event, at);
}

/* ---- opening ---------------------------------------------------------------------------------- */

static const sim_provenance of_command_line = {
    .tag = "assumed", .source = "the command line", .from = "command line"};

/* Replaces the values of a constant, and records the command line as the source of the new values. */
static status replace(sim_profile *p, const char *what, sim_override o)
{
    sim_constant c = o.constant;
    const sim_constant_info *info = &sim_constant_table[c];
    double *values = p->values[c];
    char limits[SIM_LIMITS_LENGTH];
    if (o.multiplies && !sim_profile_has(p, c)) return STATUS_OK;
    for (int i = 0; i < info->count; i++) {
        double value = o.multiplies ? values[i] * o.value : o.value;
        if (value < info->least || value > info->most)
            return fail(STATUS_CONFIG, "%s: expected %s, got %g", what, sim_limits_text(info, limits), value);
        values[i] = value;
    }
    p->provenance[c] = of_command_line;
    return STATUS_OK;
}

static status multiply_efficiencies(sim_profile *p, double factor)
{
    double least, most;
    sim_efficiency_limits(p, &least, &most);
    if (factor < least || factor > most)
        return fail(STATUS_CONFIG, "--efficiency: expected %.4g to %.4g for profile %s, got %g", least, most,
                    p->name, factor);
    for (int c = SIM_CONVOLUTION_FORWARD; c <= SIM_OPTIMIZER; c++) {
        if (!sim_profile_has(p, (sim_constant)c)) continue;
        for (int i = 0; i < 2; i++) p->values[c][i] *= factor;
        p->provenance[c] = of_command_line;
    }
    return STATUS_OK;
}

static status replace_link(sim_profile *p, sim_constant c, double value)
{
    if (value <= 0) return STATUS_OK;
    if (p->wiring.nics == 0)
        return fail(STATUS_CONFIG, "link: expected a profile with a network, got %s", p->name);
    return replace(p, "link", (sim_override){.constant = c, .value = value});
}

static int gpus_of_process(const simulation *s)
{
    return s->config.per_process > 1 ? s->config.per_process : 1;
}

int simulation_processes(const simulation *s)
{
    return s->config.processes ? s->config.processes : s->ranks_per_machine / gpus_of_process(s);
}

static status place_ranks(simulation *s)
{
    const simulation_config *c = &s->config;
    const sim_wiring *w = &s->profile->wiring;
    int each = gpus_of_process(s), room = w->gpus / each * each;
    if (room == 0)
        return fail(STATUS_CONFIG,
                    "profile %s: expected processes of at most %d GPUs, which a machine has, got %d",
                    s->profile->name, w->gpus, each);
    int machines = c->machines ? c->machines : (c->world + room - 1) / room;
    int most = (c->machines ? c->machines : w->machines) * room;
    if (c->world > most)
        return fail(STATUS_CONFIG,
                    "profile %s: expected 1 to %d ranks (%d GPU%s on each of %d machine%s), got %d",
                    s->profile->name, most, room, room == 1 ? "" : "s", most / room,
                    most / room == 1 ? "" : "s", c->world);
    s->ranks_per_machine = (c->world / each + machines - 1) / machines * each;
    return sim_topology_open(s->profile, machines, &s->topology);
}

static status check(const simulation_config *c, const sim_profile *p)
{
    if (c->world < 1 || c->world >= SIM_RANK_LIMIT)
        return fail(STATUS_CONFIG, "simulation: expected 1 to %d ranks, got %d", SIM_RANK_LIMIT - 1,
                    c->world);
    if (c->machines < 0)
        return fail(STATUS_CONFIG, "simulation: expected 1 machine or more, got %d", c->machines);
    if (c->present < 0 || c->present > c->world)
        return fail(STATUS_INTERNAL, "simulation: found %d of %d ranks present", c->present, c->world);
    /* A GPU that has TF32 also has bfloat16. Older GPUs have no bfloat16, only float16. */
    bool half = c->precision == SIM_BF16 || c->precision == SIM_FP16;
    if (c->precision != SIM_FP32 && c->precision != SIM_FP16 && !sim_profile_has(p, SIM_PEAK_TF32))
        return fail(STATUS_CONFIG, "profile %s: expected precision fp32, got %s", p->name,
                    c->precision == SIM_TF32 ? "tf32" : "bf16");
    if (half && !sim_profile_has(p, SIM_PEAK_HALF))
        return fail(STATUS_CONFIG, "profile %s: expected precision fp32 or tf32, got %s", p->name,
                    c->precision == SIM_BF16 ? "bf16" : "fp16");
    return STATUS_OK;
}

static status open_all(simulation *s)
{
    const simulation_config *c = &s->config;
    TRY(sim_profile_load(c->profile ? c->profile : SIM_DEFAULT_PROFILE, &s->profile));
    TRY(check(c, s->profile));
    sim_profile_draw(s->profile, c->draw);
    TRY(sim_profile_keep_adapters(s->profile, c->adapters));
    s->profile->wiring.oversubscription = c->oversubscription;
    TRY(replace_link(s->profile, SIM_NIC, c->link_rate));
    TRY(replace_link(s->profile, SIM_NETWORK_LATENCY, c->link_latency));
    if (c->efficiency > 0 && c->efficiency != 1) TRY(multiply_efficiencies(s->profile, c->efficiency));
    for (int i = 0; i < c->override_count; i++) {
        const char *name = sim_constant_table[c->overrides[i].constant].name;
        TRY(replace(s->profile, name, c->overrides[i]));
    }
    TRY(place_ranks(s));
    return sim_network_init(&s->network, &s->queue, s->topology->capacities, s->topology->resource_count);
}

status simulation_open(const simulation_config *config, simulation **out)
{
    *out = NULL;
    simulation *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a simulation");
    s->config = *config;
    status rc = open_all(s);
    if (rc != STATUS_OK) simulation_close(&s);
    *out = s;
    return rc;
}

void simulation_close(simulation **pointer)
{
    simulation *s = *pointer;
    if (!s) return;
    if (s->devices) s->free_devices(s->devices);
    sim_network_deinit(&s->network);
    sim_queue_deinit(&s->queue);
    sim_topology_close(&s->topology);
    sim_profile_free(&s->profile);
    free(s);
    *pointer = NULL;
}

/* ---- running ---------------------------------------------------------------------------------- */

sim_place simulation_gpu(const simulation *s, int rank)
{
    int each = gpus_of_process(s), processes = s->config.world / each;
    int seat = rank % processes * each + rank / processes;
    return (sim_place){.machine = seat / s->ranks_per_machine, .index = seat % s->ranks_per_machine};
}

sim_place simulation_host(const simulation *s, int rank)
{
    sim_place gpu = simulation_gpu(s, rank);
    return (sim_place){.machine = gpu.machine, .host = true, .index = s->topology->gpu_socket[gpu.index]};
}

static bool step(simulation *s)
{
    s->firing = true;
    bool fired = sim_queue_step(&s->queue);
    s->firing = false;
    return fired;
}

status simulation_run(simulation *s)
{
    s->stopping = false;
    while (s->failure == STATUS_OK && !s->stopping && step(s)) {
    }
    return s->failure;
}

void simulation_stop(simulation *s)
{
    s->stopping = true;
}

static status stuck(const simulation *s)
{
    enum { MOST_NAMED = 4 };
    text_buffer text = {0};
    int count = 0;
    for (const sim_actor *a = s->actors; a; a = a->next) {
        if (!a->waits_for) continue;
        if (count++ < MOST_NAMED)
            text_append(&text, "%srank %d's %s thread for %s", count > 1 ? ", " : "", a->rank, a->name,
                        a->waits_for);
    }
    status rc = fail(STATUS_INTERNAL, "at %.6f virtual ms nothing is left to happen, and %d wait: %s",
                     sim_to_ms(s->queue.now), count, text.data ? text.data : "");
    text_free(&text);
    return rc;
}

status simulation_run_until_woken(simulation *s, sim_actor *a)
{
    while (s->failure == STATUS_OK && !a->woken)
        if (!step(s)) return stuck(s);
    return s->failure;
}

status simulation_check_finished(const simulation *s)
{
    for (const sim_actor *a = s->actors; a; a = a->next)
        if (a->waits_for) return stuck(s);
    return STATUS_OK;
}
