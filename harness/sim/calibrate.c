#include "common/base/clock.h"
#include "common/device/host/host.h"
#include "harness/launch/processors.h"
#include "harness/sim/calibrate_impl.h"

#include <stdlib.h>
#include <string.h>

enum { PAIR = 2, TURNS = 9 };

status calibration_copy_gbs(size_t bytes, double *gbs)
{
    char *from = malloc(bytes), *to = malloc(bytes);
    int64_t best = 0;
    status rc = from && to ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to copy");
    if (rc == STATUS_OK) memset(from, 1, bytes);
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        int64_t begin = clock_now_ns();
        memcpy(to, from, bytes);
        keep_least(&best, clock_now_ns() - begin);
    }
    *gbs = best > 0 ? 2.0 * (double)bytes / (double)best : 0;
    free(from);
    free(to);
    return rc;
}

status calibrate(int threads, int bind, calibration *out)
{
    cpu_set_t before;
    *out = (calibration){.threads = threads, .cores = host_processors()};
    TRY(bind_plan((bind_mode)bind, (bind_group){PAIR, threads}, &out->sets));
    if (out->sets) out->processors = CPU_COUNT(&out->sets[0]);
    bool known = sched_getaffinity(0, sizeof before, &before) == 0;
    status rc = calibration_bind(out, 0);
    if (rc == STATUS_OK) rc = calibrate_operations(out);
    if (rc == STATUS_OK) rc = calibrate_pair(out);
    if (rc == STATUS_OK) rc = calibrate_messages(out);
    if (known && out->sets) sched_setaffinity(0, sizeof before, &before);
    free(out->sets);
    out->sets = NULL;
    return rc;
}
