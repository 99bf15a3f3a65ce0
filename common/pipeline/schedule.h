/* The order in which the stages of a pipeline compute their micro-batches. A pipeline has p stages, and a
 * step has m micro-batches.
 *
 *   gpipe       All forward passes, then all backward passes. Every stage keeps the activations of m
 *               micro-batches. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using
 *               Pipeline Parallelism", NeurIPS 2019.
 *   1f1b        Stage s begins with p - 1 - s forward passes, then alternates one forward and one backward
 *               pass. Stage s keeps the activations of at most p - s micro-batches. Narayanan et al.,
 *               "PipeDream", SOSP 2019; with a flush as in Megatron-LM, SC 2021.
 *   sequential  A micro-batch passes through all stages and back before the next one begins: model
 *               parallelism without a pipeline. Every stage keeps the activations of one micro-batch.
 *
 * Example with p = 3 and m = 4. Time goes from left to right, and a backward pass (B) takes as long as a
 * forward pass (F):
 *
 *   gpipe   stage 0   F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
 *           stage 1    . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
 *           stage 2    .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .
 *
 *   1f1b    stage 0   F0 F1 F2  .  . B0 F3 B1  . B2  . B3
 *           stage 1    . F0 F1  . B0 F2 B1 F3 B2  . B3  .
 *           stage 2    .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .
 *
 *   sequential
 *           stage 0   F0  .  .  .  . B0 F1  .  .  .  . B1 F2 ..
 *           stage 1    . F0  .  . B0  .  . F1  .  . B1  .  . ..
 *           stage 2    .  . F0 B0  .  .  .  . F1 B1  .  .  . ..
 *
 * All schedules compute gradients in the order of the micro-batches. The bubble is the part of a step in
 * which a stage is idle. If all stages take equally long, the bubble is (p - 1) / (m + p - 1) for gpipe and
 * 1f1b, and (p - 1) / p for sequential. */
#ifndef COMMON_PIPELINE_SCHEDULE_H
#define COMMON_PIPELINE_SCHEDULE_H

#include <stdbool.h>

/* X(name in the enum, name of the option) */
#define PIPELINE_SCHEDULE_LIST(X) X(GPIPE, "gpipe") X(1F1B, "1f1b") X(SEQUENTIAL, "sequential")
#define PIPELINE_SCHEDULE_ENUM(upper, name) PIPELINE_##upper,
typedef enum pipeline_schedule {
    PIPELINE_SCHEDULE_LIST(PIPELINE_SCHEDULE_ENUM) PIPELINE_SCHEDULE_COUNT
} pipeline_schedule;
#undef PIPELINE_SCHEDULE_ENUM

/* Names of the schedules in the order of the enum, followed by NULL. */
extern const char *const pipeline_schedule_names[];

typedef struct pipeline_action {
    bool backward;
    int batch;
} pipeline_action;

typedef struct pipeline_shape {
    pipeline_schedule schedule;
    int stages, batches; /* each at least 1 */
} pipeline_shape;

/* Returns action number `index` of a step of the stage. A step has the actions 0 to 2 * batches - 1. */
pipeline_action pipeline_action_of(const pipeline_shape *p, int stage, int index);

/* Returns the largest number of micro-batches whose activations the stage keeps at the same time. The stage
 * keeps activations from the start of the forward pass to the end of the backward pass. */
int pipeline_live(const pipeline_shape *p, int stage);

/* Returns the bubble of a step with equal stages, as a share of the step. */
double pipeline_bubble(const pipeline_shape *p);

#endif
