/* A rank that computes slower than it could (--slow RANK:FACTOR,...): what it computes is stretched by
 * sleeping, so that a laptop shows what one slow machine does to everybody else under a policy.
 *
 * The train loop reports when computation pauses and resumes: around every call of the engine's stages. What
 * is computed between resume and pause takes `factor` times as long; waiting and communication do not. */
#ifndef COMMON_SYNC_STRAGGLER_H
#define COMMON_SYNC_STRAGGLER_H

#include "common/base/status.h"

#include <stdint.h>

/* Caller's storage; zero-initialized is a rank that is not slow. */
typedef struct straggler {
    double stretch; /* factor - 1 */
    int64_t resumed_ns, debt_ns;
} straggler;

/* `text` is "RANK:FACTOR,..." with factors from 1 to 1000, or NULL. STATUS_USAGE names what was found;
 * STATUS_CONFIG where there is no such rank. */
status straggler_init(straggler *s, const char *text, int rank, int world);

void straggler_resume(straggler *s);
/* Sleeps when enough has come together to be slept accurately. */
void straggler_pause(straggler *s);

#endif
