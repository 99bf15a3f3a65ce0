/* Counters of the emulator that tests read, and faults that tests set. They are a table of the module, which
 * is found by its symbol (cuda_module_find). The variable EMULATED_FAULT sets the faults of a program. If
 * EMULATED_COUNTS=FILE is set, the program writes the counters to this file when it ends. */
#ifndef TESTS_GPU_EMULATOR_CONTROL_H
#define TESTS_GPU_EMULATOR_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

/* the counters */
#define EMULATOR_COUNTS(X)                                                                                   \
    X(launches)       /* launches of kernels; a recorded launch counts once */                               \
    X(copies)         /* calls of cudaMemcpyAsync */                                                         \
    X(set_streams)    /* calls of cudnnSetStream */                                                          \
    X(first_products) /* products of cuBLASLt by algorithms that are not the fastest of a search */          \
    X(fast_products)  /* products of cuBLASLt by the fastest algorithm of a search */                        \
    X(graphs)         /* executed operation graphs of cuDNN */                                               \
    X(idle_waits)     /* waits of the host until a stream has done all of its work */

/* calls that can be made to fail */
#define EMULATOR_FAULTS(X)                                                                                   \
    X(search) /* cuDNN's searches for algorithms return an error */                                          \
    X(sums)   /* cublasLtMatmul refuses BGRADB, though its search has found an algorithm */

#define EMULATOR_COUNT(name) int64_t name;
#define EMULATOR_FAULT(name) bool fails_##name;
typedef struct emulator_control_table {
    EMULATOR_COUNTS(EMULATOR_COUNT)
    EMULATOR_FAULTS(EMULATOR_FAULT)
    /* "slow_first": kernels, and the algorithms that heuristics put first, are slower than others */
    bool slow_first;
    bool slow_sums; /* products with BGRADB take three times as long as a slow kernel */
    /* Total time that slow work has taken; events add it to the clock, and no thread waits for it. */
    int64_t slow_ns;
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

/* Lets the stream's work take `ns` longer. The time is added to the times of later events, and nothing waits
 * for it. */
void emulator_take(struct emulated_stream *s, int64_t ns);

static inline void emulator_be_slow(struct emulated_stream *s)
{
    if (emulator_control.slow_first) emulator_take(s, 1000000000);
}

#endif
