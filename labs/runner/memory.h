/* Messages of lab 7 between the grader and a rank. */
#ifndef LABS_RUNNER_MEMORY_H
#define LABS_RUNNER_MEMORY_H

#include "labs/runner/runner.h"

/* code of RUNNER_CASE. MEMORY_PEAKS calls student_memory() as in call.h with root, unit, units, states,
 * scheme, ranks and rank. Its results are its return value and the numbers of lab_memory. */
enum { MEMORY_PEAKS, MEMORY_STEP };

enum {
    MEMORY_REDUCE_SCATTER = RUNNER_FIRST_OF_LAB, /* n elements; answered with a code and this rank's shard */
    MEMORY_ALL_GATHER, /* this rank's shard, with n, the number of all elements; answered with a code and all
                        * elements */
};

/* A call of student_sharded_step(), followed by the parameters and the gradients. The data of the result are
 * the parameters, and its n is the most bytes allocated. */
typedef struct memory_step_case {
    int64_t n, first; /* `first` means that the state is zero */
    double rate, beta1, beta2, eps;
} memory_step_case;

static inline int64_t memory_shard_begin(int64_t n, int size, int rank)
{
    int64_t begin = rank * ((n + size - 1) / size);
    return begin < n ? begin : n;
}

#endif
