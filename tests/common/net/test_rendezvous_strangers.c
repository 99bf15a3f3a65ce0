/* Tests that a rendezvous survives unexpected peers (random bytes, HTTP, half-open connections, foreign ZMTP
 * peers), and ranks that die. */
#include "tests/common/net/rendezvous_test.h"

#include "common/base/random.h"
#include "common/net/zmq_socket.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static int connect_tcp(const char *url)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    for (int64_t until = clock_now_ns() + TEST_LIMIT_NS; clock_now_ns() < until;) {
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
        clock_sleep_ns(5 * NS_PER_MS);
    }
    fail_msg("cannot connect to %s", url);
    return -1;
}

static void say(int fd, const void *bytes, size_t count)
{
    ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL); /* the other side may have hung up */
    (void)sent;
}

static status sum_up(rendezvous *r, const rendezvous_options *o)
{
    double value = o->rank;
    TRY(rendezvous_sum(r, "ranks", &value, 1, clock_now_ns() + TEST_LIMIT_NS));
    return value == 1 ? STATUS_OK : fail(STATUS_MISMATCH, "sum: %g", value);
}

/* Starts rank 0, calls `disturb` with the address of rank 0, then starts rank 1. The job must run. */
static void meet_despite(void (*disturb)(const char *url, int *fds), int *fds)
{
    char url[128];
    net_free_port_url(url, sizeof url);
    meeting ranks[2];
    for (int i = 0; i < 2; i++) ranks[i] = (meeting){.options = meet_options(url, i, 2), .body = sum_up};
    meet_start(&ranks[0]);
    disturb(url, fds);
    meet_start(&ranks[1]);
    for (int i = 0; i < 2; i++) meet_join(&ranks[i]);
    for (int i = 0; i < 2; i++) meet_check(&ranks[i], STATUS_OK, "");
}

static void send_garbage(const char *url, int *fds)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scan\r\n\r\n";
    uint64_t noise[512];
    for (int i = 0; i < 512; i++) noise[i] = random_bits(1, (uint64_t)i);
    for (int i = 0; i < 8; i++) fds[i] = connect_tcp(url);
    say(fds[0], http, sizeof http - 1);
    say(fds[1], noise, sizeof noise);
    say(fds[2], "\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);        /* A truncated greeting. */
    say(fds[3], "\xff\0\0\0\0\0\0\0\x01\x7f\x03\0PLAIN\0\0\0", 20); /* another mechanism */
    say(fds[4], "\x01\0", 2);                                       /* ZMTP 1.0: an empty identity, then */
    say(fds[4], "\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0", 10);      /* a frame of 2^63 bytes */
    say(fds[5], "", 0);
    for (int i = 0; i < 2000; i++) say(fds[6], noise, sizeof noise);
    memset(noise, 0xff, sizeof noise);
    say(fds[7], noise, sizeof noise);
}

static void random_bytes_and_http_at_the_port_are_ignored(void **state)
{
    (void)state;
    int fds[8];
    meet_despite(send_garbage, fds);
    for (int i = 0; i < 8; i++) close(fds[i]);
}

enum { HALF_OPEN_MAX = 1000 };

static int half_open_count(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int room = limit.rlim_cur > 4096 ? 4096 : (int)limit.rlim_cur;
    /* Both ends of each connection are in this process. */
    return room / 2 - 64 < HALF_OPEN_MAX ? room / 2 - 64 : HALF_OPEN_MAX;
}

static void open_halfway(const char *url, int *fds)
{
    for (int i = 0; i < half_open_count(); i++) fds[i] = connect_tcp(url);
}

static long resident_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void a_thousand_half_open_connections_do_not_hinder_a_job(void **state)
{
    (void)state;
    static int fds[HALF_OPEN_MAX];
    long before = resident_kib();
    meet_despite(open_halfway, fds);
    long grown = resident_kib() - before;
    for (int i = 0; i < half_open_count(); i++) close(fds[i]);
    if (grown > 300 * 1024) fail_msg("memory grew by %ld KiB, expected at most 300 MiB", grown);
}

/* Speaks ZMTP, but sends messages that are not our packets. */
static void send_foreign_messages(const char *url, int *fds)
{
    (void)fds;
    zsocket_context *context;
    zsocket peer;
    assert_ok(zsocket_context_open(&context));
    const zsocket_options options = {
        .type = ZMQ_DEALER, .frame_bytes = 1 << 20, .queue = 8, .rank = 1, .key = TEST_KEY};
    assert_ok(zsocket_open(context, &options, url, NULL, 0, &peer));
    void *socket = peer.zmq;
    static unsigned char big[RENDEZVOUS_BLOB_MAX + 1];
    /* A call that comes before any greeting. */
    for (int i = 0; i < 200; i++) zmq_send(socket, "\x08\x04", 2, 0);
    zmq_send(socket, "garbage", 7, 0);
    zmq_send(socket, big, 100000, 0); /* larger than a packet may be */
    zmq_send(socket, big, 1, ZMQ_SNDMORE);
    for (int i = 0; i < 50; i++) zmq_send(socket, "x", 1, ZMQ_SNDMORE);
    zmq_send(socket, "x", 1, 0);
    zmq_send(socket, big, sizeof big, 0); /* Larger than a frame may be, so the connection ends. */
    clock_sleep_ns(100 * NS_PER_MS);
    zsocket_close(&peer, 0);
    zsocket_context_close(&context);
}

static void foreign_messages_are_ignored(void **state)
{
    (void)state;
    meet_despite(send_foreign_messages, NULL);
}

/* ---- Ranks that die: processes, forked before this one has threads ---- */

static status die_before_the_call(rendezvous *r, const rendezvous_options *o)
{
    (void)r;
    (void)o;
    kill(getpid(), SIGKILL);
    return STATUS_OK;
}

static pid_t start_victim(const char *url, int rank)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    meeting m = {.options = meet_options(url, rank, 3), .body = die_before_the_call};
    meet(&m, 1);
    _exit(1);
}

static status barrier(rendezvous *r, const rendezvous_options *o)
{
    (void)o;
    return rendezvous_barrier(r, "after the death", clock_now_ns() + TEST_LIMIT_NS);
}

static void a_rank_that_is_killed_is_named_long_before_the_deadline(void **state)
{
    (void)state;
    static const char *const schemes[] = {"ipc", "tcp"};
    for (int s = 0; s < 2; s++)
        for (int victim = 0; victim < 3; victim += 2) {
            char url[128], text[32];
            if (s == 1)
                net_free_port_url(url, sizeof url);
            else
                net_url(schemes[s], url, sizeof url);
            pid_t pid = start_victim(url, victim);
            meeting ranks[3];
            int64_t begin = clock_now_ns();
            for (int i = 0; i < 3; i++) {
                ranks[i] = (meeting){.options = meet_options(url, i, 3), .body = barrier};
                if (i != victim) meet_start(&ranks[i]);
            }
            snprintf(text, sizeof text, "rank %d", victim);
            for (int i = 0; i < 3; i++) {
                if (i == victim) continue;
                meet_join(&ranks[i]);
                meet_check(&ranks[i], STATUS_PEER, text);
                meet_check(&ranks[i], STATUS_PEER, "lost");
            }
            assert_true(clock_now_ns() - begin < 15 * NS_PER_S);
            waitpid(pid, NULL, 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* Forks, so it comes first. */
        cmocka_unit_test(a_rank_that_is_killed_is_named_long_before_the_deadline),
        cmocka_unit_test(random_bytes_and_http_at_the_port_are_ignored),
        cmocka_unit_test(a_thousand_half_open_connections_do_not_hinder_a_job),
        cmocka_unit_test(foreign_messages_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
