#include "harness/rank/rank.h"

#include "common/base/clock.h"
#include "harness/launch/job.h"
#include "ps/ps.h"

#include <stdlib.h>
#include <string.h>

typedef struct server_state {
    const run_config *config;
    const rank_place *place;
    dataset *set;
    nn_model *model;
    nn_program *program;
    server_memory memory;
    rendezvous *members;
    int member_count;      /* ranks and servers */
    sync_blob *handshakes; /* [member_count] */
} server_state;

status server_memory_open(server_memory *m, const run_config *c, int world, const nn_model *model,
                          const nn_program *program)
{
    sync_requirements needs = {0};
    TRY(run_config_requirements(c, ENGINE_PS, world, &needs));
    param_set_config params = {.param_kind = needs.param_kind};
    TRY(param_set_open(m->device, model, program, &params, &m->params));
    dtype type = device_get_info(m->device)->compute_type;
    return optimizer_open(m->device, &c->optimizer, type, m->params->arena_elements,
                          m->params->logical_bytes / dtype_size(type), &m->ledger, &m->optimizer);
}

void server_memory_close(server_memory *m)
{
    optimizer_close(&m->optimizer);
    param_set_close(&m->params);
    device_close(&m->device);
}

sync_context server_context(server_memory *m, const run_config *c, int rank, int world,
                            const nn_program *program)
{
    return (sync_context){.rank = rank,
                          .world = world,
                          .device = m->device,
                          .params = m->params,
                          .program = program,
                          .optimizer = m->optimizer,
                          .ledger = &m->ledger,
                          .options = c->engine_options[ENGINE_PS],
                          .policy = c->policies[ENGINE_PS],
                          .stall_timeout_ns = c->shared.stall_timeout_ns,
                          .divide = c->shared.divide};
}

static status open_memory(server_state *s)
{
    const run_config *c = s->config;
    int world = s->place->world;
    model_options resolved;
    TRY(run_config_build(c, &s->set, &s->model, &resolved));
    /* If ranks use GPUs, a server in a separate process uses the CPU. */
    device_config device = {.name = strcmp(c->run.device, "cuda") == 0 ? "cpu" : c->run.device,
                            .rank = s->place->rank,
                            .world = world,
                            .threads = run_config_threads(c, s->place->job)};
    TRY(device_open(&device, &s->memory.device));
    nn_program_config program = {.batch = c->data.batch,
                                 .mode = NN_TRAIN,
                                 .type = device_get_info(s->memory.device)->compute_type,
                                 .world = world};
    TRY(nn_program_compile(s->model, &program, &s->program));
    return server_memory_open(&s->memory, c, world, s->model, s->program);
}

static status exchange(void *context, sync_blob mine, const sync_blob **handshakes)
{
    server_state *s = context;
    status rc = rank_gather_handshakes(s->config, s->members, s->member_count, mine, s->handshakes);
    *handshakes = s->handshakes;
    rank_slot_enter(status_table_slot(s->place->table, s->place->rank), RANK_SERVE, clock_now_ns());
    return rc;
}

static status serve(server_state *s)
{
    const run_config *c = s->config;
    const rank_place *p = s->place;
    s->member_count = p->world + p->servers;
    s->handshakes = calloc((size_t)s->member_count, sizeof *s->handshakes);
    if (!s->handshakes) return fail(STATUS_SYSTEM, "no memory for a parameter server");
    TRY(open_memory(s));
    TRY(rank_open_rendezvous(c, p, s->member_count, NULL, NULL, &s->members));
    sync_context context = server_context(&s->memory, c, p->rank, p->world, s->program);
    context.job_token = p->token;
    context.slot = status_table_slot(p->table, p->rank);
    context.table = p->table;
    TRY(net_link_parse(c->shared.link, &context.link));
    TRY(ps_server_main(&context, exchange, s));
    return run_jobs_deliver_server(p->rank - p->world, &s->memory.ledger);
}

static void tear_down(server_state *s)
{
    rendezvous_close(&s->members);
    server_memory_close(&s->memory);
    nn_program_free(&s->program);
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
