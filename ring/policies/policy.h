/* What the reproduced systems do with gradients, as rows of a table, and the options that change a row. A
 * policy is data: the engine has no case for a system. */
#ifndef RING_POLICIES_POLICY_H
#define RING_POLICIES_POLICY_H

#include "common/collectives/collective.h"
#include "common/nn/program.h"
#include "common/sync/engine.h"
#include "ring/buckets/buckets.h"
#include "ring/hooks/hook.h"

typedef enum ring_launch {
    RING_AFTER_BACKWARD, /* all buckets after the backward pass */
    RING_WHEN_READY      /* a bucket as soon as its gradients, and the buckets before it, are */
} ring_launch;

typedef enum ring_bucket_lifetime {
    RING_BUCKETS_PERSIST, /* allocated once */
    RING_BUCKETS_PASS     /* from launch to the copy back: gradients are flattened into a new buffer */
} ring_bucket_lifetime;

/* How one step reduces its gradients. */
typedef struct ring_step_plan {
    bucket_plan buckets;
    ring_launch launch;
} ring_step_plan;

typedef struct ring_policy {
    const char *name;
    ring_step_plan first; /* the first step, and all where `rebuilds` is false */
    ring_step_plan later; /* from the second on, where it is true */
    bool rebuilds;
    ring_step_plan
        unused; /* all steps with find-unused-parameters and without static-graph; limit 0: as without */
    bool divide_before;
    bool broadcast_buffers; /* before the first forward pass of a step, from rank 0 (with --join, the lowest
                             * rank that has data) */
    bool serial;            /* a bucket is launched when the one before it has been copied back */
    ring_bucket_lifetime lifetime;
    param_sharding sharding; /* what is cut among the ranks; buckets are then units, reduced in place */
    bool rows;               /* each parameter on its first dimension; else a unit's flat vector */
} ring_policy;

/* The table, ring/policies/policies.h. */
enum {
    RING_POLICIES = 0
#define POLICY(...) +1
#include "ring/policies/policies.h"
#undef POLICY
};
extern const ring_policy ring_policies[RING_POLICIES];
extern const sync_policy_info ring_policy_infos[RING_POLICIES];

/* STATUS_USAGE for an unknown name, naming the valid ones. */
status ring_policy_find(const char *name, const ring_policy **out);

/* ---- options ---------------------------------------------------------------------------------- */

typedef enum ring_choice { RING_CHOICE_POLICY, RING_CHOICE_YES, RING_CHOICE_NO } ring_choice;

typedef enum ring_join {
    RING_JOIN_NONE,  /* a rank without data ends the run */
    RING_JOIN_WORLD, /* it contributes zeros; the mean is over all ranks */
    RING_JOIN_ACTIVE /* the mean is over the ranks that have data */
} ring_join;

/* Zero and "policy": the policy's value. */
typedef struct ring_options {
    double bucket_cap_mb, first_bucket_mb; /* MiB */
    int64_t message_size;                  /* elements */
    int order, launch;                     /* 0: policy; else 1 + bucket_order, 1 + ring_launch */
    int broadcast_buffers;                 /* ring_choice */
    bool bucket_view, allreduce_fp32, find_unused, static_graph, mixed_precision;
    double predivide;
    int collective; /* index into collective_choices (options.c) */
    int algorithm;  /* collective_algorithm */
    const char *collective_table;
    int hook; /* ring_hook */
    int64_t powersgd_rank, powersgd_start;
    int join;      /* ring_join */
    int reshard;   /* ring_choice */
    int64_t group; /* 0: all ranks */
} ring_options;

extern const option_table ring_option_table;

/* A policy with the options applied: what the engine runs. */
typedef struct ring_settings {
    const ring_policy *policy;
    ring_step_plan first, later;
    bool rebuilds, serial, divide_before, broadcast_buffers;
    ring_bucket_lifetime lifetime;
    double predivide; /* before the sum, where divide_before is false; the rest after it */
    bool bucket_view, find_unused, static_graph;
    param_sharding sharding;
    int group;  /* ranks among whom state is cut; 0: all. It is replicated between groups */
    bool rows;  /* as in ring_policy */
    bool mixed; /* bfloat16 parameters and gradients, and masters */
    bool keeps; /* gathered parameters stay from the forward pass to the backward pass */
    ring_hook hook;
    bool wire_fp32; /* gradients are sent and summed in float32, float64 ones too */
    int powersgd_rank;
    int64_t powersgd_start;
    ring_join join;
    const char *collective; /* a library's name; "auto" until the engine knows its device */
    collective_algorithm algorithm;
    const char *collective_table; /* of TUNED */
} ring_settings;

/* STATUS_USAGE where options contradict each other or the policy. */
status ring_settings_resolve(const ring_options *options, int divide, const char *policy, ring_settings *out);

/* "key=value" lines: what must be equal on all ranks. */
void ring_settings_write(const ring_settings *s, text_buffer *out);

/* The buckets that a program's gradients have in the first (`later` false) or in later steps, in launching
 * order; the recorded order is the program's. The caller closes the list. */
status ring_program_buckets(const ring_settings *s, const nn_program *program, bool later,
                            bucket_schedule *out);

/* Makes a permutation of the parameters from the order in which `count` of them became ready: the others
 * follow in reverse order of registration. */
void ring_complete_order(const int *ready, int count, int params, int *out);

#endif
