/* Tests what happens if the network is cut for two seconds, or for good. Each case runs in a process with a
 * loopback interface of its own, which the process takes down. The tests are skipped if the system does not
 * allow this. */
#include "tests/common/net/net_test.h"

#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_NAMESPACE = 100, MESSAGES = 400, FRAME_BYTES = 1 << 16 };

static bool set_loopback(bool up)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = up ? IFF_UP : 0};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    bool done = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    if (fd >= 0) close(fd);
    return done;
}

/* Runs `body` in a process that has its own network. Returns the exit code of this process. */
static int run_apart(int (*body)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(120);
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) _exit(NO_NAMESPACE);
        if (!set_loopback(true)) _exit(NO_NAMESPACE);
        _exit(body());
    }
    int state;
    waitpid(pid, &state, 0);
    if (WIFEXITED(state) && WEXITSTATUS(state) == NO_NAMESPACE) skip();
    return state;
}

static transport_options options_of(int rank, int64_t peer_timeout_ns)
{
    transport_options options = transport_defaults(rank, 2, 5, FRAME_BYTES);
    options.peer_timeout_ns = peer_timeout_ns;
    return options;
}

/* Sends and echoes numbered messages, and cuts the network for two seconds in the middle. Returns 1 if the
 * exchange failed. */
static int cut_and_heal(void)
{
    net_pair pair;
    net_pair_open(&pair, "tcp", options_of(0, 10 * NS_PER_S), options_of(1, 10 * NS_PER_S));
    static unsigned char payload[FRAME_BYTES];
    const message_frame frame = {payload, sizeof payload};
    int sent = 0, echoed = 0;
    int64_t heal_ns = CLOCK_NEVER, until = clock_now_ns() + TEST_LIMIT_NS;
    while (echoed < MESSAGES && clock_now_ns() < until) {
        transport_message m;
        if (sent == MESSAGES / 2 && heal_ns == CLOCK_NEVER) {
            if (!set_loopback(false)) return 2;
            heal_ns = clock_now_ns() + 2 * NS_PER_S;
        }
        if (clock_now_ns() >= heal_ns && heal_ns > 0) {
            if (!set_loopback(true)) return 3;
            heal_ns = 0;
        }
        if (sent < MESSAGES) {
            const message_header push = {.kind = MESSAGE_PUSH, .step = sent};
            status result = transport_send(pair.client, pair.link, &push, &frame, 1, &pair.ticket);
            if (result == STATUS_OK)
                sent++;
            else if (result != STATUS_AGAIN)
                return 4;
        }
        status result = transport_receive(pair.server, &m);
        if (result == STATUS_OK) {
            const message_header echo = {.kind = MESSAGE_ACKNOWLEDGE, .step = m.header.step};
            transport_release(pair.server, &m);
            net_send(pair.server, 1, &echo, NULL, 0, NULL);
        } else if (result != STATUS_AGAIN) {
            fprintf(stderr, "server: %s\n", error_message());
            return 5;
        }
        result = transport_receive(pair.client, &m);
        if (result == STATUS_OK) {
            if (m.header.step != echoed) return 6;
            echoed++;
            transport_release(pair.client, &m);
        } else if (result != STATUS_AGAIN) {
            fprintf(stderr, "client: %s\n", error_message());
            return 7;
        }
        if (heal_ns > 0 && heal_ns != CLOCK_NEVER) clock_sleep_ns(NS_PER_MS);
    }
    transport_counters counters;
    transport_read_counters(pair.server, &counters);
    bool exact = echoed == MESSAGES && counters.messages_received == MESSAGES && counters.duplicates == 0;
    net_pair_close(&pair, NS_PER_S);
    return !exact;
}

static void two_seconds_without_a_network_lose_and_double_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_apart(cut_and_heal), 0);
}

static int64_t time_of_loss(transport *t)
{
    int64_t begin = clock_now_ns();
    status result = net_receive_failure(t);
    error_clear();
    return result == STATUS_PEER ? clock_now_ns() - begin : -1;
}

/* If `busy` is set, bytes are in flight, and the kernel retransmits them. Otherwise the transport has to
 * probe the peer itself. */
static int cut_for_good(bool busy)
{
    net_pair pair;
    net_pair_open(&pair, "tcp", options_of(0, 3 * NS_PER_S), options_of(1, 3 * NS_PER_S));
    transport_message m;
    net_send(pair.client, pair.link, &(message_header){.kind = MESSAGE_PUSH}, NULL, 0, NULL);
    net_receive(pair.server, &m);
    transport_release(pair.server, &m);
    if (!set_loopback(false)) return 2;
    if (busy) {
        net_send(pair.client, pair.link, &(message_header){.kind = MESSAGE_PUSH}, NULL, 0, NULL);
        net_send(pair.server, 1, &(message_header){.kind = MESSAGE_PUSH}, NULL, 0, NULL);
    }
    int64_t client_ns = time_of_loss(pair.client), server_ns = time_of_loss(pair.server);
    net_pair_close(&pair, 0);
    if (client_ns < 0 || server_ns < 0) return 3;
    return client_ns + server_ns > 45 * NS_PER_S; /* The transport promises 15 s with the default settings. */
}

static int cut_while_busy(void)
{
    return cut_for_good(true);
}

static int cut_while_idle(void)
{
    return cut_for_good(false);
}

static void a_network_that_does_not_come_back_is_noticed_on_both_sides(void **state)
{
    (void)state;
    assert_int_equal(run_apart(cut_while_busy), 0);
    assert_int_equal(run_apart(cut_while_idle), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_seconds_without_a_network_lose_and_double_nothing),
        cmocka_unit_test(a_network_that_does_not_come_back_is_noticed_on_both_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
