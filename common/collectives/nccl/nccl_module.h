/* The interface of the code that needs the headers of NCCL and CUDA, in libpsring_cuda.so. NCCL is opened
 * when it is first used.
 *
 * Communicators block. open(), split() and a call for which NCCL must connect return only when all ranks have
 * made the call, so these functions may never return. If another thread calls abort(), a blocked call ends,
 * but open() and split() do not. Every function except available() may fail with STATUS_PEER or STATUS_SYSTEM
 * and NCCL's message. */
#ifndef COMMON_COLLECTIVES_NCCL_NCCL_MODULE_H
#define COMMON_COLLECTIVES_NCCL_NCCL_MODULE_H

#include "common/device/device.h"
#include "common/reduce/reduce.h"

enum { NCCL_MODULE_VERSION = 2, NCCL_ID_BYTES = 128 };
#define NCCL_MODULE_SYMBOL "psring_nccl_module"

typedef struct nccl_comm nccl_comm;

/* The kind of one NCCL operation of a call. An operation has `count` contiguous elements. */
typedef enum nccl_kind { NCCL_ALL_REDUCE, NCCL_REDUCE, NCCL_BROADCAST, NCCL_SEND, NCCL_RECEIVE } nccl_kind;
typedef struct nccl_part {
    nccl_kind kind;
    reduce_op op;
    dtype type;
    int peer; /* Rank of the root, or of the other rank of a send or receive. */
    int64_t count;
    const void *in;
    void *out;
} nccl_part;

typedef struct nccl_module {
    int version;
    /* Returns true if NCCL can be used. `text` receives NCCL's version, or the reason why NCCL cannot be
     * used. */
    bool (*available)(char *text, size_t size);
    /* Makes the id of a communicator. Rank 0 calls make_id(), and all ranks use the id. */
    status (*make_id)(char id[NCCL_ID_BYTES]);
    /* Makes a communicator. All ranks that use the id call open(). `shared` allows ranks to use the same
     * GPU. */
    status (*open)(device *d, const char id[NCCL_ID_BYTES], int rank, int world, bool shared,
                   nccl_comm **out);
    /* Splits `parent`. All ranks of `parent` call split(). Ranks with the same color (not negative) form a
     * communicator, ordered by key. */
    status (*split)(nccl_comm *parent, int color, int key, nccl_comm **out);
    /* Returns the first asynchronous error of the communicator. May be called from any thread. */
    status (*state)(nccl_comm *comm);
    /* Operations added between begin() and end() are enqueued on the stream as one group. end() is called
     * even if add() has failed. */
    status (*begin)(nccl_comm *comm);
    status (*add)(nccl_comm *comm, device_stream *s, const nccl_part *part);
    status (*end)(nccl_comm *comm);
    /* Ends this rank's operations in flight, which leaves partial results. The peers have to detect the abort
     * on their own. May wait for the GPU, and for a call of another thread. close() must still be called. */
    void (*abort)(nccl_comm *comm);
    /* Waits for the operations in flight, then frees the communicator. */
    void (*close)(nccl_comm **comm);
} nccl_module;

#endif
