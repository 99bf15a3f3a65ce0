/* send and recv: rank 0 sends 999, then a matrix whose size rank 1 does not know. Build it with the project
 * (ninja -C build example_send), then run build/bin/example_send. The receiver needs a buffer, so the shape
 * goes first. Messages of a pair of ranks arrive in order. */
#include "common/base/clock.h"
#include "common/collectives/collective.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static status move(collective_group *all, collective_kind kind, int peer, double *values, int64_t count)
{
    collective_buffer own = {.base = values};
    return collective_run(
        all, &(collective_call){
                 .kind = kind, .type = DTYPE_F64, .root = peer, .count = count, .in = own, .out = own});
}

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
    collective_kind kind = rank == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECEIVE;
    double value = rank == 0 ? 999 : 0, shape[2] = {2, 3}, matrix[6] = {1, 2, 3, 4, 5, 6};
    if (rank == 1) shape[0] = shape[1] = matrix[0] = matrix[5] = 0;
    TRY(move(all, kind, 1 - rank, &value, 1));
    TRY(move(all, kind, 1 - rank, shape, 2));
    TRY(move(all, kind, 1 - rank, matrix, (int64_t)(shape[0] * shape[1])));
    printf("rank %d: %g, then a matrix of [%g, %g] from %g to %g\n", rank, value, shape[0], shape[1],
           matrix[0], matrix[5]);
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
