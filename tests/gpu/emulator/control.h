/* What tests count in the emulator, and what they make fail: a table of the module, found by its symbol
 * (cuda_module_find). EMULATED_FAULT in the environment sets the faults of a program, EMULATED_COUNTS=FILE
 * writes the counts there at its end. */
#ifndef TESTS_GPU_EMULATOR_CONTROL_H
#define TESTS_GPU_EMULATOR_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

/* name: what is counted */
#define EMULATOR_COUNTS(X)                                                                                   \
    X(launches)       /* of kernels, recorded ones once */                                                   \
    X(copies)         /* cudaMemcpyAsync */                                                                  \
    X(set_streams)    /* cudnnSetStream */                                                                   \
    X(first_products) /* of cuBLASLt, by other algorithms than the fastest of a search */                    \
    X(fast_products)                                                                                         \
    X(graphs)     /* operation graphs of cuDNN, executed */                                                  \
    X(idle_waits) /* of the host, for the last of what a stream has been given: meanwhile it gives it        \
                     nothing */

/* name: what fails */
#define EMULATOR_FAULTS(X)                                                                                   \
    X(search) /* cuDNN's searches for algorithms return an error */                                          \
    X(sums)   /* cublasLtMatmul refuses BGRADB, though its search has found an algorithm */

#define EMULATOR_COUNT(name) int64_t name;
#define EMULATOR_FAULT(name) bool fails_##name;
typedef struct emulator_control_table {
    EMULATOR_COUNTS(EMULATOR_COUNT)
    EMULATOR_FAULTS(EMULATOR_FAULT)
    bool slow_first; /* kernels, and the algorithms that heuristics put first,
                        are not the fastest ("slow_first") */
    bool slow_sums;  /* products with BGRADB take three times as long as these */
    int64_t slow_ns; /* that they have taken, which events count and nobody waits for */
} emulator_control_table;
#undef EMULATOR_COUNT
#undef EMULATOR_FAULT

struct emulated_stream;

#define EMULATOR_CONTROL_SYMBOL "emulator_control"
extern emulator_control_table emulator_control;

static inline void emulator_count(int64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* On the stream: so long do events count that it has taken. */
void emulator_take(struct emulated_stream *s, int64_t ns);

static inline void emulator_be_slow(struct emulated_stream *s)
{
    if (emulator_control.slow_first) emulator_take(s, 1000000000);
}

#endif
