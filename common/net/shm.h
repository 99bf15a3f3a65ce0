/* Anonymous shared memory between the ranks of one host.
 *
 * A segment is a memfd: it has no name in any file system, so no crash can leave it behind. Ranks pass
 * the descriptors to each other (SCM_RIGHTS, unix(7)) over sockets in the abstract namespace, which
 * leave nothing behind either. Ranks may be processes or threads of one process. */
#ifndef COMMON_NET_SHM_H
#define COMMON_NET_SHM_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Caller's storage; zero-initialized is empty. */
typedef struct shm_segment {
    int fd;     /* valid where data is not NULL */
    void *data; /* mapped for reading and writing, page-aligned, zero at first */
    int64_t bytes;
} shm_segment;

/* Makes, allocates and maps `bytes` > 0. `name` appears in /proc/PID/maps only. STATUS_SYSTEM names the
 * size needed where the system refuses it. */
status shm_create(const char *name, int64_t bytes, shm_segment *out);

/* Maps the first `bytes` (> 0) of a memfd, of whichever rank: `whose` is for the message, "rank 3".
 * Takes over `fd`, also when it fails. STATUS_PROTOCOL where the memory is shorter than `bytes`. */
status shm_map(int fd, int64_t bytes, const char *whose, shm_segment *out);

/* Unmaps and closes. The memory remains while another process maps it. Empty segments are ignored. */
void shm_close(shm_segment *segment);

/* The same number on every process that can exchange segments with this one (same kernel, same network
 * namespace), different ones elsewhere. */
uint64_t shm_host_id(void);

enum { SHM_EXCHANGE_MAX = 8 }; /* segments of a rank in one exchange */

typedef struct shm_exchange_options {
    const char *name; /* of this exchange, unique among those of the job at a time: "ring" */
    uint64_t token;   /* of the job */
    int rank, world;
    const shm_segment *own;          /* [count], for every peer */
    int count;                       /* the same on every rank, at least 1 */
    int64_t deadline_ns;             /* clock_now_ns() at which to give up */
    bool (*canceled)(void *context); /* asked several times a second; NULL: never */
    void *context;
} shm_exchange_options;

/* Serves the own segments and fetches those of all peers, in one loop: no order between ranks matters.
 * Returns when every peer has been fetched from and has fetched. peers[rank * count + i] becomes segment
 * i of `rank`, to be closed by the caller; the own row is left empty.
 *
 * A connection from another user, with another job token or of garbage is refused with one log line.
 * STATUS_PEER at the deadline, naming the ranks that are missing; STATUS_PROTOCOL where a peer has
 * another number of segments; STATUS_UNAVAILABLE where the address is taken; STATUS_STOPPED. */
status shm_exchange(const shm_exchange_options *options, shm_segment *peers);

#endif
