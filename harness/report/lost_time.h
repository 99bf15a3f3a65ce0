/* Lost time: by how much a step of a job takes longer than a step of one rank alone, divided into causes. The
 * parts add up to the lost time. `run`, its verdict, its report and `whatif` take causes from this list.
 *
 * The steps that are compared are means over the measured steps, and over the ranks (dp: of rank 0). A cause
 * is negative if the job needs less time for it than one rank alone, for example for updates that a server
 * makes. */
#ifndef HARNESS_REPORT_LOST_TIME_H
#define HARNESS_REPORT_LOST_TIME_H

#include <jansson.h>

typedef enum lost_cause {
    /* Computation is slower next to other ranks that only compute: they share cores, caches and memory. Known
     * if isolated ranks ran, and 0 in virtual time. */
    LOST_NEIGHBORS,
    /* The forward and the backward pass are slower while tensors are exchanged. On a CPU agents use the
     * ranks' cores; on a GPU kernels of collectives use its processors. Contains the neighbors if these are
     * not known. */
    LOST_EXCHANGE,
    LOST_UPDATE,        /* The optimizer takes longer, or less because of shards or servers. */
    LOST_ENGINE,        /* Copies and calls of the engine that no communication hides. */
    LOST_COMMUNICATION, /* Exposed communication. */
    LOST_WAITING,       /* Waiting for other ranks. In virtual time also what --slow adds to passes. */
    LOST_DATA,          /* Loading data takes longer. */
    /* In virtual time: dp is one Python process. The time by which its step is longer than without Python.
     * The time in which a step waits for data is left out, because Python runs while batches are loaded. */
    LOST_PYTHON,
    LOST_CAUSES
} lost_cause;

typedef struct lost_cause_info {
    const char *key;         /* key in JSON */
    const char *head, *name; /* for readers: at most 9 letters, and at most 25 */
    const char *meaning;     /* of `head`, in a table */
} lost_cause_info;
extern const lost_cause_info lost_causes[LOST_CAUSES];

typedef struct lost_time {
    double step_s, alone_s; /* mean step of a rank of the job, and of one rank alone */
    double of[LOST_CAUSES]; /* in seconds; LOST_NEIGHBORS is NaN if it is not known */
} lost_time;

/* Computes the lost time from "phases" of the jobs, and from "without_python" of `job` if it has it.
 * `isolated` may be NULL. Without isolated ranks, neighbors are known only if `simulated`. The result has NaN
 * as step_s if the phases were not measured. */
lost_time lost_time_between(const json_t *job, const json_t *alone, const json_t *isolated, int simulated);

/* Returns "lost" of a job, or null if step_s is NaN. */
json_t *lost_time_to_json(const lost_time *l);
/* Reads "lost" of a job. step_s is NaN if it is null. */
lost_time lost_time_from_json(const json_t *lost);

#endif
