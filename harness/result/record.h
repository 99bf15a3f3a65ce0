/* Records the measurements of a rank: times, losses, traffic, the engine's records of its buckets, and
 * figures of the parameter server. The memory is allocated before the first step and does not grow with the
 * number of steps. docs/results.md describes every key.
 *
 * Steps are recorded in stretches of 16, 32, 64, ... steps. All stretches have the same length, except the
 * last one. A stretch has sums over all its steps and keeps 16 consecutive steps in full. When 256 stretches
 * are full, the next step merges each pair of adjacent stretches. The sums of both stretches are added, and
 * the kept steps of one of them remain. A hash of the merged stretch's position chooses this stretch, so that
 * the choice does not follow a period of the run. Which steps are kept depends only on the number of measured
 * steps, so all ranks of a job keep the same steps without communication. A run of at most 4,096 steps keeps
 * all of them. */
#ifndef HARNESS_RESULT_RECORD_H
#define HARNESS_RESULT_RECORD_H

#include "common/net/clocks.h"
#include "common/sync/engine.h"
#include "harness/train/trainer.h"
#include "ps/dataparallel/memory.h"
#include "ring/ring.h"

#include <jansson.h>

/* Keys in JSON of the times of a step, in the order of step_times. The first key names the whole step. */
enum {
    RECORD_PHASES = 16,
    RECORD_ANATOMY = 12 /* the first 12 are the times of the anatomy; a step has all of them or none */
};
extern const char *const record_phases[RECORD_PHASES];
static inline int64_t *record_times(step_times *t) /* [RECORD_PHASES] */
{
    return &t->total;
}

typedef struct record_evaluation {
    int64_t step;       /* steps completed before the evaluation */
    int64_t trained_ns; /* time that the rank took for these steps */
    double loss, accuracy;
    int64_t samples;
} record_evaluation;

enum { RECORD_STRETCHES = 256, RECORD_BLOCK = 16, RECORD_EVALUATIONS = 4096 /* at most */ };

typedef struct recorded_step {
    int64_t index; /* index of the step in the run */
    double loss;
    int waited_for;
    int64_t begin_ns, end_ns; /* times on this rank's clock */
    int64_t samples;
    step_times times;
} recorded_step;

typedef struct record_stretch {
    recorded_step sum; /* begin of the first step, index and end of the last, and sums of all other figures */
    int64_t steps, losses; /* number of steps, and of the steps that have a loss */
    int64_t gaps_ns;  /* time between the steps of the stretch: evaluations, checkpoints, other jobs' turns */
    step_times known; /* number of steps in which each time was measured */
} record_stretch;

/* Buckets of the ring in measured steps. */
typedef struct overlap {
    ring_bucket_record *records; /* [capacity] records of one step */
    int capacity;
    int64_t seen;              /* id of the last record that was read */
    int64_t last_bucket_bytes; /* bytes of the last bucket of the last step, or 0 if no bucket was recorded */
    struct {
        int64_t calls, bytes; /* calls and bytes of buckets in measured steps */
    } by[COLLECTIVE_ALGORITHM_COUNT];
} overlap;

typedef struct record {
    int64_t capacity, count;   /* largest and present number of measured steps */
    recorded_step *steps;      /* [kept] kept steps in order, RECORD_BLOCK per stretch */
    recorded_step passed;      /* last step that was not kept */
    record_stretch *stretches; /* [stretch_count] */
    int64_t kept, stretch_count;
    int level;        /* a stretch has RECORD_BLOCK << level steps */
    int64_t block;    /* number of the current stretch's steps before its first kept step */
    double last_loss; /* NaN if the last step has no loss */
    /* The parts of a step are known only after the run, and only for kept steps (rank_calls.c). */
    bool late_parts;
    int64_t samples;      /* samples of this rank in measured steps */
    int64_t wall_ns;      /* time of the measured steps */
    int64_t *waited_ns;   /* [world] time spent waiting for each rank in measured steps */
    int64_t corrected;    /* kept steps that record_correct_step() has corrected */
    int64_t merged_calls; /* calls whose starts on other ranks are known (rank_calls.c) */
    /* Error of the times of other ranks, by which waiting is distinguished from communication. -1 if all
     * ranks share one clock. */
    int64_t waiting_error_ns;
    int world;
    sync_counters counters; /* counts of the measured steps; updates_skipped counts all steps */
    sync_counters seen;     /* counts of the engine at the last call of record_counters() */
    int64_t seen_cpu_ns;    /* value of trainer_cpu_ns() at this call */
    overlap overlap;
    /* CPU time of the compute thread in measured steps. STEP_NOT_MEASURED if kernels run elsewhere. */
    int64_t cpu_ns;
    record_evaluation *evaluations; /* every `evaluation_stride`th evaluation, and the last one */
    int64_t evaluation_capacity, evaluation_count, evaluation_stride, evaluated;
} record;

/* Allocates room for at most `steps` measured steps of `world` ranks with `params` parameters, and for
 * `evaluations` evaluations. Returns STATUS_SYSTEM if out of memory. */
status record_init(record *r, int64_t steps, int64_t evaluations, int world, int params);
void record_deinit(record *r);

/* Adds a measured step. Never allocates. The number of steps must not exceed the capacity. */
void record_step(record *r, const step_result *result);
/* Returns true if one of the next two measured steps is kept. Looks two steps ahead, because work of a
 * kept step may begin in the step before. */
bool record_keeps_soon(const record *r);
/* Sets the parts of step `index` of the run if this step is kept. Used if late_parts is true. Must be called
 * in the order of the steps. */
void record_correct_step(record *r, int64_t index, const anatomy_figures *figures, const int64_t *waited_ns);
/* Merges stretches up to `level`, so that all ranks keep the same steps. */
void record_merge(record *r, int level);
/* Counts traffic and processor time since the last call. Adds the counts to the record if `keep` is true,
 * which means that the steps between the two calls are measured. */
void record_counters(record *r, trainer *t, bool keep);
/* Adds an evaluation. Keeps at most RECORD_EVALUATIONS evenly spaced evaluations, and the last evaluation. */
void record_evaluation_result(record *r, record_evaluation e);

/* Converts a time to seconds in JSON, from which the nanoseconds can be read back exactly. */
json_t *record_seconds(int64_t ns);

/* Adds the record to a rank's JSON object: kept steps with their times on rank 0's clock, phases, losses,
 * bytes, and stretches unless all steps are kept. */
void record_to_json(const record *r, const clock_alignment *clock, json_t *rank);

/* Converts a ledger to JSON: the memory in total and of each class, and for each phase the peak and the
 * memory at the end of the phase. */
json_t *ledger_to_json(const ledger *l);

/* Completes result->times from the engine's records of its buckets, if the engine has any. Counts the buckets
 * of measured steps. Must be called after each step. */
void overlap_measure(overlap *o, const sync_engine *engine, step_result *result, bool measured);

/* Adds "last_bucket_bytes", and "last_bucket_bound_s", the least time that an emulated link needs for this
 * bucket. "last_bucket_bytes" is null if there was no bucket. "last_bucket_bound_s" is null unless the ring
 * uses an emulated link. */
void overlap_to_json(const overlap *o, const sync_engine *engine, json_t *rank);

/* Adds to the job the names of the libraries and algorithms that exchange data. Under ring: "collective" is
 * the library that reduces buckets, "algorithm" the configured algorithm, and "algorithms" the algorithms
 * that rank 0 used in the measured steps; all three are null with one rank. Under ps: "transport" carries
 * messages, and "payload" carries tensors. Names that do not apply to the engine are null. */
void engine_exchange_to_json(const sync_engine *e, const record *first, json_t *job);

/* Returns a rank's "staleness" after a flush, or null if the engine is not ps. */
json_t *ps_result_staleness(sync_engine *e);

/* Returns the job's "settings", the policy and options that its engine runs, or null under `none`. */
json_t *engine_settings_to_json(const sync_engine *e);

/* Adds the job's "dataparallel_memory" from the ranks' ledgers, or null if `sizes` is NULL. */
void ps_result_add_memory(json_t *job, const json_t *ranks, const ps_dp_sizes *sizes);

#endif
