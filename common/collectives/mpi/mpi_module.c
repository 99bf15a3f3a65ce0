#include "common/collectives/mpi/mpi_module.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* State of MPI in this process. It is global, because MPI's callbacks have no context argument. */
static struct {
    mpi_module_reduce reduce;
    MPI_Datatype half, bfloat;
    MPI_Op ops[REDUCE_OP_COUNT]; /* MPI operations that reduce float16 and bfloat16. */
    int give_up;                 /* Exit code with which to abort, or 0 to end normally. */
} mpi;

static MPI_Datatype datatype(dtype type)
{
    static const MPI_Datatype plain[] = {[DTYPE_F64] = MPI_DOUBLE,
                                         [DTYPE_F32] = MPI_FLOAT,
                                         [DTYPE_I64] = MPI_INT64_T,
                                         [DTYPE_I32] = MPI_INT32_T,
                                         [DTYPE_U8] = MPI_UINT8_T};
    if (type == DTYPE_F16) return mpi.half;
    return type == DTYPE_BF16 ? mpi.bfloat : plain[type];
}

static MPI_Op operation(reduce_op op, dtype type)
{
    static const MPI_Op plain[] = {[REDUCE_SUM] = MPI_SUM,
                                   [REDUCE_MEAN] = MPI_SUM,
                                   [REDUCE_MIN] = MPI_MIN,
                                   [REDUCE_MAX] = MPI_MAX,
                                   [REDUCE_PRODUCT] = MPI_PROD};
    return type == DTYPE_F16 || type == DTYPE_BF16 ? mpi.ops[op] : plain[op];
}

static void reduce_half(reduce_op op, void *in, void *inout, const int *count, const MPI_Datatype *type)
{
    mpi.reduce(*type == mpi.half ? DTYPE_F16 : DTYPE_BF16, op, inout, in, inout, *count);
}

static void half_sum(void *in, void *inout, int *count, MPI_Datatype *type)
{
    reduce_half(REDUCE_SUM, in, inout, count, type);
}

static void half_min(void *in, void *inout, int *count, MPI_Datatype *type)
{
    reduce_half(REDUCE_MIN, in, inout, count, type);
}

static void half_max(void *in, void *inout, int *count, MPI_Datatype *type)
{
    reduce_half(REDUCE_MAX, in, inout, count, type);
}

static void half_product(void *in, void *inout, int *count, MPI_Datatype *type)
{
    reduce_half(REDUCE_PRODUCT, in, inout, count, type);
}

static void finalize(void)
{
    int done = 0;
    MPI_Finalized(&done);
    if (done) return;
    /* After a failure MPI_Finalize would wait for the peers. */
    if (mpi.give_up) MPI_Abort(MPI_COMM_WORLD, mpi.give_up);
    MPI_Finalize();
}

static void module_give_up(int exit_code)
{
    mpi.give_up = exit_code;
}

static int make_half_types(void)
{
    static MPI_User_function *const functions[] = {[REDUCE_SUM] = half_sum,
                                                   [REDUCE_MEAN] = half_sum,
                                                   [REDUCE_MIN] = half_min,
                                                   [REDUCE_MAX] = half_max,
                                                   [REDUCE_PRODUCT] = half_product};
    int rc = MPI_Type_contiguous(2, MPI_BYTE, &mpi.half);
    if (!rc) rc = MPI_Type_commit(&mpi.half);
    if (!rc) rc = MPI_Type_contiguous(2, MPI_BYTE, &mpi.bfloat);
    if (!rc) rc = MPI_Type_commit(&mpi.bfloat);
    for (int op = 0; !rc && op < REDUCE_OP_COUNT; op++) rc = MPI_Op_create(functions[op], 1, &mpi.ops[op]);
    return rc;
}

static int module_open(mpi_module_reduce reduce, int *rank, int *size)
{
    int initialized = 0, provided = 0, rc = MPI_Initialized(&initialized);
    if (!rc && !initialized) {
        rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
        if (!rc) atexit(finalize);
    }
    if (!rc) rc = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (!rc) rc = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    if (!rc) rc = MPI_Comm_size(MPI_COMM_WORLD, size);
    if (!rc && !mpi.reduce) rc = make_half_types();
    mpi.reduce = reduce;
    return rc;
}

static int module_group_open(const int *ranks, int count, void **group)
{
    MPI_Comm *comm = malloc(sizeof *comm);
    MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    if (!comm) return MPI_ERR_NO_MEM;
    int rc = MPI_Comm_group(MPI_COMM_WORLD, &world);
    if (!rc) rc = MPI_Group_incl(world, count, ranks, &members);
    if (!rc) rc = MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, comm);
    if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
    if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
    if (rc)
        free(comm);
    else
        *group = comm;
    return rc;
}

static void module_group_close(void *group)
{
    MPI_Comm *comm = group;
    MPI_Comm_free(comm);
    free(comm);
}

static int module_start(void *group, const mpi_module_call *c, void *request)
{
    MPI_Comm comm = *(MPI_Comm *)group;
    MPI_Request *r = request;
    MPI_Datatype type = datatype(c->type);
    const void *in = c->in ? c->in : MPI_IN_PLACE;
    int me;
    MPI_Comm_rank(comm, &me);
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return MPI_Iallreduce(in, c->out, c->count, type, operation(c->op, c->type), comm, r);
    case COLLECTIVE_REDUCE:
        return MPI_Ireduce(in, c->out, c->count, type, operation(c->op, c->type), c->root, comm, r);
    case COLLECTIVE_BROADCAST:
        return MPI_Ibcast(c->out, c->count, type, c->root, comm, r);
    case COLLECTIVE_ALL_GATHER:
        return MPI_Iallgatherv(in, c->counts[me], type, c->out, c->counts, c->places, type, comm, r);
    case COLLECTIVE_REDUCE_SCATTER:
        return MPI_Ireduce_scatter(in, c->out, c->counts, type, operation(c->op, c->type), comm, r);
    case COLLECTIVE_GATHER:
        return MPI_Igatherv(in, c->counts[me], type, c->out, c->counts, c->places, type, c->root, comm, r);
    case COLLECTIVE_SCATTER: /* The root's part stays in place. */
        return MPI_Iscatterv(c->in, c->counts, c->places, type, c->out ? c->out : MPI_IN_PLACE, c->counts[me],
                             type, c->root, comm, r);
    case COLLECTIVE_ALL_TO_ALL:
        return MPI_Ialltoallv(in, c->counts, c->places, type, c->out, c->out_counts, c->out_places, type,
                              comm, r);
    case COLLECTIVE_SEND:
        return MPI_Isend(c->in, c->count, type, c->root, c->tag, comm, r);
    case COLLECTIVE_RECEIVE:
        return MPI_Irecv(c->out, c->count, type, c->root, c->tag, comm, r);
    default:
        return MPI_Ibarrier(comm, r);
    }
}

static int module_test(void *request, bool *done)
{
    int flag = 0;
    int rc = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    *done = flag != 0;
    return rc;
}

static void module_error_text(int code, char *text, int size)
{
    char full[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, full, &length);
    snprintf(text, (size_t)size, "%s", full);
}

extern const mpi_module psring_mpi_module;
const mpi_module psring_mpi_module = {
    .version = MPI_MODULE_VERSION,
    .open = module_open,
    .group_open = module_group_open,
    .group_close = module_group_close,
    .start = module_start,
    .test = module_test,
    .error_text = module_error_text,
    .give_up = module_give_up,
    .request_bytes = sizeof(MPI_Request),
};
