#include "common/device/sim/device_sim.h"

#include "common/base/random.h"
#include "common/device/host/host.h"
#include "common/device/sim/sim_impl.h"
#include "common/sim/price.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Addresses that no processor accepts, so that an access crashes. An address consists of bit 62, the rank,
 * and an offset of 40 bits. */
enum { ADDRESS_BIT = 62, RANK_SHIFT = 40 };

/* ---- opening ---------------------------------------------------------------------------------- */

/* Joins the simulation in the configuration. If the configuration has none, opens a simulation for this
 * device. */
static status join_simulation(sim_device *d)
{
    const device_config *c = &d->base.config;
    const char *colon = strchr(c->name, ':');
    simulation_config config = {.profile = colon && colon[1] ? colon + 1 : SIM_DEFAULT_PROFILE,
                                .world = c->world};
    d->simulation = c->simulation;
    d->owns_simulation = !d->simulation;
    if (d->owns_simulation && c->world != 1)
        return fail(STATUS_INTERNAL, "device %s: %d ranks need a simulation that they share", c->name,
                    c->world);
    if (d->owns_simulation) TRY(simulation_open(&config, &d->simulation));
    int world = d->simulation->config.world;
    if (c->rank < 0 || c->rank >= world)
        return fail(STATUS_INTERNAL, "device %s: rank %d is outside the simulation of %d ranks", c->name,
                    c->rank, world);
    return STATUS_OK;
}

static sim_time time_of(const sim_device *d, sim_constant c)
{
    return sim_from_us(sim_profile_get(d->simulation->profile, c));
}

static double rank_speed(const sim_device *d)
{
    const simulation *s = d->simulation;
    if (!s->config.jitter_seed) return 1;
    uint64_t start = random_start(s->config.jitter_seed, random_fnv1a64("jitter_rank"));
    return 1 + sim_profile_get(s->profile, SIM_JITTER_RANK) *
                   fabs(random_normal(start, (uint64_t)d->base.config.rank));
}

static double narrowest(const simulation *s, const sim_route *route)
{
    double least = INFINITY;
    for (int i = 0; i < route->count; i++) {
        double rate = s->topology->capacities[route->hops[i].resource] / route->hops[i].weight;
        if (rate < least) least = rate;
    }
    return least;
}

static void read_profile(sim_device *d)
{
    const simulation *s = d->simulation;
    const sim_profile *p = s->profile;
    int rank = d->base.config.rank;
    int processes = simulation_processes(s);
    d->hides_launches = s->config.launches_are_calls && sim_profile_get(p, SIM_SYNCHRONOUS) == 0;
    d->synchronous = d->hides_launches || sim_profile_get(p, SIM_SYNCHRONOUS) > 0;
    d->launch = d->launch_alone = time_of(d, SIM_LAUNCH_TIME);
    d->synchronize = time_of(d, SIM_SYNCHRONIZE_TIME);
    d->overhead = time_of(d, SIM_KERNEL_OVERHEAD);
    d->contends = processes > 1;
    d->slowdown = rank_speed(d);
    if (sim_profile_get(p, SIM_SYNCHRONOUS) > 0) {
        double crowding;
        d->host_share = sim_price_core_share(p, processes, &crowding);
        d->slowdown *= crowding;
    }
    d->slowdown_alone = d->slowdown;
    uint64_t stream = random_mix(random_fnv1a64("jitter_kernel") ^ (uint64_t)rank);
    d->jitter = s->config.jitter_seed ? random_start(s->config.jitter_seed, stream) : 0;
    d->memory_most = (uint64_t)(sim_profile_get(p, SIM_GPU_MEMORY) * 0x1p30);
    if (s->config.unlimited_memory) d->memory_most = UINT64_MAX;
    sim_topology_route(s->topology, simulation_host(s, rank), simulation_gpu(s, rank), &d->up);
    sim_topology_route(s->topology, simulation_gpu(s, rank), simulation_host(s, rank), &d->down);
    d->copy_rate = narrowest(s, &d->up);
}

static void describe(sim_device *d)
{
    const sim_profile *p = d->simulation->profile;
    d->base.info = (device_info){.name = device_sim.name,
                                 .compute_type = DTYPE_F32,
                                 .bf16 = d->simulation->config.precision >= SIM_BF16,
                                 .copy_engine = sim_profile_get(p, SIM_SYNCHRONOUS) == 0,
                                 .simulated = true};
    snprintf(d->base.info.description, sizeof d->base.info.description, "virtual, profile %s: %s", p->name,
             p->summary);
}

static void sim_close(device *base)
{
    sim_device *d = (sim_device *)base;
    assert(!d->streams);
    for (sim_peer *p = d->peers, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    sim_actor_close(&d->host);
    if (d->owns_simulation) simulation_close(&d->simulation);
    free(d->failure);
}

static status sim_open(device *base)
{
    sim_device *d = (sim_device *)base;
    int rank = base->config.rank;
    TRY(join_simulation(d));
    TRY(sim_actor_open(d->simulation, &d->host, rank, "compute"));
    read_profile(d);
    d->core = &d->host;
    describe(d);
    d->memory_next = (UINT64_C(1) << ADDRESS_BIT) + ((uint64_t)rank << RANK_SHIFT);
    return STATUS_OK;
}

status sim_device_failed(const sim_device *d)
{
    if (d->failure) return error_adopt(d->failure);
    return fail(STATUS_SYSTEM, "a fence failed, and there was no memory for the reason");
}

/* ---- memory ----------------------------------------------------------------------------------- */

static status sim_allocate(device *base, device_memory_kind kind, size_t bytes, device_memory *out)
{
    enum { PAGE = 4096 };
    sim_device *d = (sim_device *)base;
    uint64_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
    if (rounded == 0) rounded = PAGE;
    if (kind != DEVICE_MEMORY_STAGING) {
        if (rounded > d->memory_most - d->memory_used)
            return fail(STATUS_SYSTEM,
                        "rank %d: no memory for %.2f GiB: %.2f GiB of the GPU's %.0f GiB (%s) are in use",
                        base->config.rank, (double)bytes * 0x1p-30, (double)d->memory_used * 0x1p-30,
                        (double)d->memory_most * 0x1p-30, d->simulation->profile->name);
        d->memory_used += rounded;
    }
    out->data = (void *)(uintptr_t)d->memory_next;
    out->bytes = rounded;
    d->memory_next += rounded;
    return STATUS_OK;
}

static void sim_free(device *base, device_memory *memory)
{
    if (memory->kind != DEVICE_MEMORY_STAGING) ((sim_device *)base)->memory_used -= memory->bytes;
}

/* ---- time ------------------------------------------------------------------------------------- */

static int64_t sim_now_ns(device *d)
{
    return sim_to_ns(sim_actor_of((sim_device *)d)->time);
}

/* Slows down the whole GPU, because a GPU has only one compute stream. */
static void slow_down(device_stream *s, double factor)
{
    sim_device *d = (sim_device *)s->device;
    d->slowdown = d->slowdown_alone * factor;
}

#define SLOT(name) .name = sim_##name,
const device_backend device_sim = {
    .name = "sim",
    HOST_SHARED(HOST_SLOT) SIM_FUNCTIONS(SLOT).open = sim_open,
    .close = sim_close,
    .allocate = sim_allocate,
    .free = sim_free,
    .choose_layout = host_keep_layout,
    .device_bytes = sizeof(sim_device),
    .stream_bytes = sizeof(sim_stream),
    .fence_bytes = sizeof(sim_fence),
    .stream_slow_down = slow_down,
    .now_ns = sim_now_ns,
};

/* ---- beyond device.h -------------------------------------------------------------------------- */

simulation *sim_device_simulation(device *d)
{
    return d->backend == &device_sim ? ((sim_device *)d)->simulation : NULL;
}

sim_actor *sim_device_host(device *d)
{
    return &((sim_device *)d)->host;
}

sim_actor *sim_device_actor(device *d)
{
    return sim_actor_of((sim_device *)d);
}

void sim_device_listen(device *d, sim_listener *listener)
{
    listener->next = ((sim_device *)d)->listeners;
    ((sim_device *)d)->listeners = listener;
}

void sim_device_leave(device *d, sim_listener *listener)
{
    sim_listener **at = &((sim_device *)d)->listeners;
    while (*at && *at != listener) at = &(*at)->next;
    if (*at) *at = listener->next;
}

/* Changes the communication that runs now. Streams first advance to the current time at the old speed. After
 * the change, their next events are computed at the new speed. Advancing may begin other transfers. */
static void change_communication(sim_device *d, int by, sim_load load)
{
    bool changes = !d->synchronous && (load.sms > 0 || load.memory > 0 || load.share > 0);
    for (sim_stream *s = d->streams; s && changes; s = s->next) sim_stream_advance(s);
    d->communicating += by;
    if (load.share > 0) d->sharing += by;
    d->load = d->communicating == 0
                  ? (sim_load){0}
                  : (sim_load){d->load.sms + by * load.sms, d->load.memory + by * load.memory,
                               d->sharing ? fmax(d->load.share, load.share) : 0};
    if (d->communicating == 0 || d->communicating == by) sim_core_changed(d);
    for (sim_stream *s = d->streams; s && changes; s = s->next) sim_stream_advance(s);
}

void sim_device_begin_communication(device *d, sim_load load)
{
    change_communication((sim_device *)d, 1, load);
}

void sim_device_end_communication(device *d, sim_load load)
{
    assert(((sim_device *)d)->communicating > 0);
    change_communication((sim_device *)d, -1, load);
}

void sim_device_spend_launch(device *d)
{
    sim_actor_spend(sim_actor_of((sim_device *)d), ((sim_device *)d)->launch);
}

bool sim_device_is_host(device *d)
{
    const simulation *s = sim_device_simulation(d);
    return s && sim_profile_get(s->profile, SIM_SYNCHRONOUS) > 0;
}

bool sim_address(const void *address)
{
    return (uintptr_t)address >> ADDRESS_BIT == 1;
}

void sim_device_share_core(device *d, device *other)
{
    ((sim_device *)d)->core = &((sim_device *)other)->host;
}

static bool has_interpreter(const sim_device *d, sim_constant cost)
{
    return d->simulation->config.python && sim_profile_has(d->simulation->profile, cost);
}

void sim_device_share_interpreter(device *base, int threads)
{
    sim_device *d = (sim_device *)base;
    if (!sim_device_simulation(base)) return;
    d->launch = d->launch_alone;
    if (threads == 0 || !has_interpreter(d, SIM_PYTHON_CALL)) return;
    sim_time call = time_of(d, SIM_PYTHON_CALL);
    d->launch = sim_later(d->launch_alone + call, call * threads);
}

void sim_device_wire(device *base, int replicas, int parameters)
{
    sim_device *d = (sim_device *)base;
    if (!sim_device_simulation(base)) return;
    if (!has_interpreter(d, SIM_PYTHON_WIRE)) return;
    d->simulation->wired = sim_actor_of(d)->time + time_of(d, SIM_PYTHON_WIRE) * replicas * parameters;
}

void sim_device_await_wiring(device *base)
{
    sim_device *d = (sim_device *)base;
    if (!sim_device_simulation(base)) return;
    sim_actor *a = sim_actor_of(d);
    a->time = sim_later(a->time, d->simulation->wired);
}
