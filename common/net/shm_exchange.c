/* Exchanges segments. Every rank listens at an abstract address, and connects to the addresses of all peers.
 * The address of a rank is derived from the job token, the name of the exchange and the rank. A connection
 * carries one request, then one reply with the descriptors. SOCK_SEQPACKET delivers each message in one
 * piece. */
#include "common/net/shm.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "common/net/key.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define EXCHANGE_MAGIC UINT32_C(0x53584731) /* the last digit is the version of the layout */

enum {
    RETRY_NS = 5000000,  /* pause between attempts to reach a peer that does not listen yet */
    EXTRA_INCOMING = 16, /* number of connections that may be open besides one connection per peer */
};

typedef struct segment_request {
    uint32_t magic;
    int32_t rank;
    uint64_t token, name_hash;
} segment_request;

/* A reply. The descriptors of `count` segments are sent with the reply. */
typedef struct segment_reply {
    uint32_t magic;
    int32_t rank;
    uint64_t token;
    int32_t count, reserved;
    int64_t bytes[SHM_EXCHANGE_MAX];
} segment_reply;

typedef union descriptors {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(SHM_EXCHANGE_MAX * sizeof(int))];
} descriptors;

typedef struct exchange {
    const shm_exchange_options *options;
    shm_segment *peers;
    /* [1 + world + incoming_max] descriptors: the listener, then `outgoing`, then `incoming` */
    struct pollfd *polled;
    struct pollfd *outgoing; /* [world] connections to the peers' listeners; fd is -1 if there is none */
    struct pollfd *incoming; /* [incoming_max] accepted connections with unread requests; fd is -1 if free */
    bool *fetched, *served;  /* [world] */
    int incoming_max, refusals;
    int64_t retry_ns;
} exchange;

/* Writes the address of a rank. Any user can read the names of abstract sockets. However, neither the token
 * nor the address of another rank can be computed from the name of a socket. */
static socklen_t address_of(const exchange *x, int rank, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    char text[64];
    snprintf(text, sizeof text, "%s %d", x->options->name, rank);
    int used = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "psring-%016" PRIx64,
                        net_public_number(x->options->token, text));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void refuse(exchange *x, int *fd, const char *why)
{
    if (x->refusals++ == 0)
        log_warn("shared memory exchange '%s': refused a connection: %s", x->options->name, why);
    close(*fd);
    *fd = -1;
}

static status open_socket(const exchange *x, int *out)
{
    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*out >= 0) return STATUS_OK;
    return fail_errno(STATUS_SYSTEM, "shared memory exchange '%s': no socket", x->options->name);
}

static status listen_for_peers(exchange *x)
{
    struct sockaddr_un address;
    socklen_t size = address_of(x, x->options->rank, &address);
    int *fd = &x->polled[0].fd;
    TRY(open_socket(x, fd));
    if (bind(*fd, (struct sockaddr *)&address, size) != 0)
        return fail_errno(errno == EADDRINUSE ? STATUS_UNAVAILABLE : STATUS_SYSTEM,
                          "shared memory exchange '%s': address @%s", x->options->name, address.sun_path + 1);
    if (listen(*fd, x->options->world + EXTRA_INCOMING) != 0)
        return fail_errno(STATUS_SYSTEM, "shared memory exchange '%s': cannot listen", x->options->name);
    return STATUS_OK;
}

/* Connects to a peer and requests the segments of the peer. If the peer does not listen yet, or its queue is
 * full, the next call tries again. */
static status request_segments(exchange *x, int rank)
{
    const shm_exchange_options *o = x->options;
    const segment_request request = {EXCHANGE_MAGIC, o->rank, o->token, random_fnv1a64(o->name)};
    struct sockaddr_un address;
    socklen_t size = address_of(x, rank, &address);
    status result = STATUS_OK;
    int fd;
    TRY(open_socket(x, &fd));
    bool connected = connect(fd, (struct sockaddr *)&address, size) == 0;
    if (connected && !same_user(fd))
        result = fail(STATUS_PERMISSION, "shared memory exchange '%s': rank %d is run by another user",
                      o->name, rank);
    else if (connected && send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request)
        x->outgoing[rank].fd = fd;
    if (x->outgoing[rank].fd != fd) close(fd);
    return result;
}

static void accept_peers(exchange *x)
{
    /* The number of accepted connections is limited, because other processes may open many connections. */
    for (int i = 0; i < x->incoming_max; i++) {
        int fd = accept4(x->polled[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return;
        int slot = 0;
        while (slot < x->incoming_max && x->incoming[slot].fd >= 0) slot++;
        if (!same_user(fd))
            refuse(x, &fd, "another user");
        else if (slot == x->incoming_max)
            refuse(x, &fd, "too many at once");
        else
            x->incoming[slot].fd = fd;
    }
}

static bool send_segments(const shm_exchange_options *o, int fd)
{
    segment_reply out = {.magic = EXCHANGE_MAGIC, .rank = o->rank, .token = o->token, .count = o->count};
    descriptors control = {0};
    struct iovec part = {&out, sizeof out};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE((size_t)o->count * sizeof(int))};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN((size_t)o->count * sizeof(int));
    for (int i = 0; i < o->count; i++) {
        out.bytes[i] = o->own[i].bytes;
        memcpy(CMSG_DATA(rights) + (size_t)i * sizeof(int), &o->own[i].fd, sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof out;
}

static void serve(exchange *x, int *fd)
{
    const shm_exchange_options *o = x->options;
    segment_request request;
    ssize_t got = recv(*fd, &request, sizeof request, MSG_TRUNC);
    if (got < 0 && errno == EAGAIN) return;
    if (got != (ssize_t)sizeof request || request.magic != EXCHANGE_MAGIC) {
        refuse(x, fd, "not a request of this version");
    } else if (request.token != o->token || request.name_hash != random_fnv1a64(o->name)) {
        refuse(x, fd, "of another job");
    } else if (request.rank < 0 || request.rank >= o->world || request.rank == o->rank) {
        refuse(x, fd, "its rank is out of range");
    } else {
        if (send_segments(o, *fd)) x->served[request.rank] = true;
        close(*fd);
        *fd = -1;
    }
}

/* Returns the number of descriptors that came with the message, at most SHM_EXCHANGE_MAX. The kernel passes
 * all descriptors of a message in one control message. */
static int received_descriptors(struct msghdr *message, int *fds)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(message);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) return 0;
    size_t bytes = c->cmsg_len - CMSG_LEN(0);
    memcpy(fds, CMSG_DATA(c), bytes);
    return (int)(bytes / sizeof(int));
}

static status map_segments(exchange *x, int rank, const segment_reply *in, const int *fds, int count)
{
    const shm_exchange_options *o = x->options;
    char whose[32];
    snprintf(whose, sizeof whose, "rank %d", rank);
    int taken = 0;
    status result = STATUS_OK;
    if (in->magic != EXCHANGE_MAGIC || in->token != o->token || in->rank != rank)
        result = fail(STATUS_PROTOCOL, "shared memory exchange '%s': %s answers with another job or version",
                      o->name, whose);
    else if (in->count != o->count || count != o->count)
        result = fail(STATUS_PROTOCOL, "shared memory exchange '%s': %s has %d segments, rank %d has %d",
                      o->name, whose, (int)in->count, o->rank, o->count);
    for (; result == STATUS_OK && taken < count; taken++)
        result = shm_map(fds[taken], in->bytes[taken], whose, &x->peers[rank * o->count + taken]);
    for (; taken < count; taken++) close(fds[taken]);
    x->fetched[rank] = result == STATUS_OK;
    return result;
}

static status fetch(exchange *x, int rank)
{
    segment_reply in;
    int fds[SHM_EXCHANGE_MAX], *fd = &x->outgoing[rank].fd;
    descriptors control;
    struct iovec part = {&in, sizeof in};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(*fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EAGAIN) return STATUS_OK;
    close(*fd);
    *fd = -1;
    /* If the peer has refused the request, this rank tries again. */
    if (got != (ssize_t)sizeof in) return STATUS_OK;
    int count = received_descriptors(&message, fds);
    if (message.msg_flags & MSG_CTRUNC) {
        for (int i = 0; i < count; i++) close(fds[i]);
        errno = EMFILE;
        return fail_errno(STATUS_SYSTEM, "shared memory exchange '%s': no descriptors for rank %d's segments",
                          x->options->name, rank);
    }
    return map_segments(x, rank, &in, fds, count);
}

/* Returns the number of ranks with which this rank has not completed the exchange. If `names` is not NULL,
 * lists these ranks in `names`. */
static int count_missing(const exchange *x, text_buffer *names)
{
    int count = 0;
    for (int r = 0; r < x->options->world; r++) {
        if (r == x->options->rank || (x->fetched[r] && x->served[r])) continue;
        const int *numbers = x->options->numbers;
        if (names) text_append(names, "%s%d", count ? ", " : "", numbers ? numbers[r] : r);
        count++;
    }
    return count;
}

static status late(const exchange *x)
{
    text_buffer missing = {0};
    int count = count_missing(x, &missing);
    const shm_exchange_options *o = x->options;
    const char *names = missing.data ? missing.data : "?", *plural = count == 1 ? "" : "s";
    status result = o->group
                        ? fail(STATUS_PEER,
                               "group '%s': no answer from rank%s %s in time; all its ranks must open it, "
                               "and open their common groups in the same order",
                               o->group, plural, names)
                        : fail(STATUS_PEER, "shared memory exchange '%s': no answer from rank%s %s in time",
                               o->name, plural, names);
    text_free(&missing);
    return result;
}

static status advance(exchange *x)
{
    const shm_exchange_options *o = x->options;
    int64_t now = clock_now_ns();
    if (now >= o->deadline_ns) return late(x);
    if (o->canceled && o->canceled(o->context))
        return fail(STATUS_STOPPED, "shared memory exchange '%s': stopped on request", o->name);
    if (now >= x->retry_ns) {
        for (int r = 0; r < o->world; r++)
            if (r != o->rank && !x->fetched[r] && x->outgoing[r].fd < 0) TRY(request_segments(x, r));
        x->retry_ns = now + RETRY_NS;
    }
    if (poll(x->polled, (nfds_t)(1 + o->world + x->incoming_max), RETRY_NS / 1000000) <= 0) return STATUS_OK;
    if (x->polled[0].revents) accept_peers(x);
    for (int r = 0; r < o->world; r++)
        if (x->outgoing[r].revents) TRY(fetch(x, r));
    for (int i = 0; i < x->incoming_max; i++)
        if (x->incoming[i].revents) serve(x, &x->incoming[i].fd);
    return STATUS_OK;
}

static status open_exchange(exchange *x)
{
    size_t world = (size_t)x->options->world;
    x->incoming_max = x->options->world + EXTRA_INCOMING;
    x->fetched = calloc(2 * world, sizeof *x->fetched);
    x->polled = calloc(1 + world + (size_t)x->incoming_max, sizeof *x->polled);
    if (!x->fetched || !x->polled)
        return fail(STATUS_SYSTEM, "shared memory exchange '%s': no memory", x->options->name);
    x->served = x->fetched + world;
    x->outgoing = x->polled + 1;
    x->incoming = x->outgoing + world;
    for (size_t i = 0; i < 1 + world + (size_t)x->incoming_max; i++)
        x->polled[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    return listen_for_peers(x);
}

static void close_exchange(exchange *x)
{
    for (int i = 0; x->outgoing && i < 1 + x->options->world + x->incoming_max; i++)
        if (x->polled[i].fd >= 0) close(x->polled[i].fd);
    free(x->fetched);
    free(x->polled);
}

status shm_exchange(const shm_exchange_options *options, shm_segment *peers)
{
    exchange x = {.options = options, .peers = peers};
    size_t segments = (size_t)options->world * (size_t)options->count;
    memset(peers, 0, segments * sizeof *peers);
    status result;
    TRY_GOTO(result, open_exchange(&x), done);
    while (count_missing(&x, NULL) > 0) TRY_GOTO(result, advance(&x), done);
done:
    close_exchange(&x);
    for (size_t i = 0; result != STATUS_OK && i < segments; i++) shm_close(&peers[i]);
    return result;
}
