/* The module that includes MPI's header and links its library. It is opened at run time, so that the program
 * starts without MPI, and it links nothing of ours: it exports one table of functions over plain types.
 *
 * MPI belongs to the process: one rank per process, one initialization, ended with the process. */
#ifndef COMMON_COLLECTIVES_MPI_MPI_MODULE_H
#define COMMON_COLLECTIVES_MPI_MPI_MODULE_H

#include "common/ops/tensor.h"
#include "common/reduce/reduce.h"

#include <stdbool.h>

#define MPI_MODULE_SYMBOL "psring_mpi_module"
enum { MPI_MODULE_VERSION = 1 };

typedef void (*mpi_module_reduce)(dtype type, reduce_op op, void *out, const void *a, const void *b,
                                  int64_t count);

/* A call as MPI takes it: contiguous; NULL for MPI_IN_PLACE (scatter: as the root's `out`, else as `in`).
 * counts and places are each rank's part; out_counts and out_places what all_to_all receives. */
typedef struct mpi_module_call {
    int kind; /* collective_kind */
    reduce_op op;
    dtype type;
    int root, tag;
    int count;
    const int *counts, *places, *out_counts, *out_places;
    const void *in;
    void *out;
} mpi_module_call;

/* Functions return 0 or MPI's error code. */
typedef struct mpi_module {
    int version;
    /* Initializes MPI (MPI_THREAD_SERIALIZED) unless it is; `reduce` serves the types that MPI lacks. */
    int (*open)(mpi_module_reduce reduce, int *rank, int *size);
    int (*group_open)(const int *ranks, int count, void **group);
    void (*group_close)(void *group);
    int (*start)(void *group, const mpi_module_call *call, void *request);
    int (*test)(void *request, bool *done);
    void (*error_text)(int code, char *text, int size);
    void (*give_up)(int exit_code); /* at the process's end MPI is aborted, not finalized */
    int request_bytes;
} mpi_module;

#endif
