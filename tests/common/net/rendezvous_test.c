#include "tests/common/net/rendezvous_test.h"
#include "tests/support/status_name.h"

rendezvous_options meet_options(const char *url, int rank, int world)
{
    return (rendezvous_options){.url = url,
                                .rank = rank,
                                .world = world,
                                .token = 42,
                                .key = TEST_KEY,
                                .program = "1.0",
                                .config_hash = 7,
                                .connect_limit_ns = TEST_LIMIT_NS};
}

static void *run(void *argument)
{
    meeting *m = argument;
    rendezvous *r = NULL;
    clock_sleep_ns(m->delay_ns);
    m->result = rendezvous_open(&m->options, &r);
    if (m->result == STATUS_OK && m->body) m->result = m->body(r, &m->options);
    strncpy(m->message, error_message(), sizeof m->message - 1);
    rendezvous_close(&r);
    atomic_store(&m->ended, true);
    return NULL;
}

void meet_start(meeting *m)
{
    assert_int_equal(pthread_create(&m->thread, NULL, run, m), 0);
}

void meet_join(meeting *m)
{
    pthread_join(m->thread, NULL);
}

void meet(meeting *ranks, int count)
{
    for (int i = 0; i < count; i++) meet_start(&ranks[i]);
    for (int i = 0; i < count; i++) meet_join(&ranks[i]);
}

void meet_check(const meeting *m, status code, const char *text)
{
    if (m->result != code || !strstr(m->message, text))
        fail_msg("rank %d: found %s '%s', expected %s '%s'", m->options.rank, status_name(m->result),
                 m->message, status_name(code), text);
}
