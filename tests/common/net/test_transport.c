#include "tests/common/net/net_test.h"

#include "common/net/key.h"

#include <pthread.h>
#include <stdlib.h>

enum { TOKEN = 77, FRAME_BYTES = 1 << 20 };

static const char *const schemes[] = {"inproc", "ipc", "tcp"};
enum { SCHEMES = sizeof schemes / sizeof schemes[0] };

static transport_options options_of(int rank)
{
    return transport_defaults(rank, 3, TOKEN, FRAME_BYTES);
}

static void wait_sent(transport *t, const transport_ticket *ticket)
{
    int64_t until = clock_now_ns() + TEST_LIMIT_NS;
    while (!transport_sent(ticket) && clock_now_ns() < until) assert_ok(transport_wait(t, until));
    assert_true(transport_sent(ticket));
}

static void a_message_arrives_with_all_its_fields_and_frames(void **state)
{
    (void)state;
    static const message_header header = {
        .kind = MESSAGE_PUSH,
        .step = -5,
        .key = INT64_MAX,
        .offset = INT64_MIN,
        .count = 12,
        .dtype = 3,
        .flags = UINT32_MAX,
        .integers = {1, -2, 3},
        .doubles = {-0.0, 1e-300},
    };
    float numbers[1000];
    for (int i = 0; i < 1000; i++) numbers[i] = (float)i;
    const message_frame frames[] = {{numbers, sizeof numbers}, {"", 0}, {"odd", 3}};
    for (int s = 0; s < SCHEMES; s++) {
        net_pair pair;
        net_pair_open(&pair, schemes[s], options_of(0), options_of(1));
        transport_ticket ticket = {.wake = true};
        net_send(pair.client, pair.link, &header, frames, 3, &ticket);
        transport_message m;
        net_receive(pair.server, &m);
        assert_int_equal(m.link, 1);
        assert_int_equal(m.header.sender, 1);
        assert_int_equal(m.header.kind, MESSAGE_PUSH);
        assert_int_equal(m.header.step, -5);
        assert_true(m.header.key == INT64_MAX && m.header.offset == INT64_MIN);
        assert_int_equal(m.header.count, 12);
        assert_int_equal(m.header.dtype, 3);
        assert_true(m.header.flags == UINT32_MAX);
        assert_memory_equal(m.header.integers, header.integers, sizeof header.integers);
        assert_memory_equal(m.header.doubles, header.doubles, sizeof header.doubles);
        assert_int_equal(m.header.frames, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(m.frames[i].bytes, frames[i].bytes);
            assert_memory_equal(m.frames[i].data, frames[i].data, frames[i].bytes);
        }
        transport_release(pair.server, &m);
        wait_sent(pair.client, &ticket);
        net_pair_close(&pair, NS_PER_S);
    }
}

static void frames_are_aligned_for_their_elements(void **state)
{
    (void)state;
    for (int s = 0; s < SCHEMES; s++) {
        net_pair pair;
        net_pair_open(&pair, schemes[s], options_of(0), options_of(1));
        double numbers[600] = {0};
        transport_ticket ticket = {0};
        for (size_t bytes = 1; bytes < sizeof numbers; bytes += 37) {
            const message_frame frames[] = {{numbers, bytes}, {numbers, 8}};
            net_send(pair.client, pair.link, &(message_header){.kind = MESSAGE_PUSH}, frames, 2, &ticket);
            transport_message m;
            net_receive(pair.server, &m);
            for (int i = 0; i < 2; i++)
                if ((uintptr_t)m.frames[i].data % 8)
                    fail_msg("%s: frame at %p", schemes[s], m.frames[i].data);
            transport_release(pair.server, &m);
        }
        net_pair_close(&pair, NS_PER_S);
    }
}

static void the_server_can_answer_and_can_speak_first(void **state)
{
    (void)state;
    for (int s = 0; s < SCHEMES; s++) {
        net_pair pair;
        net_pair_open(&pair, schemes[s], options_of(0), options_of(1));
        int64_t until = clock_now_ns() + TEST_LIMIT_NS;
        transport_message m;
        while (!transport_link_up(pair.server, 1) && clock_now_ns() < until) {
            assert_int_equal(transport_receive(pair.server, &m), STATUS_AGAIN);
            assert_ok(transport_wait(pair.server, until));
        }
        net_send(pair.server, 1, &(message_header){.kind = MESSAGE_HEARTBEAT, .step = 4}, NULL, 0, NULL);
        net_receive(pair.client, &m);
        assert_int_equal(m.header.kind, MESSAGE_HEARTBEAT);
        assert_int_equal(m.header.sender, 0);
        assert_int_equal(m.link, pair.link);
        assert_int_equal(transport_link_peer(pair.client, m.link), 0);
        transport_release(pair.client, &m);
        net_send(pair.client, pair.link, &(message_header){.kind = MESSAGE_PULL}, NULL, 0, NULL);
        net_receive(pair.server, &m);
        assert_int_equal(m.header.kind, MESSAGE_PULL);
        transport_release(pair.server, &m);
        net_pair_close(&pair, NS_PER_S);
    }
}

static void many_messages_arrive_in_order_through_a_small_window(void **state)
{
    (void)state;
    enum { MESSAGES = 500 };
    for (int s = 0; s < SCHEMES; s++) {
        net_pair pair;
        transport_options client = options_of(1);
        client.window = 4;
        net_pair_open(&pair, schemes[s], options_of(0), client);
        static char payload[MESSAGES][64];
        transport_ticket ticket = {0};
        int sent = 0, received = 0;
        int64_t until = clock_now_ns() + TEST_LIMIT_NS;
        while (received < MESSAGES && clock_now_ns() < until) {
            if (sent < MESSAGES) {
                memset(payload[sent], sent, sizeof payload[sent]);
                message_frame frame = {payload[sent], sizeof payload[sent]};
                status result =
                    transport_send(pair.client, pair.link,
                                   &(message_header){.kind = MESSAGE_PUSH, .step = sent}, &frame, 1, &ticket);
                assert_true(result == STATUS_OK || result == STATUS_AGAIN);
                sent += result == STATUS_OK;
            }
            transport_message m;
            status result = transport_receive(pair.server, &m);
            if (result == STATUS_AGAIN) continue;
            assert_ok(result);
            assert_int_equal(m.header.step, received);
            assert_memory_equal(m.frames[0].data, payload[received], sizeof payload[received]);
            transport_release(pair.server, &m);
            received++;
        }
        assert_int_equal(received, MESSAGES);
        wait_sent(pair.client, &ticket);
        transport_counters counters;
        transport_read_counters(pair.server, &counters);
        assert_int_equal(counters.messages_received, MESSAGES);
        assert_int_equal(counters.bytes_received, MESSAGES * 64);
        assert_int_equal(counters.duplicates + counters.rejected, 0);
        net_pair_close(&pair, NS_PER_S);
    }
}

static void a_full_window_is_answered_with_again_and_ends_the_wait_when_there_is_room(void **state)
{
    (void)state;
    net_pair pair;
    transport_options client = options_of(1);
    client.window = 2;
    net_pair_open(&pair, "inproc", options_of(0), client);
    const message_header header = {.kind = MESSAGE_PUSH};
    assert_ok(transport_send(pair.client, pair.link, &header, NULL, 0, NULL));
    assert_ok(transport_send(pair.client, pair.link, &header, NULL, 0, NULL));
    assert_int_equal(transport_send(pair.client, pair.link, &header, NULL, 0, NULL), STATUS_AGAIN);
    transport_message m;
    net_receive(pair.server, &m);
    transport_release(pair.server, &m);
    assert_ok(transport_wait(pair.client, clock_now_ns() + TEST_LIMIT_NS));
    assert_ok(transport_send(pair.client, pair.link, &header, NULL, 0, NULL));
    net_pair_close(&pair, 0);
}

static void *wake_later(void *t)
{
    clock_sleep_ns(20 * NS_PER_MS);
    transport_wake(t);
    return NULL;
}

static void a_wait_ends_at_a_wake_from_another_thread_and_at_its_deadline(void **state)
{
    (void)state;
    net_pair pair;
    net_pair_open(&pair, "ipc", options_of(0), options_of(1));
    pthread_t thread;
    int64_t begin = clock_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, wake_later, pair.server), 0);
    /* The wait is repeated, since the arrival of the client may end it early. */
    while (clock_now_ns() - begin < 20 * NS_PER_MS)
        assert_ok(transport_wait(pair.server, begin + TEST_LIMIT_NS));
    pthread_join(thread, NULL);
    assert_true(clock_now_ns() - begin < TEST_LIMIT_NS);
    static const int64_t delays_ns[] = {0, 200000, 3000000, 15000000};
    for (int i = 0; i < 4; i++) {
        int64_t until = clock_now_ns() + delays_ns[i];
        while (clock_now_ns() < until) assert_ok(transport_wait(pair.server, until));
    }
    net_pair_close(&pair, NS_PER_S);
}

static void a_client_that_connects_first_waits_for_the_server(void **state)
{
    (void)state;
    for (int s = 1; s < SCHEMES; s++) {
        net_pair pair;
        /* Opens a pair only to learn a free address. */
        net_pair_open(&pair, schemes[s], options_of(0), options_of(1));
        char url[128];
        strcpy(url, pair.url);
        net_pair_close(&pair, NS_PER_S);
        transport_options client = options_of(1), server = options_of(0);
        int link;
        assert_ok(transport_open(&transport_zmq, &client, &pair.client));
        assert_ok(transport_connect(pair.client, 0, url, &link));
        assert_false(transport_link_up(pair.client, link));
        const message_header header = {.kind = MESSAGE_PUSH, .step = 9};
        assert_int_equal(transport_send(pair.client, link, &header, NULL, 0, NULL), STATUS_AGAIN);
        assert_ok(transport_open(&transport_zmq, &server, &pair.server));
        assert_ok(transport_listen(pair.server, url, NULL, 0));
        net_send(pair.client, link, &header, NULL, 0, NULL);
        transport_message m;
        net_receive(pair.server, &m);
        assert_int_equal(m.header.step, 9);
        transport_release(pair.server, &m);
        net_pair_close(&pair, NS_PER_S);
    }
}

static void an_address_in_use_is_named_and_another_one_may_be_tried(void **state)
{
    (void)state;
    for (int s = 1; s < SCHEMES; s++) {
        net_pair pair;
        net_pair_open(&pair, schemes[s], options_of(0), options_of(1));
        transport_options other = options_of(2);
        transport *t;
        assert_ok(transport_open(&transport_zmq, &other, &t));
        char *address = net_address_without_key(pair.url);
        assert_fails(transport_listen(t, pair.url, NULL, 0), STATUS_UNAVAILABLE, address);
        free(address);
        char url[128];
        net_url(schemes[s], url, sizeof url);
        assert_ok(transport_listen(t, url, NULL, 0));
        transport_close(&t, 0);
        net_pair_close(&pair, NS_PER_S);
    }
    transport_options options = options_of(0);
    transport *t;
    int link;
    assert_ok(transport_open(&transport_zmq, &options, &t));
    assert_fails(transport_listen(t, "tcp://198.51.100.7:5000", NULL, 0), STATUS_UNAVAILABLE, "198.51.100.7");
    assert_fails(transport_listen(t, "http://localhost", NULL, 0), STATUS_USAGE, "http://localhost");
    assert_fails(transport_connect(t, 1, "nonsense", &link), STATUS_USAGE, "nonsense");
    transport_close(&t, 0);
}

static void an_orderly_close_delivers_what_was_sent_and_is_no_loss(void **state)
{
    (void)state;
    for (int s = 0; s < SCHEMES; s++) {
        net_pair pair;
        net_pair_open(&pair, schemes[s], options_of(0), options_of(1));
        static char payload[FRAME_BYTES];
        transport_ticket ticket = {0};
        const message_frame frame = {payload, sizeof payload};
        for (int i = 0; i < 5; i++)
            net_send(pair.client, pair.link, &(message_header){.kind = MESSAGE_PUSH, .step = i}, &frame, 1,
                     &ticket);
        transport_message m;
        net_receive(pair.server, &m); /* Receives one message, so that the transfer is under way. */
        transport_release(pair.server, &m);
        transport_close(&pair.client, 10 * NS_PER_S);
        for (int i = 1; i < 5; i++) {
            net_receive(pair.server, &m);
            assert_int_equal(m.header.step, i);
            transport_release(pair.server, &m);
        }
        for (int i = 0; i < 30; i++) {
            assert_int_equal(transport_receive(pair.server, &m), STATUS_AGAIN);
            assert_ok(transport_wait(pair.server, clock_now_ns() + 10 * NS_PER_MS));
        }
        assert_false(transport_link_up(pair.server, 1));
        assert_fails(transport_send(pair.server, 1, &(message_header){.kind = MESSAGE_PUSH}, NULL, 0, NULL),
                     STATUS_PEER, "rank 1 has ended");
        assert_true(transport_sent(&ticket));
        net_pair_close(&pair, NS_PER_S);
    }
}

static void a_peer_that_vanishes_is_named_on_either_side(void **state)
{
    (void)state;
    for (int s = 1; s < SCHEMES; s++)
        for (int server_vanishes = 0; server_vanishes < 2; server_vanishes++) {
            net_pair pair;
            net_pair_open(&pair, schemes[s], options_of(0), options_of(1));
            transport_message m;
            net_send(pair.client, pair.link, &(message_header){.kind = MESSAGE_PUSH}, NULL, 0, NULL);
            net_receive(pair.server, &m);
            transport_release(pair.server, &m);
            transport_close(server_vanishes ? &pair.server : &pair.client, 0);
            transport *left = server_vanishes ? pair.client : pair.server;
            assert_fails(net_receive_failure(left), STATUS_PEER,
                         server_vanishes ? "rank 0 is lost" : "rank 1 is lost");
            assert_fails(transport_send(left, server_vanishes ? pair.link : 1,
                                        &(message_header){.kind = MESSAGE_PUSH}, NULL, 0, NULL),
                         STATUS_PEER, server_vanishes ? "rank 0" : "rank 1");
            net_pair_close(&pair, 0);
        }
}

static void closing_toward_an_unreachable_peer_does_not_hang(void **state)
{
    (void)state;
    transport_options options = options_of(0);
    transport *t;
    int link;
    assert_ok(transport_open(&transport_zmq, &options, &t));
    assert_ok(transport_connect(t, 1, "tcp://127.0.0.1:1/" TEST_KEY, &link));
    assert_int_equal(transport_send(t, link, &(message_header){.kind = MESSAGE_PUSH}, NULL, 0, NULL),
                     STATUS_AGAIN);
    int64_t begin = clock_now_ns();
    transport_close(&t, 100 * NS_PER_MS);
    assert_true(clock_now_ns() - begin < 10 * NS_PER_S);
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_arrives_with_all_its_fields_and_frames),
        cmocka_unit_test(frames_are_aligned_for_their_elements),
        cmocka_unit_test(the_server_can_answer_and_can_speak_first),
        cmocka_unit_test(many_messages_arrive_in_order_through_a_small_window),
        cmocka_unit_test(a_full_window_is_answered_with_again_and_ends_the_wait_when_there_is_room),
        cmocka_unit_test(a_wait_ends_at_a_wake_from_another_thread_and_at_its_deadline),
        cmocka_unit_test(a_client_that_connects_first_waits_for_the_server),
        cmocka_unit_test(an_address_in_use_is_named_and_another_one_may_be_tried),
        cmocka_unit_test(an_orderly_close_delivers_what_was_sent_and_is_no_loss),
        cmocka_unit_test(a_peer_that_vanishes_is_named_on_either_side),
        cmocka_unit_test(closing_toward_an_unreachable_peer_does_not_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
