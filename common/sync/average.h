/* Averages of tensors that several ranks have sent, and other passes over such tensors, on any device. On a
 * CPU host threads process the bytes, range by range. A GPU processes them in its own memory. A virtual
 * device has no bytes: its actor spends the time that the pass would take. */
#ifndef COMMON_SYNC_AVERAGE_H
#define COMMON_SYNC_AVERAGE_H

#include "common/memory/piece.h"
#include "common/sync/staging.h"

/* Processes `ranges`, which are parts of piece `first` and of the pieces after it. */
typedef status (*sync_range_function)(void *context, int thread, int first, piece_list ranges);

/* Calls `function` until all pieces are processed, and returns the first failure if there was one. On a CPU
 * each of `threads` threads receives ranges that stay in the cache, one range per call. On other devices
 * there is one call with all pieces. */
status sync_run_ranges(const sync_staging *on, int threads, piece_list pieces, sync_range_function function,
                       void *context);

/* An average: out[i] = (c[0][i] / before + c[1][i] / before + ...) / after, with contributions c of `count`
 * ranks in rank order. */
typedef struct sync_average {
    const sync_staging *on;
    dtype type;
    int threads; /* Threads that sum in host memory. 0 if a virtual GPU sums. */
    int count;
    double before, after;
    char *out; /* Base address of an arena. `out` may be a contribution. */
    /* Returns the address of arena element `element`, which is in piece `piece`, in the contribution of a
     * rank. */
    const char *(*source)(const void *context, int rank, int piece, int64_t element);
    const void *context;
    const void **sources; /* [threads][count] For sync_average_ranges() on a CPU. */
    /* For a GPU: the contribution that is in its memory, or -1, and memory in which a piece of the other
     * contributions arrives. */
    int local;
    void *landing;
} sync_average;

/* Averages the elements of `ranges`, on a thread of sync_run_ranges(). */
status sync_average_ranges(const sync_average *a, int thread, int first, piece_list ranges);

/* Copies `elements` elements to GPU memory and divides them. `data` is in GPU memory if `local` is true, else
 * in host memory. */
status sync_bring(const sync_staging *on, dtype type, void *to, const void *data, bool local,
                  int64_t elements, double divisor);

/* Spends, in virtual time, the time of one pass over `bytes`. `threads` threads of the host make the pass, or
 * the device if `threads` is 0. */
void sync_spend_pass(device *d, double bytes, int threads);

/* Adds the values of another rank, in host memory. A virtual device has no values. */
void sync_add_values(const device *d, double *sums, const double *values, int64_t count);

#endif
