/* Messages between the stages of a pipeline that computes one replica of the model. A stage sends activations
 * to the next stage, and the gradients of received activations to the previous stage. Stages that share a
 * parameter sum their gradients of the parameter.
 *
 * A channel is a sequence of messages in the order of the micro-batches. Messages are numbered from 1. If a
 * step has m micro-batches, message n belongs to micro-batch (n - 1) mod m. The compute thread posts sends
 * and receives, and makes the compute stream wait for them. An agent runs the sends and receives as
 * point-to-point calls (common/collectives). If a receive is posted early, the transfer begins as soon as the
 * sender has computed the data. */
#ifndef COMMON_PIPELINE_PIPELINE_H
#define COMMON_PIPELINE_PIPELINE_H

#include "common/nn/stages.h"
#include "common/pipeline/schedule.h"
#include "common/sync/engine.h"

typedef struct pipeline pipeline;

typedef enum pipeline_channel {
    PIPELINE_INPUT,           /* receives activations from the previous stage */
    PIPELINE_OUTPUT,          /* sends activations to the next stage */
    PIPELINE_OUTPUT_GRADIENT, /* receives the gradients of the sent activations from the next stage */
    PIPELINE_INPUT_GRADIENT,  /* sends the gradients of the received activations to the previous stage */
    PIPELINE_SHARED,          /* sums the gradients of a parameter over the stages that share the parameter */
    PIPELINE_NORM,            /* sums the squared norm of the gradients over the stages */
    PIPELINE_CHANNELS
} pipeline_channel;

/* The position of a stage in the job. If there are n replicas, stage s of replica r is rank s * n + r, so the
 * ranks of a stage have consecutive numbers. If the command line has `--stages-on devices`, all stages of
 * replica r are on devices of rank r, and the device of stage s has the number s * n + r. */
typedef struct pipeline_place {
    pipeline_shape shape;
    int stage, replica, replicas;
    bool devices; /* true if the stages of a replica are on devices of one rank */
} pipeline_place;

static inline int pipeline_rank(const pipeline_place *p, int stage)
{
    return stage * p->replicas + p->replica;
}

/* Opens the channels of a stage. `context` describes the rank, its device and the job. */
status pipeline_open(const pipeline_place *place, const sync_context *context, pipeline **out);
/* Connects the stages. All ranks of the job call this function at about the same time. */
status pipeline_connect(pipeline *p);
void pipeline_close(pipeline **p);

/* Posts the next message of a channel, which sends or receives `count` elements. Only work that is launched
 * after pipeline_await() of the message may use the data. */
status pipeline_post(pipeline *p, pipeline_channel channel, void *data, dtype type, int64_t count);
/* Posts an in-place sum of the parameter's gradient over the stages that share the parameter. */
status pipeline_post_shared(pipeline *p, int param);
/* Posts an in-place sum of a number over the stages of this replica. */
status pipeline_post_norm(pipeline *p, double *sum);
/* Returns the number of messages posted to the channel so far. */
int64_t pipeline_posted(const pipeline *p, pipeline_channel channel);
/* Makes all later work on the compute stream wait for message `number` of the channel. Messages are numbered
 * from 1. */
status pipeline_await(pipeline *p, pipeline_channel channel, int64_t number, anatomy *a);

/* Records the cause of each wait of the step, and adds the messages of the step to the anatomy and the trace.
 * Called after the compute stream has passed the end of the step. */
void pipeline_end_step(pipeline *p, anatomy *a);
/* Skips the messages that have been posted so far, so pipeline_end_step() does not add these messages to a
 * step. */
void pipeline_skip(pipeline *p);

void pipeline_counters(const pipeline *p, sync_counters *out);

#endif
