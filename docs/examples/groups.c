/* Groups: ranks 0 and 1 add their values, and ranks 2 and 3 add other values. Build it with the project
 * (ninja -C build example_groups), then run build/bin/example_groups. Only members open a group, and all
 * members open their common groups in the same order. */
#include "common/base/clock.h"
#include "common/collectives/collective.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static status run(int rank, int ranks, uint64_t token)
{
    collective_config config = {.rank = rank,
                                .world = ranks,
                                .job_token = token,
                                .name = "example",
                                .connect_timeout_ns = 10 * NS_PER_S,
                                .stall_timeout_ns = 10 * NS_PER_S};
    collective_world *world;
    collective_group *all;
    TRY(collective_open("shm", &config, &world));
    TRY(collective_group_open(world, "all", NULL, ranks, &all));
    int first = rank < 2 ? 0 : 2, members[2] = {first, first + 1};
    collective_group *pair;
    double before = rank + 1, after;
    TRY(collective_group_open(world, rank < 2 ? "0 and 1" : "2 and 3", members, 2, &pair));
    TRY(collective_run(pair, &(collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                                                .type = DTYPE_F64,
                                                .count = 1,
                                                .in.base = &before,
                                                .out.base = &after}));
    printf("rank %d, rank %d of its group: %g -> %g\n", rank, collective_group_rank(pair), before, after);
    collective_group_close(&pair);
    collective_group_close(&all);
    collective_close(&world);
    return STATUS_OK;
}

int main(void)
{
    uint64_t token = (uint64_t)clock_now_ns(); /* a number that only the ranks of this job have */
    int code, failed = 0;
    for (int rank = 0; rank < 4; rank++) {
        if (fork() > 0) continue;
        status rc = run(rank, 4, token);
        if (rc != STATUS_OK) fprintf(stderr, "rank %d: %s\n", rank, error_message());
        return rc != STATUS_OK;
    }
    while (wait(&code) > 0) failed |= code;
    return failed != 0;
}
