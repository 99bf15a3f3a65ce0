/* Lab 1: calls the functions that count the bytes of a rank. */
#include "labs/runner/call.h"

#include "labs/lab.h"

int call_function(int which, const double *in, int n, double *out)
{
    int ranks = (int)in[0], servers = (int)in[1], rank = (int)in[3];
    int64_t count = (int64_t)in[2];
    (void)n;
    switch (which) {
    case 0:
        out[0] = (double)student_reducer_bytes(ranks, count, rank);
        return 1;
    case 1:
        out[0] = (double)student_server_bytes(ranks, servers, count, rank);
        return 1;
    case 2:
        out[0] = (double)student_ring_bytes(ranks, count, rank);
        return 1;
    default:
        out[0] = (double)student_busiest_link(ranks, servers, count);
        return 1;
    }
}
