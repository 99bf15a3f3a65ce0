/* Shared by the files of the rendezvous, in the order of the flow: an address (rendezvous_address.c), packets
 * (rendezvous_wire.c), a rank that joins and calls (rendezvous.c), the store that accepts ranks and sends
 * results (rendezvous_store.c), what it does with hellos and calls (rendezvous_store_calls.c), and how ranks
 * that share no status table follow each other and stop together (rendezvous_status.c). */
#ifndef COMMON_NET_RENDEZVOUS_IMPL_H
#define COMMON_NET_RENDEZVOUS_IMPL_H

#include "common/net/key.h"
#include "common/net/rendezvous.h"
#include "common/net/zmq_socket.h"

#include <pthread.h>
#include <stdatomic.h>
#include <zmq.h>

/* ---- packets and their protobuf form (rendezvous_wire.c) ---- */

typedef enum rendezvous_kind {
    RENDEZVOUS_NONE,
    RENDEZVOUS_HELLO,   /* rank to store; with code and text if the rank has failed */
    RENDEZVOUS_WELCOME, /* the answer, or: */
    RENDEZVOUS_REFUSED, /* code, text */
    RENDEZVOUS_CALL,    /* rank to store, followed by one blob */
    RENDEZVOUS_RESULT,  /* the answer with its blobs, or: */
    RENDEZVOUS_FAILED,  /* code, text; of a rank to the store, and from the store to every rank */
    RENDEZVOUS_BYE,     /* either way: orderly end */
    RENDEZVOUS_STATUS,  /* rank to store: token, rank, progress, step, signal; the answer: progress, signal */
    RENDEZVOUS_STOP,    /* store to rank: signal, and the last step to be run */
    RENDEZVOUS_KIND_COUNT
} rendezvous_kind;

/* name, name in messages */
#define RENDEZVOUS_OPERATION_LIST(X)                                                                         \
    X(ALLGATHER, "allgather")                                                                                \
    X(BROADCAST, "broadcast")                                                                                \
    X(BARRIER, "barrier")                                                                                    \
    X(SUM, "sum")

#define RENDEZVOUS_OPERATION_ENUM(name, text) RENDEZVOUS_##name,
typedef enum rendezvous_operation {
    RENDEZVOUS_OPERATION_LIST(RENDEZVOUS_OPERATION_ENUM) RENDEZVOUS_OPERATION_COUNT
} rendezvous_operation;
#undef RENDEZVOUS_OPERATION_ENUM

const char *rendezvous_operation_name(rendezvous_operation operation);

/* Strings are never NULL when unpacked; when packed, NULL counts as "". */
typedef struct rendezvous_packet {
    rendezvous_kind kind;
    uint32_t protocol;
    const char *program;
    uint64_t token, config_hash;
    const char *config_text;
    int rank, world;
    const char *host;
    uint32_t pid;
    uint64_t sequence;
    rendezvous_operation operation;
    const char *tag;
    int root;
    int64_t timeout_ms;
    status code;
    const char *text;
    int blobs;
    uint64_t progress; /* Progress of the rank's slot; in an answer the sum over the other ranks. */
    int64_t step;      /* Step that the rank has begun. */
    int signal;        /* Signal that requests a stop, or 0. */
} rendezvous_packet;

enum {
    RENDEZVOUS_PACKET_CAP = 64 * 1024,
    RENDEZVOUS_ARENA_BYTES = 4 * RENDEZVOUS_PACKET_CAP, /* what a packet may grow to */
};

/* Returns the bytes written, 0 where `size` is too small. */
size_t rendezvous_pack(const rendezvous_packet *packet, uint8_t *out, size_t size);

/* Strings of `out` lie in arena[RENDEZVOUS_ARENA_BYTES], aligned to 16. STATUS_PROTOCOL with the reason
 * where the bytes are no packet. Fields that a newer version added are skipped, so that a hello of any
 * version can be answered. */
status rendezvous_unpack(const void *bytes, size_t count, void *arena, rendezvous_packet *out);

/* ---- addresses: what a URL means for rank 0 and for the others ---- */

enum { ADDRESS_TEXT = 256 };

typedef struct rendezvous_endpoints {
    char listen[ADDRESS_TEXT];  /* for rank 0 */
    char connect[ADDRESS_TEXT]; /* for the others; "" for file://, whose rank 0 writes it down */
    char path[ADDRESS_TEXT];    /* of file://, else "" */
} rendezvous_endpoints;

/* STATUS_USAGE where the url is malformed, STATUS_CONFIG where env:// lacks a variable. */
status rendezvous_address_parse(const char *url, rendezvous_endpoints *out);

bool rendezvous_address_is_inproc(const rendezvous_endpoints *endpoints);

/* The address under which the other ranks reach a store that listens at `bound`: for file:// a name or
 * number of this host in place of the wildcard. `host` NULL: the first interface that is not loopback. */
void rendezvous_address_reachable(const rendezvous_endpoints *endpoints, const char *bound, const char *host,
                                  char out[ADDRESS_TEXT]);

/* Writes address, token and key to a file that only this user can read, whole or not at all.
 * STATUS_CANNOT_CREATE. */
status rendezvous_address_publish(const rendezvous_endpoints *endpoints, const char *address, uint64_t token,
                                  const char *key);
/* Removes the file if it is still the one that was written with this token. */
void rendezvous_address_withdraw(const rendezvous_endpoints *endpoints, uint64_t token);
/* Whether there is a file to read address[ADDRESS_TEXT], token and key[NET_KEY_TEXT] from. A torn or foreign
 * file counts as none, and one of another user. */
bool rendezvous_address_lookup(const rendezvous_endpoints *endpoints, char *address, uint64_t *token,
                               char *key);

/* Why nothing can be reached at a tcp:// address: "the name 'x' is not known", or "". Returns `buffer`. */
char *rendezvous_address_diagnose(const char *address, char *buffer, size_t size);

/* ---- the store: a thread of rank 0 that accepts ranks and carries out their calls ---- */

typedef struct store store;

enum { STORE_TAG_BYTES = 64 };

/* Listens, then starts the thread. `context` outlives the store; `token` and `key` are the job's; no key:
 * NULL. */
status store_start(const rendezvous_options *options, const rendezvous_endpoints *endpoints, uint64_t token,
                   const char *key, zsocket_context *context, store **out);
/* Says goodbye to the ranks, sends out what is left, ends the thread. */
void store_stop(store **s);

typedef struct store_member {
    bool joined, ended, lost;
    zsocket_identity identity; /* what the ROUTER puts in front of its messages */
    char host[64];
    uint32_t pid;
    bool called; /* in the present call, with `blob` */
    int64_t limit_ns, deadline_ns;
    zmq_msg_t blob;
    /* The rank's last status, and the identity of its sender. */
    bool has_status;
    zsocket_identity watcher;
    uint64_t progress;
    int64_t step;
    int signal; /* If not 0, the rank begins no further step than `step` until it receives the last one. */
} store_member;

/* The collective call under way; calls run one after the other. */
typedef struct store_call {
    uint64_t sequence;
    int callers, first; /* rank that called first */
    rendezvous_operation operation;
    char tag[STORE_TAG_BYTES];
    int root;
} store_call;

struct store {
    int world;
    uint64_t token, config_hash;
    char *program, *config_text; /* own copies */
    char address[ADDRESS_TEXT];  /* as bound */
    char own_url[64];            /* for the client of rank 0 itself: inproc:// */
    zsocket_context *context;
    zsocket router;
    int stop_fd;
    pthread_t thread;
    store_member *members; /* [world] */
    atomic_int joined;     /* Ranks that have been welcomed, or refused because the job fails. */
    store_call call;
    status failed; /* other than STATUS_OK: every rank receives it, nothing is carried out any more */
    char failure[1024];
    int64_t strangers;   /* connections and messages ignored */
    status_table *table; /* rendezvous_options.table */
    int signal;          /* Signal that stops the job, or 0. */
    bool decided;        /* The last step is decided. */
    int64_t decide_ns;   /* Until when the store waits for the steps that ranks have begun. */
    _Alignas(16) unsigned char arena[RENDEZVOUS_ARENA_BYTES];
    uint8_t packet[RENDEZVOUS_PACKET_CAP];
};

/* rendezvous_store.c */
/* The packet and, after it, the blobs of `count` members from `first` on. */
void store_send(store *s, const zsocket_identity *to, const rendezvous_packet *packet, store_member *first,
                int count);
void store_fail(store *s, status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void store_release_blobs(store *s); /* of the call that is under way, which thereby ends */
void store_lost(store *s, int rank);
void store_reject(store *s, const char *what);
/* "rank 2 (HOST, process 71)". Returns `buffer`; 128 bytes are enough. */
char *store_name(const store *s, int rank, char *buffer, size_t size);

/* rendezvous_store_calls.c: accepts or refuses a rank; carries out a call. */
void store_receive_hello(store *s, const zsocket_identity *from, const rendezvous_packet *hello);
void store_receive_failure(store *s, int rank, const rendezvous_packet *failure);
/* Takes the content of `blob`. */
void store_receive_call(store *s, int rank, const rendezvous_packet *call, zmq_msg_t *blob);
int64_t store_next_deadline(const store *s); /* CLOCK_NEVER: no call is under way */
void store_check_deadline(store *s, int64_t now_ns);

/* ---- rendezvous_status.c ---- */

/* In the store: a status has come; the last step is decided once all ranks hold. */
void store_receive_status(store *s, const zsocket_identity *from, const rendezvous_packet *status);
void store_decide_stop(store *s, int64_t now_ns);

/* In a rank: the thread that sends its status to the store at `url`. */
typedef struct status_sender status_sender;
status status_sender_start(const rendezvous_options *options, uint64_t token, const char *key,
                           const char *url, zsocket_context *context, status_sender **out);
void status_sender_stop(status_sender **s);

#endif
