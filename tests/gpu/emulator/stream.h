/* Emulated streams, for the files of the emulator.
 *
 * As a rule everything is done when the call returns. With EMULATED_ORDER in the environment a stream keeps what it is
 * given until somebody waits for it, as a GPU may; what of several streams then runs first is the worst that they allow:
 *
 *   late     work of other streams than the awaited one runs when a wait cannot be met without it
 *   early    it runs as soon as its own waits allow
 *
 * So a wait or a signal that is missing between two streams shows in the results. Streams must be of one thread: for
 * `none`, and for tests of streams. */
#ifndef TESTS_GPU_EMULATOR_STREAM_H
#define TESTS_GPU_EMULATOR_STREAM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

typedef struct emulated_work {
    struct emulated_work *next;
    bool (*run)(void *context); /* false: it cannot run yet */
    void *context;
} emulated_work;

struct emulated_stream {
    struct emulated_graph *capture; /* NULL: it is not recorded */
    emulated_work *first, *last;    /* kept */
    struct emulated_stream *next;   /* of this thread's that keep something, while it does */
    bool listed;
};

/* Keeps a copy of the context if the stream is one that keeps; else returns false. */
bool emulator_keep(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes);

/* Runs all that the stream keeps, and of others what the order says. */
void emulator_drain(cudaStream_t s);
void emulator_drain_all(void);

#endif
