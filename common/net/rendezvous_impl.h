/* Types that the following files of the rendezvous share:
 *
 *   rendezvous_address.c      parses an address
 *   rendezvous_wire.c         packs and unpacks packets
 *   rendezvous.c              joins and leaves the rendezvous, on a rank
 *   rendezvous_calls.c        makes collective calls, on a rank
 *   rendezvous_store.c        runs the store, which accepts ranks and sends results
 *   rendezvous_store_calls.c  handles hellos and calls in the store
 *   rendezvous_status.c       lets ranks without a common status table stop together */
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
    RENDEZVOUS_HELLO,   /* rank to store; contains code and text if the rank has failed */
    RENDEZVOUS_WELCOME, /* answer to a hello */
    RENDEZVOUS_REFUSED, /* answer to a hello; contains code and text */
    RENDEZVOUS_CALL,    /* rank to store, followed by one blob */
    RENDEZVOUS_RESULT,  /* answer to a call, followed by the blobs of the result */
    RENDEZVOUS_FAILED,  /* rank to store, then store to every rank; contains code and text */
    RENDEZVOUS_BYE,     /* rank to store or store to rank; announces an orderly end */
    /* Rank to store, and the store's answer. The rank sends token, rank, progress, step and signal. The
     * answer contains only progress and signal. */
    RENDEZVOUS_STATUS,
    RENDEZVOUS_STOP, /* store to rank; contains the signal, and the last step to run */
    RENDEZVOUS_KIND_COUNT
} rendezvous_kind;

/* A packet. NULL strings are packed as "", so an unpacked packet contains no NULL string. */
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
    const char *call; /* operation and tag, for example "barrier 'end'" */
    /* first rank whose blob is in the result; `blobs` is the number of blobs in the result */
    int root;
    int64_t timeout_ms;
    status code;
    const char *text;
    int blobs;
    /* Progress of the rank's slot. In an answer, the sum of the progress of all other ranks. */
    uint64_t progress;
    int64_t step;
    int signal; /* Signal that requests a stop, or 0. */
} rendezvous_packet;

#define RENDEZVOUS_PEER_TIMEOUT_NS (10 * NS_PER_S)
enum {
    RENDEZVOUS_PACKET_CAP = 64 * 1024,
    RENDEZVOUS_ARENA_BYTES = 4 * RENDEZVOUS_PACKET_CAP, /* largest size of an unpacked packet in bytes */
};

/* Packs a packet. Returns the number of bytes written, or 0 if `size` is too small. */
size_t rendezvous_pack(const rendezvous_packet *packet, uint8_t *out, size_t size);

/* Unpacks a packet. The strings of `out` are in arena[RENDEZVOUS_ARENA_BYTES], which is aligned to 16. Fails
 * with STATUS_PROTOCOL if the bytes are not a packet. The error message contains the reason. Ignores unknown
 * fields, so that the store can answer a hello of any protocol version. */
status rendezvous_unpack(const void *bytes, size_t count, void *arena, rendezvous_packet *out);

/* ---- addresses: what a URL means for rank 0 and for the others ---- */

enum { ADDRESS_TEXT = 256 };

typedef struct rendezvous_endpoints {
    char listen[ADDRESS_TEXT];
    /* Address to which other ranks connect. `connect` is "" for file://, because the ranks read the address
     * from the file. */
    char connect[ADDRESS_TEXT];
    char path[ADDRESS_TEXT]; /* path of the file if the URL is file://, else "" */
} rendezvous_endpoints;

/* Parses a URL. Fails with STATUS_USAGE if the URL is malformed, and with STATUS_CONFIG if an environment
 * variable that env:// needs is missing. */
status rendezvous_address_parse(const char *url, rendezvous_endpoints *out);

/* Sets the address at which other ranks reach the store, which listens at `bound`. For file://, replaces the
 * host in `bound` by the host of the options. If the options contain no host, replaces it by the address of
 * the first network interface that is not loopback. */
void rendezvous_address_reachable(rendezvous *r, const char *bound);

/* If the address is file://, writes address, token and key atomically to a file that only this user can read.
 * Fails with STATUS_CANNOT_CREATE. */
status rendezvous_address_publish(const rendezvous *r);
/* Removes the file of a file:// address if the file still contains the token. */
void rendezvous_address_withdraw(const rendezvous *r);
/* Reads address[ADDRESS_TEXT], token and key[NET_KEY_TEXT] from the file. Returns false if there is no file,
 * if the file is incomplete or malformed, or if it belongs to another user. */
bool rendezvous_address_lookup(const char *path, char *address, uint64_t *token, char *key);

/* Writes to `buffer` why a tcp:// address cannot be reached, for example ": the name 'x' is not known (...)",
 * or "" if no reason is found. Returns `buffer`. */
char *rendezvous_address_diagnose(const char *address, char *buffer, size_t size);

/* ---- the store: a thread of rank 0 that accepts ranks and carries out their calls ---- */

typedef struct store store;

enum { STORE_CALL_BYTES = 80 };

/* Listens, then starts the thread. `r` must outlive the store. */
status store_start(const rendezvous *r, store **out);
/* Sends a goodbye to the ranks, flushes, and ends the thread. */
void store_stop(store **s);

typedef struct store_member {
    bool joined, ended, lost;
    /* identity of the rank's socket; libzmq puts it before each message of the rank */
    zsocket_identity identity;
    char host[64];
    uint32_t pid;
    bool called; /* true if the rank has made the current call; `blob` is then the rank's contribution */
    int64_t limit_ns, deadline_ns;
    zmq_msg_t blob;
    /* `has_status` is true if the rank has sent its status. The following fields hold the last status, and
     * the identity of the socket from which it came. */
    bool has_status;
    zsocket_identity watcher;
    uint64_t progress;
    int64_t step;
    /* Signal that requests a stop, or 0. A rank that has reported a signal begins no step after `step` until
     * the store has decided the last step. */
    int signal;
} store_member;

/* The current collective call. Calls run one after another. */
typedef struct store_call {
    uint64_t sequence;
    int callers, first;          /* `first` is the rank that called first */
    char name[STORE_CALL_BYTES]; /* operation and tag */
    int root, blobs;
} store_call;

struct store {
    const rendezvous_options *options;
    int world;
    uint64_t token;
    char address[ADDRESS_TEXT];
    char own_url[64]; /* inproc:// URL to which rank 0 connects */
    zsocket router;
    int stop_fd;
    pthread_t thread;
    store_member *members; /* [world] */
    /* Number of awaited ranks whose hello the store has answered. The answer is a welcome, or a refusal if
     * the job fails. Hellos of other processes do not count. */
    atomic_int joined;
    store_call call;
    status failed; /* STATUS_OK, or the error that every rank receives instead of results */
    char failure[1024];
    int64_t strangers;
    int signal; /* Signal that stops the job, or 0. */
    bool decided;
    /* Time until which the store waits for the ranks to report the steps that they have begun. */
    int64_t decide_ns;
    _Alignas(16) unsigned char arena[RENDEZVOUS_ARENA_BYTES];
    uint8_t packet[RENDEZVOUS_PACKET_CAP];
};

/* rendezvous_store.c */
/* Sends the packet, then the blobs of `count` members, beginning with `first`. */
void store_send(store *s, const zsocket_identity *to, const rendezvous_packet *packet, store_member *first,
                int count);
void store_fail(store *s, status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void store_release_blobs(store *s); /* ends the current call and releases its blobs */
void store_reject(store *s, const char *what);
/* Formats "rank 2 (HOST, process 71)". A `size` of 128 is enough. Returns `buffer`. */
char *store_name(const store *s, int rank, char *buffer, size_t size);

/* rendezvous_store_calls.c */
void store_receive_hello(store *s, const zsocket_identity *from, const rendezvous_packet *hello);
void store_receive_failure(store *s, int rank, const rendezvous_packet *failure);
/* Handles the call of a rank. Takes ownership of the content of `blob`. */
void store_receive_call(store *s, int rank, const rendezvous_packet *call, zmq_msg_t *blob);
int64_t store_next_deadline(const store *s); /* returns CLOCK_NEVER if no call is pending */
void store_check_deadline(store *s, int64_t now_ns);

/* ---- a rank ---- */

typedef struct status_sender status_sender;

struct rendezvous {
    rendezvous_options options;
    rendezvous_endpoints endpoints;
    char address[ADDRESS_TEXT];
    uint64_t token;
    char key[NET_KEY_TEXT]; /* "" if ranks are threads of one process */
    zsocket_context *context;
    bool own_context;
    store *store; /* the store, only on rank 0 */
    status_sender *sender;
    int64_t canceled_ns; /* time at which canceled() first returned true, or 0 if it has not */
    zsocket socket;
    bool refused_by_stranger, connected, lost;
    bool denied;    /* true if the store requires another key */
    int hang_ups;   /* number of consecutive handshakes that the listener has ended */
    bool hello_due; /* true if the connection is up and the hello has not been sent */
    bool left;      /* true if the store has said goodbye */
    bool counted;   /* true if the store has answered this rank's hello */
    bool joined;
    rendezvous_member own, *members; /* [world] */
    zmq_msg_t *blobs;                /* [blob_count] blobs of the last result */
    int blob_count;
    uint64_t sequence;
    _Alignas(16) unsigned char arena[RENDEZVOUS_ARENA_BYTES];
    uint8_t packet[RENDEZVOUS_PACKET_CAP];
};

/* rendezvous_calls.c */
/* Sends a packet, followed by the blob unless `blob` is NULL. Returns STATUS_AGAIN if the store is not
 * connected. */
status rendezvous_send(rendezvous *r, const rendezvous_packet *packet, const rendezvous_blob *blob);
/* Receives a packet. The blobs of a result replace the blobs of the previous result. Returns STATUS_AGAIN if
 * no packet has arrived. */
status rendezvous_receive(rendezvous *r, rendezvous_packet *out);
void rendezvous_read_events(rendezvous *r); /* reads the events of the connection */
/* Waits until a packet arrives, but at most a fraction of a second. Fails if canceled() returns true before
 * all ranks have joined. */
status rendezvous_wait_briefly(rendezvous *r);
void rendezvous_release_blobs(rendezvous *r);

/* ---- rendezvous_status.c ---- */

/* In the store: store_receive_status() handles the status that a rank has sent. store_decide_stop() decides
 * the last step when all ranks have reported the steps that they have begun, or a time limit has passed. */
void store_receive_status(store *s, const zsocket_identity *from, const rendezvous_packet *status);
void store_decide_stop(store *s, int64_t now_ns);

/* On a rank: the following functions start and stop the thread that sends the rank's status to the store at
 * `url`. */
status status_sender_start(const rendezvous *r, const char *url, status_sender **out);
void status_sender_stop(status_sender **s);

#endif
