/* A policy is a row of a table that describes how a known system, such as DDP or apex, reduces gradients.
 * Options change fields of the row. The engine has no code that is specific to a system. */
#ifndef RING_POLICY_H
#define RING_POLICY_H

#include "common/collectives/collective.h"
#include "common/nn/program.h"
#include "common/sync/engine.h"
#include "ring/ddp/buckets.h"
#include "ring/hooks/hook.h"

typedef enum ring_launch {
    RING_AFTER_BACKWARD, /* All buckets are launched after the backward pass. */
    /* A bucket is launched when its gradients are ready and all buckets before it have been launched. */
    RING_WHEN_READY
} ring_launch;

typedef enum ring_bucket_lifetime {
    RING_BUCKETS_PERSIST, /* All buckets are allocated once. */
    RING_BUCKETS_PASS     /* Each bucket exists from its launch until it has been copied back. */
} ring_bucket_lifetime;

/* How one step reduces its gradients. */
typedef struct ring_step_plan {
    bucket_plan buckets;
    ring_launch launch;
} ring_step_plan;

typedef struct ring_policy {
    const char *name;
    ring_step_plan first; /* Plan of the first step, and of all steps unless `rebuilds` is set. */
    ring_step_plan later; /* Plan of the second and later steps if `rebuilds` is set. */
    bool rebuilds;
    /* Plan of all steps with --find-unused-parameters and without --static-graph. The plan is not used if the
     * limit of its buckets is 0. */
    ring_step_plan unused;
    bool divide_before;
    /* Buffers are broadcast before the first forward pass of a step, from rank 0 or, with --join, from the
     * lowest rank that has data. */
    bool broadcast_buffers;
    bool serial; /* A bucket is launched only when the preceding bucket has been copied back. */
    ring_bucket_lifetime lifetime;
    /* Which state is sharded. If state is sharded, each bucket is a unit (common/nn/shards.h), and is reduced
     * in place. */
    param_sharding sharding;
    /* If true, each parameter is sharded on its first dimension. If false, a unit is sharded as one flat
     * vector. */
    bool rows;
} ring_policy;

/* The table in policies.h. */
enum {
    RING_POLICIES = 0
#define POLICY(...) +1
#include "ring/policies.h"
#undef POLICY
};
extern const ring_policy ring_policies[RING_POLICIES];
extern const sync_policy_info ring_policy_infos[RING_POLICIES];

/* Finds a policy by its name. Fails with STATUS_USAGE and lists the valid names if the name is unknown. */
status ring_policy_find(const char *name, const ring_policy **out);

/* ---- options ---------------------------------------------------------------------------------- */

typedef enum ring_choice { RING_CHOICE_POLICY, RING_CHOICE_YES, RING_CHOICE_NO } ring_choice;

typedef enum ring_join {
    RING_JOIN_NONE,  /* A rank without data ends the run. */
    RING_JOIN_WORLD, /* A rank without data contributes zeros, and the mean is over all ranks. */
    RING_JOIN_ACTIVE /* A rank without data contributes zeros, and the mean is over ranks that have data. */
} ring_join;

/* The command-line options. An option that is 0 or "policy" keeps the value of the policy. */
typedef struct ring_options {
    double bucket_cap_mb, first_bucket_mb; /* In MiB. */
    int64_t message_size;                  /* In elements. */
    /* `order` is 1 + bucket_order, and `launch` is 1 + ring_launch. 0 keeps the value of the policy. */
    int order, launch;
    int broadcast_buffers; /* ring_choice */
    bool bucket_view, allreduce_fp32, find_unused, static_graph, each_micro_batch, mixed_precision;
    double predivide;
    int collective; /* Index into collective_choices (options.c). */
    int algorithm;  /* collective_algorithm */
    const char *collective_table;
    int hook; /* ring_hook */
    int64_t powersgd_rank, powersgd_start;
    int join;      /* a ring_join */
    int reshard;   /* ring_choice */
    int64_t group; /* Number of ranks in a group, or 0 for all ranks. */
} ring_options;

extern const option_table ring_option_table;

/* The settings of the engine: a policy to which the options have been applied. */
typedef struct ring_settings {
    /* The row of the table, changed by options. If policy.unused applies, it has replaced the other plans. */
    ring_policy policy;
    ring_options options; /* `bucket_view` is also set if state is sharded. */
    /* If divide_before is false, gradients are divided by `predivide` before they are summed, and the sums
     * are divided by ranks / predivide. */
    double predivide;
    /* Number of ranks in a group, or 0 for all ranks. State is sharded within a group and replicated between
     * groups. */
    int group;
    bool mixed; /* True if parameters and gradients are bfloat16, with float32 masters. */
    bool keeps; /* True if gathered parameters are kept from the forward pass to the backward pass. */
    const char *collective; /* Name of the library, or "auto" until the engine knows the device. */
    collective_algorithm algorithm;
} ring_settings;

/* Applies the options to a policy. Fails with STATUS_USAGE if options contradict each other or the policy. */
status ring_settings_resolve(const ring_options *options, int divide, const char *policy, ring_settings *out);

/* Appends the settings that must be equal on all ranks, as "key=value" lines. */
void ring_settings_write(const ring_settings *s, text_buffer *out);

/* Returns the type in which gradients are sent. `type` is the type of the program. */
dtype ring_wire_type(const ring_settings *s, dtype type);

/* Assigns a program's gradients to buckets, and writes the buckets to `out` in launch order. Uses the plan of
 * the first step, or the plan of later steps if `later` is true. Assumes that gradients become ready in the
 * program's order. The caller closes `out`. */
status ring_program_buckets(const ring_settings *s, const nn_program *program, bool later,
                            bucket_schedule *out);

/* Makes a permutation of the parameters. The `count` parameters that became ready come first, in the order of
 * `ready`. Parameters that did not become ready follow in reverse order of registration. */
void ring_complete_order(const int *ready, int count, int params, int *out);

#endif
