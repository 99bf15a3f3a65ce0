#include "ring/collectives/nccl/nccl_module.h"

#include "common/device/cuda/module/cuda_impl.h"
#include "ring/collectives/nccl/nccl_library.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const nccl_module psring_nccl_module;

struct nccl_comm {
    nccl_library library;
    ncclComm_t comm;
    const cuda_device *device;
    cudaStream_t stream;
    int rank;
};

/* ---- errors ----------------------------------------------------------------------------------- */

static const char *name_of(ncclResult_t code)
{
    switch (code) {
    case ncclUnhandledCudaError:
        return "ncclUnhandledCudaError";
    case ncclSystemError:
        return "ncclSystemError";
    case ncclInternalError:
        return "ncclInternalError";
    case ncclInvalidArgument:
        return "ncclInvalidArgument";
    case ncclInvalidUsage:
        return "ncclInvalidUsage";
    case ncclRemoteError:
        return "ncclRemoteError";
    default:
        return "ncclResult_t of a later version";
    }
}

/* A remote error is another rank's; the rest is this machine's. */
static status check(const nccl_comm *c, ncclResult_t code, const char *what)
{
    char host[64] = "?";
    if (code == ncclSuccess || code == ncclInProgress) return STATUS_OK;
    gethostname(host, sizeof host - 1);
    const char *more = c->library.last_error(c->comm);
    return fail(code == ncclRemoteError ? STATUS_PEER : STATUS_SYSTEM, "rank %d on %s, GPU %d: NCCL, %s: %s (%s)%s%s",
                c->rank, host, c->device->gpu, what, c->library.error_text(code), name_of(code),
                more && more[0] ? ": " : "", more ? more : "");
}

/* ---- availability ----------------------------------------------------------------------------- */

static bool module_available(char *text, size_t size)
{
    nccl_library library;
    int version = 0;
    if (!nccl_library_open(&library, text, size)) return false;
    library.version(&version);
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return true;
}

static status module_make_id(char id[NCCL_ID_BYTES])
{
    nccl_library library;
    ncclUniqueId made;
    char why[192];
    if (!nccl_library_open(&library, why, sizeof why)) return fail(STATUS_UNAVAILABLE, "collectives nccl: %s", why);
    ncclResult_t code = library.unique_id(&made);
    if (code != ncclSuccess) return fail(STATUS_SYSTEM, "NCCL, ncclGetUniqueId: %s", library.error_text(code));
    static_assert(sizeof made == NCCL_ID_BYTES, "an id is 128 bytes");
    memcpy(id, &made, sizeof made);
    return STATUS_OK;
}

/* ---- communicators ---------------------------------------------------------------------------- */

static status new_comm(const nccl_library *library, const cuda_stream *s, int rank, nccl_comm **out)
{
    nccl_comm *c = calloc(1, sizeof *c);
    if (!c) return fail(STATUS_SYSTEM, "no memory for a communicator");
    *c = (nccl_comm){*library, NULL, (const cuda_device *)s->base.device, s->stream, rank};
    *out = c;
    return STATUS_OK;
}

/* Several ranks of one communicator on a GPU: from 2.30 on NCCL has an option for it; earlier versions are made to
 * believe that the ranks are on different hosts, and use the network. Variables that the user has set keep their
 * values. */
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

static status module_open(device_stream *s, const char id[NCCL_ID_BYTES], int rank, int world, bool shared,
                          nccl_comm **out)
{
    nccl_library library;
    ncclUniqueId given;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    char why[192];
    *out = NULL;
    if (!nccl_library_open(&library, why, sizeof why)) return fail(STATUS_UNAVAILABLE, "collectives nccl: %s", why);
    if (shared) allow_sharing(&library, rank);
    nccl_comm *c = NULL;
    TRY(new_comm(&library, (const cuda_stream *)s, rank, &c));
    *out = c;
    TRY(cuda_use(c->device));
    memcpy(&given, id, sizeof given);
    config.blocking = 0;
    return check(c, library.init(&c->comm, world, given, rank, &config), "ncclCommInitRankConfig");
}

static status module_split(nccl_comm *parent, int color, int key, nccl_comm **out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_comm *c = calloc(1, sizeof *c);
    *out = c;
    if (!c) return fail(STATUS_SYSTEM, "no memory for a communicator");
    *c = *parent;
    c->comm = NULL;
    config.blocking = 0;
    TRY(cuda_use(c->device));
    return check(parent, parent->library.split(parent->comm, color, key, &c->comm, &config), "ncclCommSplit");
}

static status module_state(nccl_comm *c, bool *done)
{
    ncclResult_t state = ncclInProgress;
    *done = false;
    TRY(check(c, c->library.async_error(c->comm, &state), "ncclCommGetAsyncError"));
    TRY(check(c, state, "communication"));
    *done = state == ncclSuccess;
    return STATUS_OK;
}

static void module_abort(nccl_comm *c)
{
    cuda_use(c->device);
    if (c->comm) c->library.abort(c->comm);
    c->comm = NULL;
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
        [DTYPE_F64] = ncclFloat64, [DTYPE_F32] = ncclFloat32, [DTYPE_F16] = ncclFloat16, [DTYPE_BF16] = ncclBfloat16,
        [DTYPE_I64] = ncclInt64,   [DTYPE_I32] = ncclInt32,   [DTYPE_U8] = ncclUint8};
    return types[type];
}

/* A mean is the sum, divided afterwards: ncclAvg multiplies by 1/n first, which rounds differently. */
static ncclRedOp_t operation(reduce_op op)
{
    static const ncclRedOp_t ops[REDUCE_OP_COUNT] = {[REDUCE_SUM] = ncclSum,
                                                     [REDUCE_MEAN] = ncclSum,
                                                     [REDUCE_MIN] = ncclMin,
                                                     [REDUCE_MAX] = ncclMax,
                                                     [REDUCE_PRODUCT] = ncclProd};
    return ops[op];
}

static ncclResult_t enqueue(const nccl_comm *c, const nccl_part *p)
{
    const nccl_library *l = &c->library;
    size_t count = (size_t)p->count;
    ncclDataType_t type = datatype(p->type);
    switch (p->kind) {
    case NCCL_ALL_REDUCE:
        return l->all_reduce(p->in, p->out, count, type, operation(p->op), c->comm, c->stream);
    case NCCL_REDUCE:
        return l->reduce(p->in, p->out, count, type, operation(p->op), p->peer, c->comm, c->stream);
    case NCCL_BROADCAST:
        return l->broadcast(p->in, p->out, count, type, p->peer, c->comm, c->stream);
    case NCCL_SEND:
        return l->send(p->in, count, type, p->peer, c->comm, c->stream);
    case NCCL_RECEIVE:
        return l->receive(p->out, count, type, p->peer, c->comm, c->stream);
    }
    return ncclInvalidArgument;
}

static status module_run(nccl_comm *c, const nccl_part *parts, int count)
{
    static const char *const names[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclSend", "ncclRecv"};
    status rc = STATUS_OK;
    TRY(cuda_use(c->device));
    TRY(check(c, c->library.group_start(), "ncclGroupStart"));
    for (int i = 0; i < count && rc == STATUS_OK; i++) rc = check(c, enqueue(c, &parts[i]), names[parts[i].kind]);
    ncclResult_t code = c->library.group_end();
    return rc != STATUS_OK ? rc : check(c, code, "ncclGroupEnd");
}

const nccl_module psring_nccl_module = {
    .version = NCCL_MODULE_VERSION,
    .available = module_available,
    .make_id = module_make_id,
    .open = module_open,
    .split = module_split,
    .state = module_state,
    .run = module_run,
    .abort = module_abort,
    .close = module_close,
};
