/* The collective cases through MPI, one process per rank: run under mpirun. Prints TAP, and what failed. */
#include "common/base/random.h"
#include "tests/ring/collectives/collective_case.h"

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
                    if (kind == COLLECTIVE_RECEIVE) continue; /* part of every send */
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

static status run(bool differ)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    rank_context context = {.rank = rank ? atoi(rank) : 0, .world = size ? atoi(size) : 1};
    collective_config config = ranks_config(&context);
    collective_world *world = NULL;
    collective_group *group = NULL;
    case_arena arena;
    config.staging_bytes = 8192;
    TRY(case_arena_open(20011, &arena));
    TRY(collective_open("mpi", &config, &world));
    TRY(ranks_group(&context, world, &group));
    TRY(differ ? run_difference(group) : run_cases(group, &arena, context.world));
    collective_group_close(&group);
    collective_close(&world);
    case_arena_close(&arena);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    status rc = run(argc > 1 && strcmp(argv[1], "differ") == 0);
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rc != STATUS_OK) fprintf(stderr, "%s: %s\n", status_name(rc), error_message());
    else if (!rank || atoi(rank) == 0) printf("1..1\nok 1 - collectives through MPI give every rank what they promise\n");
    return status_exit_code(rc);
}
