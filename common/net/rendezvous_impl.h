/* Shared by rendezvous.c, which calls, and rendezvous_reach.c, which connects. */
#ifndef COMMON_NET_RENDEZVOUS_IMPL_H
#define COMMON_NET_RENDEZVOUS_IMPL_H

#include "common/net/key.h"
#include "common/net/rendezvous.h"
#include "common/net/rendezvous_place.h"
#include "common/net/rendezvous_store.h"
#include "common/net/rendezvous_wire.h"
#include "common/net/zmq_socket.h"

#include <zmq.h>

struct rendezvous {
    rendezvous_options options;
    rendezvous_place place;
    char address[PLACE_TEXT];
    uint64_t token;
    char key[NET_KEY_TEXT]; /* "": none, among threads */
    zsocket_context *context;
    bool own_context;
    store *store; /* of rank 0 */
    void *socket, *monitor;
    bool refused_by_stranger, connected, lost;
    bool denied;    /* the store wants another key */
    int hang_ups;   /* of whoever listens there, during handshakes one after the other */
    bool hello_due; /* the connection has come up */
    bool left;      /* the store has said goodbye */
    bool joined;    /* all ranks are there */
    rendezvous_member *members; /* [world] */
    zmq_msg_t *blobs;           /* [blob_count] of the last result */
    int blob_count;
    uint64_t sequence;
    unsigned char *arena; /* [RENDEZVOUS_ARENA_BYTES] */
    uint8_t *packet;      /* [RENDEZVOUS_PACKET_CAP] */
};

/* The store greets this rank, or else says why not. For file:// the address is read anew until then. */
status rendezvous_reach(rendezvous *r, int64_t deadline_ns);
/* Says goodbye, so that the store does not take the rank for lost. */
void rendezvous_leave(rendezvous *r);

/* STATUS_AGAIN where there is no connection. `data` is the blob behind the packet where `blob` says so. */
status rendezvous_send(rendezvous *r, const rendezvous_packet *packet, const void *data, size_t bytes,
                       bool blob);
/* Reads one packet and takes its blobs. STATUS_AGAIN: there is none. Probes are passed over. */
status rendezvous_read(rendezvous *r, rendezvous_packet *out);
/* Notices whether the store comes or goes. */
void rendezvous_notice(rendezvous *r);
/* Until there may be news, for a short while at most. Shows life, and asks first whether to stop. */
status rendezvous_sleep(rendezvous *r);
void rendezvous_forget_blobs(rendezvous *r);

#endif
