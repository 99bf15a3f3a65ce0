#include "common/base/random.h"

#include "common/base/clock.h"

#include <math.h>
#include <sys/random.h>
#include <unistd.h>

uint64_t random_fnv1a64(const char *name)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (const unsigned char *byte = (const unsigned char *)name; *byte; byte++)
        hash = (hash ^ *byte) * UINT64_C(0x100000001B3);
    return hash;
}

double random_normal(uint64_t start, uint64_t index)
{
    const double two_pi = 6.283185307179586476925286766559;
    double u = (double)((random_bits(start, 2 * index) >> 11) + 1) * 0x1p-53; /* in (0, 1] */
    double v = (double)(random_bits(start, 2 * index + 1) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(two_pi * v);
}

uint64_t random_token(void)
{
    uint64_t token = 0;
    /* Linux before version 3.17 does not have getrandom() */
    if (getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        token = random_mix((uint64_t)clock_now_ns() ^ (uint64_t)getpid() << 40);
    return token ? token : 1;
}
