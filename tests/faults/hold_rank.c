/* Preloaded into ranks. Stops rank HOLD_RANK of job HOLD_JOB before its main(), so that this rank is late on
 * a machine of any speed. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static int is(const char *name, const char *wanted_by)
{
    const char *value = getenv(name), *wanted = getenv(wanted_by);
    return value && wanted && strcmp(value, wanted) == 0;
}

__attribute__((constructor)) static void hold(void)
{
    if (is("RANK", "HOLD_RANK") && is("HARNESS_JOB", "HOLD_JOB")) raise(SIGSTOP);
}
