/* Lab 4: the alpha-beta model. Times are seconds, sizes bytes, bandwidths bytes per second. README.md has the
 * task. */
#include <lab.h>

#include <math.h>

int student_fit(const double *bytes, const double *seconds, int count, double *latency, double *bandwidth)
{
    (void)bytes;
    (void)seconds;
    (void)count;
    (void)latency;
    (void)bandwidth;
    return LAB_EMISSING; /* your code here */
}

double student_message_time(double bytes, double latency, double bandwidth)
{
    (void)bytes;
    (void)latency;
    (void)bandwidth;
    return LAB_EMISSING; /* your code here */
}

double student_ring_time(int ranks, double bytes, double latency, double bandwidth)
{
    (void)ranks;
    (void)bytes;
    (void)latency;
    (void)bandwidth;
    return LAB_EMISSING; /* your code here */
}

double student_reducer_time(int ranks, double bytes, double latency, double bandwidth)
{
    (void)ranks;
    (void)bytes;
    (void)latency;
    (void)bandwidth;
    return LAB_EMISSING; /* your code here */
}
