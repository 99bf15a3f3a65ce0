/* bench_zmq_bulk [PAIRS [MIB [MESSAGES]]]: sends bulk messages from one process to another in each round in
 * three ways: through the transport over ZeroMQ ipc, through the same transport with CURVE, and through a
 * bare unix socket. The reader of the bare socket first reads each message into fresh memory, that is, into
 * untouched pages, since a receiver may keep its message. In a second run it reads all messages into the same
 * buffer. Prints the rates of each round, and the medians of the transport's rate divided by each rate of the
 * socket (target: at least 0.8 of the socket with fresh memory). For CURVE it prints the ratio to the
 * transport without CURVE, with quartiles. Exits with 1 if the target is missed. The transport computes its
 * checksums on both sides, as in a run. */
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/net/key.h"
#include "common/net/transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TARGET 0.8
enum { MOST_PAIRS = 1000 };

typedef struct bulk {
    size_t bytes;
    int messages;
    const char *data;
} bulk;

static void stop(const char *what)
{
    fprintf(stderr, "bench_zmq_bulk: %s: %s\n", what, error_message());
    exit(70);
}

static double rate(const bulk *b, int64_t ns)
{
    return (double)b->bytes * b->messages / (double)ns;
}

/* ---- a bare socket ------------------------------------------------------------------------------ */

static char *map(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) stop("mmap");
    return at;
}

static double run_bare(const bulk *b, bool fresh)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) stop("socketpair");
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        for (int i = 0; i <= b->messages; i++)
            for (size_t at = 0; at < b->bytes;) {
                ssize_t written = write(ends[0], b->data + at, b->bytes - at);
                if (written <= 0) _exit(1);
                at += (size_t)written;
            }
        _exit(0);
    }
    close(ends[0]);
    int64_t begin = 0;
    char *buffer = map(b->bytes);
    for (int i = 0; i <= b->messages; i++) {
        /* The first message has arrived, so the other side has started. */
        if (i == 1) begin = clock_now_ns();
        for (size_t at = 0; at < b->bytes;) {
            ssize_t got = read(ends[1], buffer + at, b->bytes - at);
            if (got <= 0) stop("read");
            at += (size_t)got;
        }
        if (!fresh) continue;
        munmap(buffer, b->bytes);
        buffer = map(b->bytes);
    }
    double found = rate(b, clock_now_ns() - begin);
    munmap(buffer, b->bytes);
    close(ends[1]);
    waitpid(pid, NULL, 0);
    return found;
}

/* ---- the transport ------------------------------------------------------------------------------ */

static void send_all(const bulk *b, const char *url, uint64_t token)
{
    transport_options options = transport_defaults(1, 2, token, (int64_t)b->bytes);
    transport *t;
    transport_ticket ticket = {.wake = true};
    int link;
    if (transport_open(&transport_zmq, &options, &t) != STATUS_OK ||
        transport_connect(t, 0, url, &link) != STATUS_OK)
        stop("sender");
    const message_frame frame = {b->data, b->bytes};
    for (int i = 0; i <= b->messages;) {
        message_header h = {.kind = MESSAGE_PUSH, .step = i};
        status rc = transport_send(t, link, &h, &frame, 1, &ticket);
        if (rc == STATUS_OK)
            i++;
        else if (rc == STATUS_AGAIN)
            transport_wait(t, clock_now_ns() + NS_PER_S);
        else
            stop("send");
    }
    while (!transport_sent(&ticket)) transport_wait(t, clock_now_ns() + NS_PER_S);
    transport_close(&t, 5 * NS_PER_S);
}

static double run_transport(const bulk *b, bool curve)
{
    char url[128], key[NET_KEY_TEXT];
    uint64_t token = random_token();
    if (net_key_draw(key) != STATUS_OK) stop("key");
    snprintf(url, sizeof url, "ipc://@psring-bulk-%016" PRIx64 "%s%s", token, curve ? "/" : "",
             curve ? key : "");
    pid_t pid = fork(); /* Forks before this process has threads of ZeroMQ. */
    if (pid == 0) {
        send_all(b, url, token);
        _exit(0);
    }
    transport_options options = transport_defaults(0, 2, token, (int64_t)b->bytes);
    transport *t;
    if (transport_open(&transport_zmq, &options, &t) != STATUS_OK ||
        transport_listen(t, url, NULL, 0) != STATUS_OK)
        stop("receiver");
    int64_t begin = 0;
    for (int got = 0; got <= b->messages;) {
        transport_message m;
        status rc = transport_receive(t, &m);
        if (rc == STATUS_AGAIN) {
            transport_wait(t, clock_now_ns() + NS_PER_S);
            continue;
        }
        if (rc != STATUS_OK) stop("receive");
        transport_release(t, &m);
        if (got++ == 0) begin = clock_now_ns();
    }
    double found = rate(b, clock_now_ns() - begin);
    transport_close(&t, 0);
    waitpid(pid, NULL, 0);
    return found;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int pairs = argc > 1 ? atoi(argv[1]) : 15;
    int mib = argc > 2 ? atoi(argv[2]) : 25;
    bulk b = {.bytes = (size_t)mib << 20, .messages = argc > 3 ? atoi(argv[3]) : 16};
    if (pairs < 1 || pairs > MOST_PAIRS || mib < 1 || b.messages < 1) return 64;
    static double to_fresh[MOST_PAIRS], to_reused[MOST_PAIRS], to_plain[MOST_PAIRS];
    char *data = malloc(b.bytes);
    if (!data) return 71;
    memset(data, 7, b.bytes);
    b.data = data;
    printf("# %d messages of %d MiB, GB/s\n", b.messages, mib);
    printf("#  transport   bare, fresh   ratio   bare, one buffer   ratio   with CURVE   ratio\n");
    for (int i = 0; i < pairs; i++) {
        /* In every second round the transport with CURVE runs first. */
        bool first = i % 2 == 0;
        double curve = first ? run_transport(&b, true) : 0, ours = run_transport(&b, false);
        if (!first) curve = run_transport(&b, true);
        double fresh = run_bare(&b, true), reused = run_bare(&b, false);
        to_fresh[i] = ours / fresh;
        to_reused[i] = ours / reused;
        to_plain[i] = curve / ours;
        printf("%11.2f %13.2f %7.3f %18.2f %7.3f %12.2f %7.3f\n", ours, fresh, to_fresh[i], reused,
               to_reused[i], curve, to_plain[i]);
        fflush(stdout);
    }
    free(data);
    qsort(to_fresh, (size_t)pairs, sizeof *to_fresh, ascending);
    qsort(to_reused, (size_t)pairs, sizeof *to_reused, ascending);
    qsort(to_plain, (size_t)pairs, sizeof *to_plain, ascending);
    double median = to_fresh[pairs / 2];
    bool met = to_fresh[0] >= TARGET;
    printf("# median ratios %.3f and %.3f; the first at least %.1f: %s\n", median, to_reused[pairs / 2],
           TARGET,
           pairs == 1 ? met ? "a single measurement, within" : "a single measurement, beyond"
           : met      ? "met"
           : to_fresh[pairs - 1] < TARGET ? "missed"
                                          : "undecided");
    printf("# with CURVE %.3f of the transport's rate (quartiles %.3f to %.3f, %d pairs)\n",
           to_plain[pairs / 2], to_plain[pairs / 4], to_plain[3 * pairs / 4], pairs);
    if (pairs > 1)
        printf("%d rounds, spread %.1f %%\n", pairs, 100 * (to_fresh[pairs - 1] - to_fresh[0]) / median);
    else
        printf("a single measurement\n");
    return met ? 0 : 1;
}
