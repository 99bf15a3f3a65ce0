/* Starts MPI in this process (collective_mpi_start.c). */
#ifndef COMMON_COLLECTIVES_MPI_MPI_START_H
#define COMMON_COLLECTIVES_MPI_MPI_START_H

#include "common/collectives/collective.h"
#include "common/collectives/mpi/mpi_module.h"

/* Opens the module and initializes MPI. */
status mpi_module_open(const collective_config *config, const mpi_module **out);

/* Turns MPI's error code of the function `what` into an error with MPI's message. */
status mpi_module_check(const mpi_module *module, int code, const char *what);

#endif
