/* broadcast, all_gather, reduce_scatter and all_to_all on two ranks. Build it with the project (ninja
 * example_gather), then run build/bin/example_gather. Rank r has 10 r and 10 r + 1. `count` is the number of
 * elements of the whole, not of a part. */
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
    static const collective_kind kinds[] = {COLLECTIVE_BROADCAST, COLLECTIVE_ALL_GATHER,
                                            COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_TO_ALL};
    for (int i = 0; i < 4; i++) {
        double in[2] = {10 * rank, 10 * rank + 1}, out[2] = {0, 0};
        TRY(collective_run(
            all, &(collective_call){
                     .kind = kinds[i], .type = DTYPE_F64, .count = 2, .in.base = in, .out.base = out}));
        printf("%s, rank %d: %g %g -> %g %g\n", collective_kind_name(kinds[i]), rank, in[0], in[1], out[0],
               out[1]);
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
