/* Whether ps and ring compute the same first step, in a run of both: their averaged gradients, element by
 * element.
 *
 * They add the same n values, but from 3 ranks on in different orders. An order of n - 1 additions errs by at
 * most (n - 1) 2^-24 sum|g|, so two orders of a mean differ by at most 2 (n - 1) 2^-24 sum|g| / n (Higham,
 * "Accuracy and Stability of Numerical Algorithms", 4.2, first order). The divisions by n are exact if n is a
 * power of two; else they err by 2^-24 sum|g| / n each, and the bound is 2 n 2^-24 sum|g| / n.
 *
 * The ranks of a job write to a file in memory that the launcher has made: each the averages that it holds,
 * and those of the ring add the absolute values of their own gradients. */
#ifndef HARNESS_RUN_AGREEMENT_H
#define HARNESS_RUN_AGREEMENT_H

#include "harness/run/run_options.h"
#include "harness/train/trainer.h"

#include <jansson.h>

/* ---- a rank ---- */

typedef struct agreement {
    int fd;     /* of the job's file; 0: nothing to do */
    float *own; /* this rank's gradients, laid out like the arena */
} agreement;

/* Before the first step; `fd` as above. Nothing happens in runs of one engine, or where the first step is
 * measured. */
status agreement_open(agreement *a, int fd, const run_config *config, trainer *t);
/* After the first step, on all ranks. */
status agreement_write(agreement *a, trainer *t);
void agreement_close(agreement *a);

/* ---- the launcher ---- */

/* What a file begins with; pieces of the parameters follow [params], then an arena of averages and one of
 * sums of absolute values, in float32. */
typedef struct agreement_head {
    int64_t arena_elements, averaged; /* elements of an arena; averages that were written */
    int64_t params, ranks;            /* ranks: whose absolute values were added */
    char reason[96];                  /* why the averages are not those of the gradients; "": they are */
} agreement_head;

/* What the ranks of a job have written: NULL, 0 where nothing was. Borrowed. */
typedef struct agreement_file {
    const char *data;
    size_t bytes;
} agreement_file;

/* "first_gradient" of a run's agreement; NULL without memory. `unlike`: why the engines' own gradients are
 * not the same values, or NULL. */
json_t *agreement_compare(agreement_file ps, agreement_file ring, const nn_model *model, int ranks,
                          const char *unlike);

#endif
