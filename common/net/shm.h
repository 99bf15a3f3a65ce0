/* Anonymous shared memory between the ranks of one host.
 *
 * A segment is a memfd. A memfd has no name in any file system, so a crash cannot leave it behind. Ranks pass
 * the descriptors to each other (SCM_RIGHTS, unix(7)) over sockets in the abstract namespace, so sockets
 * leave no files behind either. Ranks may be processes or threads of one process. */
#ifndef COMMON_NET_SHM_H
#define COMMON_NET_SHM_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A segment. The caller stores this struct. A struct of zeros is an empty segment. */
typedef struct shm_segment {
    int fd;     /* valid if `data` is not NULL */
    void *data; /* mapped for reading and writing, page-aligned, initially zero */
    int64_t bytes;
} shm_segment;

/* Creates, allocates and maps `bytes` > 0. `name` appears only in /proc/PID/maps. Fails with STATUS_SYSTEM if
 * memory or descriptors are short. The error message then contains the requested size. */
status shm_create(const char *name, int64_t bytes, shm_segment *out);

/* Maps the first `bytes` (> 0) bytes of a memfd, which may belong to any rank. `whose` names the owner in
 * messages, for instance "rank 3". Takes ownership of `fd`, also after a failure. Fails with STATUS_PROTOCOL
 * if the memory is shorter than `bytes`. */
status shm_map(int fd, int64_t bytes, const char *whose, shm_segment *out);

/* Unmaps and closes a segment. The kernel frees the memory when no process maps it any more. Does nothing for
 * an empty segment. */
void shm_close(shm_segment *segment);

/* Returns a number that identifies the kernel and the network namespace. Processes with equal numbers can
 * exchange segments. */
uint64_t shm_host_id(void);

enum { SHM_EXCHANGE_MAX = 8 }; /* largest number of segments per rank in one exchange */

typedef struct shm_exchange_options {
    /* name of this exchange, such as "ring"; must be unique within the job while the exchange runs */
    const char *name;
    uint64_t token;
    int rank, world;
    const int *numbers;              /* [world] numbers of the ranks in messages, or NULL for 0, 1, 2 ... */
    const char *group;               /* name of the group of ranks in messages, or NULL */
    const shm_segment *own;          /* [count] segments of this rank, which are sent to every peer */
    int count;                       /* number of segments, the same on every rank, at least 1 */
    int64_t deadline_ns;             /* time of clock_now_ns() at which the exchange fails */
    bool (*canceled)(void *context); /* called several times per second, or NULL */
    void *context;
} shm_exchange_options;

/* Sends this rank's segments to all peers and fetches the segments of all peers. Returns when all segments
 * have been sent and fetched. Sets peers[r * count + i] to segment i of rank r, which the caller must close.
 * The entries of this rank stay empty. Ranks may call in any order.
 *
 * Refuses connections from another user, connections with another job token, and malformed messages. Logs the
 * first refusal. Fails with STATUS_PEER if ranks are missing at the deadline; the error message names these
 * ranks. Fails with STATUS_PROTOCOL if a peer has another number of segments, with STATUS_UNAVAILABLE if the
 * address is already in use, and with STATUS_STOPPED if canceled() returns true. */
status shm_exchange(const shm_exchange_options *options, shm_segment *peers);

#endif
