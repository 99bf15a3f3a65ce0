/* What the stages of a pipeline send each other, one replica of the model: activations to the next stage,
 * their gradients back, and the gradients of parameters that several stages have.
 *
 * Channels, each a sequence of messages in the order of the micro-batches; message n is that of
 * micro-batch (n - 1) mod m. The compute thread posts sends and receives and waits for them in stream order;
 * an agent drives them by point-to-point calls (common/collectives). A receive may be posted long before:
 * then the transfer begins as soon as the data exist. */
#ifndef COMMON_PIPELINE_PIPELINE_H
#define COMMON_PIPELINE_PIPELINE_H

#include "common/net/status_table.h"
#include "common/nn/params.h"
#include "common/nn/stages.h"
#include "common/pipeline/schedule.h"
#include "common/sync/engine.h"

typedef struct pipeline pipeline;

typedef enum pipeline_channel {
    PIPELINE_INPUT,           /* from the stage before */
    PIPELINE_OUTPUT,          /* to the next stage */
    PIPELINE_OUTPUT_GRADIENT, /* from the next stage */
    PIPELINE_INPUT_GRADIENT,  /* to the stage before */
    PIPELINE_SHARED,          /* sums of gradients over the stages that have a parameter */
    PIPELINE_NORM,            /* sum of a number over the stages */
    PIPELINE_CHANNELS
} pipeline_channel;

/* Ranks of a job: stage s of replica r of n is rank s * n + r, so that the ranks of a stage are neighbors.
 * Where the stages of a replica are on devices of one rank, that rank is r, and these are the numbers of its
 * devices. */
typedef struct pipeline_place {
    pipeline_shape shape;
    int stage, replica, replicas;
    bool devices; /* the stages of a replica are on devices of one rank */
} pipeline_place;

static inline int pipeline_rank(const pipeline_place *p, int stage)
{
    return stage * p->replicas + p->replica;
}

/* Everything is borrowed. */
typedef struct pipeline_config {
    pipeline_place place;
    uint64_t job_token;
    device *device;
    device_stream *compute;
    const param_set *params;
    rank_slot *slot;
    const status_table *table; /* sync_context.table */
    int64_t stall_timeout_ns, connect_timeout_ns;
    bool (*canceled)(void *context); /* as in collective_config */
    void *canceled_context;
    bool inline_progress;
    net_link link;
    trace *trace; /* or NULL */
} pipeline_config;

status pipeline_open(const pipeline_config *config, pipeline **out);
/* All ranks of the job call it at about the same time. */
status pipeline_connect(pipeline *p);
void pipeline_close(pipeline **p);

/* The next message of a channel: sends or receives `count` elements. Its data may be touched when it has been
 * waited for. */
status pipeline_post(pipeline *p, pipeline_channel channel, void *data, dtype type, int64_t count);
/* Sums the gradient of a parameter over the stages that have it, in place. */
status pipeline_post_shared(pipeline *p, int param);
/* Sums a number over the stages of this replica, in place. */
status pipeline_post_norm(pipeline *p, double *sum);
/* Messages posted so far. */
int64_t pipeline_posted(const pipeline *p, pipeline_channel channel);
/* What the compute stream does from now on waits for message `number`, from 1, of the channel. */
status pipeline_await(pipeline *p, pipeline_channel channel, int64_t number, anatomy *a);

/* The compute stream has passed the end of the step: names its waits, adds its messages to the anatomy and
 * the trace. */
void pipeline_end_step(pipeline *p, anatomy *a);
/* The messages so far belong to no step. */
void pipeline_skip(pipeline *p);

void pipeline_counters(const pipeline *p, sync_counters *out);

#endif
