#!/bin/sh
# sh allreduce_vs_mpi.sh BUILD_FOLDER [ranks ...]: default settings of Open MPI first, then tuned ones
# (copies through shared memory, malloc keeps what it frees), which win here and there.
set -eu
build=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for ranks in ${*:-2 4 8}; do
    echo "# Open MPI, default"
    mpirun --oversubscribe -np "$ranks" "$build/bin/allreduce_vs_mpi"
    echo "# Open MPI, tuned"
    MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=2000000000 mpirun --oversubscribe -np "$ranks" \
        --mca btl_vader_single_copy_mechanism none "$build/bin/allreduce_vs_mpi"
done
