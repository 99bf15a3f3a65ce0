/* Shared by rendezvous_store*.c. */
#ifndef COMMON_NET_RENDEZVOUS_STORE_IMPL_H
#define COMMON_NET_RENDEZVOUS_STORE_IMPL_H

#include "common/net/rendezvous_store.h"
#include "common/net/rendezvous_wire.h"
#include "common/net/zmq_socket.h"

#include <pthread.h>
#include <zmq.h>

/* Who sent a message: what the ROUTER put in front of it. */
typedef struct store_identity {
    unsigned char bytes[ZSOCKET_IDENTITY_BYTES];
} store_identity;

typedef struct store_member {
    bool joined, ended, lost;
    store_identity identity;
    char host[64];
    uint32_t pid;
    bool called; /* in the present call, with `blob` */
    int64_t deadline_ns;
    zmq_msg_t blob;
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
    char address[PLACE_TEXT], own_url[64];
    zsocket_context *context;
    void *router, *monitor;
    int stop_fd;
    pthread_t thread;
    bool running;
    store_member *members; /* [world] */
    int joined;
    store_call call;
    status failed; /* other than STATUS_OK: every rank is told, nothing is carried out any more */
    char failure[1024];
    int64_t strangers;     /* connections and messages ignored */
    int probe_rounds;
    int64_t probe_ns;
    unsigned char *arena;  /* [RENDEZVOUS_ARENA_BYTES] */
    uint8_t *packet;       /* [RENDEZVOUS_PACKET_CAP] */
};

/* rendezvous_store_tell.c */
/* The packet and, behind it, the blobs of `count` members from `first` on. */
void store_send(store *s, const store_identity *to, const rendezvous_packet *packet, store_member *first,
                int count);
void store_fail(store *s, status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void store_forget_blobs(store *s); /* of the call that is under way, which thereby ends */
void store_lost(store *s, int rank);
void store_ignore(store *s, const char *what);
/* "rank 2 (HOST, process 71)". Returns `buffer`; 128 bytes are enough. */
char *store_name(const store *s, int rank, char *buffer, size_t size);

/* rendezvous_hello.c: greets or refuses. */
void store_greet(store *s, const store_identity *from, const rendezvous_packet *hello);

/* rendezvous_call.c: carries out. Takes the content of `blob`. */
void store_take_call(store *s, int rank, const rendezvous_packet *call, zmq_msg_t *blob);
int64_t store_next_deadline(const store *s); /* CLOCK_NEVER: no call is under way */
void store_check_deadline(store *s, int64_t now_ns);

#endif
