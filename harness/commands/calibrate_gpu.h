#ifndef HARNESS_COMMANDS_CALIBRATE_GPU_H
#define HARNESS_COMMANDS_CALIBRATE_GPU_H

#include "common/base/status.h"

/* Measures the first GPU, writes its profile to `out` (NULL: this-gpu.json where harness looks for profiles), and
 * prints what it found. */
status calibrate_gpu_command(const char *out);

#endif
