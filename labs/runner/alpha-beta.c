/* Lab 4: the alpha-beta model. */
#include "labs/runner/call.h"

#include "labs/lab.h"

int call_function(int which, const double *in, int n, double *out)
{
    if (which == 0) {
        int rc = student_fit(in, in + n / 2, n / 2, &out[0], &out[1]);
        return rc == LAB_OK ? 2 : rc;
    }
    out[0] = which == 1   ? student_message_time(in[1], in[2], in[3])
             : which == 2 ? student_ring_time((int)in[0], in[1], in[2], in[3])
                          : student_reducer_time((int)in[0], in[1], in[2], in[3]);
    return 1;
}
