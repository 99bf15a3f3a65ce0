/* Sends garbage to a server's port while a job trains. The server must reject the garbage with bounded
 * memory, and the result must be bit-identical to plain loops. */
#include "common/base/random.h"
#include "common/net/key.h"
#include "common/net/message_wire.h"
#include "common/net/zmq_socket.h"
#include "ps/engine_impl.h"
#include "tests/ps/job.h"
#include "tests/support/check.h"
#include "tests/support/sanitized.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum { SLACK = SANITIZED ? 4 : 1 }; /* sanitizers free memory late */
enum { STEPS = 12, LARGEST_GROWTH_KIB = SLACK * (200 << 10) };

typedef struct stranger {
    char url[PS_URL_MAX];
    uint64_t token;
    atomic_bool done;
    pthread_t thread;
} stranger;

/* ---- below ZMTP --------------------------------------------------------------------------------- */

static int connect_tcp(const char *url)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void say(const char *url, const void *bytes, size_t count)
{
    int fd = connect_tcp(url);
    if (fd < 0) return;
    ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL); /* the server may have closed the connection */
    (void)sent;
    clock_sleep_ns(5 * NS_PER_MS);
    close(fd);
}

static void speak_no_zmtp(const char *url)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scan\r\n\r\n";
    uint64_t noise[4096];
    for (int i = 0; i < 4096; i++) noise[i] = random_bits(1, (uint64_t)i);
    say(url, http, sizeof http - 1);
    say(url, noise, sizeof noise);
    say(url, "\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);         /* truncated greeting */
    say(url, "\x01\0\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0", 12); /* ZMTP 1.0, frame of 2^63 bytes */
    say(url, "", 0);
}

/* ---- above ZMTP --------------------------------------------------------------------------------- */

/* Opens a peer that has the key, like a defective member of the job. */
static zsocket open_peer(zsocket_context *context, const stranger *s, uint64_t token, int rank)
{
    zsocket socket = {0};
    char *address = net_address_without_key(s->url);
    const zsocket_options options = {.type = ZMQ_DEALER,
                                     .frame_bytes = 64 << 20,
                                     .queue = 64,
                                     .token = token,
                                     .rank = rank,
                                     .key = net_address_key(s->url)};
    zsocket_open(context, &options, address, NULL, 0, &socket);
    free(address);
    return socket;
}

/* Writes `depth` nested submessages, each as length-delimited field 1, the innermost first. */
static size_t nest(uint8_t *out, size_t size, int depth)
{
    size_t at = size;
    for (int i = 0; i < depth; i++) {
        size_t length = size - at;
        uint8_t head[8] = {0x0a};
        size_t used = 1;
        for (; length >= 0x80; length >>= 7) head[used++] = (uint8_t)(length | 0x80);
        head[used++] = (uint8_t)length;
        if (at < used) break;
        at -= used;
        memcpy(out + at, head, used);
    }
    memmove(out, out + at, size - at);
    return size - at;
}

static void speak_garbage(const stranger *s, uint64_t token, int rank)
{
    zsocket_context *context = NULL;
    zsocket peer = {0};
    enum { BIG = 20 << 20 };
    uint8_t *big = calloc(1, BIG);
    if (!big || zsocket_context_open(&context) != STATUS_OK) goto out;
    peer = open_peer(context, s, token, rank);
    void *socket = peer.zmq;
    if (!socket) goto out;
    uint8_t header[MESSAGE_HEADER_BYTES];
    message_header push = {.kind = MESSAGE_PUSH, .sender = rank, .token = token, .count = 1000, .key = 3};
    size_t used = message_pack(&push, header);
    for (size_t cut = 0; cut < used; cut++) zmq_send(socket, header, cut, 0); /* headers that are cut off */
    for (int i = 0; i < 64; i++) {
        uint64_t noise[8];
        for (int j = 0; j < 8; j++) noise[j] = random_bits(2, (uint64_t)(8 * i + j));
        zmq_send(socket, noise, sizeof noise, 0);
    }
    zmq_send(socket, big, nest(big, 60000, 20000), 0); /* nested, below the size limit */
    /* Nested, and above the size limit. */
    zmq_send(socket, big, nest(big, 200000, 60000), 0);
    for (size_t i = 0; i + 1 < BIG; i += 2) big[i] = 0x0a, big[i + 1] = 0; /* 10 million empty submessages */
    zmq_send(socket, big, BIG, 0);
    zmq_send(socket, header, used, ZMQ_SNDMORE); /* frames that the header does not announce */
    for (int i = 0; i < 100; i++) zmq_send(socket, big, 1000, ZMQ_SNDMORE);
    zmq_send(socket, big, 1000, 0);
    zmq_send(socket, header, used, ZMQ_SNDMORE);
    zmq_send(socket, big, BIG, 0); /* frame above the agreed size */
    clock_sleep_ns(50 * NS_PER_MS);
out:
    zsocket_close(&peer, 0);
    zsocket_context_close(&context);
    free(big);
}

static void *disturb(void *argument)
{
    stranger *s = argument;
    for (int round = 0; round < 3; round++) {
        speak_no_zmtp(s->url);
        speak_garbage(s, s->token + 1, 1); /* token of another job */
        speak_garbage(s, s->token, 77);    /* rank out of range */
        speak_garbage(s, 0, 0);
    }
    atomic_store(&s->done, true);
    return NULL;
}

/* ---- the job ------------------------------------------------------------------------------------ */

static long resident_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static status train(local_ranks *group, job_rank *r)
{
    stranger *s = r->job->context;
    job_reference expected;
    status rc = STATUS_OK;
    if (r->rank == 0) {
        snprintf(s->url, sizeof s->url, "%s", ((const ps_engine *)r->engine)->member.url);
        s->token = r->job->token;
        if (pthread_create(&s->thread, NULL, disturb, s) != 0) return STATUS_SYSTEM;
    }
    job_reference_open(r->job, &expected);
    for (int64_t step = 0; step < STEPS && rc == STATUS_OK; step++) {
        rc = job_step(r);
        job_reference_step(r->job, &expected, step);
        clock_sleep_ns(20 * NS_PER_MS); /* strangers send during every step */
        if (step + 2 == STEPS && r->rank == 0) pthread_join(s->thread, NULL);
    }
    if (rc == STATUS_OK) rc = sync_ps.flush(r->engine);
    if (rc == STATUS_OK) job_expect_params(r, expected.params);
    job_reference_close(&expected);
    if (rc == STATUS_OK) rc = local_ranks_barrier(group);
    return rc;
}

static void a_job_goes_on_whatever_strangers_send_to_its_server(void **state)
{
    (void)state;
    static const char *const options[] = {"--transport tcp --payload zmq", "--transport tcp --payload shm"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        stranger s = {.token = 0};
        job j;
        job_config config = {.world = 3, .processes = true, .options = options[i], .scale = 0.3};
        job_open(&config, &j);
        j.context = &s;
        long before = resident_kib();
        status rc = job_run(&j, train);
        if (rc != STATUS_OK) fail_msg("%s: %s: %s", options[i], status_name(rc), error_message());
        assert_true(atomic_load(&s.done));
        long grown = resident_kib() - before;
        if (grown > LARGEST_GROWTH_KIB)
            fail_msg("%s: memory grew by %ld KiB, expected at most %d", options[i], grown,
                     LARGEST_GROWTH_KIB);
        job_close(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_goes_on_whatever_strangers_send_to_its_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
