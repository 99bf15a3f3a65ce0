/* Lab 5: buckets. Arrays have exact sizes, so the sanitizer finds accesses beyond their ends. */
#include "labs/runner/runner.h"

#include "labs/lab.h"
#include "labs/runner/call.h"

#include <string.h>

int lab_next_gradient(lab_step *step, int *gradient)
{
    (void)step;
    runner_message m = runner_ask((runner_message){BUCKETS_NEXT, 0, 0, 0}, NULL);
    if (m.code == LAB_OK) *gradient = (int)m.n;
    return m.code;
}

int lab_launch(lab_step *step, int bucket)
{
    (void)step;
    return runner_ask((runner_message){BUCKETS_LAUNCH, 0, bucket, 0}, NULL).code;
}

int lab_wait(lab_step *step, int bucket)
{
    (void)step;
    return runner_ask((runner_message){BUCKETS_WAIT, 0, bucket, 0}, NULL).code;
}

/* `in` holds the count, both limits and the sizes. */
static int assign(const double *in, double *out)
{
    int count = (int)in[0];
    int64_t *bytes = runner_memory((size_t)count * sizeof *bytes);
    int *bucket_of = runner_memory((size_t)count * sizeof *bucket_of);
    for (int i = 0; i < count; i++) {
        bytes[i] = (int64_t)in[3 + i];
        bucket_of[i] = -1;
    }
    int buckets = student_assign(bytes, count, (int64_t)in[1], (int64_t)in[2], bucket_of);
    out[0] = buckets;
    for (int i = 0; i < count; i++) out[1 + i] = bucket_of[i];
    free(bytes);
    free(bucket_of);
    return buckets < 0 ? buckets : 1 + count;
}

/* `in` holds the count, the number of buckets and the bucket of each gradient. */
static int backward(const double *in, double *out)
{
    int count = (int)in[0];
    int *bucket_of = runner_memory((size_t)count * sizeof *bucket_of);
    for (int i = 0; i < count; i++) bucket_of[i] = (int)in[2 + i];
    out[0] = student_backward(NULL, bucket_of, count, (int)in[1]);
    free(bucket_of);
    return 1;
}

/* `in` holds the number of spans of computation, the number of spans in which a bucket is in flight, and the
 * begin and end of each span. */
static int exposed(const double *in, double *out)
{
    size_t computes = (size_t)in[0], flights = (size_t)in[1];
    lab_span *compute = runner_memory(computes * sizeof *compute),
             *flight = runner_memory(flights * sizeof *flight);
    memcpy(compute, in + 2, computes * sizeof *compute);
    memcpy(flight, in + 2 + 2 * computes, flights * sizeof *flight);
    out[0] = student_exposed(compute, (int)computes, flight, (int)flights);
    free(compute);
    free(flight);
    return 1;
}

int call_function(int which, const double *in, int n, double *out)
{
    (void)n;
    return which == BUCKETS_ASSIGN     ? assign(in, out)
           : which == BUCKETS_BACKWARD ? backward(in, out)
                                       : exposed(in, out);
}
