/* The emulated device memory, for the files of the emulator. */
#ifndef TESTS_GPU_EMULATOR_MEMORY_H
#define TESTS_GPU_EMULATOR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Device memory is closed to the host, except between these two. */
void emulator_open_memory(void);
void emulator_close_memory(void);

/* Whether `data` is device memory, this process's or a peer's. */
bool emulator_owns(const void *data);

#endif
