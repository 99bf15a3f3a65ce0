/* At the rendezvous, ranks find each other and check that they run the same program and configuration. They
 * also exchange small data there, outside of training steps.
 *
 * Rank 0 runs the store, a thread that sleeps until a request arrives. Every rank, including rank 0, sends a
 * hello to the store. The hello contains the version of the protocol, the program version, the job token, the
 * configuration, the rank and the world size. If a value differs, the store refuses the rank, and both sides
 * report both values. After all ranks have joined, they make collective calls. Every rank makes the same
 * calls in the same order. Each call has a tag that names its purpose.
 *
 * A rank that fails sends its error to the store. If the rank has not joined yet, its hello contains the
 * error. If the rank has joined, it calls rendezvous_fail(). The pending call and all later calls of all
 * ranks return the first error that the store has received.
 *
 * URLs: tcp://HOST:PORT     rank 0 listens there
 *       ipc://@NAME         abstract unix socket on one host, the default of locally launched jobs
 *       inproc://NAME       ranks are threads of one process and share a hub
 *       file://PATH         rank 0 listens at a free port and writes address and key to PATH, which only the
 *                           same user can read; removed at close
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
    RENDEZVOUS_BLOB_MAX = 64 << 20, /* largest number of bytes that a rank contributes to one call */
    RENDEZVOUS_TEXT_MAX = 32 << 10, /* largest size of the configuration in bytes */
};
#define RENDEZVOUS_CANCEL_NS (2 * NS_PER_S) /* time for which late ranks may join after a cancellation */

typedef struct rendezvous_options {
    const char *url;
    int rank, world;
    /* Token of the job, or 0 if there is none. If the URL is file:// and the token is 0, rank 0 draws a token
     * and writes it to the file. */
    uint64_t token;
    /* Key of the job (key.h). The store refuses a rank without the key. The key is required for tcp://,
     * ipc:// and env://. If the URL is file:// and `key` is NULL, rank 0 draws a key and writes it to the
     * file. */
    const char *key;
    const char *program;  /* version of the program; must be equal on all ranks */
    uint64_t config_hash; /* hash of the configuration; must be equal on all ranks */
    /* The configuration as lines "name = value". If the hashes differ, the error message names the first line
     * that differs. NULL if only the hashes are compared. */
    const char *config_text;
    int64_t connect_limit_ns; /* time within which all ranks must join */
    /* Host name that rank 0 writes to the file of file://. If `host` is NULL, rank 0 writes its first network
     * address. */
    const char *host;
    transport_hub *hub; /* for inproc:// */
    rank_slot *slot;    /* status slot of this rank, or NULL */
    /* Table that shows the progress of all ranks, or NULL. The deadline of a call is extended while a rank
     * that has not called makes progress. */
    status_table *table;
    /* True if no other rank sees `table`. A thread then exchanges progress and stop requests with the other
     * ranks until the rendezvous is closed (rendezvous_status.c). */
    bool exchanges_status;
    /* Time without progress after which a rank that exchanges its status ends its process, or 0 for never. */
    int64_t stall_limit_ns;
    /* Error with which this rank has failed, or NULL. The error is sent to all ranks. */
    const error_record *failure;
    /* Called several times per second until all ranks have joined. If canceled() returns true, this rank
     * gives up RENDEZVOUS_CANCEL_NS later. May be NULL. */
    bool (*canceled)(void *context);
    void *context;
} rendezvous_options;

/* Checks the form of a URL. For env://, does not check the environment variables. Fails with STATUS_USAGE. */
status rendezvous_check(const char *url);

/* Writes the IPv4 address of this host from which it reaches the host `peer`. If `peer` is NULL, unknown or
 * this host under a loopback address, writes the first address of a network interface. */
void rendezvous_own_address(const char *peer, char *out, size_t size);

/* Joins the rendezvous. Returns when all ranks have joined. Borrows slot, table, hub and context until
 * rendezvous_close(). Fails with
 *
 *   STATUS_PEER         at the connect limit; the message names the missing ranks and the address
 *   STATUS_PROTOCOL     if the protocol, the program, the token or the configuration differs
 *   STATUS_PERMISSION   if the key is missing or differs
 *   STATUS_CONFIG       if another process has this rank, the rank is out of range, or world sizes differ
 *   STATUS_UNAVAILABLE  if the address is already in use
 *   STATUS_USAGE        if the url is malformed
 *   STATUS_STOPPED      if canceled() returns true
 *
 * If another rank has failed, fails with the error of that rank.
 *
 * After a failure, rank 0 waits until all ranks have received the error, but not longer than the connect
 * limit. */
status rendezvous_open(const rendezvous_options *options, rendezvous **out);
void rendezvous_close(rendezvous **r);

/* Sends an error of this rank to all ranks. `r` may be NULL. */
void rendezvous_fail(rendezvous *r, status code, const char *text);
/* Returns true and records the error if a rank has sent an error or rank 0 is lost. Does not wait. `r` points
 * to a rendezvous. Only the thread that makes the collective calls may call this function, and not during a
 * collective call. */
bool rendezvous_has_failed(void *r);

/* Host and process of a rank. Error messages name them. */
typedef struct rendezvous_member {
    char host[64];
    pid_t pid;
    uint64_t host_id; /* shm_host_id() */
} rendezvous_member;
const rendezvous_member *rendezvous_members(const rendezvous *r); /* [world] */

/* The contribution of a rank to a call. Valid until the next call. */
typedef message_frame rendezvous_blob;

/* Collective calls. `tag` is shorter than 64 bytes. A call returns when all ranks have made the same call.
 * Fails with STATUS_PEER if a rank is lost, or at the deadline. The error message then names the ranks that
 * have not called. Whenever a rank that has not called makes progress, the time limit of the waiting ranks
 * starts again. Fails with STATUS_PROTOCOL if ranks make different calls. The error message then names both
 * calls. After a failure the rendezvous can only be closed. */
status rendezvous_allgather(rendezvous *r, const char *tag, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out /* [world] */);
/* Broadcasts `data` of rank `root`. On all other ranks, `data` and `bytes` are ignored. */
status rendezvous_broadcast(rendezvous *r, const char *tag, int root, const void *data, size_t bytes,
                            int64_t deadline_ns, rendezvous_blob *out);
/* Sends a text of any length to rank 0 in pieces. Each piece has the time limit `limit_ns`. Rank 0 appends
 * the text of rank i to out[i]. */
status rendezvous_gather(rendezvous *r, const char *tag, int rank, int world, const char *text, size_t length,
                         int64_t limit_ns, text_buffer *out);
status rendezvous_barrier(rendezvous *r, const char *tag, int64_t deadline_ns);
/* Replaces values[count] by the sums over the ranks. Values are added in rank order, so the sums are
 * bit-identical on all ranks. */
status rendezvous_sum(rendezvous *r, const char *tag, double *values, int count, int64_t deadline_ns);

#endif
