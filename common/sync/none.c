/* The engine without communication, the baseline of every comparison. Each rank trains alone. */
#include "common/sync/engine.h"
#include "common/sync/staging.h"

#include <stdlib.h>

/* Functions that implement an interface rarely need all parameters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static const sync_policy_info policies[] = {{"none", "this program", "one rank, no communication"}};

static const option_table no_options = {"Engine none", NULL, 0};

static status none_requirements(const void *options, const char *policy, int world, sync_requirements *out)
{
    *out = (sync_requirements){.reach = SYNC_REACH_DEVICE};
    return STATUS_OK;
}

static status none_open(const sync_context *context, sync_engine **out)
{
    sync_engine *e = calloc(1, sizeof *e);
    if (!e) return fail(STATUS_SYSTEM, "no memory for an engine");
    *e = (sync_engine){.type = &sync_none,
                       .context = *context,
                       .updates = true,
                       .enqueues = sync_memory_is_separate(context->device)};
    sync_hold_gradients(e);
    *out = e;
    return STATUS_OK;
}

static status none_handshake(sync_engine *e, sync_blob *out)
{
    return STATUS_OK;
}

static status none_connect(sync_engine *e, const sync_blob *handshakes)
{
    return STATUS_OK;
}

static void none_close(sync_engine *e)
{
    sync_drop_gradients(e);
    free(e);
}

static status none_group_sum(sync_engine *e, double *values, int count)
{
    return STATUS_OK;
}

static const void *none_reduced_gradients(sync_engine *e, piece_list *owned)
{
    const param_set *set = e->context.params;
    *owned = param_set_pieces(set, 0, set->model->param_count);
    return set->grads.data;
}

static void none_counters(sync_engine *base, sync_counters *out)
{
    *out = (sync_counters){.updates_skipped = optimizer_skipped(base->context.optimizer)};
}

const sync_engine_type sync_none = {
    .name = "none",
    .options = &no_options,
    .options_size = 0,
    .policies = policies,
    .policy_count = 1,
    .requirements = none_requirements,
    .open = none_open,
    .handshake = none_handshake,
    .connect = none_connect,
    .close = none_close,
    .begin_forward = sync_default_call,
    .need = sync_default_param,
    .release = sync_default_param,
    .end_forward = sync_default_call,
    .ready = sync_default_param,
    .reduce = sync_default_call,
    .norm = sync_default_norm,
    .update = sync_default_update,
    .flush = sync_default_flush,
    .gather_parameters = sync_default_flush,
    .group_sum = none_group_sum,
    .reduced_gradients = none_reduced_gradients,
    .end_step = sync_default_end_step,
    .counters = none_counters,
};
