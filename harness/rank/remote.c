/* --remote-stage: the rendezvous of the ranks with the remote stage, and the remote stage's process. */
#include "common/pipeline/remote.h"

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/net/clocks.h"
#include "common/net/key.h"
#include "harness/launch/job.h"
#include "harness/rank/state.h"
#include "ring/policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Message of the remote stage to the workers. */
typedef struct invitation {
    uint64_t token;
    char url[REMOTE_URL_MAX];
} invitation;

/* Opens the rendezvous of ranks and remote stage. There the remote stage is rank 0, and rank r of the job is
 * rank r + 1. */
static status meet(const run_config *c, const rank_place *p, rank_slot *slot, int rank, rendezvous **out)
{
    char url[320];
    const char *address = c->run.serve_stage ? c->run.serve_stage : c->run.remote_stage;
    bool local = run_config_starts_stage(c);
    const char *key = local ? p->key : p->stage_key;
    uint64_t token = key ? net_key_number(key, "remote stage") : 0;
    if (local)
        snprintf(url, sizeof url, "%s-stage-%016" PRIx64, p->rendezvous, token);
    else
        snprintf(url, sizeof url, "tcp://%s", address);
    rendezvous_options options = {
        .url = url, .key = key, .token = token, .rank = rank, .world = p->world + 1};
    status rc = rank_open_meeting(c, slot, NULL, options, out);
    if (rc != STATUS_OK)
        error_context(local       ? "remote stage"
                      : rank == 0 ? "--serve-stage %s, rank 0"
                                  : "--remote-stage %s, rank 0",
                      address);
    return rc;
}

static remote_config config_of(const run_config *c, const nn_model *stage, const device *d, int workers)
{
    return (remote_config){.workers = workers,
                           .frame_bytes =
                               remote_frame_bytes(stage, c->data.batch, device_get_info(d)->compute_type),
                           .stall_timeout_ns = c->shared.stall_timeout_ns};
}

/* ---- a rank ------------------------------------------------------------------------------------- */

/* Writes the URL to connect to. The port and the key come from the remote stage. The host is the address at
 * which this rank has reached the remote stage. */
static void address_of(const run_config *c, const char *bound, char *out, size_t size)
{
    const char *address = c->run.remote_stage, *port = strrchr(bound, ':');
    if (run_config_starts_stage(c))
        snprintf(out, size, "%s", bound);
    else
        snprintf(out, size, "tcp://%.*s%s", (int)(strrchr(address, ':') - address), address,
                 port ? port : "");
}

static status join(rank_state *s, rendezvous *r)
{
    char url[2 * REMOTE_URL_MAX];
    int me = s->place->rank + 1;
    rendezvous_blob got;
    invitation from;
    clock_bounds bounds;
    TRY(clock_bounds_measure(r, me, s->place->world + 1, rank_deadline(s), &bounds));
    TRY(rendezvous_broadcast(r, "invitation", 0, NULL, 0, rank_deadline(s), &got));
    if (got.bytes != sizeof from)
        return fail(STATUS_PROTOCOL, "the remote stage sent an invitation of %zu bytes", got.bytes);
    memcpy(&from, got.data, sizeof from);
    from.url[sizeof from.url - 1] = '\0';
    remote_config config =
        config_of(s->config, s->remote, trainer_device(s->devices[0].trainer), s->place->world);
    config.worker = s->place->rank;
    config.token = from.token;
    config.trace = s->devices[0].trace.recorder;
    config.clock_ahead_ns = clock_align(r, me, &bounds, &bounds).begin_offset_ns;
    TRY(net_link_parse(s->config->shared.link, &config.link));
    address_of(s->config, from.url, url, sizeof url);
    return trainer_connect_remote(s->devices[0].trainer, &config, url);
}

status rank_connect_remote(rank_state *s)
{
    rendezvous *r = NULL;
    if (!s->remote) return STATUS_OK;
    TRY(meet(s->config, s->place, s->slot, s->place->rank + 1, &r));
    status rc = join(s, r);
    rendezvous_close(&r);
    return rc;
}

void rank_add_remote(const rank_state *s, json_t *job)
{
    const nn_stage *half = &s->cut.stages[1];
    json_t *stage = json_pack("{s:s, s:s, s:I, s:f}", "address", s->config->run.remote_stage, "begins_at",
                              s->model->layers[half->begin].name, "parameters", (json_int_t)half->parameters,
                              "flop_per_sample", half->flops);
    json_object_set_new(job, "remote_stage", stage);
}

/* ---- the remote stage --------------------------------------------------------------------------- */

typedef struct stage_process {
    const run_config *config;
    const rank_place *place;
    rank_slot *slot; /* NULL if started by hand */
    uint64_t token;
    dataset *set;
    nn_model *model, *stage;
    device *device;
    device_stream *stream;
    ledger ledger;
    rendezvous *meeting;
    remote_server *server;
} stage_process;

static status open_stage(stage_process *s)
{
    const run_config *c = s->config;
    model_options resolved;
    nn_cut cut;
    ring_settings ring;
    device_config device = {.name = c->run.device,
                            .rank = s->place->world,
                            .world = s->place->world + 1,
                            .threads = run_config_threads(c, s->place->job),
                            .precision = run_config_precision(c)};
    TRY(run_config_build(c, &s->set, &s->model, &resolved));
    TRY(nn_cut_model(s->model, 2, &cut));
    TRY(nn_stage_model(s->model, &cut, 1, &s->stage));
    TRY(device_open(&device, &s->device));
    TRY(device_stream_open(s->device, DEVICE_STREAM_COMPUTE, &s->stream));
    TRY(ring_settings_resolve((const void *)c->engine_options[ENGINE_RING], c->shared.divide,
                              c->policies[ENGINE_RING], &ring));
    remote_server_config config = {.remote = config_of(c, s->stage, s->device, s->place->world),
                                   .device = s->device,
                                   .stream = s->stream,
                                   .model = s->stage,
                                   .batch = c->data.batch,
                                   .micro_batches = c->run.accumulate,
                                   .optimizer = &c->optimizer,
                                   .divide_before = ring.policy.divide_before,
                                   .seed = c->run.seed,
                                   .ledger = &s->ledger,
                                   .slot = s->slot};
    config.remote.worker = s->place->world;
    TRY(net_link_parse(c->shared.link, &config.remote.link));
    config.remote.token = s->token = random_token();
    TRY(remote_server_open(&config, &s->server));
    if (!s->slot)
        log_info("%s, layers from %s on with %lld parameters, for %d worker%s at %s", s->model->name,
                 s->model->layers[cut.stages[1].begin].name, (long long)cut.stages[1].parameters,
                 s->place->world, s->place->world == 1 ? "" : "s", c->run.serve_stage);
    return STATUS_OK;
}

/* Listens at a free port of the address of --serve-stage, or of all addresses if that address is a name.
 * Without --serve-stage, listens at a local socket. */
static status listen_for_workers(stage_process *s, invitation *out)
{
    char url[320];
    const char *address = s->config->run.serve_stage;
    int host = address ? (int)(strrchr(address, ':') - address) : 0;
    bool numeric = address && strspn(address, "0123456789.") == (size_t)host;
    *out = (invitation){0};
    if (!address)
        snprintf(url, sizeof url, "ipc://@psring-%016" PRIx64 "-stage", s->token);
    else
        snprintf(url, sizeof url, "tcp://%.*s:*", numeric ? host : 1, numeric ? address : "*");
    out->token = s->token;
    return remote_server_listen(s->server, url, out->url);
}

static status invite(stage_process *s)
{
    invitation own;
    rendezvous_blob got;
    clock_bounds bounds;
    int64_t deadline = clock_now_ns() + s->config->run.connect_timeout_ns;
    TRY(listen_for_workers(s, &own));
    TRY(clock_bounds_measure(s->meeting, 0, s->place->world + 1, deadline, &bounds));
    return rendezvous_broadcast(s->meeting, "invitation", 0, &own, sizeof own, deadline, &got);
}

static status serve(stage_process *s)
{
    TRY(open_stage(s));
    TRY(meet(s->config, s->place, s->slot, 0, &s->meeting));
    status rc = invite(s);
    rendezvous_close(&s->meeting);
    TRY(rc);
    if (s->slot) rank_slot_enter(s->slot, RANK_SERVE, clock_now_ns());
    TRY(remote_server_run(s->server));
    if (!s->slot) {
        int64_t steps = remote_server_steps(s->server);
        log_info("%lld step%s; all workers have left", (long long)steps, steps == 1 ? "" : "s");
        return STATUS_OK;
    }
    return run_jobs_deliver_server(0, &s->ledger);
}

static void tear_down(stage_process *s)
{
    rendezvous_close(&s->meeting);
    remote_server_close(&s->server);
    device_stream_close(&s->stream);
    device_close(&s->device);
    nn_model_free(&s->stage);
    nn_model_free(&s->model);
    dataset_close(&s->set);
}

status stage_server_run(const run_config *config, const rank_place *place)
{
    rank_slot *slot = place->table ? status_table_slot(place->table, place->rank) : NULL;
    stage_process s = {.config = config, .place = place, .slot = slot};
    if (slot) rank_slot_enter(slot, RANK_SETUP, clock_now_ns());
    status rc = serve(&s);
    if (slot && rc != STATUS_OK)
        job_fail(place->table, place->rank, rc, error_message());
    else if (slot)
        rank_slot_finish(slot);
    tear_down(&s);
    return rc;
}
