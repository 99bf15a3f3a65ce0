/* all_reduce: every rank gets the sum, the mean or the maximum of all ranks' values. Build it with the
 * project (ninja -C build example_all_reduce), then run build/bin/example_all_reduce. Rank r has r + 1, so on
 * two ranks the sum is 3, the mean 1.5 and the maximum 2. */
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
    for (int i = 0; i < 3; i++) {
        static const reduce_op ops[] = {REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX};
        double before = rank + 1, after;
        TRY(collective_run(all, &(collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                                                   .op = ops[i],
                                                   .type = DTYPE_F64,
                                                   .count = 1,
                                                   .in.base = &before,
                                                   .out.base = &after}));
        printf("%s, rank %d: %g -> %g\n", (const char *[]){"sum", "mean", "max"}[i], rank, before, after);
    }
    collective_group_close(&all);
    collective_close(&world);
    return STATUS_OK;
}

int main(void)
{
    uint64_t token = (uint64_t)clock_now_ns(); /* a number that only the ranks of this job have */
    int code, failed = 0;
    for (int rank = 0; rank < 2; rank++) {
        if (fork() > 0) continue;
        status rc = run(rank, 2, token);
        if (rc != STATUS_OK) fprintf(stderr, "rank %d: %s\n", rank, error_message());
        return rc != STATUS_OK;
    }
    while (wait(&code) > 0) failed |= code;
    return failed != 0;
}
