/* Tests that strangers to a job are refused. Over ipc every other user is a stranger. Over tcp and at the
 * rendezvous every peer without the key of the job is one. The stranger of these tests knows the address, the
 * job's token, and how a rank identifies itself. */
#include "tests/common/net/rendezvous_test.h"

#include "common/net/key.h"
#include "common/net/message_wire.h"
#include "common/net/zmq_socket.h"

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum {
    TOKEN = 77,
    NOBODY = 65534,
    MESSAGES = 200,
    FRAME_BYTES = 1 << 12,
    ADMITTED = 1,
    REFUSED = 0,
    UNFIT = 2
};
#define OTHER_KEY "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"

/* The stranger's knowledge. The parent sends it to the stranger's process when the pair is connected. */
typedef struct secret_of_others {
    char address[128];
    const char *key;
    bool other_user;
} secret_of_others;

static bool become_nobody(void)
{
    return setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
}

/* Claims to be rank 1 for half a second. Sends messages that would end the job, and reads messages that are
 * meant for rank 1. */
static int intrude(const secret_of_others *s)
{
    zsocket_context *context = NULL;
    zsocket socket;
    if (s->other_user && !become_nobody()) return UNFIT;
    const zsocket_options options = {.type = ZMQ_DEALER,
                                     .frame_bytes = FRAME_BYTES,
                                     .queue = 64,
                                     .token = TOKEN,
                                     .rank = 1,
                                     .key = s->key};
    if (zsocket_context_open(&context) != STATUS_OK ||
        zsocket_open(context, &options, s->address, NULL, 0, &socket) != STATUS_OK)
        return UNFIT;
    int result = REFUSED;
    uint8_t header[MESSAGE_HEADER_BYTES], got[256];
    const message_header bye = {.kind = MESSAGE_BYE, .sender = 1, .token = TOKEN};
    size_t used = message_pack(&bye, header);
    for (int64_t until = clock_now_ns() + NS_PER_S / 2; clock_now_ns() < until;) {
        zmq_send(socket.zmq, header, used, ZMQ_DONTWAIT);
        if (zmq_recv(socket.zmq, got, sizeof got, ZMQ_DONTWAIT) >= 0) result = ADMITTED;
        for (zsocket_event event; (event = zsocket_next_event(&socket)) != ZSOCKET_NO_EVENT;)
            /* Over ipc libzmq first accepts a connection and then checks its user, so only with a key does
             * "up" mean admitted. */
            if (event == ZSOCKET_UP && s->key) result = ADMITTED;
        clock_sleep_ns(2 * NS_PER_MS);
    }
    zsocket_close(&socket, 0);
    zsocket_context_close(&context);
    return result;
}

static transport_options options_of(int rank)
{
    return transport_defaults(rank, 3, TOKEN, FRAME_BYTES);
}

/* The client asks and the server answers. Checks that messages arrive in order, and that none is lost. */
static void ask(net_pair *pair, int64_t step)
{
    transport_message m;
    net_send(pair->client, pair->link, &(message_header){.kind = MESSAGE_PUSH, .step = step}, NULL, 0, NULL);
    net_receive(pair->server, &m);
    assert_int_equal(m.header.step, step);
    transport_release(pair->server, &m);
    net_send(pair->server, 1, &(message_header){.kind = MESSAGE_ACKNOWLEDGE, .step = step}, NULL, 0, NULL);
    net_receive(pair->client, &m);
    assert_int_equal(m.header.step, step);
    transport_release(pair->client, &m);
}

static void refuse_intruder(const char *scheme, const char *key, bool other_user)
{
    int pipe_fds[2], state;
    secret_of_others s = {.key = key, .other_user = other_user};
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t pid = fork(); /* Forks before this process has threads of ZeroMQ. */
    if (pid == 0) {
        bool told = read(pipe_fds[0], s.address, sizeof s.address) == (ssize_t)sizeof s.address;
        _exit(told ? intrude(&s) : UNFIT);
    }
    net_pair pair;
    net_pair_open(&pair, scheme, options_of(0), options_of(1));
    ask(&pair, 0);
    char *address = net_address_without_key(pair.url);
    snprintf(s.address, sizeof s.address, "%s", address);
    free(address);
    assert_int_equal(write(pipe_fds[1], s.address, sizeof s.address), sizeof s.address);
    for (int64_t step = 1; step < MESSAGES || waitpid(pid, &state, WNOHANG) == 0; step++) {
        ask(&pair, step);
        clock_sleep_ns(NS_PER_MS);
    }
    if (WIFEXITED(state) && WEXITSTATUS(state) == UNFIT) fail_msg("%s: the stranger could not try", scheme);
    assert_int_equal(state, REFUSED);
    net_pair_close(&pair, NS_PER_S);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void another_user_does_not_take_over_a_link_over_ipc(void **state)
{
    (void)state;
    if (geteuid() != 0) skip(); /* only root can become another user */
    refuse_intruder("ipc", NULL, true);
}

static void nobody_takes_over_a_link_over_tcp_without_its_key(void **state)
{
    (void)state;
    refuse_intruder("tcp", NULL, false);
    refuse_intruder("tcp", OTHER_KEY, false);
}

static void every_server_over_tcp_has_a_key_of_its_own(void **state)
{
    (void)state;
    transport_options options = options_of(0);
    transport *t[2];
    char urls[2][128];
    int link;
    for (int i = 0; i < 2; i++) {
        assert_ok(transport_open(&transport_zmq, &options, &t[i]));
        assert_ok(transport_listen(t[i], "tcp://127.0.0.1:*", urls[i], sizeof urls[i]));
    }
    assert_true(net_key_is_valid(net_address_key(urls[0])));
    assert_string_not_equal(net_address_key(urls[0]), net_address_key(urls[1]));
    char *address = net_address_without_key(urls[0]);
    assert_fails(transport_connect(t[1], 1, address, &link), STATUS_PERMISSION, "without its key");
    free(address);
    for (int i = 0; i < 2; i++) transport_close(&t[i], 0);
}

static status sum_up(rendezvous *r, const rendezvous_options *o)
{
    double value = o->rank;
    TRY(rendezvous_sum(r, "ranks", &value, 1, clock_now_ns() + TEST_LIMIT_NS));
    return value == 1 ? STATUS_OK : fail(STATUS_MISMATCH, "sum: %g", value);
}

static void a_rank_with_another_key_is_refused_at_once_and_the_job_goes_on(void **state)
{
    (void)state;
    for (int s = 0; s < 2; s++) {
        char url[128];
        if (s == 0)
            net_url("ipc", url, sizeof url);
        else
            net_free_port_url(url, sizeof url);
        meeting ranks[2], stranger = {.options = meet_options(url, 1, 2)};
        for (int i = 0; i < 2; i++) ranks[i] = (meeting){.options = meet_options(url, i, 2), .body = sum_up};
        stranger.options.key = OTHER_KEY;
        meet_start(&ranks[0]);
        meet(&stranger, 1);
        meet_check(&stranger, STATUS_PERMISSION, "rank 1 is refused");
        meet_start(&ranks[1]);
        for (int i = 0; i < 2; i++) meet_join(&ranks[i]);
        for (int i = 0; i < 2; i++) meet_check(&ranks[i], STATUS_OK, "");
    }
}

static void a_rendezvous_without_a_key_is_refused_with_the_way_to_make_one(void **state)
{
    (void)state;
    static const char *const urls[] = {"tcp://127.0.0.1:1", "ipc://@psring-nobody"};
    for (int i = 0; i < 2; i++) {
        meeting m = {.options = meet_options(urls[i], 0, 2)};
        m.options.key = NULL;
        meet(&m, 1);
        meet_check(&m, STATUS_PERMISSION, "export HARNESS_KEY=$(openssl rand -hex 32)");
    }
}

static status look_at_the_file(rendezvous *r, const rendezvous_options *o)
{
    struct stat s;
    if (o->rank == 0 && (stat(o->url + strlen("file://"), &s) != 0 || (s.st_mode & 0777) != 0600))
        return fail(STATUS_MISMATCH, "the file's mode is %o", (unsigned)s.st_mode & 0777);
    return rendezvous_barrier(r, "looked", clock_now_ns() + TEST_LIMIT_NS);
}

static void a_file_with_a_key_is_for_its_user_only_and_that_of_another_user_counts_as_none(void **state)
{
    (void)state;
    char folder[] = "/tmp/test-psring-admission-XXXXXX", url[128];
    assert_non_null(mkdtemp(folder));
    snprintf(url, sizeof url, "file://%s/address", folder);
    meeting ranks[2];
    for (int i = 0; i < 2; i++) {
        ranks[i] = (meeting){.options = meet_options(url, i, 2), .body = look_at_the_file};
        ranks[i].options.key = NULL;
    }
    meet(ranks, 2);
    for (int i = 0; i < 2; i++) meet_check(&ranks[i], STATUS_OK, "");
    if (geteuid() == 0) {
        const char *path = url + strlen("file://");
        FILE *file = fopen(path, "w");
        fprintf(file, "tcp://127.0.0.1:1 %016x " TEST_KEY "\n", 42);
        fclose(file);
        assert_int_equal(chown(path, NOBODY, NOBODY), 0);
        meeting late = {.options = meet_options(url, 1, 2)};
        late.options.connect_limit_ns = 300 * NS_PER_MS;
        meet(&late, 1);
        meet_check(&late, STATUS_PEER, "the file does not exist or is not from this job");
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void public_numbers_are_the_same_everywhere_and_differ_by_secret_and_text(void **state)
{
    (void)state;
    assert_true(net_public_number(5, "ring") == net_public_number(5, "ring"));
    assert_true(net_public_number(5, "ring") != net_public_number(5, "ps"));
    assert_true(net_public_number(5, "ring") != net_public_number(6, "ring"));
    assert_true(net_key_number(TEST_KEY, "a") != net_key_number(TEST_KEY, "b"));
    assert_true(net_key_number(TEST_KEY, "a") != net_key_number(OTHER_KEY, "a"));
    assert_false(net_key_is_valid("12"));
    assert_false(net_key_is_valid("g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_user_does_not_take_over_a_link_over_ipc), /* forks, so it comes first */
        cmocka_unit_test(nobody_takes_over_a_link_over_tcp_without_its_key),
        cmocka_unit_test(every_server_over_tcp_has_a_key_of_its_own),
        cmocka_unit_test(a_rank_with_another_key_is_refused_at_once_and_the_job_goes_on),
        cmocka_unit_test(a_rendezvous_without_a_key_is_refused_with_the_way_to_make_one),
        cmocka_unit_test(a_file_with_a_key_is_for_its_user_only_and_that_of_another_user_counts_as_none),
        cmocka_unit_test(public_numbers_are_the_same_everywhere_and_differ_by_secret_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
