/* The labs' interface: all that a student's code needs besides the C library. Functions return 0 or a
 * LAB_E... code. Counts are elements, not bytes, and may be 0. Memory belongs to the caller unless a comment
 * says otherwise. */
#ifndef LABS_LAB_H
#define LABS_LAB_H

#include <stddef.h>
#include <stdint.h>

enum {
    LAB_OK = 0,
    LAB_EMISSING = -1,  /* the function has not been written yet: what starter files return */
    LAB_ESIZE = -2,     /* the message has another number of elements than its receiver expects */
    LAB_EDEADLOCK = -3, /* every rank waits, so that no message can arrive */
    LAB_EMEMORY = -4,   /* for your own use, where malloc() returns NULL */
    LAB_END = 1,        /* lab_receive_push(): training has ended */
};

/* ---- lab 1: count-bytes
 * ----------------------------------------------------------------------------------------- */

/* Yours: bytes that `rank` sends in one training step in which n gradients of type float32 are summed over
 * all ranks and every rank receives the result. What a rank gives to itself is not sent. LAB_EMISSING: not
 * written yet. */

/* Rank 0 is the reducer: all send it their gradients, and it sends the sum back. */
int64_t student_reducer_bytes(int ranks, int64_t n, int rank);
/* Ranks 0 to servers - 1 also hold a server each. Server s sums part s of the gradients for all ranks; the
 * first n % servers parts have one element more. */
int64_t student_server_bytes(int ranks, int servers, int64_t n, int rank);
/* The ring of lab 3: in step s of 2 (ranks - 1) a rank sends chunk rank - s modulo ranks; the first n % ranks
 * chunks have one element more. */
int64_t student_ring_bytes(int ranks, int64_t n, int rank);
/* With servers as above: the most bytes that any rank sends or receives, in one direction. */
int64_t student_busiest_link(int ranks, int servers, int64_t n);

/* ---- lab 2: reducer
 * --------------------------------------------------------------------------------------------- */

/* A parameter server's side of the messages. */
typedef struct lab_server lab_server;
/* The gradients that a rank has computed in a step, the mean over its samples. A rank without samples in a
 * step pushes samples 0, and its gradients are undefined. */
typedef struct {
    int rank;
    int64_t step, samples;
    const float *grad; /* [n]; valid until lab_reply() to this rank */
} lab_push;

/* Waits for the next push, in the order in which they arrive; LAB_END: training has ended. LAB_EDEADLOCK:
 * every rank waits for a reply. */
int lab_receive_push(lab_server *server, lab_push *push);
/* Sends the parameters to a rank, which then computes its next step. LAB_ESIZE: n is not the number of
 * parameters. */
int lab_reply(lab_server *server, int rank, const float *param, size_t n);

/* Yours: until training ends, in each step receive one push of every rank, compute the mean gradient over all
 * samples, update param[i] -= lr * mean[i], and reply to every rank. Sums are in rank order: the sum of
 * samples * grad in float32, divided by all samples. Returns 0. */
int student_serve(lab_server *server, int ranks, float *param, size_t n, float lr);

/* ---- lab 3: ring
 * ------------------------------------------------------------------------------------------------ */

/* A rank's place in a ring of lab_size() ranks. Rank r sends to (r + 1) % size and receives from (r + size -
 * 1) % size. */
typedef struct lab_ring lab_ring;
int lab_rank(const lab_ring *ring);
int lab_size(const lab_ring *ring);

/* Sends a copy of x[0..n) to the right neighbor, which may be the rank itself. The link holds one message
 * that has not been received: a second send waits until the first is received. LAB_EDEADLOCK. */
int lab_send_right(lab_ring *ring, const float *x, size_t n);

/* Waits for the left neighbor's next message and stores it in x[0..n). LAB_ESIZE: the message does not have n
 * elements. LAB_EDEADLOCK: every rank waits to receive or to send. */
int lab_receive_left(lab_ring *ring, float *x, size_t n);

/* Yours: replaces x[0..n) of every rank by the sum over all ranks. Allocates at most ceil(n / size) elements.
 */
int student_all_reduce(lab_ring *ring, float *x, size_t n);

/* ---- lab 4: alpha-beta
 * ------------------------------------------------------------------------------------------ */

/* Yours. Times in seconds, bandwidth in bytes per second. Fits seconds[i] = latency + bytes[i] / bandwidth to
 * `count` measurements; returns 0. */
int student_fit(const double *bytes, const double *seconds, int count, double *latency, double *bandwidth);
/* A message of `bytes`; an all-reduce of `bytes` per rank in the ring of lab 3, and with the reducer of lab
 * 1, which receives from all at once over its one link. 2 ranks or more. */
double student_message_time(double bytes, double latency, double bandwidth);
double student_ring_time(int ranks, double bytes, double latency, double bandwidth);
double student_reducer_time(int ranks, double bytes, double latency, double bandwidth);

/* ---- lab 5: buckets
 * --------------------------------------------------------------------------------------------- */

/* Yours: puts gradients into buckets as PyTorch's DistributedDataParallel does. bytes[i] is the size of
 * gradient i, in the order in which gradients become ready. A bucket takes one gradient after another and
 * closes when its bytes reach its limit, first_limit for bucket 0 and limit for the others; the last one may
 * stay below. Stores the bucket of every gradient and returns the number of buckets. */
int student_assign(const int64_t *bytes, int count, int64_t first_limit, int64_t limit, int *bucket_of);

/* The backward pass of one step on one of several ranks. */
typedef struct lab_step lab_step;
/* Computes the next gradient; LAB_END: the backward pass has ended. Ranks may have other orders than 0, 1, 2,
 * ... */
int lab_next_gradient(lab_step *step, int *gradient);
/* The all-reduce of a bucket begins, and goes on while you compute. Buckets are reduced one after another;
 * NCCL pairs the n-th call of every rank, whatever it reduces. */
int lab_launch(lab_step *step, int bucket);
/* Waits until a bucket that you have launched is reduced. */
int lab_wait(lab_step *step, int bucket);

/* Yours: computes all gradients, launches every bucket as soon as the rules of the handout permit, and
 * returns 0 when all buckets are reduced. bucket_of[0 .. count) is the bucket of each gradient. */
int student_backward(lab_step *step, const int *bucket_of, int count, int buckets);

/* From begin to end, in seconds. */
typedef struct {
    double begin, end;
} lab_span;
/* Yours: the seconds in which at least one bucket was in flight and nothing was computed. Spans come in any
 * order; buckets may overlap each other. */
double student_exposed(const lab_span *compute, int computes, const lab_span *flight, int flights);

/* ---- lab 6: stragglers
 * ------------------------------------------------------------------------------------------ */

/* The state of a server: all that a restart needs. */
typedef struct {
    int ranks;
    int64_t staleness; /* steps that a rank which computes may be ahead of the slowest one */
    size_t n;
    float lr, momentum;
    float *param, *velocity; /* [n] */
    int64_t *clock;          /* [ranks] steps that each rank has pushed */
} lab_state;

/* Yours: 1 where a rank may begin its next step, else 0: no rank begins a step when it has pushed more than
 * `staleness` steps more than the slowest. LAB_EMISSING: not written yet. */
int student_may_begin(const int64_t *clock, int ranks, int rank, int64_t staleness);

/* Yours: serves until lab_receive_push() returns LAB_END; returns 0. A rank that has pushed waits for the
 * reply, and at the beginning all ranks wait. Every push is applied when it arrives: velocity[i] = momentum *
 * velocity[i] + grad[i];  param[i] = param[i] - lr * velocity[i];  clock[rank] = clock[rank] + 1 Before it
 * receives the next push, the server replies to every rank that waits and may begin. */
int student_serve_stale(lab_server *server, lab_state *state);

/* Yours: writes a checkpoint of at most `capacity` bytes and returns its size, 0 where it does not fit; it is
 * called while student_serve_stale() waits for a push. */
size_t student_save(const lab_state *state, unsigned char *bytes, size_t capacity);
/* Yours, in a new process: restores what the checkpoint holds. ranks, staleness, n, lr and momentum are set;
 * the three arrays are allocated and zero. Returns 0. student_serve_stale() is called next. */
int student_load(lab_state *state, const unsigned char *bytes, size_t size);

/* ---- lab 7: memory
 * ---------------------------------------------------------------------------------------------- */

enum { LAB_DATA_PARALLEL, LAB_DDP, LAB_ZERO1, LAB_ZERO2, LAB_ZERO3 };

/* A model in float32: `units` blocks of `unit` elements each, used one after another, and the root, the
 * parameters that are used first or last (a transformer's embedding). Root and blocks are gathered, reduced
 * and cut into shards as a whole. */
typedef struct {
    int64_t root, unit; /* elements; multiples of 16 */
    int units;
    int states; /* arrays of the optimizer's state, each as large as the parameters: 2 with Adam, 0 with plain
                   SGD */
} lab_model;

/* The largest number of bytes that a rank holds of each class at any moment of a step; README.md defines the
 * classes. */
typedef struct {
    int64_t parameters, replicas, gradients, optimizer_state, gathered_units, buckets;
} lab_memory;

/* Yours: the peaks of one rank under a scheme; returns 0. 2 ranks or more. */
int student_memory(const lab_model *model, int scheme, int ranks, int rank, lab_memory *peak);

/* A rank of a group. Rank r's shard of n elements begins at r * c and ends before min(n, (r + 1) * c), where
 * c = ceil(n / size): the last shards may be shorter, or empty. */
typedef struct lab_group lab_group;
int lab_group_rank(const lab_group *group);
int lab_group_size(const lab_group *group);
/* All ranks call it with x[0 .. n); stores the sum over all ranks, added in rank order, of this rank's shard.
 */
int lab_reduce_scatter(lab_group *group, const float *x, size_t n, float *shard);
/* All ranks call it; each gives its shard of x[0 .. n), which is in its place, and receives the others' into
 * theirs. */
int lab_all_gather(lab_group *group, float *x, size_t n);

/* Adam, of which this rank keeps its shard. `rate` has the learning rate and both bias corrections in it. */
typedef struct {
    float rate, beta1, beta2, eps;
    float *m, *v; /* [elements of this rank's shard], zero before the first step */
} lab_adam;

/* Yours: a step of ZeRO-1 or ZeRO-2. With g the mean of the gradients over the ranks (the sum, divided once),
 * each rank updates its shard in float32, m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g *
 * g;  param = param - rate * (m / (sqrtf(v) + eps)) and every rank ends with the same param[0 .. n).
 * Allocates at most one shard. Returns 0. */
int student_sharded_step(lab_group *group, lab_adam *adam, float *param, const float *grad, size_t n);

#endif
