/* Opens and closes contexts, and decides which clients may connect to the sockets of a context. If a socket
 * has a key, libzmq sends a request to a handler (ZAP, RFC 27) for each connection. The handler is a thread
 * that sleeps between requests and ends with the context. */
#include "common/net/zmq_socket.h"

#include "common/net/key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum {
    /* number of descriptors for a context with two sockets, including the monitors and the connections of the
     * sockets */
    CONTEXT_FDS = 24,
    CONTEXT_THREADS = 2,
    ZAP_PARTS = 7, /* version, request, domain, address, identity, mechanism, key */
    ZAP_PART_BYTES = 256,
};

static void *wait_at(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Checks that enough descriptors and threads are available, because libzmq aborts the process if they run
 * out. */
static status check_resources(void)
{
    int fds[CONTEXT_FDS], opened = 0, started = 0;
    while (opened < CONTEXT_FDS && (fds[opened] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) opened++;
    for (int i = 0; i < opened; i++) close(fds[i]);
    if (opened < CONTEXT_FDS)
        return fail_errno(STATUS_SYSTEM, "ZeroMQ needs %d file descriptors, found %d", CONTEXT_FDS, opened);
    pthread_t threads[CONTEXT_THREADS];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&gate); /* The gate keeps every thread alive until all threads have started. */
    while (started < CONTEXT_THREADS &&
           (errno = pthread_create(&threads[started], NULL, wait_at, &gate)) == 0)
        started++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (started == CONTEXT_THREADS) return STATUS_OK;
    return fail_errno(STATUS_SYSTEM, "ZeroMQ needs %d threads, found %d", CONTEXT_THREADS, started);
}

status zsocket_context_open(zsocket_context **out)
{
    TRY(check_resources());
    zsocket_context *c = calloc(1, sizeof *c);
    if (!c) return fail(STATUS_SYSTEM, "ZeroMQ: no memory for a context");
    c->zmq = zmq_ctx_new();
    if (!c->zmq) {
        free(c);
        return fail_errno(STATUS_SYSTEM, "ZeroMQ: no context");
    }
    pthread_mutex_init(&c->lock, NULL);
    /* Unsent messages must not delay the end of the process. */
    zmq_ctx_set(c->zmq, ZMQ_BLOCKY, 0);
    zmq_ctx_set(c->zmq, ZMQ_IO_THREADS, 1);
    *out = c;
    return STATUS_OK;
}

void zsocket_context_close(zsocket_context **pointer)
{
    zsocket_context *c = *pointer;
    if (!c) return;
    while (zmq_ctx_term(c->zmq) != 0 && errno == EINTR) {
    }
    if (c->admits) pthread_join(c->admission, NULL);
    pthread_mutex_destroy(&c->lock);
    free(c);
    *pointer = NULL;
}

typedef struct zap_part {
    int bytes;
    char data[ZAP_PART_BYTES];
} zap_part;

/* Reads a request. Returns the number of parts, or -1 if the context is being closed. */
static int read_request(void *socket, zap_part parts[ZAP_PARTS])
{
    int count = 0, more = 1;
    while (more) {
        zap_part part;
        size_t size = sizeof more;
        part.bytes = zmq_recv(socket, part.data, sizeof part.data, 0);
        if (part.bytes < 0 && errno == EINTR) continue;
        if (part.bytes < 0) return -1;
        if (part.bytes > ZAP_PART_BYTES) part.bytes = ZAP_PART_BYTES;
        if (count < ZAP_PARTS) parts[count] = part;
        count++;
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
    }
    return count;
}

static bool is_text(const zap_part *part, const char *text)
{
    return part->bytes == (int)strlen(text) && memcmp(part->data, text, strlen(text)) == 0;
}

/* Returns true if the client's public key equals the domain of the request, which is the socket's public
 * key. */
static bool may_connect(const zap_part parts[ZAP_PARTS], int count)
{
    char key[NET_CURVE_TEXT];
    if (count != ZAP_PARTS || !is_text(&parts[5], "CURVE") || parts[6].bytes != NET_KEY_BYTES) return false;
    zmq_z85_encode(key, (const uint8_t *)parts[6].data, NET_KEY_BYTES);
    return is_text(&parts[2], key);
}

static void *admit(void *socket)
{
    zap_part parts[ZAP_PARTS];
    for (int count; (count = read_request(socket, parts)) >= 0;) {
        zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
        zmq_send(socket, parts[1].data, count > 1 ? (size_t)parts[1].bytes : 0, ZMQ_SNDMORE);
        zmq_send(socket, may_connect(parts, count) ? "200" : "400", 3, ZMQ_SNDMORE);
        for (int empty = 0; empty < 3; empty++) zmq_send(socket, "", 0, empty < 2 ? ZMQ_SNDMORE : 0);
    }
    zmq_close(socket);
    return NULL;
}

static status start(zsocket_context *c)
{
    void *socket = zmq_socket(c->zmq, ZMQ_REP);
    if (!socket || zmq_bind(socket, "inproc://zeromq.zap.01") != 0) {
        int reason = errno;
        if (socket) zmq_close(socket);
        return fail(STATUS_SYSTEM, "ZeroMQ: the keys of peers cannot be checked: %s", zmq_strerror(reason));
    }
    errno = pthread_create(&c->admission, NULL, admit, socket);
    c->admits = errno == 0;
    if (c->admits) return STATUS_OK;
    status result = fail_errno(STATUS_SYSTEM, "ZeroMQ: a thread");
    zmq_close(socket);
    return result;
}

status zsocket_admission_start(zsocket_context *context)
{
    pthread_mutex_lock(&context->lock);
    status result = context->admits ? STATUS_OK : start(context);
    pthread_mutex_unlock(&context->lock);
    return result;
}
