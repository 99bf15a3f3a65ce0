/* Lab 1: bytes that each rank sends. Write the four functions; README.md says what they must count. */
#include <lab.h>

int64_t student_reducer_bytes(int ranks, int64_t n, int rank)
{
    (void)ranks;
    (void)n;
    (void)rank;
    return LAB_EMISSING; /* your code here */
}

int64_t student_server_bytes(int ranks, int servers, int64_t n, int rank)
{
    (void)ranks;
    (void)servers;
    (void)n;
    (void)rank;
    return LAB_EMISSING; /* your code here */
}

int64_t student_ring_bytes(int ranks, int64_t n, int rank)
{
    (void)ranks;
    (void)n;
    (void)rank;
    return LAB_EMISSING; /* your code here */
}

int64_t student_busiest_link(int ranks, int servers, int64_t n)
{
    (void)ranks;
    (void)servers;
    (void)n;
    return LAB_EMISSING; /* your code here */
}
