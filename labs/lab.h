/* The interface of the labs: everything that a student's code needs besides the C library. Functions return 0
 * or a LAB_E... code. You write the functions whose comment begins with "Yours". Counts are elements, not
 * bytes, and may be 0. Memory belongs to the caller unless a comment says otherwise. */
#ifndef LABS_LAB_H
#define LABS_LAB_H

#include <stddef.h>
#include <stdint.h>

enum {
    LAB_OK = 0,
    LAB_EMISSING = -1,  /* the function is not written yet; starter files return this */
    LAB_ESIZE = -2,     /* the message does not have the number of elements that its receiver expects */
    LAB_EDEADLOCK = -3, /* every rank waits, so no message can arrive */
    LAB_EMEMORY = -4,   /* your code returns this if malloc() returns NULL */
    LAB_END = 1,        /* lab_receive_push() returns this when training has ended */
};

/* ---- lab 1: count-bytes ---- */

/* Yours. Each function returns the bytes that `rank` sends in one training step, in which n gradients of type
 * float32 are summed over all ranks and every rank receives the result. Data that a rank passes to itself are
 * not sent. Return LAB_EMISSING if the function is not written yet. */

/* Rank 0 is the reducer. All ranks send their gradients to rank 0, which sends the sum back to them. */
int64_t student_reducer_bytes(int ranks, int64_t n, int rank);
/* Ranks 0 to servers - 1 also hold a server each. Server s sums part s of the gradients for all ranks. The
 * first n % servers parts have one element more. */
int64_t student_server_bytes(int ranks, int servers, int64_t n, int rank);
/* The ring of lab 3. In step s of 2 (ranks - 1) a rank sends chunk (rank - s) modulo ranks. The first n %
 * ranks chunks have one element more. */
int64_t student_ring_bytes(int ranks, int64_t n, int rank);
/* Returns the bytes on the busiest link with the servers of student_server_bytes(): the largest number of
 * bytes that a rank sends, or that a rank receives, whichever is larger. */
int64_t student_busiest_link(int ranks, int servers, int64_t n);

/* ---- lab 2: reducer ---- */

/* The messages of a parameter server. */
typedef struct lab_server lab_server;
/* The gradients that a rank has computed in a step: the mean over its samples. A rank without samples pushes
 * samples 0, and its gradients are undefined. */
typedef struct {
    int rank;
    int64_t step, samples;
    const float *grad; /* [n]; valid until lab_reply() to this rank */
} lab_push;

/* Waits for the next push, in the order of arrival. Returns LAB_END if training has ended, and LAB_EDEADLOCK
 * if every rank waits for a reply. */
int lab_receive_push(lab_server *server, lab_push *push);
/* Sends the parameters to a rank, which then computes its next step. Returns LAB_ESIZE if n is not the number
 * of parameters. */
int lab_reply(lab_server *server, int rank, const float *param, size_t n);

/* Yours. Until training ends, receives one push of every rank in each step, computes the mean gradient over
 * all samples, updates param[i] -= lr * mean[i], and replies to every rank. The mean is the sum of samples *
 * grad, added in float32 in rank order, and divided once by the number of all samples. Returns 0. */
int student_serve(lab_server *server, int ranks, float *param, size_t n, float lr);

/* ---- lab 3: ring ---- */

/* A ring of lab_size() ranks, as seen by one rank. Rank r sends to (r + 1) % size and receives from (r + size
 * - 1) % size. */
typedef struct lab_ring lab_ring;
int lab_rank(const lab_ring *ring);
int lab_size(const lab_ring *ring);

/* Sends a copy of x[0..n) to the right neighbor, which may be the rank itself. The link holds one message: a
 * second send waits until the first message is received. Returns LAB_EDEADLOCK if every rank waits to receive
 * or to send. */
int lab_send_right(lab_ring *ring, const float *x, size_t n);

/* Waits for the next message of the left neighbor and stores it in x[0..n). Returns LAB_ESIZE if the message
 * does not have n elements, and LAB_EDEADLOCK if every rank waits to receive or to send. */
int lab_receive_left(lab_ring *ring, float *x, size_t n);

/* Yours. Replaces x[0..n) of every rank by the sum over all ranks. Allocates at most ceil(n / size)
 * elements. */
int student_all_reduce(lab_ring *ring, float *x, size_t n);

/* ---- lab 4: alpha-beta ---- */

/* Yours. Fits seconds[i] = latency + bytes[i] / bandwidth to `count` measurements. Times are in seconds, the
 * bandwidth in bytes per second. Returns 0. */
int student_fit(const double *bytes, const double *seconds, int count, double *latency, double *bandwidth);
/* Yours. Returns the time of a message of `bytes`. */
double student_message_time(double bytes, double latency, double bandwidth);
/* Yours. Returns the time of an all-reduce of `bytes` per rank in the ring of lab 3. There are 2 ranks or
 * more. */
double student_ring_time(int ranks, double bytes, double latency, double bandwidth);
/* Yours. Returns the time of an all-reduce of `bytes` per rank with the reducer of lab 1. The reducer
 * receives from all other ranks at once over its one link. There are 2 ranks or more. */
double student_reducer_time(int ranks, double bytes, double latency, double bandwidth);

/* ---- lab 5: buckets ---- */

/* Yours. Puts gradients into buckets as PyTorch's DistributedDataParallel does. bytes[i] is the size of
 * gradient i, in the order in which gradients become ready. A bucket takes one gradient after another and
 * closes when its bytes reach its limit: first_limit for bucket 0, and limit for the others. The last bucket
 * may stay below its limit. Stores the bucket of every gradient and returns the number of buckets. */
int student_assign(const int64_t *bytes, int count, int64_t first_limit, int64_t limit, int *bucket_of);

/* The backward pass of one step on one of several ranks. */
typedef struct lab_step lab_step;
/* Computes the next gradient. Returns LAB_END if the backward pass has ended. The order need not be 0, 1, 2,
 * ..., and may differ between ranks. */
int lab_next_gradient(lab_step *step, int *gradient);
/* Begins the all-reduce of a bucket, which goes on while you compute. Buckets are reduced one after another.
 * As in NCCL, the n-th calls of all ranks form one all-reduce, whichever buckets they name. */
int lab_launch(lab_step *step, int bucket);
/* Waits until a bucket that you have launched is reduced. */
int lab_wait(lab_step *step, int bucket);

/* Yours. Computes all gradients, launches every bucket as soon as the rules of the handout permit, and
 * returns 0 when all buckets are reduced. bucket_of[0 .. count) is the bucket of each gradient. */
int student_backward(lab_step *step, const int *bucket_of, int count, int buckets);

/* An interval of time, in seconds. */
typedef struct {
    double begin, end;
} lab_span;
/* Yours. Returns the seconds in which at least one bucket was in flight and nothing was computed. Spans come
 * in any order, and buckets may overlap each other. */
double student_exposed(const lab_span *compute, int computes, const lab_span *flight, int flights);

/* ---- lab 6: stragglers ---- */

/* The state of a server, which is all that a restart needs. */
typedef struct {
    int ranks;
    int64_t staleness; /* largest number of steps by which a rank may be ahead of the slowest rank when it
                          begins a step */
    size_t n;
    float lr, momentum;
    float *param, *velocity; /* [n] */
    int64_t *clock;          /* [ranks] steps that each rank has pushed */
} lab_state;

/* Yours. Returns 1 if a rank may begin its next step, else 0. A rank must not begin a step if it has pushed
 * over `staleness` steps more than the slowest rank. Return LAB_EMISSING if the function is not written
 * yet. */
int student_may_begin(const int64_t *clock, int ranks, int rank, int64_t staleness);

/* Yours. Serves until lab_receive_push() returns LAB_END, then returns 0. A rank that has pushed waits for
 * the reply, and at the beginning all ranks wait. Applies every push when it arrives:
 *
 *     velocity[i] = momentum * velocity[i] + grad[i]
 *     param[i] = param[i] - lr * velocity[i]
 *     clock[rank] = clock[rank] + 1
 *
 * Before it receives the next push, the server replies to every rank that waits and may begin. */
int student_serve_stale(lab_server *server, lab_state *state);

/* Yours. Writes a checkpoint of at most `capacity` bytes. Returns the size of the checkpoint, or 0 if it does
 * not fit. Is called while student_serve_stale() waits for a push. */
size_t student_save(const lab_state *state, unsigned char *bytes, size_t capacity);
/* Yours. Restores the contents of the checkpoint in a new process. ranks, staleness, n, lr and momentum are
 * set; the three arrays are allocated and zero. Returns 0. student_serve_stale() is called next. */
int student_load(lab_state *state, const unsigned char *bytes, size_t size);

/* ---- lab 7: memory ---- */

enum { LAB_DATA_PARALLEL, LAB_DDP, LAB_ZERO1, LAB_ZERO2, LAB_ZERO3 };

/* A model in float32: `units` blocks of `unit` elements each, used one after another, and the root, which has
 * the parameters that are used first or last (a transformer's embedding). The root is gathered, reduced and
 * sharded as a whole, and so is each block. */
typedef struct {
    int64_t root, unit; /* elements; multiples of 16 */
    int units;
    int states; /* arrays of the optimizer's state, each as large as the parameters: 2 with Adam, 0 with plain
                 * SGD */
} lab_model;

/* Peaks of one rank: for each class the most bytes that the rank holds at any moment of a step. README.md
 * defines the classes. */
typedef struct {
    int64_t parameters, replicas, gradients, optimizer_state, gathered_units, buckets;
} lab_memory;

/* Yours. Stores the peaks of one rank under a scheme. There are 2 ranks or more. Returns 0. */
int student_memory(const lab_model *model, int scheme, int ranks, int rank, lab_memory *peak);

/* A group of ranks, as seen by one rank. Rank r's shard of n elements begins at r * c and ends before min(n,
 * (r + 1) * c), with c = ceil(n / size). The last shards may be shorter, or empty. */
typedef struct lab_group lab_group;
int lab_group_rank(const lab_group *group);
int lab_group_size(const lab_group *group);
/* Sums x[0 .. n) over all ranks, in rank order, and stores this rank's shard of the sum. All ranks must call
 * it. */
int lab_reduce_scatter(lab_group *group, const float *x, size_t n, float *shard);
/* Distributes shards. Each rank passes its shard at the shard's place in x[0 .. n), and receives the shards
 * of the other ranks at their places. All ranks must call it. */
int lab_all_gather(lab_group *group, float *x, size_t n);

/* Adam's state, of which this rank keeps its shard. `rate` includes the learning rate and both bias
 * corrections. */
typedef struct {
    float rate, beta1, beta2, eps;
    float *m, *v; /* [elements of this rank's shard], zero before the first step */
} lab_adam;

/* Yours. A step of ZeRO-1 or ZeRO-2. Let g be the mean of the gradients over the ranks (their sum, divided
 * once by the number of ranks). Each rank updates its shard in float32:
 *
 *     m = beta1 * m + (1 - beta1) * g
 *     v = beta2 * v + (1 - beta2) * g * g
 *     param = param - rate * (m / (sqrtf(v) + eps))
 *
 * Every rank ends with the same param[0 .. n). Allocates at most one shard. Returns 0. */
int student_sharded_step(lab_group *group, lab_adam *adam, float *param, const float *grad, size_t n);

#endif
