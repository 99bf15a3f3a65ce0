/* bench_trace: measures the time in nanoseconds that it takes to record one event: two readings of the clock
 * and a slice. The recorder writes to memory that has not been touched before, as in a run. Prints the best
 * of several recorders. */
#include "common/trace/trace.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>

enum { EVENTS = 200000, RECORDERS = 9 };

static int64_t record_all(trace *t)
{
    int64_t begin = clock_now_ns();
    for (int64_t i = 0; i < EVENTS; i++) {
        int64_t from = clock_now_ns();
        trace_slice(t, TRACE_COMPUTE, "slice", i, from, clock_now_ns());
    }
    return clock_now_ns() - begin;
}

int main(void)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < RECORDERS; i++) {
        trace *t;
        if (trace_open(EVENTS, &t) != STATUS_OK) {
            fprintf(stderr, "bench_trace: %s\n", error_message());
            return 71;
        }
        trace_switch(t, true);
        int64_t took = record_all(t);
        if (took < best) best = took;
        trace_close(&t);
    }
    printf("%.1f\n", (double)best / EVENTS);
    return 0;
}
