/* Emulates NCCL between threads or processes of one machine, in stream order. A call only enqueues work. A
 * thread of the stream runs it after all earlier work of the stream, and exchanges data with the threads of
 * the other ranks. The data are in a memfd that the unique id names.
 *
 * The first call of a size connects, as it may in NCCL. It synchronizes with the rank's GPU, as an allocation
 * does, and returns when all ranks have made the call. An abort ends the calls in flight, and returns when
 * all streams of the rank have ended them. */
#include "common/ops/tensor.h"
#include "common/reduce/half.h"
#include "tests/gpu/emulator/memory.h"
#include "tests/gpu/emulator/stream.h"

#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_RANKS = 16, MOST_SIZES = 256, CHUNK = 1 << 20, LOOKS = 200, NAP_US = 50 };

/* The parts of a call that ranks compare. `op` is BROADCAST, SEND, RECEIVE or a reduction. `root` is -1 if
 * all ranks get the result. For SEND and RECEIVE, which involve two ranks, `root` is the other rank. */
enum { BROADCAST = -1, SEND = -2, RECEIVE = -3 };
typedef struct call {
    size_t count;
    ncclDataType_t type;
    int op, root;
} call;

/* Counts, for each rank, the meetings that the rank has reached. A count only grows. */
typedef struct meeting {
    uint64_t come[MOST_RANKS];
} meeting;

/* Identifies the file that holds the memory of a world. */
typedef struct world_id {
    int64_t process;
    int fd;
} world_id;

_Static_assert(sizeof(world_id) <= NCCL_UNIQUE_ID_BYTES, "an id must fit");

/* Memory that the ranks share. Each rank maps it at another address. */
typedef struct world {
    /* Set if a rank has left. Later calls on other hosts fail. The GPUs of the other ranks wait until these
     * ranks abort, too. */
    int left;
    meeting hosts, streams;
    call calls[MOST_RANKS];
    struct {
        int color, key;
        world_id id; /* Id of the new world of this color, written by its first rank. */
    } splits[MOST_RANKS];
    uint64_t sent[MOST_RANKS][MOST_RANKS],
        received[MOST_RANKS][MOST_RANKS]; /* Chunks sent and received, by sender and receiver. */
    char data[MOST_RANKS][CHUNK];
} world;

struct emulated_comm {
    world *world;
    int size, rank;
    uint64_t host_meetings, stream_meetings;
    uint64_t sent[MOST_RANKS], received[MOST_RANKS]; /* Chunks sent and received, by the other rank. */
    int calls;                                       /* Calls that the host has made. */
    call seen[MOST_SIZES];
    int seen_count;
    int failure;     /* Code of an asynchronous error; atomic. */
    int inside;      /* Set while the host is in a call; atomic. */
    int aborted;     /* atomic */
    pthread_t owner; /* Thread that owns the streams on which the calls are enqueued. */
    int has_owner;
};

/* EMULATED_NCCL_FAULT=RANK:CALL:CODE lets call number CALL of rank RANK fail with CODE. Call 0 is the start
 * of NCCL. If CODE is -1, the GPU never finishes the call. If CODE is -100, the call does not return. Other
 * negative codes are asynchronous errors. The variable is read before there are ranks, since ranks set
 * variables of the environment, and no thread may read it at the same time. */
enum { HANGS = -1, NEVER_RETURNS = -100 };
static struct {
    int rank, call, code;
} fault = {.rank = -1};

__attribute__((constructor)) static void read_fault(void)
{
    const char *text = getenv("EMULATED_NCCL_FAULT");
    if (text && sscanf(text, "%d:%d:%d", &fault.rank, &fault.call, &fault.code) != 3) fault.rank = -1;
}

static int fault_at(int rank, int number)
{
    return rank == fault.rank && number == fault.call ? fault.code : 0;
}

/* ---- worlds ----------------------------------------------------------------------------------- */

static bool make_world(world_id *out)
{
    int fd = memfd_create("emulated-nccl", MFD_CLOEXEC);
    *out = (world_id){getpid(), fd};
    return fd >= 0 && ftruncate(fd, sizeof(world)) == 0;
}

static world *open_world(const world_id *id)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)id->process, id->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *data = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    return data == MAP_FAILED ? NULL : data;
}

static bool is_aborted(const struct emulated_comm *c)
{
    return __atomic_load_n(&c->aborted, __ATOMIC_ACQUIRE);
}

static bool is_left(const struct emulated_comm *c)
{
    return __atomic_load_n(&c->world->left, __ATOMIC_ACQUIRE);
}

/* Waits until all ranks have reached the meeting. Returns false if `ended` returns true before. */
static bool meet(const struct emulated_comm *c, meeting *m, uint64_t number,
                 bool (*ended)(const struct emulated_comm *c))
{
    __atomic_store_n(&m->come[c->rank], number, __ATOMIC_RELEASE);
    for (int r = 0; r < c->size; r++)
        for (int looks = 0; __atomic_load_n(&m->come[r], __ATOMIC_ACQUIRE) < number; looks++) {
            if (ended(c)) return false;
            if (looks < LOOKS)
                sched_yield();
            else
                usleep(NAP_US);
        }
    return true;
}

static bool meet_hosts(ncclComm_t c)
{
    return meet(c, &c->world->hosts, ++c->host_meetings, is_left);
}

static bool meet_streams(ncclComm_t c)
{
    return meet(c, &c->world->streams, ++c->stream_meetings, is_aborted);
}

/* ---- values ----------------------------------------------------------------------------------- */

static dtype dtype_of(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat64:
        return DTYPE_F64;
    case ncclFloat16:
        return DTYPE_F16;
    case ncclBfloat16:
        return DTYPE_BF16;
    case ncclInt32:
        return DTYPE_I32;
    case ncclInt64:
        return DTYPE_I64;
    case ncclUint8:
        return DTYPE_U8;
    default:
        return DTYPE_F32;
    }
}

/* Converts to float64. A sum or product of two values that is computed in float64 rounds to the same result
 * as in their own floating-point type. */
static double load(const char *at, dtype type)
{
    switch (type) {
    case DTYPE_F64:
        return *(const double *)at;
    case DTYPE_F16:
        return f16_to_float(*(const uint16_t *)at);
    case DTYPE_BF16:
        return bf16_to_float(*(const uint16_t *)at);
    case DTYPE_I32:
        return *(const int32_t *)at;
    default:
        return *(const float *)at;
    }
}

static void store(char *at, dtype type, double value)
{
    switch (type) {
    case DTYPE_F64:
        *(double *)at = value;
        break;
    case DTYPE_F16:
        *(uint16_t *)at = f16_from_float((float)value);
        break;
    case DTYPE_BF16:
        *(uint16_t *)at = bf16_from_float((float)value);
        break;
    case DTYPE_I32:
        *(int32_t *)at = (int32_t)value;
        break;
    default:
        *(float *)at = (float)value;
        break;
    }
}

static double combine(int op, double a, double b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

/* Computes the result in rank order from the contributions of all ranks. */
static void compute(const struct emulated_comm *c, const call *k, char *out, size_t bytes)
{
    const world *w = c->world;
    dtype type = dtype_of(k->type);
    memcpy(out, w->data[k->op < 0 ? k->root : 0], bytes);
    for (int r = 1; r < c->size && k->op >= 0; r++)
        for (size_t i = 0; i < bytes; i += (size_t)dtype_size(type))
            store(out + i, type, combine(k->op, load(out + i, type), load(w->data[r] + i, type)));
}

/* ---- calls ------------------------------------------------------------------------------------ */

typedef struct enqueued {
    ncclComm_t comm;
    call call;
    const char *in;
    char *out;
    bool hangs;
} enqueued;

static bool same(const call *a, const call *b)
{
    return a->count == b->count && a->type == b->type && a->op == b->op && a->root == b->root;
}

/* Exchanges a chunk. Returns false if this rank has aborted, or if ranks make different calls. */
static bool exchange(const enqueued *e, size_t at, size_t bytes)
{
    ncclComm_t c = e->comm;
    const call *k = &e->call;
    bool brings = k->op >= 0 || k->root == c->rank, gets = k->root < 0 || k->op < 0 || k->root == c->rank,
         agree = true;
    emulator_open_memory();
    if (brings) memcpy(c->world->data[c->rank], e->in + at, bytes);
    emulator_close_memory();
    c->world->calls[c->rank] = *k;
    if (!meet_streams(c)) return false;
    for (int r = 0; r < c->size; r++) agree = agree && same(k, &c->world->calls[r]);
    if (!agree) __atomic_store_n(&c->failure, (int)ncclInvalidUsage, __ATOMIC_RELEASE);
    emulator_open_memory();
    if (gets && agree) compute(c, k, e->out + at, bytes);
    emulator_close_memory();
    return meet_streams(c) && agree;
}

/* Waits for a number to reach a value. Returns false if this rank has aborted. */
static bool wait_for(const struct emulated_comm *c, const uint64_t *number, uint64_t value)
{
    for (int looks = 0; __atomic_load_n(number, __ATOMIC_ACQUIRE) < value; looks++) {
        if (is_aborted(c)) return false;
        if (looks < LOOKS)
            sched_yield();
        else
            usleep(NAP_US);
    }
    return true;
}

/* Sends a chunk, and returns when the other rank has received it. */
static bool send_chunk(const enqueued *e, size_t at, size_t bytes)
{
    ncclComm_t c = e->comm;
    world *w = c->world;
    int to = e->call.root;
    emulator_open_memory();
    memcpy(w->data[c->rank], e->in + at, bytes);
    emulator_close_memory();
    w->calls[c->rank] = e->call;
    __atomic_store_n(&w->sent[c->rank][to], ++c->sent[to], __ATOMIC_RELEASE);
    return wait_for(c, &w->received[c->rank][to], c->sent[to]);
}

static bool receive_chunk(const enqueued *e, size_t at, size_t bytes)
{
    ncclComm_t c = e->comm;
    world *w = c->world;
    int from = e->call.root;
    if (!wait_for(c, &w->sent[from][c->rank], ++c->received[from])) return false;
    const call *theirs = &w->calls[from];
    bool agree = theirs->op == SEND && theirs->count == e->call.count && theirs->type == e->call.type;
    if (!agree) __atomic_store_n(&c->failure, (int)ncclInvalidUsage, __ATOMIC_RELEASE);
    emulator_open_memory();
    if (agree) memcpy(e->out + at, w->data[from], bytes);
    emulator_close_memory();
    __atomic_store_n(&w->received[from][c->rank], c->received[from], __ATOMIC_RELEASE);
    return agree;
}

static bool run_chunk(const enqueued *e, size_t at, size_t bytes)
{
    if (e->call.op == SEND) return send_chunk(e, at, bytes);
    return e->call.op == RECEIVE ? receive_chunk(e, at, bytes) : exchange(e, at, bytes);
}

static bool run_call(void *context)
{
    const enqueued *e = context;
    size_t bytes = e->call.count * (size_t)dtype_size(dtype_of(e->call.type));
    while (e->hangs && !is_aborted(e->comm)) usleep(NAP_US);
    for (size_t at = 0; at < bytes && !is_aborted(e->comm);
         at += CHUNK) /* A rank that has aborted takes no further part. */
        if (!run_chunk(e, at, bytes - at < CHUNK ? bytes - at : CHUNK)) break;
    return true;
}

/* Connects if this is the first call of its size: synchronizes with the rank's GPU, and waits until all ranks
 * have made the call. A call between two ranks only synchronizes. Returns false if a rank has left. */
static bool connect_ranks(ncclComm_t c, const call *k)
{
    for (int i = 0; i < c->seen_count; i++)
        if (same(&c->seen[i], k)) return true;
    if (c->seen_count < MOST_SIZES) c->seen[c->seen_count++] = *k;
    emulator_settle(c->owner);
    return k->op < BROADCAST || meet_hosts(c);
}

static ncclResult_t enqueue_call(ncclComm_t c, cudaStream_t s, const void *in, void *out, call k)
{
    int failure = fault_at(c->rank, ++c->calls);
    if (s->capture) return ncclInvalidUsage;
    if (failure > 0) return (ncclResult_t)failure;
    while (failure == NEVER_RETURNS) pause();
    if (failure < HANGS) __atomic_store_n(&c->failure, -failure, __ATOMIC_RELEASE);
    c->owner = s->owner;
    c->has_owner = 1;
    if (!connect_ranks(c, &k)) return ncclRemoteError;
    enqueued e = {c, k, in, out, failure == HANGS};
    emulator_keep_always(s, run_call, &e, sizeof e);
    return ncclSuccess;
}

static ncclResult_t enqueue(ncclComm_t c, cudaStream_t s, const void *in, void *out, call k)
{
    __atomic_add_fetch(&c->inside, 1, __ATOMIC_ACQ_REL);
    ncclResult_t code = enqueue_call(c, s, in, out, k);
    __atomic_sub_fetch(&c->inside, 1, __ATOMIC_ACQ_REL);
    return code;
}

/* ---- NCCL's functions ------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 21900;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    world_id id;
    memset(out, 0, sizeof *out);
    if (!make_world(&id)) return ncclSystemError;
    memcpy(out->internal, &id, sizeof id);
    return ncclSuccess;
}

/* Opens a communicator. Returns when all ranks have called this function. */
static ncclResult_t join(ncclComm_t *out, const world_id *id, int size, int rank)
{
    ncclComm_t c = calloc(1, sizeof *c);
    world *w = open_world(id);
    if (!c || !w || size > MOST_RANKS) {
        free(c);
        return ncclInvalidArgument;
    }
    *c = (struct emulated_comm){.world = w, .size = size, .rank = rank};
    *out = c;
    return meet_hosts(c) ? ncclSuccess : ncclRemoteError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId unique, int rank,
                                    ncclConfig_t *config)
{
    world_id id;
    memcpy(&id, unique.internal, sizeof id);
    int failure = fault_at(rank, 0);
    while (failure == NEVER_RETURNS) pause();
    world *w = failure > 0 ? open_world(&id) : NULL;
    /* The other ranks see that this rank has left, as if its socket had been closed. */
    if (w) __atomic_store_n(&w->left, 1, __ATOMIC_RELEASE);
    if (w) munmap(w, sizeof *w);
    if (failure > 0) return (ncclResult_t)failure;
    const char *expected = getenv("EMULATED_NCCL_ALGO"),
               /* A test sets the first variable, and the user sets the second. */
        *algorithm = getenv("NCCL_ALGO");
    if (expected && strcmp(expected, algorithm ? algorithm : "") != 0) return ncclInvalidUsage;
    return config->blocking ? join(out, &id, size, rank) : ncclInvalidUsage;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    world *w = parent->world;
    int first = -1, size = 0, rank = 0, me = parent->rank;
    world_id id;
    if (!config->blocking || color < 0) return ncclInvalidUsage;
    w->splits[me].color = color;
    w->splits[me].key = key;
    if (!meet_hosts(parent)) return ncclRemoteError;
    for (int r = 0; r < parent->size; r++) {
        if (w->splits[r].color != color) continue;
        if (first < 0) first = r;
        size++;
        rank += w->splits[r].key < key || (w->splits[r].key == key && r < me);
    }
    if (first == me && !make_world(&w->splits[me].id)) return ncclSystemError;
    if (!meet_hosts(parent)) return ncclRemoteError;
    id = w->splits[first].id;
    return meet_hosts(parent) ? join(out, &id, size, rank) : ncclRemoteError;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out)
{
    int failure = __atomic_load_n(&c->failure, __ATOMIC_ACQUIRE);
    *out = failure ? (ncclResult_t)failure : is_left(c) ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

static void close_comm(ncclComm_t c)
{
    while (__atomic_load_n(&c->inside, __ATOMIC_ACQUIRE) > 0) usleep(NAP_US);
    if (c->has_owner) emulator_settle(c->owner);
    munmap(c->world, sizeof *c->world);
    free(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    __atomic_store_n(&c->aborted, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&c->world->left, 1, __ATOMIC_RELEASE);
    close_comm(c);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    close_comm(c);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code)
{
    switch (code) {
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInvalidUsage:
        return "ranks make different calls";
    default:
        return "a rank has given up";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

ncclResult_t ncclGroupStart(void)
{
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t s)
{
    return enqueue(comm, s, in, out, (call){count, type, (int)op, -1});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t s)
{
    return enqueue(comm, s, in, out, (call){count, type, (int)op, root});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t s)
{
    return enqueue(comm, s, in, out, (call){count, type, BROADCAST, root});
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s)
{
    return enqueue(comm, s, in, NULL, (call){count, type, SEND, peer});
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s)
{
    return enqueue(comm, s, NULL, out, (call){count, type, RECEIVE, peer});
}
