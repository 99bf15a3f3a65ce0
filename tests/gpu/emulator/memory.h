/* The emulated device memory, for the files of the emulator. */
#ifndef TESTS_GPU_EMULATOR_MEMORY_H
#define TESTS_GPU_EMULATOR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Open device memory to the host, and close it again. Outside of these two calls the host cannot access it.
 */
void emulator_open_memory(void);
void emulator_close_memory(void);

/* Returns whether `data` is device memory of this process or of a peer. */
bool emulator_owns(const void *data);

#endif
