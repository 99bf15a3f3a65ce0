#include "common/pipeline/pipeline.h"

#include "common/process_group/process_group.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_SHARED_GROUPS = 16, WHO_BYTES = 32 };

typedef struct post {
    void *data;
    int64_t count;
    dtype type;
} post;

/* The group of the stages that share a parameter. `stages` is the bit mask nn_param.stages of the
 * parameter. */
typedef struct shared_group {
    uint64_t stages;
    collective_group *group;
} shared_group;

/* Each channel is a queue of the process group. Message n of the channel is call n of the queue. */
struct pipeline {
    pipeline_place place;
    sync_context context;
    process_group *calls;
    collective_world *world;
    collective_group *chain; /* the stages of this replica */
    shared_group shared[MOST_SHARED_GROUPS];
    int shared_count;
    post *posts; /* [PIPELINE_CHANNELS][most_posts] message n is at index n % most_posts */
    uint64_t most_posts;
    anatomy *anatomy; /* anatomy of the step that ends */
    char who[WHO_BYTES];
};

static const char *const channel_names[PIPELINE_CHANNELS] = {[PIPELINE_INPUT] = "activations received",
                                                             [PIPELINE_OUTPUT] = "activations sent",
                                                             [PIPELINE_OUTPUT_GRADIENT] = "gradient received",
                                                             [PIPELINE_INPUT_GRADIENT] = "gradient sent",
                                                             [PIPELINE_SHARED] =
                                                                 "all_reduce of shared gradients",
                                                             [PIPELINE_NORM] = "all_reduce of the norm"};

static int peer_of(const pipeline *p, pipeline_channel c)
{
    return p->place.stage + (c == PIPELINE_INPUT || c == PIPELINE_INPUT_GRADIENT ? -1 : 1);
}

static post *post_at(const pipeline *p, pipeline_channel c, uint64_t number)
{
    return &p->posts[c * p->most_posts + number % p->most_posts];
}

/* ---- for the process group ---------------------------------------------------------------------- */

static status call_of(void *context, const process_call *message, int phase, collective_call *out)
{
    const pipeline *p = context;
    pipeline_channel c = (pipeline_channel)message->queue;
    const post *post = post_at(p, c, (uint64_t)message->index);
    collective_buffer data = {.base = post->data};
    bool sends = c == PIPELINE_OUTPUT || c == PIPELINE_INPUT_GRADIENT;
    bool all = c == PIPELINE_SHARED || c == PIPELINE_NORM;
    (void)phase;
    *out = (collective_call){.kind = all     ? COLLECTIVE_ALL_REDUCE
                                     : sends ? COLLECTIVE_SEND
                                             : COLLECTIVE_RECEIVE,
                             .op = REDUCE_SUM,
                             .type = post->type,
                             .root = all ? 0 : peer_of(p, c),
                             .tag = (message->index - 1) % p->place.shape.batches,
                             .count = post->count,
                             .in = data,
                             .out = data,
                             .control = all};
    return STATUS_OK;
}

static void accounted(void *context, const process_times *t)
{
    const pipeline *p = context;
    int64_t number = (int64_t)process_work_number(t->work);
    anatomy_insert_span(p->anatomy, t->started_ns, t->finished_ns);
    trace_async(p->context.trace, channel_names[t->work % PROCESS_GROUP_QUEUES],
                (number - 1) % p->place.shape.batches, number, t->started_ns, t->finished_ns);
}

static const process_group_ops ops = {.call = call_of, .accounted = accounted};

/* ---- the compute thread ------------------------------------------------------------------------- */

static status add(pipeline *p, pipeline_channel c, collective_group *group, post post)
{
    uint64_t number = process_group_posted(p->calls, c) + 1;
    process_work work;
    *post_at(p, c, number) = post;
    return process_group_post(p->calls, &(process_call){.group = group, .queue = c, .index = (int)number},
                              &work);
}

status pipeline_post(pipeline *p, pipeline_channel channel, void *data, dtype type, int64_t count)
{
    return add(p, channel, p->chain, (post){.data = data, .type = type, .count = count});
}

status pipeline_post_shared(pipeline *p, int param)
{
    const param_set *set = p->context.params;
    int group = 0;
    while (p->shared[group].stages != set->model->params[param].stages) group++;
    post all = {.data = param_set_gradient(set, param), .type = set->type, .count = set->pieces[param].count};
    return add(p, PIPELINE_SHARED, p->shared[group].group, all);
}

status pipeline_post_norm(pipeline *p, double *sum)
{
    return add(p, PIPELINE_NORM, p->chain, (post){.data = sum, .type = DTYPE_F64, .count = 1});
}

int64_t pipeline_posted(const pipeline *p, pipeline_channel channel)
{
    return (int64_t)process_group_posted(p->calls, channel);
}

status pipeline_await(pipeline *p, pipeline_channel channel, int64_t number, anatomy *a)
{
    return process_group_wait(p->calls, process_work_of(channel, (uint64_t)number), a);
}

void pipeline_end_step(pipeline *p, anatomy *a)
{
    p->anatomy = a;
    process_group_end_step(p->calls, a);
}

void pipeline_skip(pipeline *p)
{
    process_group_skip(p->calls);
}

void pipeline_counters(const pipeline *p, sync_counters *out)
{
    process_group_counters(p->calls, out);
}

/* ---- open and close ----------------------------------------------------------------------------- */

/* Opens the process group. A step posts at most one message per micro-batch to a channel, except to
 * PIPELINE_SHARED, to which it posts one message per shared parameter. Two steps may be in flight. */
static status open_process_group(pipeline *p)
{
    const sync_context *c = &p->context;
    int batches = p->place.shape.batches, params = c->params->model->param_count;
    process_group_config config = {.ops = &ops,
                                   .context = p,
                                   .name = "pipeline",
                                   .who = p->who,
                                   .device = c->device,
                                   .compute = c->compute,
                                   .rank = pipeline_rank(&p->place, p->place.stage),
                                   .queues = PIPELINE_CHANNELS};
    snprintf(p->who, sizeof p->who, "stage %d of %d", p->place.stage, p->place.shape.stages);
    for (int i = 0; i < PIPELINE_CHANNELS; i++)
        config.most[i] = 2 * (i == PIPELINE_SHARED ? params : batches);
    p->most_posts = 2 * (uint64_t)(params > batches ? params : batches);
    p->posts = calloc(PIPELINE_CHANNELS * p->most_posts, sizeof *p->posts);
    if (!p->posts) return fail(STATUS_SYSTEM, "no memory for a pipeline");
    return process_group_open(&config, &p->calls);
}

status pipeline_open(const pipeline_place *place, const sync_context *context, pipeline **out)
{
    *out = NULL;
    pipeline *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for a pipeline");
    p->place = *place;
    p->context = *context;
    status rc = open_process_group(p);
    if (rc != STATUS_OK) pipeline_close(&p);
    *out = p;
    return rc;
}

static status open_group(pipeline *p, const char *name, uint64_t stages, collective_group **out)
{
    int ranks[NN_MOST_STAGES], count = 0;
    for (int s = 0; s < p->place.shape.stages; s++)
        if (stages >> s & 1) ranks[count++] = pipeline_rank(&p->place, s);
    return collective_group_open(p->world, name, ranks, count, out);
}

/* Opens one group for each set of stages that share parameters. All stages list the parameters in the same
 * order. */
static status open_shared_groups(pipeline *p)
{
    const nn_model *m = p->context.params->model;
    for (int i = 0; i < m->param_count; i++) {
        uint64_t stages = m->params[i].stages;
        int known = 0;
        char name[32];
        if ((stages & (stages - 1)) == 0) continue;
        while (known < p->shared_count && p->shared[known].stages != stages) known++;
        if (known < p->shared_count) continue;
        if (known == MOST_SHARED_GROUPS)
            return fail(STATUS_CONFIG, "--stages: expected at most %d sets of stages that share parameters",
                        MOST_SHARED_GROUPS);
        snprintf(name, sizeof name, "shared %d %llx", p->place.replica, (unsigned long long)stages);
        p->shared[p->shared_count++].stages = stages;
        TRY(open_group(p, name, stages, &p->shared[known].group));
    }
    return STATUS_OK;
}

status pipeline_connect(pipeline *p)
{
    const sync_context *c = &p->context;
    const device_info *info = device_get_info(c->device);
    char name[32];
    collective_config config = process_group_collectives(c, "pipeline");
    config.rank = pipeline_rank(&p->place, p->place.stage);
    config.world = p->place.shape.stages * p->place.replicas;
    config.pairs = true;
    TRY(collective_open(info->simulated ? "sim" : info->plans ? "plan" : "shm", &config, &p->world));
    snprintf(name, sizeof name, "stages %d", p->place.replica);
    TRY(open_group(p, name, UINT64_MAX, &p->chain));
    TRY(open_shared_groups(p));
    return process_group_start(p->calls, p->world);
}

void pipeline_close(pipeline **pointer)
{
    pipeline *p = *pointer;
    if (!p) return;
    process_group_stop(p->calls);
    for (int i = 0; i < p->shared_count; i++) collective_group_close(&p->shared[i].group);
    collective_group_close(&p->chain);
    collective_close(&p->world);
    process_group_close(&p->calls);
    free(p->posts);
    free(p);
    *pointer = NULL;
}
