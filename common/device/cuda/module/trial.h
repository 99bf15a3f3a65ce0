/* Timing candidates for an operation before the first step (--benchmark), and remembering what was chosen: a
 * model repeats its shapes, and both programs of a run must agree. */
#ifndef COMMON_DEVICE_CUDA_MODULE_TRIAL_H
#define COMMON_DEVICE_CUDA_MODULE_TRIAL_H

#include "common/device/cuda/module/cuda_impl.h"

/* Scratch memory for a few runs, and their times. */
enum { TRIAL_MEMORY = 16 };
typedef struct cuda_trial {
    const cuda_device *device;
    void *memory[TRIAL_MEMORY];
    int count;
    cudaEvent_t begin, end;
} cuda_trial;

/* Close it in any case. */
status cuda_trial_open(const cuda_device *d, cuda_trial *out);
void cuda_trial_close(cuda_trial *t);

/* Zeroed; freed by cuda_trial_close(). *out is NULL where the GPU has no memory left. */
status cuda_trial_memory(cuda_trial *t, size_t bytes, void **out);

/* Enqueues candidate `index` once; *works is false where the library refuses. */
typedef status (*cuda_attempt)(void *context, int index, cudaStream_t s, bool *works);

/* The shortest time of candidate `index` in a few tries after an untimed one; *ms < 0 where it does not
 * work. */
status cuda_trial_time(cuda_trial *t, cuda_attempt run, void *context, int index, float *ms);

/* The fastest of `count` candidates; *best is -1 where none works. */
status cuda_trial_best(cuda_trial *t, cuda_attempt run, void *context, int count, int *best, float *ms);

/* What was chosen for `key`, `bytes` of it; copies `size` bytes to `value` and returns true, or returns
 * false. */
enum { CHOICE_KEY_BYTES = 192, CHOICE_VALUE_BYTES = 96 };
bool cuda_recall(const cuda_device *d, const void *key, size_t bytes, void *value, size_t size);
status cuda_remember(cuda_device *d, const void *key, size_t bytes, const void *value, size_t size);
void cuda_forget(cuda_device *d);

#endif
