/* barrier: no rank goes on before the last rank has come. Build it with the project (ninja -C build
 * example_barrier), then run build/bin/example_barrier. Rank 0 comes late, and every rank prints how long it
 * has waited. */
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
    if (rank == 0) usleep(300000);
    int64_t begin_ns = clock_now_ns();
    TRY(collective_run(all, &(collective_call){.kind = COLLECTIVE_BARRIER, .type = DTYPE_F64}));
    printf("rank %d waited %.1f s\n", rank, 1e-9 * (double)(clock_now_ns() - begin_ns));
    collective_group_close(&all);
    collective_close(&world);
    return STATUS_OK;
}

int main(void)
{
    uint64_t token = (uint64_t)clock_now_ns(); /* a number that only the ranks of this job have */
    int code, failed = 0;
    for (int rank = 0; rank < 3; rank++) {
        if (fork() > 0) continue;
        status rc = run(rank, 3, token);
        if (rc != STATUS_OK) fprintf(stderr, "rank %d: %s\n", rank, error_message());
        return rc != STATUS_OK;
    }
    while (wait(&code) > 0) failed |= code;
    return failed != 0;
}
