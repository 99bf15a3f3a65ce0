/* Runs the collective cases through MPI, one process per rank, under mpirun. Prints TAP, and the reason of
 * each failure.
 *
 *   mpi_cases cases|order|differ [library|ring] */
#include "common/base/random.h"
#include "tests/common/collectives/collective_case.h"
#include "tests/support/status_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32};

static status run_cases(collective_group *group, case_arena *arena, int n)
{
    static const int64_t counts[] = {0, 1, 2, 3, 4, 5, 127, 1009, 20011};
    uint64_t index = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int kind = 0; kind < COLLECTIVE_KIND_COUNT; kind++)
            for (int t = 0; t < 6; t++)
                for (int variant = 0; variant < 4; variant++) {
                    uint64_t draw = random_mix(++index * RANDOM_GOLDEN);
                    collective_case c = {(collective_kind)kind,
                                         (reduce_op)(draw % REDUCE_OP_COUNT),
                                         types[t],
                                         counts[i],
                                         (int)(draw >> 8 & 0xff) % n,
                                         variant % 2 != 0,
                                         variant < 2 ? CASE_PRIVATE : CASE_PRIVATE_PIECES};
                    if (kind == COLLECTIVE_RECEIVE) continue; /* A send case already includes the receive. */
                    if (kind == COLLECTIVE_ALL_TO_ALL) c.in_place = false;
                    TRY(case_run(group, arena, &c));
                }
    return STATUS_OK;
}

/* Rank 1 makes a different call. */
static status run_difference(collective_group *group)
{
    double x = 0;
    collective_buffer one = {.base = &x};
    int rank = collective_group_rank(group);
    collective_call call = {.kind = COLLECTIVE_ALL_REDUCE,
                            .op = rank == 1 ? REDUCE_MAX : REDUCE_SUM,
                            .type = DTYPE_F64,
                            .count = 1,
                            .in = one,
                            .out = one};
    return collective_run(group, &call);
}

/* Every element sums the same three values. A ring sums each chunk in a different order of ranks, and in some
 * orders 2^25 absorbs 1. So results differ between chunks. Other algorithms sum all elements in the same
 * order. */
static status run_order(collective_group *group, bool ring)
{
    enum { COUNT = 3 * 64 };
    static const float values[3] = {0x1p25F, -0x1p25F, 1};
    float x[COUNT];
    bool alike = true;
    collective_buffer all = {.base = x};
    collective_call call = {
        .kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_F32, .count = COUNT, .in = all, .out = all};
    for (int i = 0; i < COUNT; i++) x[i] = values[collective_group_rank(group) % 3];
    TRY(collective_run(group, &call));
    for (int i = 0; i < COUNT; i++) alike = alike && x[i] == x[0];
    return alike == !ring
               ? STATUS_OK
               : rank_error(STATUS_MISMATCH, "sums are %s in all chunks", alike ? "alike" : "unlike");
}

/* Asks for another algorithm too late: MPI reads its parameters only once, and has already read them. */
static status run_another_algorithm(const collective_config *config)
{
    bool ring = config->algorithm == COLLECTIVE_ALGORITHM_RING;
    collective_config other = *config;
    collective_world *world = NULL;
    other.algorithm = ring ? COLLECTIVE_ALGORITHM_LIBRARY : COLLECTIVE_ALGORITHM_RING;
    if (collective_open("mpi", &other, &world) != STATUS_CONFIG)
        return rank_error(STATUS_MISMATCH, "MPI was opened with another algorithm");
    error_clear();
    return STATUS_OK;
}

static status run(const char *what, const char *algorithm)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    rank_context context = {.rank = rank ? atoi(rank) : 0, .world = size ? atoi(size) : 1};
    collective_config config = ranks_config(&context);
    collective_world *world = NULL;
    collective_group *group = NULL;
    case_arena arena;
    bool ring = strcmp(algorithm, "ring") == 0;
    config.algorithm = ring ? COLLECTIVE_ALGORITHM_RING : COLLECTIVE_ALGORITHM_LIBRARY;
    config.staging_bytes = 8192;
    TRY(case_arena_open(20011, &arena));
    TRY(collective_open("mpi", &config, &world));
    TRY(ranks_group(&context, world, &group));
    if (strcmp(what, "differ") == 0)
        TRY(run_difference(group));
    else if (strcmp(what, "order") == 0)
        TRY(run_order(group, ring));
    else
        TRY(run_cases(group, &arena, context.world));
    TRY(run_another_algorithm(&config));
    collective_group_close(&group);
    collective_close(&world);
    case_arena_close(&arena);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    status rc = run(argc > 1 ? argv[1] : "cases", argc > 2 ? argv[2] : "library");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rc != STATUS_OK)
        fprintf(stderr, "%s: %s\n", status_name(rc), error_message());
    else if (!rank || atoi(rank) == 0)
        printf("1..1\nok 1 - collectives through MPI give every rank what they promise\n");
    return status_exit_code(rc);
}
