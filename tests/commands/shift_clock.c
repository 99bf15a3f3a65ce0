/* Preloaded into ranks. The clock of rank 1 is SHIFT_CLOCK_NS later than the clock of the other ranks, as if
 * rank 1 ran on another host. The kernel uses the machine's clock, so when rank 1 waits until a time on its
 * own clock, the wait takes longer. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *out)
{
    static long long shift_ns;
    static int known;
    if (!known) {
        const char *rank = getenv("RANK"), *text = getenv("SHIFT_CLOCK_NS");
        if (!rank) rank = getenv("OMPI_COMM_WORLD_RANK");
        shift_ns = rank && text && strcmp(rank, "1") == 0 ? atoll(text) : 0;
        known = 1;
    }
    int result = (int)syscall(SYS_clock_gettime, id, out);
    if (result != 0 || id != CLOCK_MONOTONIC || shift_ns == 0) return result;
    long long ns = out->tv_sec * 1000000000LL + out->tv_nsec + shift_ns;
    out->tv_sec = ns / 1000000000;
    out->tv_nsec = ns % 1000000000;
    return 0;
}
