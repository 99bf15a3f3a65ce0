/* Emulated streams, for the files of the emulator.
 *
 * Usually a call returns when its work is done. But if work must wait (for a value, an event, or other
 * ranks), the stream keeps this work, and all later work that it is given. A thread of the stream runs the
 * kept work, and the host goes on, as with a GPU. If EMULATED_ORDER is set in the environment, a stream keeps
 * all its work:
 *
 *   ahead    a thread runs the work, and pauses before each kernel and copy, so the host is far ahead
 *   late     nothing runs until a thread waits; then other streams run only if the wait needs them
 *   early    as "late", but other streams then run as far as their own waits allow
 *
 * So a missing wait or signal between two streams shows in the results. A host that waits for its own later
 * call hangs. With "late" and "early", all streams must be used by one thread: for engine `none`, and for
 * tests of streams. */
#ifndef TESTS_GPU_EMULATOR_STREAM_H
#define TESTS_GPU_EMULATOR_STREAM_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>

typedef struct emulated_work {
    struct emulated_work *next;
    bool (*run)(void *context); /* Returns false if the work cannot run yet. */
    void *context;
} emulated_work;

struct emulated_stream {
    struct emulated_graph *capture; /* Graph that captures the stream's work, or NULL. */
    emulated_work *first, *last;    /* Work that the stream keeps. */
    struct emulated_stream *next;   /* Next stream of this thread that keeps work (orders late and early). */
    bool listed;

    /* Fields of streams with a thread, which they have if the order is "ahead", or if their work must
     * wait. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread, owner; /* Thread that runs the work, and thread of the rank that opened the stream. */
    bool has_thread, closing;
    uint64_t given, done;
    struct emulated_stream *next_of_all;
};

/* Keeps the work with a copy of the context if the stream keeps its work. Otherwise returns false, and the
 * caller runs the work. */
bool emulator_keep(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes);
/* Keeps the work, whether the order says so or not. */
void emulator_keep_always(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes);

/* Runs all work that the stream keeps, or waits until its thread has run this work. With "late" and "early",
 * also runs work of other streams as the order says. */
void emulator_drain(cudaStream_t s);
/* Drains all streams of this thread. */
void emulator_drain_all(void);
/* Returns true if streams have threads, false if they run when a thread waits. */
bool emulator_has_threads(void);
/* Pauses before a kernel or a copy if the order is "ahead". */
void emulator_pause(void);

/* queue.c */
/* Adds work with a copy of its context to what the stream keeps. */
void emulator_append(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes);
void emulator_stream_open(cudaStream_t s);
void emulator_stream_close(cudaStream_t s);
/* Gives the work to the thread of the stream. Returns false if `always` is false and the stream has nothing
 * to do. */
bool emulator_queue(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes,
                    bool always);
void emulator_queue_drain(cudaStream_t s);
/* Returns how many pieces of work the stream has been given so far. */
uint64_t emulator_queue_given(cudaStream_t s);
/* Waits until the streams that `owner` opened have done all work that they have been given so far. Calls that
 * synchronize with a rank's GPU use this function. */
void emulator_settle(pthread_t owner);

#endif
