/* Collectives on a device that only plans. A call is done when it is posted. It has no peers, moves no bytes
 * and takes no time. */
#include "common/collectives/collective_impl.h"

static status plan_post(collective_queue *q)
{
    q->completed = q->posted;
    return STATUS_OK;
}

const collective_type collective_plan = {
    .name = "plan",
    .algorithms = UINT32_MAX,
    .algorithm = COLLECTIVE_ALGORITHM_LIBRARY,
    .world_bytes = sizeof(collective_world),
    .group_bytes = sizeof(collective_group),
    .queue_bytes = sizeof(collective_queue),
    .post = plan_post,
};
