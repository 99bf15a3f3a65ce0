/* NCCL as the collectives use it, in libpsring_cuda.so: all that needs NCCL's and CUDA's headers. NCCL itself
 * is opened when it is first used.
 *
 * Communicators block: open(), split() and a call for which NCCL must connect return when the ranks have made
 * it, which may be never; abort(), from another thread, ends such a call, but not open() and split(). Every
 * function but available() may fail with STATUS_PEER or STATUS_SYSTEM and NCCL's own words. */
#ifndef COMMON_COLLECTIVES_NCCL_NCCL_MODULE_H
#define COMMON_COLLECTIVES_NCCL_NCCL_MODULE_H

#include "common/device/device.h"
#include "common/reduce/reduce.h"

enum { NCCL_MODULE_VERSION = 2, NCCL_ID_BYTES = 128 };
#define NCCL_MODULE_SYMBOL "psring_nccl_module"

typedef struct nccl_comm nccl_comm;

/* A part of a call: `count` contiguous elements. */
typedef enum nccl_kind { NCCL_ALL_REDUCE, NCCL_REDUCE, NCCL_BROADCAST, NCCL_SEND, NCCL_RECEIVE } nccl_kind;
typedef struct nccl_part {
    nccl_kind kind;
    reduce_op op;
    dtype type;
    int peer; /* the root, or the other rank */
    int64_t count;
    const void *in;
    void *out;
} nccl_part;

typedef struct nccl_module {
    int version;
    /* Whether NCCL is available, and its version; else why not. */
    bool (*available)(char *text, size_t size);
    /* The id that rank 0 makes and all ranks of a communicator use. */
    status (*make_id)(char id[NCCL_ID_BYTES]);
    /* Collective over the ranks of the id. `shared`: ranks share GPUs. */
    status (*open)(device *d, const char id[NCCL_ID_BYTES], int rank, int world, bool shared,
                   nccl_comm **out);
    /* Collective over the ranks of `parent`; those with the same color, which is not negative, form a
     * communicator, in the order of their keys. */
    status (*split)(nccl_comm *parent, int color, int key, nccl_comm **out);
    /* What has gone wrong since a call has returned; STATUS_OK: nothing. Any thread. */
    status (*state)(nccl_comm *comm);
    /* The parts between begin() and end(), which is called even if add() has failed, are enqueued on the
     * stream as one group. */
    status (*begin)(nccl_comm *comm);
    status (*add)(nccl_comm *comm, device_stream *s, const nccl_part *part);
    status (*end)(nccl_comm *comm);
    /* Ends what is in flight on this rank, with partial results; peers detect it by themselves. It may wait
     * for the GPU and for a call of another thread. close() still frees the rest. */
    void (*abort)(nccl_comm *comm);
    /* Waits for what is in flight. */
    void (*close)(nccl_comm **comm);
} nccl_module;

#endif
