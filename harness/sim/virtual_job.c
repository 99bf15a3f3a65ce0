#include "harness/sim/virtual_job_impl.h"

#include "common/device/sim/device_sim.h"
#include "common/net/sim/transport_sim.h"
#include "common/nn/stages.h"
#include "common/sim/fiber.h"
#include "harness/rank/state.h"
#include "ps/ps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct virtual_job virtual_job;

/* A rank, which runs on a fiber. */
typedef struct virtual_rank {
    rank_state state;
    rank_place place;
    virtual_job *job;
} virtual_rank;

/* A parameter server in a separate process (--server-placement own). Server j has no GPU. Server j uses
 * the memory of the machine of rank j mod world, like a server on that rank. If ranks compute on
 * processors and the machine has too few cores, server j shares the core of that rank. */
typedef struct virtual_server {
    server_memory memory;
    sync_engine *engine; /* Serves after sync_connect(). */
} virtual_server;

/* A job numbers the devices of all ranks, as the results do. A rank has one device or, if --stages-on devices
 * is given, one device for each stage. */
struct virtual_job {
    const virtual_job_config *config;
    const run_config *run;
    rank_world world;
    simulation *simulation;
    virtual_rank *ranks; /* [rank_count] */
    int rank_count, running;
    int all, present;      /* Devices of the job, and simulated devices. */
    batch_source **source; /* [present] */
    rank_slot *slots;      /* [present] */
    sync_blob *handshakes; /* [all + server_count] */
    virtual_server *servers;
    int server_count;
    transport_hub *hub; /* Connects engines that send messages. NULL for other engines. */
    sync_requirements needs;
    nn_model *stages[NN_MOST_STAGES]; /* Stages of the model, or NULL if the model is not split. */
    virtual_host host;
    virtual_trace trace;
    text_buffer events;
    json_t *rows; /* [present] */
};

static rank_device *device_at(const virtual_job *job, int number)
{
    return &job->ranks[number % job->rank_count].state.devices[number / job->rank_count];
}

static sim_actor *host_of(const virtual_job *job, int number)
{
    return sim_device_host(trainer_device(device_at(job, number)->trainer));
}

/* ---- steps ------------------------------------------------------------------------------------ */

static bool never_stops(const rank_state *s)
{
    (void)s;
    return false;
}

static status do_nothing(rank_state *s)
{
    (void)s;
    return STATUS_OK;
}

static void step_ended(rank_state *s, const rank_device *d, step_result *result, bool measured)
{
    const virtual_job_config *c = ((virtual_rank *)s)->job->config;
    const virtual_variant *v = c->variant;
    result->loss = NAN; /* Virtual devices have no tensors. */
    if (v->prints) rank_print_step(s, d, result);
    if (measured && v->step) v->step(v->context, result);
    if (measured && v->progress && d->number == 0)
        run_progress_show_virtual(v->progress, c->engine, result->index + 1 - c->warmup, c->steps,
                                  1e-9 * (double)(result->end_ns - result->begin_ns));
}

/* Runs a rank from its first step to its end, on a fiber. */
static status drive(void *context)
{
    virtual_rank *r = context;
    virtual_job *job = r->job;
    rank_state *s = &r->state;
    TRY(rank_run_steps(s, s->steps.warmup, false));
    if (r->place.rank == 0) {
        job->host.trainer = s->devices[0].trainer;
        memcpy(job->host.before_ns, trainer_log(job->host.trainer)->spent_ns, sizeof job->host.before_ns);
    }
    rank_reset_peaks(s);
    TRY(rank_run_steps(s, s->steps.end, true));
    for (int d = 0; d < s->device_count; d++) {
        TRY(sync_flush(trainer_engine(s->devices[d].trainer)));
        TRY(device_stream_synchronize(trainer_stream(s->devices[d].trainer)));
    }
    /* The rows show the end of this rank, after which servers and other ranks still work. */
    for (const rank_device *d = s->devices; d < s->devices + s->device_count; d++)
        json_array_set_new(job->rows, (size_t)d->number, rank_device_to_json(s, d));
    const virtual_variant *v = job->config->variant;
    if (r->place.rank == 0 && v->ended) TRY(v->ended(v->context, s->devices[0].trainer));
    if (--job->running == 0) simulation_stop(job->simulation);
    return STATUS_OK;
}

/* ---- set-up of ranks -------------------------------------------------------------------------- */

static status open_device(virtual_job *job, int number)
{
    const virtual_job_config *c = job->config;
    rank_device *d = device_at(job, number);
    const dataset *set = c->plan->set;
    trainer_config t;
    d->number = number;
    d->place = rank_stage_place(job->run, c->engine, number);
    d->stage = job->stages[d->place.stage];
    if (number < job->trace.rank_count) d->trace = job->trace.ranks[number];
    TRY(trainer_setup_job(job->run, set, c->plan->model, c->engine, d->place.replica, d->place.replicas, &t));
    t.local_rank = number;
    t.device = "sim";
    t.simulation = job->simulation;
    t.twin = number > 0 ? device_at(job, 0)->trainer : NULL;
    t.sync.slot = &job->slots[number];
    t.sync.hub = job->hub;
    t.separate_phases = c->variant->separate_phases;
    t.total_steps = c->warmup + c->steps;
    sampler_config sampler = trainer_sampler(job->run, set, c->engine, d->place.replicas);
    bool whole = job->needs.whole_batch && number == 0;
    TRY(virtual_source_open(set, &sampler, d->place.replica, whole, &job->source[number]));
    TRY(rank_device_open(d, t));
    int hosts = job->simulation->topology->machines, processes = job->all / run_config_devices(job->run);
    int workers =
        run_config_loader_workers(job->run, job->needs.whole_batch ? 1 : (processes + hosts - 1) / hosts);
    /* A process has one loader. */
    if (workers && number < job->rank_count) {
        sim_loader_price price = virtual_source_load(job->source[number], host_of(job, number), workers,
                                                     job->run->run.loader_rate);
        if (number == 0) job->host.loader = price;
    }
    return STATUS_OK;
}

static void join_devices(virtual_job *job)
{
    for (int r = 0; r < job->rank_count; r++) {
        trainer *stages[NN_MOST_STAGES];
        batch_source *sources[NN_MOST_STAGES];
        int count = job->ranks[r].state.device_count;
        for (int d = 0; d < count; d++) {
            stages[d] = job->ranks[r].state.devices[d].trainer;
            sources[d] = job->source[r + d * job->rank_count];
        }
        trainer_join_devices(stages, sources, count);
    }
}

static status open_ranks(virtual_job *job)
{
    const virtual_job_config *c = job->config;
    int devices = run_config_devices(job->run);
    job->ranks = calloc((size_t)job->rank_count, sizeof *job->ranks);
    job->source = calloc((size_t)job->present, sizeof *job->source);
    job->slots = aligned_alloc(_Alignof(rank_slot), (size_t)job->present * sizeof *job->slots);
    if (!job->ranks || !job->source || !job->slots)
        return fail(STATUS_SYSTEM, "no memory for %d virtual ranks", job->present);
    memset(job->slots, 0, (size_t)job->present * sizeof *job->slots);
    for (int r = 0; r < job->rank_count; r++) {
        virtual_rank *v = &job->ranks[r];
        v->job = job;
        v->place = (rank_place){
            .job = c->engine, .engine = c->engine, .rank = r, .world = run_config_world(job->run, c->engine)};
        rank_state *s = &v->state;
        *s = (rank_state){.config = job->run,
                          .place = &v->place,
                          .world = &job->world,
                          .set = c->plan->set,
                          .model = c->plan->model,
                          .steps = {0, c->warmup, c->steps, c->warmup + c->steps}};
        TRY(engine_lead(c->engine, job->run->engine_options[c->engine], job->run->policies[c->engine],
                        job->all, &s->lead));
        s->devices = calloc((size_t)devices, sizeof *s->devices);
        if (!s->devices) return fail(STATUS_SYSTEM, "no memory for %d virtual ranks", job->present);
        s->device_count = devices;
    }
    for (int n = 0; n < job->present; n++) TRY(open_device(job, n));
    for (int r = 0; r < job->rank_count; r++) job->ranks[r].state.source = job->source[r];
    if (devices > 1) join_devices(job);
    return STATUS_OK;
}

/* ---- servers and connections ------------------------------------------------------------------ */

static status open_server(virtual_job *job, int index)
{
    virtual_server *v = &job->servers[index];
    int neighbor = index % job->all;
    const nn_program *program = trainer_program(device_at(job, 0)->trainer);
    device_config device = {
        .name = "sim", .rank = neighbor, .world = job->all, .threads = 1, .simulation = job->simulation};
    TRY(device_open(&device, &v->memory.device));
    sim_device_share_core(v->memory.device, trainer_device(device_at(job, neighbor)->trainer));
    TRY(server_memory_open(&v->memory, job->run, job->all, job->config->plan->model, program));
    sync_context context = server_context(&v->memory, job->run, job->all + index, job->all, program);
    context.hub = job->hub;
    return sync_open(&sync_ps, &context, &v->engine);
}

/* Collects the handshakes. Equal handshakes share one copy, which makes comparing them fast. Ranks that
 * are not present get the handshake of rank 0. */
static status collect_handshakes(virtual_job *job)
{
    for (int n = 0; n < job->all; n++) {
        job->handshakes[n] = job->handshakes[0];
        if (n >= job->present) continue;
        sync_blob mine;
        TRY(sync_handshake(trainer_engine(device_at(job, n)->trainer), &mine));
        bool same = n > 0 && mine.bytes == job->handshakes[0].bytes &&
                    memcmp(mine.data, job->handshakes[0].data, mine.bytes) == 0;
        if (!same) job->handshakes[n] = mine;
    }
    for (int j = 0; j < job->server_count; j++)
        TRY(sync_handshake(job->servers[j].engine, &job->handshakes[job->all + j]));
    return STATUS_OK;
}

static status connect_all(virtual_job *job)
{
    TRY(collect_handshakes(job));
    for (int n = 0; n < job->present; n++) {
        const rank_device *d = device_at(job, n);
        TRY(trainer_connect(d->trainer,
                            job->handshakes + (d->place.devices ? d->place.stage * d->place.replicas : 0)));
    }
    for (int j = 0; j < job->server_count; j++) TRY(sync_connect(job->servers[j].engine, job->handshakes));
    return STATUS_OK;
}

/* ---- the job ---------------------------------------------------------------------------------- */

static status cut_model(virtual_job *job)
{
    nn_cut cut;
    const nn_model *m = job->config->plan->model;
    if (job->run->run.stages == 1) return STATUS_OK;
    TRY(nn_cut_model(m, (int)job->run->run.stages, &cut));
    for (int s = 0; s < cut.count; s++) TRY(nn_stage_model(m, &cut, s, &job->stages[s]));
    return STATUS_OK;
}

static void on_ran(void *context, int rank, int stream, const char *what, sim_time begin, sim_time end)
{
    const virtual_variant *v = context;
    if (rank == 0 && stream == DEVICE_STREAM_COMPUTE && strcmp(what, SIM_WAIT) != 0)
        v->kernel(v->context, what, sim_to_ns(begin), sim_to_ns(end));
}

static status open_records(virtual_job *job)
{
    const virtual_variant *v = job->config->variant;
    for (int n = 0; n < job->present; n++) {
        TRY(record_init(&device_at(job, n)->record, job->config->steps, 0, job->all,
                        job->config->plan->model->param_count));
        json_array_append_new(job->rows, json_null());
    }
    if (v->progress) run_progress_show_virtual(v->progress, job->config->engine, 0, job->config->steps, 0);
    if (v->kernel) job->simulation->recorder = (sim_recorder){on_ran, (void *)v};
    return virtual_trace_watch(&job->trace, job->simulation);
}

static status open_all(virtual_job *job)
{
    const virtual_job_config *c = job->config;
    if (c->traced) TRY(virtual_trace_open(c, job->all, &job->trace));
    TRY(cut_model(job));
    TRY(run_config_requirements(job->run, c->engine, job->all, &job->needs));
    TRY(virtual_machines_open(c, job->all, &job->needs, &job->simulation));
    job->host = (virtual_host){.simulation = job->simulation,
                               .steps = c->steps,
                               .replicas = job->needs.whole_batch ? job->all : 0,
                               .parameters = c->plan->model->param_count};
    if (c->engine == ENGINE_PS) TRY(transport_sim_hub_open(job->simulation, &job->hub));
    job->present = simulation_present(job->simulation);
    job->rank_count = job->world.simulated_ranks = job->present / run_config_devices(job->run);
    TRY(engine_servers(c->engine, job->run->engine_options[c->engine], job->run->policies[c->engine],
                       job->all, &job->server_count));
    job->servers = calloc((size_t)job->server_count + 1, sizeof *job->servers);
    job->handshakes = calloc((size_t)(job->all + job->server_count), sizeof *job->handshakes);
    if (!job->handshakes || !job->servers)
        return fail(STATUS_SYSTEM, "no memory for %d virtual ranks", job->present);
    TRY(open_ranks(job));
    for (int j = 0; j < job->server_count; j++) TRY(open_server(job, j));
    TRY(connect_all(job));
    return open_records(job);
}

static status run_all(virtual_job *job)
{
    sim_time begin = 0;
    job->running = job->rank_count;
    for (int n = 0; n < job->present; n++) begin = sim_later(begin, host_of(job, n)->time);
    for (int r = 0; r < job->rank_count; r++) {
        TRY(sim_fiber_open(host_of(job, r), drive, &job->ranks[r]));
        sim_actor_wake(host_of(job, r), begin);
    }
    TRY(simulation_run(job->simulation));
    return job->running > 0 ? simulation_check_finished(job->simulation) : STATUS_OK;
}

/* One GPU has no error of this kind. */
static double model_error(const virtual_job *job)
{
    const simulation *s = job->simulation;
    sim_constant c = s->topology->machines > 1 ? SIM_SEVERAL_HOSTS : SIM_SEVERAL_GPUS;
    return job->all > 1 && sim_profile_has(s->profile, c) ? sim_profile_get(s->profile, c) : 1;
}

static status make_result(virtual_job *job, run_job *out)
{
    json_t *servers = job->server_count > 0 ? json_array() : NULL;
    for (int j = 0; j < job->server_count; j++)
        json_array_append_new(servers, json_pack("{s:i, s:o}", "server", j, "memory",
                                                 ledger_to_json(&job->servers[j].memory.ledger)));
    if (job->config->variant->error) *job->config->variant->error = model_error(job);
    TRY(virtual_trace_write(&job->trace, &job->events));
    return rank_job_to_json(&job->ranks[0].state, job->rows, NULL, servers, virtual_host_to_json(&job->host),
                            &out->result);
}

static void close_all(virtual_job *job)
{
    for (int r = 0; job->ranks && r < job->rank_count; r++) {
        const rank_device *first = job->ranks[r].state.devices;
        if (first && first->trainer) sim_fiber_close(sim_device_host(trainer_device(first->trainer)));
    }
    if (job->hub) transport_sim_hub_stop(job->hub);
    for (int j = 0; job->servers && j < job->server_count; j++) {
        sync_close(&job->servers[j].engine);
        server_memory_close(&job->servers[j].memory);
    }
    for (int r = 0; job->ranks && r < job->rank_count; r++) {
        rank_state *s = &job->ranks[r].state;
        for (int d = 0; d < s->device_count; d++) {
            trainer_close(&s->devices[d].trainer);
            record_deinit(&s->devices[d].record);
        }
        free(s->devices);
    }
    for (int n = 0; job->source && n < job->present; n++) batch_source_close(&job->source[n]);
    transport_hub_close(&job->hub);
    virtual_trace_close(&job->trace);
    simulation_close(&job->simulation);
    for (int s = 0; s < NN_MOST_STAGES; s++) nn_model_free(&job->stages[s]);
    json_decref(job->rows);
    free(job->ranks);
    free(job->source);
    free(job->slots);
    free(job->handshakes);
    free(job->servers);
}

status virtual_job_run(const virtual_job_config *config, run_job *out, char *note, size_t size)
{
    virtual_job job = {.config = config,
                       .run = config->run,
                       .world = {never_stops, step_ended, do_nothing, 0},
                       .rows = json_array()};
    job.all = run_config_world(job.run, config->engine) * run_config_devices(job.run);
    *out = (run_job){0};
    status rc = open_all(&job);
    if (rc == STATUS_OK && note) virtual_machines_describe(job.simulation, note, size);
    if (rc == STATUS_OK) rc = run_all(&job);
    if (rc == STATUS_OK) rc = make_result(&job, out);
    close_all(&job);
    out->trace = job.events.data;
    if (rc == STATUS_OK) return STATUS_OK;
    json_decref(out->result);
    text_free(&job.events);
    *out = (run_job){0};
    return rc;
}
