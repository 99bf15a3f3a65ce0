#include "harness/run/rank.h"

#include "common/base/clock.h"
#include "harness/run/job.h"
#include "harness/run/record.h"
#include "ps/ps.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct server_state {
    const run_config *config;
    const rank_place *place;
    dataset *set;
    nn_model *model;
    nn_program *program;
    device *device;
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
    rendezvous *members;
    sync_blob *handshakes; /* [ranks + servers] */
} server_state;

static int member_count(const server_state *s)
{
    return s->place->world + s->place->servers;
}

/* Returns the device of a server in a separate process. If ranks use GPUs, the server uses the host. */
static const char *device_name(const run_config *c)
{
    return strcmp(c->run.device, "cuda") == 0 ? "cpu" : c->run.device;
}

/* Opens parameters without gradients, in the layout of the ranks' program, and the optimizer's state. */
static status open_parts(server_state *s)
{
    const run_config *c = s->config;
    int engine = s->place->engine, threads = run_config_threads(c, s->place->job);
    sync_requirements needs = {0};
    model_options resolved;
    TRY(engine_table[engine]->requirements(c->engine_options[engine], c->policies[engine], s->place->world,
                                           &needs));
    TRY(run_config_build(c, &s->set, &s->model, &resolved));
    device_config device = {
        .name = device_name(c), .rank = s->place->rank, .world = s->place->world, .threads = threads};
    TRY(device_open(&device, &s->device));
    dtype type = device_get_info(s->device)->compute_type;
    nn_program_config program = {
        .batch = c->data.batch, .mode = NN_TRAIN, .type = type, .world = s->place->world};
    TRY(nn_program_compile(s->model, &program, &s->program));
    param_set_config params = {.param_kind = needs.param_kind};
    TRY(param_set_open(s->device, s->model, s->program, &params, &s->params));
    return optimizer_open(s->device, &c->optimizer, type, s->params->arena_elements,
                          s->params->logical_bytes / dtype_size(type), &s->ledger, &s->optimizer);
}

static status exchange(void *context, sync_blob mine, const sync_blob **handshakes)
{
    server_state *s = context;
    rendezvous_blob *got = calloc((size_t)member_count(s), sizeof *got);
    if (!got)
        return fail(STATUS_SYSTEM, "no memory for the handshakes of %d ranks and servers", member_count(s));
    int64_t deadline = clock_now_ns() + s->config->run.connect_timeout_ns;
    status rc = rendezvous_allgather(s->members, "handshakes", mine.data, mine.bytes, deadline, got);
    for (int m = 0; m < member_count(s) && rc == STATUS_OK; m++)
        s->handshakes[m] = (sync_blob){(void *)got[m].data, got[m].bytes};
    *handshakes = s->handshakes;
    free(got);
    rank_slot_enter(status_table_slot(s->place->table, s->place->rank), RANK_SERVE, clock_now_ns());
    return rc;
}

static status serve(server_state *s)
{
    const run_config *c = s->config;
    int engine = s->place->engine;
    net_link link;
    TRY(net_link_parse(c->shared.link, &link));
    s->handshakes = calloc((size_t)member_count(s), sizeof *s->handshakes);
    if (!s->handshakes) return fail(STATUS_SYSTEM, "no memory for a parameter server");
    TRY(open_parts(s));
    TRY(rank_open_rendezvous(c, s->place, member_count(s), NULL, NULL, &s->members));
    sync_context context = {.rank = s->place->rank,
                            .world = s->place->world,
                            .job_token = s->place->token,
                            .device = s->device,
                            .params = s->params,
                            .program = s->program,
                            .optimizer = s->optimizer,
                            .ledger = &s->ledger,
                            .options = c->engine_options[engine],
                            .policy = c->policies[engine],
                            .slot = status_table_slot(s->place->table, s->place->rank),
                            .table = s->place->table,
                            .stall_timeout_ns = c->shared.stall_timeout_ns,
                            .divide = c->shared.divide,
                            .link = link};
    TRY(ps_server_main(&context, exchange, s));
    json_t *result = json_pack("{s:i, s:i, s:o}", "server", context.rank - context.world, "pid",
                               (int)getpid(), "memory", ledger_to_json(&s->ledger));
    status rc = result ? run_jobs_deliver_server(result) : fail(STATUS_SYSTEM, "no memory for the results");
    json_decref(result);
    return rc;
}

static void tear_down(server_state *s)
{
    rendezvous_close(&s->members);
    optimizer_close(&s->optimizer);
    param_set_close(&s->params);
    nn_program_free(&s->program);
    device_close(&s->device);
    nn_model_free(&s->model);
    dataset_close(&s->set);
    free(s->handshakes);
}

status server_run(const run_config *config, const rank_place *place)
{
    server_state s = {.config = config, .place = place};
    rank_slot *slot = status_table_slot(place->table, place->rank);
    rank_slot_enter(slot, RANK_SETUP, clock_now_ns());
    status rc = serve(&s);
    if (rc != STATUS_OK)
        job_fail(place->table, place->rank, rc, error_message());
    else
        rank_slot_finish(slot);
    tear_down(&s);
    return rc;
}
