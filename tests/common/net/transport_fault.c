#include "tests/common/net/transport_fault.h"

#include "common/net/transport_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct injection {
    transport *t;
    transport_fault_kind kind;
    int64_t message, sent;
    void *spoiled; /* Copy of a frame with one bit flipped, kept until this entry is used again. */
} injection;

enum { MOST_INJECTIONS = 64 };
/* The most recent injections. If a transport has several, the newest one is used. */
static injection injections[MOST_INJECTIONS];
static int injection_count;

static injection *injection_of(const transport *t)
{
    for (int i = injection_count; i-- > 0;)
        if (injections[i % MOST_INJECTIONS].t == t) return &injections[i % MOST_INJECTIONS];
    abort();
}

/* Counts the frames as used twice, since the second copy needs them, too. */
static void send_again(transport *t, int link, const message_header *header, const message_frame *frames,
                       int count, transport_ticket *ticket)
{
    if (count > 0) {
        atomic_fetch_add(&ticket->pending, count);
        atomic_fetch_add(&t->in_use, count);
    }
    if (t->type->send(t, link, header, frames, count, ticket) == STATUS_OK) return;
    /* If there is no room for the copy, the message is not doubled. */
    for (int i = 0; i < count; i++) transport_frame_released(ticket);
}

static status send_flipped(injection *j, int link, message_header header, const message_frame *frames,
                           int count, transport_ticket *ticket)
{
    message_frame changed[MESSAGE_FRAMES_MAX];
    if (count > 0) memcpy(changed, frames, (size_t)count * sizeof *frames);
    if (count > 0 && frames[0].bytes > 0) {
        free(j->spoiled);
        unsigned char *copy = j->spoiled = malloc(frames[0].bytes);
        if (!copy) return fail(STATUS_SYSTEM, "no memory to spoil a frame of %zu bytes", frames[0].bytes);
        memcpy(copy, frames[0].data, frames[0].bytes);
        copy[0] ^= 1;
        changed[0].data = copy;
    } else {
        header.step ^= 1;
    }
    return j->t->type->send(j->t, link, &header, changed, count, ticket);
}

static status send_with_fault(transport *t, int link, const message_header *header,
                              const message_frame *frames, int count, transport_ticket *ticket)
{
    injection *j = injection_of(t);
    status result = STATUS_OK;
    bool now = j->sent == j->message;
    if (now && j->kind == TRANSPORT_DROP)
        for (int i = 0; i < count; i++) transport_frame_released(ticket);
    else if (now && j->kind == TRANSPORT_FLIP)
        result = send_flipped(j, link, *header, frames, count, ticket);
    else
        result = t->type->send(t, link, header, frames, count, ticket);
    if (result != STATUS_OK) return result;
    if (now && j->kind == TRANSPORT_DOUBLE) send_again(t, link, header, frames, count, ticket);
    j->sent++;
    return STATUS_OK;
}

void transport_inject(transport *t, transport_fault_kind kind, int64_t message)
{
    injection *j = &injections[injection_count % MOST_INJECTIONS];
    free(j->spoiled);
    *j = (injection){.t = t, .kind = kind, .message = message};
    injection_count++;
    t->send = send_with_fault;
}
