/* Lab 4: the alpha-beta model. */
#include "labs/runner/call.h"

#include "labs/lab.h"

int call_function(int which, const double *in, int n, double *out)
{
    int rc;
    switch (which) {
    case 0:
        rc = student_fit(in, in + n / 2, n / 2, &out[0], &out[1]);
        return rc == LAB_OK ? 2 : rc;
    case 1:
        out[0] = student_message_time(in[1], in[2], in[3]);
        return 1;
    case 2:
        out[0] = student_ring_time((int)in[0], in[1], in[2], in[3]);
        return 1;
    default:
        out[0] = student_reducer_time((int)in[0], in[1], in[2], in[3]);
        return 1;
    }
}
