/* The interface of the module that links MPI. The program opens the module at run time, so it starts
 * without MPI. The module exports one table of functions over plain types and links none of the program's
 * libraries.
 *
 * MPI is initialized once per process and finalized when the process ends. A process is one rank. */
#ifndef COMMON_COLLECTIVES_MPI_MPI_MODULE_H
#define COMMON_COLLECTIVES_MPI_MPI_MODULE_H

#include "common/collectives/collective.h"
#include "common/ops/tensor.h"
#include "common/reduce/reduce.h"

#include <stdbool.h>

#define MPI_MODULE_SYMBOL "psring_mpi_module"
enum { MPI_MODULE_VERSION = 1 };

typedef void (*mpi_module_reduce)(dtype type, reduce_op op, void *out, const void *a, const void *b,
                                  int64_t count);

/* A call with the arguments of MPI's function. Operands are contiguous. NULL means MPI_IN_PLACE. The root of
 * a scatter may pass NULL as `out`, and other calls may pass NULL as `in`. counts and places describe the
 * part of each rank. out_counts and out_places describe the received parts of all_to_all. */
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

/* All functions that return int return 0 or MPI's error code. */
typedef struct mpi_module {
    int version;
    /* Initializes MPI (MPI_THREAD_SERIALIZED), unless it has been initialized already. MPI calls `reduce` for
     * types that it does not support. */
    int (*open)(mpi_module_reduce reduce, int *rank, int *size);
    int (*group_open)(const int *ranks, int count, void **group);
    void (*group_close)(void *group);
    int (*start)(void *group, const mpi_module_call *call, void *request);
    int (*test)(void *request, bool *done);
    void (*error_text)(int code, char *text, int size);
    /* Makes the process abort MPI when it exits, instead of finalizing MPI. */
    void (*give_up)(int exit_code);
    int request_bytes;
} mpi_module;

/* collective_mpi_start.c */
/* Opens the module and initializes MPI. */
status mpi_module_open(const collective_config *config, const mpi_module **out);
/* Turns MPI's error code of the function `what` into an error with MPI's message. */
status mpi_module_check(const mpi_module *module, int code, const char *what);

#endif
