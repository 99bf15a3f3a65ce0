#include "harness/sim/calibrate.h"

#include "common/base/clock.h"
#include "common/device/host/host.h"
#include "harness/sim/calibrate_impl.h"
#include "harness/train/local_ranks.h"

#include <stdlib.h>
#include <string.h>

enum { PAIR = 2, BYTES = 32 << 20, TURNS = 9 };

static status copy_on_rank(local_ranks *group, int rank, void *context)
{
    double *gbs = (double *)context + rank;
    char *from = malloc(BYTES), *to = malloc(BYTES);
    int64_t best = 0;
    status rc = from && to ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to copy");
    if (rc == STATUS_OK) rc = local_ranks_barrier(group);
    if (rc == STATUS_OK) memset(from, 1, BYTES);
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        int64_t begin = clock_now_ns();
        memcpy(to, from, BYTES);
        int64_t spent = clock_now_ns() - begin;
        if (best == 0 || spent < best) best = spent;
    }
    *gbs = best > 0 ? 2.0 * BYTES / (double)best : 0;
    free(from);
    free(to);
    return rc;
}

status calibrate(int threads, calibration *out)
{
    double copies[PAIR] = {0};
    *out = (calibration){.threads = threads, .cores = host_processors()};
    TRY(calibrate_operations(out));
    TRY(local_ranks_run(PAIR, copy_on_rank, copies));
    out->host_memory_gbs = copies[0] + copies[1];
    TRY(calibrate_pair(out));
    return calibrate_messages(out);
}
