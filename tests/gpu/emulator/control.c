#include "tests/gpu/emulator/control.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

emulator_control_table emulator_control;

void emulator_count_launch(cudaStream_t s)
{
    emulator_count(&emulator_control.launches);
    emulator_be_slow(s);
}

static void take(void *context)
{
    __atomic_fetch_add(&emulator_control.slow_ns, *(const int64_t *)context, __ATOMIC_RELAXED);
}

void emulator_take(cudaStream_t s, int64_t ns)
{
    if (!emulator_record(s, take, &ns, sizeof ns)) take(&ns);
}

__attribute__((constructor)) static void read_faults(void)
{
    const char *text = getenv("EMULATED_FAULT");
#define READ_FAULT(name) emulator_control.fails_##name = text && strstr(text, #name) != NULL;
    EMULATOR_FAULTS(READ_FAULT)
    emulator_control.slow_first = text && strstr(text, "slow_first") != NULL;
}

/* Every rank is a process, and appends its own lines. */
__attribute__((destructor)) static void write_counts(void)
{
    const char *path = getenv("EMULATED_COUNTS");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
#define WRITE_COUNT(name) fprintf(f, "%s %lld\n", #name, (long long)emulator_control.name);
    EMULATOR_COUNTS(WRITE_COUNT)
    fclose(f);
}
