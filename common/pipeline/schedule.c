#include "common/pipeline/schedule.h"

#include <stddef.h>

#define NAME(upper, name) name,
const char *const pipeline_schedule_names[] = {PIPELINE_SCHEDULE_LIST(NAME) NULL};
#undef NAME

/* The result is also the number of forward passes before the first backward pass. */
int pipeline_live(const pipeline_shape *p, int stage)
{
    int first = p->schedule == PIPELINE_GPIPE  ? p->batches
                : p->schedule == PIPELINE_1F1B ? p->stages - stage
                                               : 1;
    return first < p->batches ? first : p->batches;
}

pipeline_action pipeline_action_of(const pipeline_shape *p, int stage, int index)
{
    int first = pipeline_live(p, stage), alternating = 2 * (p->batches - first), after = index - first;
    if (after < 0) return (pipeline_action){.batch = index};
    if (after >= alternating) return (pipeline_action){.backward = true, .batch = index - p->batches};
    if (after % 2 == 0) return (pipeline_action){.backward = true, .batch = after / 2};
    return (pipeline_action){.batch = first + after / 2};
}

double pipeline_bubble(const pipeline_shape *p)
{
    int fills = p->schedule == PIPELINE_SEQUENTIAL ? 1 : p->batches;
    return (double)(p->stages - 1) / (double)(fills + p->stages - 1);
}
