/* In a run of ps and ring, compares the gradients that both average in the first step, element by element.
 *
 * ps and ring add the same n values, but from 3 ranks on in different orders. In any order, n - 1 additions
 * have an error of at most (n - 1) 2^-24 sum|g|, so the means of two orders differ by at most 2 (n - 1) 2^-24
 * sum|g| / n (Higham, "Accuracy and Stability of Numerical Algorithms", 4.2, first order). Divisions by n are
 * exact if n is a power of two. If n is not a power of two, each division has an error of 2^-24 sum|g| / n,
 * and the bound is 2 n 2^-24 sum|g| / n.
 *
 * The ranks of a job write to one file in memory, which the launcher creates. Each rank writes the
 * averages that it holds. The ranks of the ring also add the absolute values of their own gradients. */
#ifndef HARNESS_RANK_AGREEMENT_H
#define HARNESS_RANK_AGREEMENT_H

#include "harness/options/run_options.h"
#include "harness/train/trainer.h"

#include <jansson.h>

/* ---- a rank ---- */

typedef struct agreement {
    int fd;     /* descriptor of the job's file, or 0 if nothing is compared */
    float *own; /* gradients of this rank, laid out like the arena */
} agreement;

/* Prepares the comparison before the first step. `fd` is the descriptor of the job's file. Does nothing in
 * runs of one engine, or if the first step is measured or recorded as a CUDA graph. */
status agreement_open(agreement *a, int fd, const run_config *config, trainer *t);
/* Writes this rank's part of the file after the first step, and closes `a`. All ranks call it. */
status agreement_write(agreement *a, trainer *t);
void agreement_close(agreement *a);

/* ---- the launcher ---- */

/* Head of a job's file. The file continues with the pieces of the parameters, [params] elements, an arena of
 * averages in float32, and an arena of sums of absolute values in float32. */
typedef struct agreement_head {
    int64_t arena_elements, averaged; /* elements of an arena, and elements whose average was written */
    int64_t params, ranks; /* number of parameters, and number of ranks that have added absolute values */
    char reason[96];       /* reason why the averages cannot be compared, or "" */
} agreement_head;

/* Returns "first_gradient" of a run's agreement, or NULL if out of memory. `ps` and `ring` are the contents
 * of the jobs' files, or NULL and 0 if the ranks wrote nothing. `unlike` is the reason why the engines
 * compute different gradients before they average, or NULL. */
json_t *agreement_compare(sync_blob ps, sync_blob ring, const nn_model *model, int ranks, const char *unlike);

#endif
