/* NCCL between threads of one process: a call returns when all ranks have made it, and checks that they made the
 * same. Communicators begin in progress, as non-blocking ones do. */
#include "common/ops/tensor.h"
#include "common/reduce/half.h"
#include "tests/gpu/emulator/memory.h"

#include <nccl.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 16, MOST_WORLDS = 256 };

/* What a rank brings to a call. */
typedef struct contribution {
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    int op, root; /* op -1: broadcast; root -1: everybody gets the result */
} contribution;

typedef struct world {
    uint64_t id;
    int size, waiting;
    uint64_t meetings;
    contribution calls[MOST_RANKS];
    char *result;
    bool aborted, disagreed;
} world;

struct emulated_comm {
    world *world;
    int rank, looks, calls;
    bool started; /* somebody has seen that it is */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    world worlds[MOST_WORLDS];
    int world_count;
    uint64_t ids;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};


/* All ranks of the world, under the lock. */
static bool meet(world *w)
{
    uint64_t meeting = w->meetings;
    if (++w->waiting == w->size) {
        w->waiting = 0;
        w->meetings++;
        pthread_cond_broadcast(&all.moved);
    }
    while (w->meetings == meeting && !w->aborted) pthread_cond_wait(&all.moved, &all.lock);
    return !w->aborted;
}

static dtype dtype_of(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat64: return DTYPE_F64;
    case ncclFloat16: return DTYPE_F16;
    case ncclBfloat16: return DTYPE_BF16;
    case ncclInt32: return DTYPE_I32;
    case ncclInt64: return DTYPE_I64;
    case ncclUint8: return DTYPE_U8;
    default: return DTYPE_F32;
    }
}

static bool same(const contribution *a, const contribution *b)
{
    return a->count == b->count && a->type == b->type && a->op == b->op && a->root == b->root;
}

/* Floating-point types, through float64: a sum or product of two of them rounds there as it would alone. */
static double load(const char *at, dtype type)
{
    switch (type) {
    case DTYPE_F64: return *(const double *)at;
    case DTYPE_F16: return f16_to_float(*(const uint16_t *)at);
    case DTYPE_BF16: return bf16_to_float(*(const uint16_t *)at);
    case DTYPE_I32: return *(const int32_t *)at;
    default: return *(const float *)at;
    }
}

static void store(char *at, dtype type, double value)
{
    switch (type) {
    case DTYPE_F64: *(double *)at = value; break;
    case DTYPE_F16: *(uint16_t *)at = f16_from_float((float)value); break;
    case DTYPE_BF16: *(uint16_t *)at = bf16_from_float((float)value); break;
    case DTYPE_I32: *(int32_t *)at = (int32_t)value; break;
    default: *(float *)at = (float)value; break;
    }
}

static double combine(int op, double a, double b)
{
    switch (op) {
    case ncclProd: return a * b;
    case ncclMax: return a > b ? a : b;
    case ncclMin: return a < b ? a : b;
    default: return a + b;
    }
}

/* Rank 0 computes for all, in rank order. */
static void compute(world *w)
{
    const contribution *first = &w->calls[0];
    dtype type = dtype_of(first->type);
    size_t element = (size_t)dtype_size(type), bytes = first->count * element;
    for (int r = 1; r < w->size; r++) w->disagreed = w->disagreed || !same(first, &w->calls[r]);
    w->result = realloc(w->result, bytes + 1);
    if (w->disagreed || !w->result) return;
    memcpy(w->result, first->op < 0 ? w->calls[first->root].in : first->in, bytes);
    for (int r = 1; r < w->size && first->op >= 0; r++)
        for (size_t i = 0; i < bytes; i += element)
            store(w->result + i, type,
                  combine(first->op, load(w->result + i, type), load((const char *)w->calls[r].in + i, type)));
}

/* EMULATED_NCCL_FAULT=RANK:CALL:CODE: that rank's call of that number fails; number 0 is its start. Read before there are
 * ranks: they set variables of the environment, which nobody may read meanwhile. */
static struct {
    int rank, call, code;
} fault = {.rank = -1};

__attribute__((constructor)) static void read_fault(void)
{
    const char *text = getenv("EMULATED_NCCL_FAULT");
    if (text && sscanf(text, "%d:%d:%d", &fault.rank, &fault.call, &fault.code) != 3) fault.rank = -1;
}

static ncclResult_t fault_at(const struct emulated_comm *comm, int number)
{
    return comm->rank == fault.rank && number == fault.call ? (ncclResult_t)fault.code : ncclSuccess;
}

static ncclResult_t call(ncclComm_t comm, contribution c)
{
    world *w = comm->world;
    ncclResult_t failure = fault_at(comm, ++comm->calls);
    if (failure != ncclSuccess) return failure;
    ncclResult_t code = ncclRemoteError;
    emulator_open_memory();
    pthread_mutex_lock(&all.lock);
    w->calls[comm->rank] = c;
    bool there = meet(w);
    if (there && comm->rank == 0) compute(w);
    there = there && meet(w);
    bool mine = c.root < 0 || c.op < 0 || c.root == comm->rank;
    if (there && !w->disagreed && mine) memcpy(c.out, w->result, c.count * (size_t)dtype_size(dtype_of(c.type)));
    if (there && meet(w)) code = w->disagreed ? ncclInvalidUsage : ncclSuccess;
    pthread_mutex_unlock(&all.lock);
    emulator_close_memory();
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
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&all.lock);
    uint64_t id = ++all.ids;
    pthread_mutex_unlock(&all.lock);
    memcpy(out->internal, &id, sizeof id);
    return ncclSuccess;
}

static ncclResult_t join(ncclComm_t *out, uint64_t id, int size, int rank)
{
    world *w = NULL;
    ncclComm_t comm = calloc(1, sizeof *comm);
    pthread_mutex_lock(&all.lock);
    for (int i = 0; i < all.world_count; i++)
        if (all.worlds[i].id == id) w = &all.worlds[i];
    if (!w && all.world_count < MOST_WORLDS) {
        w = &all.worlds[all.world_count++];
        *w = (world){.id = id, .size = size};
    }
    pthread_mutex_unlock(&all.lock);
    if (!comm || !w || size > MOST_RANKS || size != w->size) {
        free(comm);
        return ncclInvalidArgument;
    }
    *comm = (struct emulated_comm){.world = w, .rank = rank};
    *out = comm;
    return ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    const char *expected = getenv("EMULATED_NCCL_ALGO"), *algorithm = getenv("NCCL_ALGO"); /* a test's, and the user's */
    if (expected && strcmp(expected, algorithm ? algorithm : "") != 0) return ncclInvalidUsage;
    return config->blocking ? ncclInvalidUsage : join(out, number, size, rank);
}

/* Not emulated: no engine splits yet. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    (void)comm, (void)color, (void)key, (void)out, (void)config;
    return ncclInvalidUsage;
}

/* In progress at the first looks, so that callers must ask again. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    enum { LOOKS = 2 };
    ncclResult_t failure = comm->started ? ncclSuccess : fault_at(comm, 0);
    *out = failure != ncclSuccess   ? failure
           : comm->world->aborted   ? ncclRemoteError
           : comm->looks++ < LOOKS ? ncclInProgress
                                    : ncclSuccess;
    if (*out == ncclSuccess) comm->started = true;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&all.lock);
    comm->world->aborted = true;
    pthread_cond_broadcast(&all.moved);
    pthread_mutex_unlock(&all.lock);
    free(comm);
    return ncclSuccess;
}

/* One that is still starting would leave its thread behind, or wait for it: it is to be aborted. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm->started) abort();
    free(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code)
{
    switch (code) {
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidUsage: return "ranks make different calls";
    default: return "a rank has given up";
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

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t s)
{
    (void)s;
    return call(comm, (contribution){in, out, count, type, (int)op, -1});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t s)
{
    (void)s;
    return call(comm, (contribution){in, out, count, type, (int)op, root});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t s)
{
    (void)s;
    return call(comm, (contribution){in, out, count, type, -1, root});
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s)
{
    (void)in, (void)count, (void)type, (void)peer, (void)comm, (void)s;
    return ncclInvalidUsage;
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s)
{
    (void)out, (void)count, (void)type, (void)peer, (void)comm, (void)s;
    return ncclInvalidUsage;
}
