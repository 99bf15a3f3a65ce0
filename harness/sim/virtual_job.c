#include "harness/sim/virtual_job.h"

#include "common/base/clock.h"
#include "common/device/sim/device_sim.h"
#include "common/net/sim/transport_sim.h"
#include "common/nn/stages.h"
#include "common/sim/fiber.h"
#include "harness/sim/virtual_source.h"
#include "ps/ps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct virtual_job virtual_job;

typedef struct virtual_rank {
    virtual_job *job;
    int rank;
    trainer *trainer;
    batch_source *source;
    rank_slot slot;
    pipeline_place place;
    rank_trace *trace; /* May be NULL. */
} virtual_rank;

/* A parameter server in a separate process (--server-placement own). Server j has no GPU. Server j uses
 * the memory of the machine of rank j mod world, like a server on that rank. If ranks compute on
 * processors and the machine has too few cores, server j shares the core of that rank. */
typedef struct virtual_server {
    device *device;
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
    sync_engine *engine; /* Serves after sync_connect(). */
} virtual_server;

struct virtual_job {
    virtual_job_config config;
    const virtual_job_observer *observer;
    simulation *simulation;
    virtual_rank *ranks;     /* [present] */
    sync_blob *handshakes;   /* [world + server_count] */
    virtual_server *servers; /* [server_count] */
    int server_count;
    transport_hub *hub; /* Connects engines that send messages. NULL for other engines. */
    sync_requirements needs;
    int present, running;
    int replicas;                     /* Number of ranks, or of pipelines. */
    nn_model *stages[NN_MOST_STAGES]; /* [config.stages] if the model has several stages. */
};

/* ---- steps ------------------------------------------------------------------------------------ */

/* Returns the device with the rank's next stage, or NULL. */
static virtual_rank *next_device(const virtual_rank *r)
{
    virtual_job *job = r->job;
    bool more = job->config.machine.per_process > 1 && r->rank + job->replicas < job->present;
    return more ? &job->ranks[r->rank + job->replicas] : NULL;
}

static status finish(virtual_rank *r)
{
    virtual_job *job = r->job;
    const virtual_job_observer *o = job->observer;
    for (virtual_rank *d = r; d; d = next_device(d)) {
        if (o->finished) TRY(o->finished(o->context, d->rank, d->trainer));
        job->running--;
    }
    if (job->running == 0) simulation_stop(job->simulation);
    return STATUS_OK;
}

static status end_step(virtual_rank *r, bool measured)
{
    const virtual_job_observer *o = r->job->observer;
    for (virtual_rank *d = r; d; d = next_device(d)) {
        step_result result;
        TRY(trainer_end_step(d->trainer, &result));
        if (d->trace) rank_trace_end_step(d->trace, &result, trainer_ledger(d->trainer));
        if (measured && o->step) o->step(o->context, d->rank, d->trainer, &result);
    }
    return STATUS_OK;
}

static void begin_measuring(virtual_rank *r)
{
    const virtual_job_observer *o = r->job->observer;
    for (virtual_rank *d = r; d && o->measures; d = next_device(d))
        o->measures(o->context, d->rank, d->trainer);
}

/* Runs the train loop of a rank, on a fiber. */
static status drive(void *context)
{
    virtual_rank *r = context;
    const trainer_config *c = &r->job->config.trainer;
    int64_t batches = c->accumulate > 1 ? c->accumulate : 1, warmup = r->job->config.warmup;
    for (int64_t step = 0; step < c->total_steps; step++) {
        if (step == warmup) begin_measuring(r);
        for (virtual_rank *d = r; d; d = next_device(d))
            if (d->trace) rank_trace_begin_step(d->trace, step);
        TRY(trainer_begin_step(r->trainer, r->source, step, step * batches));
        TRY(end_step(r, step >= warmup));
    }
    if (warmup == c->total_steps) begin_measuring(r);
    for (virtual_rank *d = r; d; d = next_device(d)) {
        TRY(sync_flush(trainer_engine(d->trainer)));
        TRY(device_stream_synchronize(trainer_stream(d->trainer)));
    }
    return finish(r);
}

/* ---- set-up ----------------------------------------------------------------------------------- */

static bool is_pipeline(const virtual_job_config *c)
{
    return c->stages > 1;
}

static int replicas_of(const virtual_job_config *c)
{
    return is_pipeline(c) ? c->machine.world / c->stages : c->machine.world;
}

static sampler_config sampler_of(const virtual_job_config *c)
{
    return (sampler_config){.mode = (sampler_mode)c->data->sampler,
                            .samples = dataset_describe(c->set)->samples[DATA_TRAIN],
                            .batch = c->data->batch,
                            .world = replicas_of(c),
                            .drop_last = c->data->drop_last};
}

/* Sets sizes[0] to the size of an epoch's last batch if it differs from the full batch. */
static void odd_size(const virtual_rank *r, const sampler *s, int64_t sizes[TRAINER_MAX_SIZES])
{
    int64_t count = sampler_span_of(s, r->place.replica, s->steps - 1).count;
    if (count != r->job->config.data->batch && count != 0) sizes[0] = count;
}

static status open_rank(virtual_job *job, int rank)
{
    const virtual_job_config *c = &job->config;
    virtual_rank *r = &job->ranks[rank];
    r->job = job;
    r->rank = rank;
    r->place = (pipeline_place){.shape = {.schedule = (pipeline_schedule)c->schedule,
                                          .stages = c->stages,
                                          .batches = (int)c->trainer.accumulate},
                                .stage = rank / job->replicas,
                                .devices = c->machine.per_process > 1,
                                .replica = rank % job->replicas,
                                .replicas = job->replicas};
    trainer_config t = c->trainer;
    t.rank = r->place.replica;
    t.local_rank = rank;
    t.world = job->replicas;
    if (is_pipeline(c)) {
        t.place = &r->place;
        t.model = job->stages[r->place.stage];
    }
    t.device = "sim";
    t.threads = 1;
    t.simulation = job->simulation;
    t.batch = c->data->batch;
    t.slot = &r->slot;
    t.hub = job->hub;
    if (job->observer->trace) r->trace = job->observer->trace(job->observer->context, rank);
    if (r->trace) t.trace = r->trace->recorder;
    sampler_config sampling = sampler_of(c);
    sampler sampler;
    TRY(sampler_init(&sampler, &sampling));
    odd_size(r, &sampler, t.sizes);
    bool whole = job->needs.whole_batch && rank == 0;
    TRY(virtual_source_open(c->set, &sampling, r->place.replica, whole, &r->source));
    TRY(trainer_open(&t, &r->trainer));
    bool loads = !r->place.devices || r->place.stage == 0; /* A process has one loader. */
    if (c->loader_workers && loads)
        virtual_source_load(r->source, sim_device_host(trainer_device(r->trainer)), c->loader_workers);
    return STATUS_OK;
}

static void join_devices(virtual_job *job)
{
    for (int r = 0; r < job->replicas; r++) {
        trainer *stages[NN_MOST_STAGES];
        batch_source *sources[NN_MOST_STAGES];
        int count = 0;
        for (virtual_rank *d = &job->ranks[r]; d; d = next_device(d), count++) {
            stages[count] = d->trainer;
            sources[count] = d->source;
        }
        trainer_join_devices(stages, sources, count);
    }
}

/* Collects the handshakes. Equal handshakes share one copy, which makes comparing them fast. Ranks that
 * are not present get the handshake of rank 0. */
static status collect_handshakes(virtual_job *job)
{
    for (int r = 0; r < job->config.machine.world; r++) {
        job->handshakes[r] = job->handshakes[0];
        if (r >= job->present) continue;
        sync_blob mine;
        TRY(sync_handshake(trainer_engine(job->ranks[r].trainer), &mine));
        bool same = r > 0 && mine.bytes == job->handshakes[0].bytes &&
                    memcmp(mine.data, job->handshakes[0].data, mine.bytes) == 0;
        if (!same) job->handshakes[r] = mine;
    }
    for (int j = 0; j < job->server_count; j++)
        TRY(sync_handshake(job->servers[j].engine, &job->handshakes[job->config.machine.world + j]));
    return STATUS_OK;
}

/* Returns true for the parameter server, whose hosts read data that devices write. */
static bool blocks(const virtual_job *job)
{
    return strcmp(job->config.trainer.engine->name, "ps") == 0;
}

static status open_server_memory(virtual_server *v, const trainer_config *t, int world,
                                 const nn_program *program)
{
    sync_requirements needs = {0};
    TRY(t->engine->requirements(t->engine_options, t->policy, world, &needs));
    param_set_config params = {.param_kind = needs.param_kind};
    TRY(param_set_open(v->device, t->model, program, &params, &v->params));
    dtype type = device_get_info(v->device)->compute_type;
    return optimizer_open(v->device, t->optimizer, type, v->params->arena_elements,
                          v->params->logical_bytes / dtype_size(type), &v->ledger, &v->optimizer);
}

static status open_server(virtual_job *job, int index)
{
    const trainer_config *t = &job->config.trainer;
    virtual_server *v = &job->servers[index];
    int world = job->config.machine.world;
    const nn_program *program = trainer_program(job->ranks[0].trainer);
    device_config device = {
        .name = "sim", .rank = index % world, .world = world, .threads = 1, .simulation = job->simulation};
    TRY(device_open(&device, &v->device));
    sim_device_share_core(v->device, trainer_device(job->ranks[index % world].trainer));
    TRY(open_server_memory(v, t, world, program));
    sync_context context = {.rank = world + index,
                            .world = world,
                            .device = v->device,
                            .params = v->params,
                            .program = program,
                            .optimizer = v->optimizer,
                            .ledger = &v->ledger,
                            .options = t->engine_options,
                            .policy = t->policy,
                            .stall_timeout_ns = t->stall_timeout_ns,
                            .divide = t->divide,
                            .hub = job->hub};
    return sync_open(&sync_ps, &context, &v->engine);
}

static void close_server(virtual_server *v)
{
    sync_close(&v->engine);
    optimizer_close(&v->optimizer);
    param_set_close(&v->params);
    device_close(&v->device);
}

static status connect_all(virtual_job *job)
{
    TRY(collect_handshakes(job));
    for (int r = 0; r < job->present; r++) {
        const pipeline_place *place = &job->ranks[r].place;
        TRY(trainer_connect(job->ranks[r].trainer,
                            job->handshakes + (place->devices ? place->stage * place->replicas : 0)));
    }
    for (int j = 0; j < job->server_count; j++) TRY(sync_connect(job->servers[j].engine, job->handshakes));
    return STATUS_OK;
}

/* A loader decodes images, and a machine that computes on its processors has no cores for it. */
static status check_loader(const virtual_job *job)
{
    const sim_profile *p = job->simulation->profile;
    if (job->config.loader_workers == 0) return STATUS_OK;
    if (dataset_describe(job->config.set)->form.kind != DATA_IMAGE)
        return fail(STATUS_CONFIG, "--loader-workers: expected a model of images, got one of other inputs");
    if (!sim_profile_has(p, SIM_LOADER_DECODE) || !sim_profile_has(p, SIM_LOADER_COLLATE) ||
        !sim_profile_has(p, SIM_LOADER_PIN))
        return fail(STATUS_CONFIG,
                    "--loader-workers: expected a profile with loader_decode, loader_collate and "
                    "loader_pin, got %s",
                    p->name);
    return STATUS_OK;
}

static status cut_model(virtual_job *job)
{
    nn_cut cut;
    const nn_model *m = job->config.trainer.model;
    job->replicas = replicas_of(&job->config);
    if (!is_pipeline(&job->config)) return STATUS_OK;
    TRY(nn_cut_model(m, job->config.stages, &cut));
    for (int s = 0; s < cut.count; s++) TRY(nn_stage_model(m, &cut, s, &job->stages[s]));
    return STATUS_OK;
}

static status open_all(virtual_job *job)
{
    simulation_config *m = &job->config.machine;
    const trainer_config *t = &job->config.trainer;
    TRY(cut_model(job));
    TRY(t->engine->requirements(t->engine_options, t->policy, m->world, &job->needs));
    m->launches_are_calls = blocks(job);
    if (job->needs.whole_batch) m->processes = 1; /* DataParallel's replicas are threads of one process. */
    TRY(simulation_open(m, &job->simulation));
    TRY(check_loader(job));
    if (m->per_process > 1 && sim_profile_get(job->simulation->profile, SIM_SYNCHRONOUS) > 0)
        return fail(
            STATUS_CONFIG,
            "--stages-on: expected ranks for profile %s, whose ranks compute on processors, got devices",
            job->simulation->profile->name);
    if (blocks(job)) TRY(transport_sim_hub_open(job->simulation, &job->hub));
    job->present = simulation_present(job->simulation);
    job->ranks = aligned_alloc(_Alignof(virtual_rank), (size_t)job->present * sizeof *job->ranks);
    if (job->ranks) memset(job->ranks, 0, (size_t)job->present * sizeof *job->ranks);
    if (blocks(job)) TRY(ps_server_processes(t->engine_options, t->policy, m->world, &job->server_count));
    job->servers = calloc((size_t)job->server_count + 1, sizeof *job->servers);
    job->handshakes = calloc((size_t)(m->world + job->server_count), sizeof *job->handshakes);
    if (!job->ranks || !job->handshakes || !job->servers)
        return fail(STATUS_SYSTEM, "no memory for %d virtual ranks", job->present);
    for (int r = 0; r < job->present; r++) TRY(open_rank(job, r));
    if (m->per_process > 1) join_devices(job);
    for (int j = 0; j < job->server_count; j++) TRY(open_server(job, j));
    TRY(connect_all(job));
    const virtual_job_observer *o = job->observer;
    return o->opened ? o->opened(o->context, job->simulation) : STATUS_OK;
}

static status run_all(virtual_job *job)
{
    job->running = job->present;
    sim_time begin = 0;
    for (int r = 0; r < job->present; r++) {
        sim_actor *host = sim_device_host(trainer_device(job->ranks[r].trainer));
        begin = sim_later(begin, host->time);
    }
    int hosts = job->config.machine.per_process > 1 ? job->replicas : job->present;
    for (int r = 0; r < hosts; r++) {
        sim_actor *host = sim_device_host(trainer_device(job->ranks[r].trainer));
        TRY(sim_fiber_open(host, drive, &job->ranks[r]));
        sim_actor_wake(host, begin);
    }
    TRY(simulation_run(job->simulation));
    if (job->running > 0) TRY(simulation_check_finished(job->simulation));
    for (int j = 0; job->observer->served && j < job->server_count; j++)
        TRY(job->observer->served(job->observer->context, j, &job->servers[j].ledger));
    return STATUS_OK;
}

/* Returns the number of ranks to simulate, or 0 for all. Without jitter, all machines do the same. */
static int ranks_to_simulate(const virtual_job_config *c)
{
    const simulation_config *m = &c->machine;
    bool wanted = c->by_symmetry || m->world > VIRTUAL_JOB_ALL_RANKS;
    if (!wanted || m->jitter_seed || c->trainer.slow || is_pipeline(c) ||
        strcmp(c->trainer.engine->name, "ring") != 0)
        return 0;
    sim_profile *profile = NULL;
    if (sim_profile_load(m->profile, &profile) != STATUS_OK) {
        error_clear(); /* simulation_open() reports the error. */
        return 0;
    }
    int machines = m->machines ? m->machines : (m->world + profile->wiring.gpus - 1) / profile->wiring.gpus;
    int each = (m->world + machines - 1) / machines;
    sim_profile_free(&profile);
    return m->world % each == 0 ? each : 0;
}

status virtual_job_run(const virtual_job_config *config, const virtual_job_observer *observer)
{
    virtual_job job = {.config = *config, .observer = observer};
    job.config.machine.present = ranks_to_simulate(config);
    status rc = open_all(&job);
    if (rc == STATUS_OK) rc = run_all(&job);
    for (int r = 0; job.ranks && r < job.present; r++)
        if (job.ranks[r].trainer) sim_fiber_close(sim_device_host(trainer_device(job.ranks[r].trainer)));
    if (job.hub) transport_sim_hub_stop(job.hub);
    for (int j = 0; job.servers && j < job.server_count; j++) close_server(&job.servers[j]);
    for (int r = 0; job.ranks && r < job.present; r++) trainer_close(&job.ranks[r].trainer);
    for (int r = 0; job.ranks && r < job.present; r++) batch_source_close(&job.ranks[r].source);
    transport_hub_close(&job.hub);
    simulation_close(&job.simulation);
    for (int s = 0; s < NN_MOST_STAGES; s++) nn_model_free(&job.stages[s]);
    free(job.ranks);
    free(job.handshakes);
    free(job.servers);
    return rc;
}
