/* Rendezvous: how ranks find each other, agree that they run the same thing, and exchange small data
 * outside of training steps.
 *
 * Rank 0 keeps a store, a thread that sleeps until a request comes. Every rank, rank 0 included,
 * says hello to it: protocol, program version, job token, configuration, rank, world size. What differs is
 * refused on both sides with both values. Then come collective calls: every rank makes the same calls in
 * the same order, each with a tag that names its purpose.
 *
 * A rank that fails sends its error to the store: in its hello if it fails before it joins, else with
 * rendezvous_fail(). The first error is the result of the pending and later calls of all ranks.
 *
 * URLs: tcp://HOST:PORT     rank 0 listens there
 *       ipc://@NAME         abstract unix socket, one host: the default of locally launched jobs
 *       inproc://NAME       ranks are threads of one process and share a hub
 *       file://PATH         rank 0 listens at a free port and writes address and key there, for the same user
 *                           to read; removed at close
 *       env://              MASTER_ADDR and MASTER_PORT, as torchrun, mpirun -x or Slurm scripts set them */
#ifndef COMMON_NET_RENDEZVOUS_H
#define COMMON_NET_RENDEZVOUS_H

#include "common/base/text.h"
#include "common/net/status_table.h"
#include "common/net/transport.h"

#include <sys/types.h>

typedef struct rendezvous rendezvous;

enum {
    RENDEZVOUS_PROTOCOL = 1,
    RENDEZVOUS_BLOB_MAX = 64 << 20, /* bytes that a rank contributes to one call */
    RENDEZVOUS_TEXT_MAX = 32 << 10, /* of the configuration */
};
#define RENDEZVOUS_CONNECT_LIMIT_NS (60 * NS_PER_S)
#define RENDEZVOUS_CANCEL_NS (2 * NS_PER_S) /* Ranks that are about to come may still do so. */

typedef struct rendezvous_options {
    const char *url;
    int rank, world;
    uint64_t token;       /* of the job; 0: none, or for file:// the one that rank 0 writes down */
    const char *key;      /* of the job (key.h): ranks without it are refused. Needed for tcp://, ipc:// and
                           * env://; for file:// NULL is one that rank 0 draws and writes down */
    const char *program;  /* version of the program: must be the same everywhere */
    uint64_t config_hash; /* likewise */
    const char *config_text; /* lines "name = value", so that a difference is named; NULL: the hash says it */
    int64_t connect_limit_ns; /* until all have come */
    const char *host;         /* for file://: under which name the others reach rank 0; NULL: found out */
    transport_hub *hub;       /* for inproc:// */
    rank_slot *slot;          /* shows what the rank waits for; NULL: none */
    /* Shows the progress of the other ranks, by rank: a deadline does not pass while a rank that has not
     * called makes progress. NULL if there is none. */
    status_table *table;
    /* `table` is of this process only: a thread exchanges progress and requests to stop with the other ranks,
     * as long as the rendezvous is open (rendezvous_status.c). */
    bool exchanges_status;
    const error_record *failure; /* Error of this rank, to be sent to all. NULL if there is none. */
    /* Asked several times a second until all are there; when the answer has been yes for
     * RENDEZVOUS_CANCEL_NS, this rank gives up. From then on ranks stop together or not at all. NULL: never.
     */
    bool (*canceled)(void *context);
    void *context;
} rendezvous_options;

/* Checks the form of a url, but not the environment that env:// stands for. STATUS_USAGE. */
status rendezvous_check(const char *url);

/* Returns when all ranks are there. Borrows slot, table, hub and context until rendezvous_close.
 * STATUS_PEER at the connect limit, naming who is missing and the address; STATUS_PROTOCOL where protocol,
 * program, token or configuration differ; STATUS_PERMISSION where the key is missing or another one;
 * STATUS_CONFIG where the rank is taken or out of range or world sizes differ; STATUS_UNAVAILABLE where the
 * address is taken; STATUS_USAGE for a malformed url; STATUS_STOPPED where `canceled` says so;
 * the error of a rank that failed. Rank 0 waits until all ranks have come and received it. */
status rendezvous_open(const rendezvous_options *options, rendezvous **out);
void rendezvous_close(rendezvous **r);

/* Sends an error of this rank to all ranks. `r` may be NULL. */
void rendezvous_fail(rendezvous *r, status code, const char *text);
/* Returns true if a rank has sent an error or rank 0 is lost, and then records the error. Does not wait. To
 * be called between calls, by the thread that makes them. `r` is a rendezvous. */
bool rendezvous_has_failed(void *r);

/* Who a rank is, for messages. */
typedef struct rendezvous_member {
    char host[64];
    pid_t pid;
    uint64_t host_id; /* shm_host_id() */
} rendezvous_member;
const rendezvous_member *rendezvous_members(const rendezvous *r); /* [world] */
const char *rendezvous_address(const rendezvous *r);              /* where the store listens */

/* A rank's contribution as others see it: valid until the next call. */
typedef struct rendezvous_blob {
    const void *data;
    size_t bytes;
} rendezvous_blob;

/* The collective calls. `tag` is shorter than 64 bytes. Each returns on a rank when all have called.
 * STATUS_PEER at the deadline, naming the ranks that have not called, or where a rank is lost. While one of
 * those ranks makes progress, the deadline moves: it is counted from that progress on.
 * STATUS_PROTOCOL where ranks make different calls, both named. After a
 * failure the rendezvous is only good for closing. */
status rendezvous_allgather(rendezvous *r, const char *tag, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out /* [world] */);
/* `data`, `bytes` count on `root` only. */
status rendezvous_broadcast(rendezvous *r, const char *tag, int root, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out);
/* A text of any length to rank 0, in pieces; each may take limit_ns. There it is appended to out[world]. */
status rendezvous_gather(rendezvous *r, const char *tag, int rank, int world, const char *text, size_t length,
                         int64_t limit_ns, text_buffer *out);
status rendezvous_barrier(rendezvous *r, const char *tag, int64_t deadline_ns);
/* values[count] becomes the sum over the ranks, added in rank order: bit-identical on all ranks. */
status rendezvous_sum(rendezvous *r, const char *tag, double *values, int count, int64_t deadline_ns);

#endif
