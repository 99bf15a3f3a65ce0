/* Times candidate algorithms for an operation before the first step (--benchmark), and remembers the choices.
 * Choices are remembered because models repeat shapes, and because all operations of one shape must use the
 * same choice. */
#ifndef COMMON_DEVICE_CUDA_MODULE_TRIAL_H
#define COMMON_DEVICE_CUDA_MODULE_TRIAL_H

#include "common/device/cuda/module/cuda_impl.h"

enum { TRIAL_MEMORY = 16 };
typedef struct cuda_trial {
    const cuda_device *device;
    void *memory[TRIAL_MEMORY]; /* zeroed; NULL if the GPU had no memory left */
    bool complete;              /* true if all memory was allocated */
    cudaEvent_t begin, end;
} cuda_trial;

/* Opens a trial and allocates `count` parts of memory for it. The caller must close the trial even if
 * cuda_trial_open() fails. */
status cuda_trial_open(const cuda_device *d, int count, const size_t *bytes, cuda_trial *out);
void cuda_trial_close(cuda_trial *t);

/* Enqueues candidate `index` once. Sets *works to false if the library refuses the candidate. */
typedef status (*cuda_attempt)(void *context, int index, cudaStream_t s, bool *works);

/* Sets *ms to the shortest time of candidate `index` in a few tries after a warm-up. *ms is negative if the
 * candidate does not work. */
status cuda_trial_time(cuda_trial *t, cuda_attempt run, void *context, int index, float *ms);

/* Sets *best to the fastest of `count` candidates, or to -1 if none works. */
status cuda_trial_best(cuda_trial *t, cuda_attempt run, void *context, int count, int *best, float *ms);

/* cuda_remember() stores a choice of `size` bytes for a key of `bytes` bytes. cuda_recall() looks the choice
 * up, and returns false if there is none. */
enum { CHOICE_KEY_BYTES = 192, CHOICE_VALUE_BYTES = 96 };
bool cuda_recall(const cuda_device *d, const void *key, size_t bytes, void *value, size_t size);
status cuda_remember(cuda_device *d, const void *key, size_t bytes, const void *value, size_t size);
void cuda_forget(cuda_device *d);

#endif
