#include "tests/common/net/net_test.h"

#include "common/net/key.h"
#include "tests/support/status_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void net_url(const char *scheme, char *url, size_t size)
{
    static atomic_int number;
    if (strcmp(scheme, "tcp") == 0)
        snprintf(url, size, "tcp://127.0.0.1:*");
    else if (strcmp(scheme, "ipc") == 0)
        snprintf(url, size, "ipc://@psring-test-%d-%d", (int)getpid(), atomic_fetch_add(&number, 1));
    else
        snprintf(url, size, "inproc://test-%d", atomic_fetch_add(&number, 1));
}

void net_free_port_url(char *url, size_t size)
{
    transport_options options = transport_defaults(0, 1, 1, 1);
    char bound[128];
    transport *t;
    assert_ok(transport_open(&transport_zmq, &options, &t));
    assert_ok(transport_listen(t, "tcp://127.0.0.1:*", bound, sizeof bound));
    transport_close(&t, 0);
    char *address = net_address_without_key(bound);
    snprintf(url, size, "%s", address);
    free(address);
}

void net_pair_open(net_pair *pair, const char *scheme, transport_options server, transport_options client)
{
    *pair = (net_pair){0};
    char url[128];
    if (strcmp(scheme, "inproc") == 0) assert_ok(transport_hub_open(&pair->hub));
    server.hub = client.hub = pair->hub;
    net_url(scheme, url, sizeof url);
    assert_ok(transport_open(&transport_zmq, &server, &pair->server));
    assert_ok(transport_open(&transport_zmq, &client, &pair->client));
    assert_ok(transport_listen(pair->server, url, pair->url, sizeof pair->url));
    assert_ok(transport_connect(pair->client, server.rank, pair->url, &pair->link));
    int64_t until = clock_now_ns() + TEST_LIMIT_NS;
    while (!transport_link_up(pair->client, pair->link) && clock_now_ns() < until)
        assert_ok(transport_wait(pair->client, until));
    assert_true(transport_link_up(pair->client, pair->link));
}

void net_pair_close(net_pair *pair, int64_t flush_ns)
{
    transport_close(&pair->client, flush_ns);
    transport_close(&pair->server, flush_ns);
    transport_hub_close(&pair->hub);
}

static status next(transport *t, transport_message *out)
{
    int64_t until = clock_now_ns() + TEST_LIMIT_NS;
    for (;;) {
        status result = transport_receive(t, out);
        if (result != STATUS_AGAIN) return result;
        if (clock_now_ns() >= until) fail_msg("nothing received within a minute");
        assert_ok(transport_wait(t, until));
    }
}

void net_receive(transport *t, transport_message *out)
{
    assert_ok(next(t, out));
}

status net_receive_failure(transport *t)
{
    transport_message m;
    status result;
    while ((result = next(t, &m)) == STATUS_OK) transport_release(t, &m);
    return result;
}

void net_send(transport *t, int link, const message_header *header, const message_frame *frames, int count,
              transport_ticket *ticket)
{
    int64_t until = clock_now_ns() + TEST_LIMIT_NS;
    for (;;) {
        status result = transport_send(t, link, header, frames, count, ticket);
        if (result == STATUS_OK) return;
        if (result != STATUS_AGAIN) fail_msg("sending: %s: %s", status_name(result), error_message());
        if (clock_now_ns() >= until) fail_msg("no room within a minute");
        assert_ok(transport_wait(t, until));
    }
}
