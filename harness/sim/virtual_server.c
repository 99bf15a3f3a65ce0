#include "harness/sim/virtual_server.h"

#include "common/device/sim/device_sim.h"

static status open_memory(virtual_server *v, const virtual_job_config *c, const nn_program *program)
{
    sync_requirements needs = {0};
    TRY(c->engine->requirements(c->engine_options, c->policy, c->machine.world, &needs));
    param_set_config params = {.param_kind = needs.param_kind};
    TRY(param_set_open(v->device, c->model, program, &params, &v->params));
    dtype type = device_get_info(v->device)->compute_type;
    return optimizer_open(v->device, c->optimizer, type, v->params->arena_elements,
                          v->params->logical_bytes / dtype_size(type), &v->ledger, &v->optimizer);
}

status virtual_server_open(virtual_server *v, const virtual_job_config *config, simulation *s, transport_hub *hub,
                           int index, trainer *first, trainer *local)
{
    int world = config->machine.world;
    device_config device = {.name = "sim", .rank = index % world, .world = world, .threads = 1, .simulation = s};
    *v = (virtual_server){0};
    TRY(device_open(&device, &v->device));
    sim_device_share_core(v->device, trainer_device(local));
    TRY(open_memory(v, config, trainer_program(first)));
    ps_server_context context = {.index = index,
                                 .world = world,
                                 .device = v->device,
                                 .params = v->params,
                                 .program = trainer_program(first),
                                 .optimizer = v->optimizer,
                                 .ledger = &v->ledger,
                                 .options = config->engine_options,
                                 .policy = config->policy,
                                 .stall_timeout_ns = config->stall_timeout_ns,
                                 .divide = config->divide,
                                 .hub = hub};
    return ps_server_process_open(&context, &v->server);
}

status virtual_server_start(virtual_server *v, const sync_blob *handshakes)
{
    TRY(ps_server_process_join(v->server, handshakes));
    return ps_server_process_start(v->server);
}

void virtual_server_close(virtual_server *v)
{
    ps_server_process_close(&v->server);
    optimizer_close(&v->optimizer);
    param_set_close(&v->params);
    device_close(&v->device);
}
