#include "common/collectives/nccl/nccl_module.h"

#include "common/device/cuda/module/cuda_impl.h"
#include "common/device/cuda/module/libraries.h"

#include <assert.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A row holds a member of nccl_library and the symbol in NCCL's library. */
#define NCCL_FUNCTIONS(X)                                                                                    \
    X(version, ncclGetVersion)                                                                               \
    X(unique_id, ncclGetUniqueId)                                                                            \
    X(init, ncclCommInitRankConfig)                                                                          \
    X(split, ncclCommSplit)                                                                                  \
    X(async_error, ncclCommGetAsyncError)                                                                    \
    X(abort, ncclCommAbort)                                                                                  \
    X(destroy, ncclCommDestroy)                                                                              \
    X(error_text, ncclGetErrorString)                                                                        \
    X(last_error, ncclGetLastError)                                                                          \
    X(group_start, ncclGroupStart)                                                                           \
    X(group_end, ncclGroupEnd)                                                                               \
    X(all_reduce, ncclAllReduce)                                                                             \
    X(reduce, ncclReduce)                                                                                    \
    X(broadcast, ncclBroadcast)                                                                              \
    X(send, ncclSend)                                                                                        \
    X(receive, ncclRecv)

typedef struct nccl_library {
    NCCL_FUNCTIONS(LIBRARY_MEMBER)
} nccl_library;

struct nccl_comm {
    nccl_library library;
    ncclComm_t comm;
    const cuda_device *device;
    int rank;
};

/* ---- errors ----------------------------------------------------------------------------------- */

static const char *name_of(ncclResult_t code)
{
#define NAME(code) [code] = #code
    static const char *const names[] = {NAME(ncclUnhandledCudaError), NAME(ncclSystemError),
                                        NAME(ncclInternalError),      NAME(ncclInvalidArgument),
                                        NAME(ncclInvalidUsage),       NAME(ncclRemoteError)};
    bool known = (size_t)code < sizeof names / sizeof names[0] && names[code];
    return known ? names[code] : "ncclResult_t of a later version";
}

/* ncclRemoteError means that another rank failed. All other codes are errors of this rank. */
static status check(const nccl_comm *c, ncclResult_t code, const char *what)
{
    char host[64] = "?";
    if (code == ncclSuccess) return STATUS_OK;
    gethostname(host, sizeof host - 1);
    const char *more = c->library.last_error(NULL); /* NCCL ignores the argument. */
    return fail(code == ncclRemoteError ? STATUS_PEER : STATUS_SYSTEM,
                "rank %d on %s, GPU %d: NCCL, %s: %s (%s)%s%s", c->rank, host, c->device->gpu, what,
                c->library.error_text(code), name_of(code), more && more[0] ? ": " : "", more ? more : "");
}

/* ---- availability ----------------------------------------------------------------------------- */

static bool find_library(nccl_library *out, char *why, size_t size)
{
    enum { LEAST_VERSION = 21900 };
    static const char *const names[] = {"libnccl.so.2", PSRING_NCCL_PATH, NULL};
    static const char *const symbols[] = {NCCL_FUNCTIONS(LIBRARY_SYMBOL) NULL};
    int version = 0;
    if (!cuda_library_open(names, symbols, out, why, size)) return false;
    if (out->version(&version) == ncclSuccess && version >= LEAST_VERSION) return true;
    snprintf(why, size, "found version %d.%d, 2.19 or later is needed", version / 10000, version / 100 % 100);
    return false;
}

static status open_library(nccl_library *out)
{
    char why[192];
    return find_library(out, why, sizeof why) ? STATUS_OK
                                              : fail(STATUS_UNAVAILABLE, "collectives nccl: %s", why);
}

static bool module_available(char *text, size_t size)
{
    nccl_library library;
    int version = 0;
    if (!find_library(&library, text, size)) return false;
    library.version(&version);
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return true;
}

static status module_make_id(char id[NCCL_ID_BYTES])
{
    nccl_library library;
    ncclUniqueId made;
    TRY(open_library(&library));
    ncclResult_t code = library.unique_id(&made);
    if (code != ncclSuccess)
        return fail(STATUS_SYSTEM, "NCCL, ncclGetUniqueId: %s", library.error_text(code));
    static_assert(sizeof made == NCCL_ID_BYTES, "an id is 128 bytes");
    memcpy(id, &made, sizeof made);
    return STATUS_OK;
}

/* ---- communicators ---------------------------------------------------------------------------- */

/* Allows several ranks of a communicator on one GPU. NCCL has an option for shared GPUs since version 2.30.
 * In earlier versions every rank gets a different host id, so that NCCL treats the ranks as different hosts
 * and uses the network. Variables that the user has set keep their values. */
static void allow_sharing(const nccl_library *library, int rank)
{
    enum { KNOWS_SHARING = 23000 };
    int version = 0;
    char host[96], name[64] = "host";
    library->version(&version);
    gethostname(name, sizeof name - 1);
    snprintf(host, sizeof host, "%s-%d", name, rank);
    if (version >= KNOWS_SHARING)
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    else
        setenv("NCCL_HOSTID", host, 0);
}

static status new_comm(nccl_comm from, nccl_comm **out)
{
    *out = malloc(sizeof **out);
    if (!*out) return fail(STATUS_SYSTEM, "no memory for a communicator");
    **out = from;
    return cuda_use(from.device);
}

static status module_open(device *d, const char id[NCCL_ID_BYTES], int rank, int world, bool shared,
                          nccl_comm **out)
{
    nccl_comm c = {.device = (const cuda_device *)d, .rank = rank};
    ncclUniqueId given;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    *out = NULL;
    TRY(open_library(&c.library));
    if (shared) allow_sharing(&c.library, rank);
    TRY(new_comm(c, out));
    memcpy(&given, id, sizeof given);
    config.blocking = 1;
    return check(*out, c.library.init(&(*out)->comm, world, given, rank, &config), "ncclCommInitRankConfig");
}

static status module_split(nccl_comm *parent, int color, int key, nccl_comm **out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_comm c = *parent;
    c.comm = NULL;
    config.blocking = 1;
    TRY(new_comm(c, out));
    return check(parent, c.library.split(parent->comm, color, key, &(*out)->comm, &config), "ncclCommSplit");
}

static ncclComm_t handle(const nccl_comm *c)
{
    return __atomic_load_n(&c->comm, __ATOMIC_ACQUIRE);
}

static status module_state(nccl_comm *c)
{
    ncclResult_t state = ncclSuccess;
    ncclComm_t comm = handle(c);
    if (!comm) return STATUS_OK;
    TRY(check(c, c->library.async_error(comm, &state), "ncclCommGetAsyncError"));
    return check(c, state, "communication");
}

/* Aborts the communicator even if the compute thread is in a call, which has already read the handle. */
static void module_abort(nccl_comm *c)
{
    cuda_use(c->device);
    ncclComm_t comm = __atomic_exchange_n(&c->comm, NULL, __ATOMIC_ACQ_REL);
    if (comm) c->library.abort(comm);
}

static void module_close(nccl_comm **pointer)
{
    nccl_comm *c = *pointer;
    if (!c) return;
    cuda_use(c->device);
    if (c->comm) c->library.destroy(c->comm);
    free(c);
    *pointer = NULL;
}

/* ---- calls ------------------------------------------------------------------------------------ */

static ncclDataType_t datatype(dtype type)
{
    static const ncclDataType_t types[DTYPE_COUNT] = {
        [DTYPE_F64] = ncclFloat64,   [DTYPE_F32] = ncclFloat32, [DTYPE_F16] = ncclFloat16,
        [DTYPE_BF16] = ncclBfloat16, [DTYPE_I64] = ncclInt64,   [DTYPE_I32] = ncclInt32,
        [DTYPE_U8] = ncclUint8};
    return types[type];
}

/* For a mean, NCCL computes the sum, which is divided afterwards. ncclAvg multiplies by 1/n first, which
 * rounds differently. */
static ncclRedOp_t operation(reduce_op op)
{
    static const ncclRedOp_t ops[REDUCE_OP_COUNT] = {[REDUCE_SUM] = ncclSum,
                                                     [REDUCE_MEAN] = ncclSum,
                                                     [REDUCE_MIN] = ncclMin,
                                                     [REDUCE_MAX] = ncclMax,
                                                     [REDUCE_PRODUCT] = ncclProd};
    return ops[op];
}

static status module_begin(nccl_comm *c)
{
    TRY(cuda_use(c->device));
    return check(c, c->library.group_start(), "ncclGroupStart");
}

static status module_add(nccl_comm *c, device_stream *s, const nccl_part *p)
{
    const nccl_library *l = &c->library;
    cudaStream_t stream = ((const cuda_stream *)s)->stream;
    ncclComm_t comm = handle(c);
    if (!comm) return fail(STATUS_PEER, "rank %d: NCCL has been aborted", c->rank);
    size_t count = (size_t)p->count;
    ncclDataType_t type = datatype(p->type);
    ncclRedOp_t op = operation(p->op);
    switch (p->kind) {
    case NCCL_ALL_REDUCE:
        return check(c, l->all_reduce(p->in, p->out, count, type, op, comm, stream), "ncclAllReduce");
    case NCCL_REDUCE:
        return check(c, l->reduce(p->in, p->out, count, type, op, p->peer, comm, stream), "ncclReduce");
    case NCCL_BROADCAST:
        return check(c, l->broadcast(p->in, p->out, count, type, p->peer, comm, stream), "ncclBroadcast");
    case NCCL_SEND:
        return check(c, l->send(p->in, count, type, p->peer, comm, stream), "ncclSend");
    default:
        return check(c, l->receive(p->out, count, type, p->peer, comm, stream), "ncclRecv");
    }
}

static status module_end(nccl_comm *c)
{
    return check(c, c->library.group_end(), "ncclGroupEnd");
}

const nccl_module psring_nccl_module = {
    .version = NCCL_MODULE_VERSION,
    .available = module_available,
    .make_id = module_make_id,
    .open = module_open,
    .split = module_split,
    .state = module_state,
    .begin = module_begin,
    .add = module_add,
    .end = module_end,
    .abort = module_abort,
    .close = module_close,
};
