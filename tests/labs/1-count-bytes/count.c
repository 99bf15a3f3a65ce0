/* Reference solution of lab 1. */
#include <lab.h>

static int64_t part(int64_t n, int parts, int index)
{
    return n / parts + (index < n % parts);
}

int64_t student_reducer_bytes(int ranks, int64_t n, int rank)
{
    return 4 * n * (rank == 0 ? ranks - 1 : ranks > 1);
}

int64_t student_server_bytes(int ranks, int servers, int64_t n, int rank)
{
    int64_t own = rank < servers ? part(n, servers, rank) : 0;
    return 4 * (n - own) + 4 * (ranks - 1) * own;
}

int64_t student_ring_bytes(int ranks, int64_t n, int rank)
{
    if (ranks == 1) return 0;
    return 4 * (2 * n - part(n, ranks, (rank + 1) % ranks) - part(n, ranks, (rank + 2) % ranks));
}

int64_t student_busiest_link(int ranks, int servers, int64_t n)
{
    int64_t most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        int64_t sent = student_server_bytes(ranks, servers, n, rank);
        if (sent > most) most = sent;
    }
    return most;
}
