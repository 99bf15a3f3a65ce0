/* Emulated streams, for the files of the emulator.
 *
 * As a rule everything is done when the call returns; but work that must wait (for a value, an event, other
 * ranks) and what is launched after it are kept, and a thread of the stream runs them: the host goes on, as
 * with a GPU. With EMULATED_ORDER in the environment a stream always keeps what it is given:
 *
 *   ahead    its thread runs it, each kernel and copy after a pause: the host is far ahead
 *   late     nothing runs until somebody waits; then work of other streams runs when a wait cannot be met
 * without it early    the same, but it runs as soon as its own waits allow
 *
 * So a wait or a signal that is missing between two streams shows in the results, and a host that must wait
 * for itself stands still. With late and early streams must be of one thread: for `none`, and for tests of
 * streams. */
#ifndef TESTS_GPU_EMULATOR_STREAM_H
#define TESTS_GPU_EMULATOR_STREAM_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>

typedef struct emulated_work {
    struct emulated_work *next;
    bool (*run)(void *context); /* false: it cannot run yet */
    void *context;
} emulated_work;

struct emulated_stream {
    struct emulated_graph *capture; /* NULL: it is not recorded */
    emulated_work *first, *last;    /* kept */
    struct emulated_stream *next;   /* late, early: of this thread's that keep something, while it does */
    bool listed;

    /* ahead, and what must wait */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread, owner; /* that runs the work; that has made the stream: its rank's */
    bool has_thread, closing;
    uint64_t given, done;
    struct emulated_stream *next_of_all;
};

/* Keeps a copy of the context if the stream is one that keeps; else returns false: the caller runs it. */
bool emulator_keep(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes);
/* Keeps it in any case. */
void emulator_keep_always(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes);

/* Runs all that the stream keeps, or waits until its thread has; with late and early, of others what the
 * order says. */
void emulator_drain(cudaStream_t s);
/* Streams of this thread. */
void emulator_drain_all(void);
/* Whether streams have threads, rather than run when somebody waits. */
bool emulator_has_threads(void);
/* Before a kernel or a copy: the pause of ahead. */
void emulator_pause(void);

/* queue.c */
/* Adds work with a copy of its context to what the stream keeps. */
void emulator_append(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes);
void emulator_stream_open(cudaStream_t s);
void emulator_stream_close(cudaStream_t s);
/* False: `always` is false and the stream has nothing to do. */
bool emulator_queue(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes,
                    bool always);
void emulator_queue_drain(cudaStream_t s);
/* How much it has been given so far. */
uint64_t emulator_queue_given(cudaStream_t s);
/* Returns when the streams that this thread has made have done what they have been given so far: what a call
 * does that synchronizes with a rank's GPU. */
void emulator_settle(pthread_t owner);

#endif
