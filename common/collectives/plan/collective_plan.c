/* Collectives on a device that plans: a call is done when it is posted, without peers, bytes and time. */
#include "common/collectives/collective_impl.h"

static status plan_post(collective_queue *q)
{
    q->completed = q->posted;
    return STATUS_OK;
}

static status plan_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    (void)world, (void)now_ns, (void)deadline_ns, (void)worked;
    return STATUS_OK;
}

const collective_type collective_plan = {
    .name = "plan",
    .algorithms = UINT32_MAX,
    .algorithm = COLLECTIVE_ALGORITHM_LIBRARY,
    .world_bytes = sizeof(collective_world),
    .group_bytes = sizeof(collective_group),
    .queue_bytes = sizeof(collective_queue),
    .open = collective_default_open,
    .close = collective_default_close,
    .group_open = collective_default_group_open,
    .group_close = collective_default_group_close,
    .post = plan_post,
    .progress = plan_progress,
    .wait = collective_default_wait,
    .wake = collective_default_wake,
    .abort = collective_default_abort,
};
