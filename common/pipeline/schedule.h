/* In which order the stages of a pipeline compute their micro-batches. p stages, m micro-batches per step:
 *
 *   gpipe       all forward passes, then all backward passes (Huang et al., "GPipe: Efficient Training of
 * Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019). Every stage keeps the activations of m
 * micro-batches. 1f1b        stage s begins with p - 1 - s forward passes, then alternates one forward and
 * one backward pass (Narayanan et al., "PipeDream", SOSP 2019; with a flush as in Megatron-LM, SC 2021).
 * Stage s keeps those of p - s at most. sequential  a micro-batch passes through all stages and back before
 * the next one begins: model parallelism without a pipeline. Every stage keeps those of one.
 *
 *   p = 3, m = 4; time from left to right, a backward pass (B) as long as a forward pass (F)
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
 * All compute gradients in the order of the micro-batches. Stages that take equally long are idle for (p - 1)
 * / (m + p - 1) of the step, the bubble, under the first two, and for (p - 1) / p under the third. */
#ifndef COMMON_PIPELINE_SCHEDULE_H
#define COMMON_PIPELINE_SCHEDULE_H

#include <stdbool.h>

/* In the enum, name. */
#define PIPELINE_SCHEDULE_LIST(X) X(GPIPE, "gpipe") X(1F1B, "1f1b") X(SEQUENTIAL, "sequential")
#define PIPELINE_SCHEDULE_ENUM(upper, name) PIPELINE_##upper,
typedef enum pipeline_schedule {
    PIPELINE_SCHEDULE_LIST(PIPELINE_SCHEDULE_ENUM) PIPELINE_SCHEDULE_COUNT
} pipeline_schedule;
#undef PIPELINE_SCHEDULE_ENUM

/* By the enum; NULL after the last. */
extern const char *const pipeline_schedule_names[];

typedef struct pipeline_action {
    bool backward;
    int batch; /* micro-batch */
} pipeline_action;

typedef struct pipeline_shape {
    pipeline_schedule schedule;
    int stages, batches; /* at least 1 */
} pipeline_shape;

/* Action number `index` of the 2 * batches of a stage's step. */
pipeline_action pipeline_action_of(const pipeline_shape *p, int stage, int index);

/* Micro-batches whose forward pass has begun and whose backward pass has not ended: at most so many at a
 * time. */
int pipeline_live(const pipeline_shape *p, int stage);

/* The idle part of a step of equal stages. */
double pipeline_bubble(const pipeline_shape *p);

#endif
