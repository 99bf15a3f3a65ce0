#include "common/pipeline/pipeline.h"

#include "common/base/clock.h"
#include "common/collectives/collective.h"
#include "common/sync/agent.h"
#include "common/sync/queue.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHARED_GROUPS = 16, FEWEST_RECORDS = 64 };

typedef struct post {
    void *data;
    int64_t count, number;
    dtype type;
    int group; /* of PIPELINE_SHARED */
} post;

/* A message that is done. */
typedef struct message_times {
    int64_t started_ns, finished_ns;
    int last_rank; /* of the job, -1: not known */
} message_times;

typedef struct channel {
    sync_queue posts;     /* from the compute thread to the agent */
    device_fence *done;   /* message n is */
    message_times *times; /* [mask + 1] by number; the agent writes an entry before the fence reaches it */
    uint64_t mask;
    int64_t posted;    /* the compute thread's */
    int64_t accounted; /* likewise: messages whose times have been read */
    struct {
        post next; /* that the collectives had no room for */
        bool has_next;
        collective_ticket *tickets; /* [mask + 1] */
        collective_group **groups;  /* [mask + 1] */
        int64_t begun, ended;
    } agent;
} channel;

/* Of the stages that have a parameter; bits as in nn_param.stages. */
typedef struct shared_group {
    uint64_t stages;
    collective_group *group;
} shared_group;

typedef struct pipeline_wait {
    int number; /* anatomy.h */
    pipeline_channel channel;
    int64_t message;
} pipeline_wait;

struct pipeline {
    pipeline_config config;
    collective_world *world;
    collective_group *chain; /* the stages of this replica */
    shared_group shared[MOST_SHARED_GROUPS];
    int shared_count;
    sync_agent *agent;
    channel channels[PIPELINE_CHANNELS];
    pipeline_wait *waits; /* [wait_capacity] of the step */
    int wait_count, wait_capacity;
    _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received; /* by the agent */
};

static const char *const channel_names[PIPELINE_CHANNELS] = {[PIPELINE_INPUT] = "activations received",
                                                             [PIPELINE_OUTPUT] = "activations sent",
                                                             [PIPELINE_OUTPUT_GRADIENT] = "gradient received",
                                                             [PIPELINE_INPUT_GRADIENT] = "gradient sent",
                                                             [PIPELINE_SHARED] =
                                                                 "all_reduce of shared gradients",
                                                             [PIPELINE_NORM] = "all_reduce of the norm"};

/* The stage at the other end. */
static int peer_of(const pipeline *p, pipeline_channel c)
{
    return p->config.place.stage + (c == PIPELINE_INPUT || c == PIPELINE_INPUT_GRADIENT ? -1 : 1);
}

/* ---- the agent -------------------------------------------------------------------------------- */

static collective_call call_of(const pipeline *p, pipeline_channel c, const post *post)
{
    collective_buffer data = {.base = post->data};
    bool sends = c == PIPELINE_OUTPUT || c == PIPELINE_INPUT_GRADIENT;
    bool all = c == PIPELINE_SHARED || c == PIPELINE_NORM;
    return (collective_call){.kind = all     ? COLLECTIVE_ALL_REDUCE
                                     : sends ? COLLECTIVE_SEND
                                             : COLLECTIVE_RECEIVE,
                             .op = REDUCE_SUM,
                             .type = post->type,
                             .root = all ? 0 : peer_of(p, c),
                             .tag = (int)((post->number - 1) % p->config.place.shape.batches),
                             .count = post->count,
                             .in = data,
                             .out = data,
                             .control = all};
}

/* Posts to the collectives as long as they have room. */
static status begin_messages(pipeline *p, pipeline_channel number, bool *worked)
{
    channel *c = &p->channels[number];
    for (;;) {
        if (!c->agent.has_next && !sync_queue_pop(&c->posts, &c->agent.next)) return STATUS_OK;
        c->agent.has_next = true;
        if (c->agent.begun - c->agent.ended > (int64_t)c->mask) return STATUS_OK;
        collective_group *group = number == PIPELINE_SHARED ? p->shared[c->agent.next.group].group : p->chain;
        collective_call call = call_of(p, number, &c->agent.next);
        uint64_t at = (uint64_t)(c->agent.begun + 1) & c->mask;
        status rc = collective_post(group, &call, &c->agent.tickets[at]);
        if (rc == STATUS_AGAIN) return STATUS_OK;
        TRY(rc);
        c->agent.groups[at] = group;
        c->agent.begun++;
        c->agent.has_next = false;
        *worked = true;
    }
}

/* Who was last, as a rank of the job; groups are of stages in ascending order. */
static int last_rank(const pipeline *p, pipeline_channel c, int member, uint64_t stages)
{
    if (member < 0) return -1;
    if (c != PIPELINE_SHARED) return pipeline_rank(&p->config.place, member);
    int stage = 0;
    for (; !(stages >> stage & 1) || member-- > 0; stage++) {
    }
    return pipeline_rank(&p->config.place, stage);
}

static void end_messages(pipeline *p, pipeline_channel number, bool *worked)
{
    channel *c = &p->channels[number];
    while (c->agent.ended < c->agent.begun) {
        uint64_t at = (uint64_t)(c->agent.ended + 1) & c->mask;
        if (!collective_done(c->agent.groups[at], c->agent.tickets[at])) return;
        collective_times times = collective_get_times(c->agent.groups[at], c->agent.tickets[at]);
        uint64_t stages = 0;
        for (int i = 0; i < p->shared_count; i++)
            if (p->shared[i].group == c->agent.groups[at]) stages = p->shared[i].stages;
        c->times[at] = (message_times){times.started_ns, times.finished_ns,
                                       last_rank(p, number, times.last_rank, stages)};
        c->agent.ended++;
        *worked = true;
        device_fence_reach(c->done, (uint64_t)c->agent.ended); /* last: it publishes the times */
    }
}

static void publish_traffic(pipeline *p)
{
    collective_traffic t = collective_get_traffic(p->world);
    atomic_store_explicit(&p->bytes_sent, t.bytes_sent, memory_order_relaxed);
    atomic_store_explicit(&p->bytes_received, t.bytes_received, memory_order_relaxed);
    atomic_store_explicit(&p->messages_sent, t.messages_sent, memory_order_relaxed);
    atomic_store_explicit(&p->messages_received, t.messages_received, memory_order_relaxed);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    pipeline *p = context;
    TRY(collective_progress(p->world, now_ns, deadline_ns, worked));
    publish_traffic(p);
    for (int c = 0; c < PIPELINE_CHANNELS; c++) {
        end_messages(p, (pipeline_channel)c, worked);
        TRY(begin_messages(p, (pipeline_channel)c, worked)); /* after the progress: see collective_wait() */
    }
    return STATUS_OK;
}

static void wait_for_work(void *context, int64_t deadline_ns)
{
    collective_wait(((pipeline *)context)->world, deadline_ns);
}

static void wake(void *context)
{
    collective_wake(((pipeline *)context)->world);
}

static void failed(void *context, const error_record *error)
{
    pipeline *p = context;
    error_record named = *error;
    int used = snprintf(named.message, sizeof named.message, "stage %d of %d: ", p->config.place.stage,
                        p->config.place.shape.stages);
    snprintf(named.message + used, sizeof named.message - (size_t)used, "%s", error->message);
    collective_abort(p->world, error);
    for (int c = 0; c < PIPELINE_CHANNELS; c++) device_fence_fail(p->channels[c].done, &named);
}

static const sync_agent_ops agent_ops = {
    .progress = progress, .wait = wait_for_work, .wake = wake, .failed = failed};

/* ---- the compute thread ------------------------------------------------------------------------- */

static status add(pipeline *p, pipeline_channel number, post post)
{
    channel *c = &p->channels[number];
    post.number = ++c->posted;
    if (!sync_queue_push(&c->posts, &post))
        return fail(STATUS_INTERNAL, "stage %d: too many messages of one kind", p->config.place.stage);
    sync_agent_wake(p->agent);
    return STATUS_OK;
}

status pipeline_post(pipeline *p, pipeline_channel channel, void *data, dtype type, int64_t count)
{
    return add(p, channel, (post){.data = data, .type = type, .count = count});
}

status pipeline_post_shared(pipeline *p, int param)
{
    const param_set *set = p->config.params;
    post all = {.data = (char *)set->grads.data + set->grads_placed[param].offset * dtype_size(set->type),
                .type = set->type,
                .count = set->pieces[param].count};
    while (p->shared[all.group].stages != set->model->params[param].stages) all.group++;
    return add(p, PIPELINE_SHARED, all);
}

status pipeline_post_norm(pipeline *p, double *sum)
{
    return add(p, PIPELINE_NORM, (post){.data = sum, .type = DTYPE_F64, .count = 1});
}

int64_t pipeline_posted(const pipeline *p, pipeline_channel channel)
{
    return p->channels[channel].posted;
}

status pipeline_await(pipeline *p, pipeline_channel channel, int64_t number, anatomy *a)
{
    pipeline_wait w = {.channel = channel, .message = number};
    TRY(anatomy_begin_wait(a));
    TRY(device_stream_wait(p->config.compute, p->channels[channel].done, (uint64_t)number));
    TRY(anatomy_end_wait(a, &w.number));
    if (w.number >= 0 && p->wait_count < p->wait_capacity) p->waits[p->wait_count++] = w;
    return STATUS_OK;
}

/* Before the others had come to the message, the lane waited for the last of them. */
void pipeline_end_step(pipeline *p, anatomy *a)
{
    int own = pipeline_rank(&p->config.place, p->config.place.stage);
    for (int i = 0; i < p->wait_count; i++) {
        const pipeline_wait *w = &p->waits[i];
        const message_times *t =
            &p->channels[w->channel].times[(uint64_t)w->message & p->channels[w->channel].mask];
        if (t->last_rank >= 0 && t->last_rank != own)
            anatomy_name_wait(a, w->number, (anatomy_sent){.ns = t->started_ns, .rank = t->last_rank});
    }
    p->wait_count = 0;
    for (int n = 0; n < PIPELINE_CHANNELS; n++) {
        channel *c = &p->channels[n];
        for (; c->accounted < c->posted && device_fence_reached(c->done, (uint64_t)c->accounted + 1);
             c->accounted++) {
            const message_times *t = &c->times[(uint64_t)(c->accounted + 1) & c->mask];
            anatomy_insert_span(a, t->started_ns, t->finished_ns);
            trace_async(p->config.trace, channel_names[n], c->accounted % p->config.place.shape.batches,
                        c->accounted + 1, t->started_ns, t->finished_ns);
        }
    }
}

void pipeline_skip(pipeline *p)
{
    for (int n = 0; n < PIPELINE_CHANNELS; n++) p->channels[n].accounted = p->channels[n].posted;
}

void pipeline_counters(const pipeline *p, sync_counters *out)
{
    out->agents_cpu_ns += p->agent ? sync_agent_cpu_ns(p->agent) : 0;
    out->bytes_sent += atomic_load_explicit(&p->bytes_sent, memory_order_relaxed);
    out->bytes_received += atomic_load_explicit(&p->bytes_received, memory_order_relaxed);
    out->messages_sent += atomic_load_explicit(&p->messages_sent, memory_order_relaxed);
    out->messages_received += atomic_load_explicit(&p->messages_received, memory_order_relaxed);
}

/* ---- open and close ----------------------------------------------------------------------------- */

/* A step has m messages of a channel, or one for each shared parameter; two steps at most are not accounted
 * for. */
static status open_channel(pipeline *p, channel *c, int messages)
{
    uint64_t records = FEWEST_RECORDS;
    while (records < 2 * (uint64_t)messages) records *= 2;
    c->mask = records - 1;
    c->times = calloc(records, sizeof *c->times);
    c->agent.tickets = calloc(records, sizeof *c->agent.tickets);
    c->agent.groups = calloc(records, sizeof *c->agent.groups);
    if (!c->times || !c->agent.tickets || !c->agent.groups)
        return fail(STATUS_SYSTEM, "no memory for a pipeline");
    TRY(sync_queue_init(&c->posts, (uint32_t)records, sizeof(post)));
    return device_fence_open(p->config.device, &c->done);
}

status pipeline_open(const pipeline_config *config, pipeline **out)
{
    *out = NULL;
    pipeline *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for a pipeline");
    p->config = *config;
    int batches = config->place.shape.batches;
    p->wait_capacity = PIPELINE_CHANNELS * batches + config->params->model->param_count;
    p->waits = calloc((size_t)p->wait_capacity, sizeof *p->waits);
    status rc = p->waits ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for a pipeline");
    for (int c = 0; c < PIPELINE_CHANNELS && rc == STATUS_OK; c++)
        rc = open_channel(p, &p->channels[c],
                          c == PIPELINE_SHARED ? config->params->model->param_count : batches);
    if (rc != STATUS_OK) pipeline_close(&p);
    *out = p;
    return rc;
}

static status open_group(pipeline *p, const char *name, uint64_t stages, collective_group **out)
{
    int ranks[NN_MOST_STAGES], count = 0;
    for (int s = 0; s < p->config.place.shape.stages; s++)
        if (stages >> s & 1) ranks[count++] = pipeline_rank(&p->config.place, s);
    return collective_group_open(p->world, name, ranks, count, out);
}

/* One for each set of stages that have a parameter; all stages see the parameters in the same order. */
static status open_shared_groups(pipeline *p)
{
    const nn_model *m = p->config.params->model;
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
        snprintf(name, sizeof name, "shared %d %llx", p->config.place.replica, (unsigned long long)stages);
        p->shared[p->shared_count++].stages = stages;
        TRY(open_group(p, name, stages, &p->shared[known].group));
    }
    return STATUS_OK;
}

status pipeline_connect(pipeline *p)
{
    const pipeline_config *c = &p->config;
    const device_info *info = device_get_info(c->device);
    char name[32];
    collective_config config = {.rank = pipeline_rank(&c->place, c->place.stage),
                                .world = c->place.shape.stages * c->place.replicas,
                                .job_token = c->job_token,
                                .name = "pipeline",
                                .pairs = true,
                                .device = c->device,
                                .slot = c->slot,
                                .table = c->table,
                                .stall_timeout_ns = c->stall_timeout_ns,
                                .connect_timeout_ns =
                                    c->connect_timeout_ns > 0 ? c->connect_timeout_ns : c->stall_timeout_ns,
                                .canceled = c->canceled,
                                .canceled_context = c->canceled_context,
                                .link = c->link};
    TRY(collective_open(info->simulated ? "sim" : info->plans ? "plan" : "shm", &config, &p->world));
    snprintf(name, sizeof name, "stages %d", c->place.replica);
    TRY(open_group(p, name, UINT64_MAX, &p->chain));
    TRY(open_shared_groups(p));
    sync_agent_config agent = {.ops = &agent_ops,
                               .context = p,
                               .device = c->device,
                               .name = "pipeline",
                               .inline_progress = c->inline_progress};
    return sync_agent_open(&agent, &p->agent);
}

void pipeline_close(pipeline **pointer)
{
    pipeline *p = *pointer;
    if (!p) return;
    if (p->agent) sync_agent_close(&p->agent);
    for (int i = 0; i < p->shared_count; i++) collective_group_close(&p->shared[i].group);
    collective_group_close(&p->chain);
    collective_close(&p->world);
    for (int c = 0; c < PIPELINE_CHANNELS; c++) {
        channel *own = &p->channels[c];
        sync_queue_deinit(&own->posts);
        device_fence_close(&own->done);
        free(own->times);
        free(own->agent.tickets);
        free(own->agent.groups);
    }
    free(p->waits);
    free(p);
    *pointer = NULL;
}
