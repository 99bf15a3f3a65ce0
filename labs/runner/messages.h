/* The messages between the grader and the program around a student's functions, for all labs. */
#ifndef LABS_RUNNER_MESSAGES_H
#define LABS_RUNNER_MESSAGES_H

#include <stdint.h>

/* Descriptors of the socket to the grader, and of the memory that the ranks of a timed run share. */
enum { RUNNER_SOCKET = 3, RUNNER_SHARED = 4 };

/* A message: this header, then `bytes` bytes. The lab defines `kind`, `code` and `n`. */
typedef struct runner_message {
    int32_t kind, code;
    int64_t n, bytes;
} runner_message;

enum { RUNNER_CASE = 1, RUNNER_RESULT, RUNNER_FIRST_OF_LAB };

/* ---- labs 2 and 6: between the grader and the student's server ---- */

enum {
    REDUCER_RECEIVE = RUNNER_FIRST_OF_LAB, /* the grader answers with REDUCER_PUSH, REDUCER_SAVE or a code */
    REDUCER_PUSH,                          /* a reducer_push and the gradients follow */
    REDUCER_REPLY, /* n is the rank, and the parameters follow; the grader answers with a code */
    REDUCER_SAVE,  /* lab 6: the process answers with REDUCER_SAVED, then sends REDUCER_RECEIVE again */
    REDUCER_SAVED, /* the checkpoint follows */
};

/* Precedes the gradients of REDUCER_PUSH. */
typedef struct reducer_push {
    int64_t rank, step, samples;
} reducer_push;

/* Precedes the parameters of RUNNER_CASE. */
typedef struct reducer_case {
    int64_t ranks, n;
    double lr;
} reducer_case;

/* ---- lab 3 ---- */

enum {
    RING_SEND = RUNNER_FIRST_OF_LAB, /* n elements for the right neighbor follow; the grader answers with a
                                        code when the link has room */
    RING_RECEIVE,                    /* the grader answers with a code and n elements */
    RING_READY,                      /* the process sends this before the call of a timed run */
};

/* ---- lab 5: within a call of student_backward() ---- */

enum { BUCKETS_ASSIGN, BUCKETS_BACKWARD, BUCKETS_EXPOSED }; /* the function numbers of call.h */
enum {
    BUCKETS_NEXT = RUNNER_FIRST_OF_LAB, /* the grader answers with a code; n is the gradient */
    BUCKETS_LAUNCH,                     /* n is the bucket; the grader answers with a code */
    BUCKETS_WAIT, /* n is the bucket; the grader answers with a code when the bucket is reduced */
};

/* ---- lab 6, in addition to the messages of the server ---- */

/* Values of `code` in RUNNER_CASE. STRAGGLERS_MAY_BEGIN calls student_may_begin() as in call.h with the rank,
 * the staleness and the clocks. */
enum { STRAGGLERS_SERVE, STRAGGLERS_MAY_BEGIN };

/* Precedes the data of STRAGGLERS_SERVE: a checkpoint of `saved` bytes, or the parameters if `saved` is 0. */
typedef struct stragglers_case {
    int64_t ranks, staleness, n, saved;
    double lr, momentum;
} stragglers_case;

/* ---- lab 7 ---- */

/* Values of `code` in RUNNER_CASE. MEMORY_PEAKS calls student_memory() as in call.h with root, unit, units,
 * states, scheme, ranks and rank. The results are the return value and the numbers of lab_memory. */
enum { MEMORY_PEAKS, MEMORY_STEP };

enum {
    MEMORY_REDUCE_SCATTER =
        RUNNER_FIRST_OF_LAB, /* n elements follow; the grader answers with a code and a shard */
    MEMORY_ALL_GATHER, /* this rank's shard follows; n is the number of elements of all shards; the grader
                          answers with a code and the elements of all shards */
};

/* Describes a call of student_sharded_step(). The parameters and the gradients follow. The result has the new
 * parameters as data, and in n the largest number of bytes that were allocated at a time. */
typedef struct memory_step_case {
    int64_t n, first; /* `first` is 1 in the first step, before which the optimizer state is set to zero */
    double rate, beta1, beta2, eps;
} memory_step_case;

static inline int64_t memory_shard_begin(int64_t n, int size, int rank)
{
    int64_t begin = rank * ((n + size - 1) / size);
    return begin < n ? begin : n;
}

#endif
