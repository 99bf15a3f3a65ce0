/* The three implementations over shared memory: they differ in how the algorithm of a call is chosen. */
#include "ring/collectives/shm/shm_internal.h"
#include "ring/collectives/tuning.h"

static const shm_algorithm *choose_two_shot(const shm_queue *q, const collective_call *call)
{
    (void)q;
    (void)call;
    return &shm_algorithm_two_shot;
}

static const shm_algorithm *choose_ring(const shm_queue *q, const collective_call *call)
{
    bool rings = q->size > 1 && shm_algorithm_ring.has_form(call->kind);
    return rings ? &shm_algorithm_ring : &shm_algorithm_two_shot;
}

static const shm_algorithm *choose_tuned(const shm_queue *q, const collective_call *call)
{
    const collective_tuning *tuning = q->group->base.world->config.tuning;
    if (call->kind != COLLECTIVE_ALL_REDUCE) return &shm_algorithm_two_shot;
    collective_algorithm best = collective_tuning_choose(tuning ? tuning : &collective_tuning_default, q->size,
                                                         call->count * dtype_size(call->type));
    return best == COLLECTIVE_ALGORITHM_RING ? choose_ring(q, call) : &shm_algorithm_two_shot;
}

static status open_ring(const collective_config *config, collective_world **out)
{
    return shm_world_open(config, choose_ring, out);
}

static status open_two_shot(const collective_config *config, collective_world **out)
{
    return shm_world_open(config, choose_two_shot, out);
}

static status open_tuned(const collective_config *config, collective_world **out)
{
    return shm_world_open(config, choose_tuned, out);
}

#define SHM_FUNCTIONS                                                                                                  \
    .close = shm_world_close, .group_open = shm_group_open, .group_close = shm_group_close, .post = shm_queue_post,    \
    .done = shm_queue_done, .times = shm_queue_times, .progress = shm_queue_progress, .wait = shm_world_wait,          \
    .wake = shm_world_wake, .abort = shm_world_abort

const collective_type collective_ring = {
    .name = "ring",
    .open = open_ring,
    SHM_FUNCTIONS,
};

const collective_type collective_two_shot = {
    .name = "two-shot",
    .open = open_two_shot,
    SHM_FUNCTIONS,
};

const collective_type collective_auto = {
    .name = "auto",
    .open = open_tuned,
    SHM_FUNCTIONS,
};
