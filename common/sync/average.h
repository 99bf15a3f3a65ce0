/* Functions that average or add tensors of several ranks, on any kind of device. On a CPU, host threads
 * process the tensors range by range. A GPU processes tensors in GPU memory. On a virtual device tensors have
 * no memory, and the functions only spend the time that a real device would take. */
#ifndef COMMON_SYNC_AVERAGE_H
#define COMMON_SYNC_AVERAGE_H

#include "common/memory/piece.h"
#include "common/sync/staging.h"

/* Processes `ranges`. The first range is a part of piece number `first`, and each further range is a part of
 * the next piece. */
typedef status (*sync_range_function)(void *context, int thread, int first, piece_list ranges);

/* Calls `function` until all pieces have been processed, and returns the first failure if there was one.
 * On a CPU, `threads` threads call `function`. Each call gets one range, which fits into the cache. On
 * other devices there is one call with all pieces. */
status sync_run_ranges(const sync_staging *on, int threads, piece_list pieces, sync_range_function function,
                       void *context);

/* Describes the average out[i] = (c[0][i] / before + c[1][i] / before + ...) / after. c[r] is the
 * contribution of rank r. There are `count` ranks. */
typedef struct sync_average {
    const sync_staging *on;
    dtype type;
    int threads; /* Number of threads that sum in host memory, or 0 if a virtual GPU sums. */
    int count;
    double before, after;
    char *out; /* Base address of the arena for the result. May be the arena of a contribution. */
    /* Returns the address of an element in the contribution of rank `rank`. `element` is the index of the
     * element in the arena, and `piece` is the index of the piece that contains the element. */
    const char *(*source)(const void *context, int rank, int piece, int64_t element);
    const void *context;
    const void **sources; /* [threads][count] Scratch memory for sync_average_ranges() on a CPU. */
    /* Used on a GPU. `local` is the rank whose contribution is in the memory of the GPU, or -1. `landing` is
     * GPU memory for one piece of another rank's contribution. */
    int local;
    void *landing;
} sync_average;

/* Averages the elements of `ranges`, on a thread of sync_run_ranges(). `average` is a sync_average. */
status sync_average_ranges(void *average, int thread, int first, piece_list ranges);

/* Copies `elements` elements to GPU memory and divides the copies by `divisor`. `data` is in GPU memory if
 * `local` is true, else in host memory. */
status sync_bring(const sync_staging *on, dtype type, void *to, const void *data, bool local,
                  int64_t elements, double divisor);

/* In virtual time, spends the time of one pass over `bytes` bytes. If `threads` is 0, the device makes the
 * pass, otherwise `threads` host threads make the pass. On a real device this function does nothing. */
void sync_spend_pass(device *d, double bytes, int threads);
/* In virtual time, spends the time of an update that passes over `bytes` bytes. If the job's update was
 * recorded, this update takes longer than modeled by the same factor, except on the host of a GPU. */
void sync_spend_update(device *d, double bytes, int threads);

/* Returns 0 if a virtual GPU sums, that is, if `d` is one and `beside_gpu` is true. Otherwise returns
 * `threads`. */
int sync_summing_threads(device *d, bool beside_gpu, int threads);

/* In virtual time, spends the time of copies between the host and the GPU. They do not share the link with
 * messages. */
void sync_spend_copies(device *d, double bytes);

/* Adds `values` to `sums`, both in host memory. Does nothing on a virtual device. */
void sync_add_values(const device *d, double *sums, const double *values, int64_t count);

#endif
