/* The measurements of a rank, in memory that is allocated before the first step and does not grow with the
 * number of steps: times, losses, traffic, the engine's records of its buckets, and figures that only the
 * parameter server reports. docs/results.md describes every key.
 *
 * Steps are recorded in stretches of 16, 32, 64, ... steps, all of one length but the last. A stretch has
 * sums over all its steps and keeps 16 consecutive ones in full. A step after 256 full stretches merges
 * neighbors: sums add, and one of the two blocks stays, chosen by a hash of its place, so that nothing
 * periodic in a run decides it. Which steps are kept follows from the number of measured steps only: the
 * ranks of a job keep the same ones without communication. Up to 4,096 steps all are kept. */
#ifndef HARNESS_RUN_RECORD_H
#define HARNESS_RUN_RECORD_H

#include "common/net/clocks.h"
#include "common/sync/engine.h"
#include "harness/train/trainer.h"
#include "ps/dp/dp_memory.h"
#include "ring/ring.h"

#include <jansson.h>

/* The keys in JSON of the times of a step, in the order of step_times; the first is the step as a whole. */
enum { RECORD_PHASES = 16, RECORD_ANATOMY = 12 /* the first of them: a rank has all or none in a step */ };
extern const char *const record_phases[RECORD_PHASES];
static inline int64_t *record_times(step_times *t) /* [RECORD_PHASES] */
{
    return &t->total;
}

typedef struct record_evaluation {
    int64_t step;       /* steps completed before it */
    int64_t trained_ns; /* the rank's, in these steps */
    double loss, accuracy;
    int64_t samples;
} record_evaluation;

enum { RECORD_STRETCHES = 256, RECORD_BLOCK = 16, RECORD_EVALUATIONS = 4096 /* at most */ };

typedef struct recorded_step {
    int64_t index; /* in the run */
    double loss;
    int waited_for;
    int64_t begin_ns, end_ns; /* on this rank's clock */
    int64_t samples;
    step_times times;
} recorded_step;

typedef struct record_stretch {
    recorded_step sum;     /* the index and the end of its last step; sums of losses, samples and times */
    int64_t steps, losses; /* the steps that have a loss */
    int64_t gaps_ns;       /* between its steps: evaluations, checkpoints, other jobs' turns */
    step_times known;      /* in how many steps each time was measured */
} record_stretch;

typedef struct record {
    int64_t capacity, count;   /* measured steps */
    recorded_step *steps;      /* [kept] in order, RECORD_BLOCK of every stretch */
    recorded_step passed;      /* the last step that was not kept */
    record_stretch *stretches; /* [stretch_count] */
    int64_t kept, stretch_count;
    int level;                /* a stretch has RECORD_BLOCK << level steps */
    int64_t block;            /* first step of the current stretch that is kept, from its begin */
    double last_loss;         /* NaN: the last step has none */
    bool late_parts;          /* parts are known after the run (rank_calls.c), and of kept steps only */
    int64_t samples;          /* of this rank in measured steps */
    int64_t wall_ns;          /* of the measured steps */
    int64_t *waited_ns;       /* [world] in measured steps */
    int64_t corrected;        /* kept steps, by record_correct_step() */
    int64_t merged_calls;     /* whose begins on other ranks are known (rank_calls.c) */
    int64_t waiting_error_ns; /* of this rank's times by which others tell waiting from communication; -1: one
                                 clock */
    int world;
    sync_counters counters; /* in measured steps; updates_skipped: in all */
    int64_t cpu_ns; /* of the compute thread in measured steps; STEP_NOT_MEASURED: kernels run elsewhere */
    record_evaluation *evaluations; /* every `evaluation_stride`th, and the last */
    int64_t evaluation_capacity, evaluation_count, evaluation_stride, evaluated;
} record;

/* For at most so many measured steps and evaluations. */
status record_init(record *r, int64_t steps, int64_t evaluations, int world);
void record_deinit(record *r);

/* A measured step; never allocates. More steps than the capacity are a defect. */
void record_step(record *r, const step_result *result);
/* Whether one of the next two measured steps is kept: what is in progress in a step may begin before it. */
bool record_keeps_soon(const record *r);
/* Sets the parts of step `index` of the run if late_parts and the step is kept. Steps come in order. */
void record_correct_step(record *r, int64_t index, const anatomy_figures *figures, const int64_t *waited_ns);
/* Merges stretches up to `level`, so that all ranks keep the same steps. */
void record_merge(record *r, int level);
/* What has been counted since `seen`, which becomes what it is now; added to the record if `keep`: the steps
 * in between are measured. */
typedef struct record_seen {
    sync_counters engine;
    int64_t cpu_ns; /* trainer_cpu_ns() */
} record_seen;
void record_counters(record *r, trainer *t, record_seen *seen, bool keep);
/* Adds an evaluation. RECORD_EVALUATIONS at most are kept, evenly spaced, and the last. */
void record_evaluation_result(record *r, record_evaluation e);

/* A time in JSON: in seconds, from which the nanoseconds can be read back exactly. */
json_t *record_seconds(int64_t ns);

/* Adds to a rank's JSON object: kept steps, with their times on rank 0's clock, phases, losses;
 * stretches, unless all steps are kept; bytes. STATUS_SYSTEM without memory. */
status record_to_json(const record *r, const clock_alignment *clock, json_t *rank);

/* A ledger as JSON: totals and classes, current and peak, the phase of each peak, ends of phases. */
json_t *ledger_to_json(const ledger *l);

typedef struct overlap {
    ring_bucket_record *records; /* [capacity] of one step */
    int capacity;
    int64_t seen;              /* id of the last record that was read */
    int64_t last_bucket_bytes; /* of the last step; 0: none yet */
    int64_t steps;             /* measured */
    struct {
        int64_t calls, bytes; /* of buckets, in these steps */
    } by[COLLECTIVE_ALGORITHM_COUNT];
} overlap;

status overlap_open(overlap *o, int params);
void overlap_close(overlap *o);

/* Before the first measured step: forgets what the engine has recorded. */
void overlap_begin(overlap *o, const sync_engine *engine);

/* After each step: completes result->times from the engine's records of its buckets, where it has any; counts
 * those of measured steps. */
void overlap_measure(overlap *o, const sync_engine *engine, step_result *result, bool measured);

/* "last_bucket_bytes" and "last_bucket_bound_s": how long it takes at least over an emulated link; both null
 * where there is no such thing. */
void overlap_to_json(const overlap *o, const sync_engine *engine, json_t *rank);

/* Of the job: "collective" and "algorithm", what carries the ring's buckets and how they are to be reduced,
 * "algorithms", how rank 0's were in the measured steps; "transport" and "payload", what carries messages and
 * tensors of the parameter server. Null under other engines, and with one rank. */
status engine_exchange_to_json(const sync_engine *e, const overlap *first, json_t *job);

/* A rank's "staleness"; null under other engines. NULL without memory. After a flush. */
json_t *ps_result_staleness(sync_engine *e);

/* Of the job: "settings", what its engine runs, policy and options together; null under `none`. */
json_t *engine_settings_to_json(const sync_engine *e);

/* Of the job: who sums and updates, "gpu" or "host"; null under other engines. */
json_t *ps_result_updates(const sync_engine *e);

/* On rank 0: the sizes of `dp`; false under other policies and engines. */
bool ps_result_sizes(sync_engine *e, ps_dp_sizes *out);

/* The job's "dataparallel_memory" from the ranks' ledgers; null where `sizes` is NULL. */
status ps_result_add_memory(json_t *job, const json_t *ranks, const ps_dp_sizes *sizes);

#endif
