/* Agents as threads: a server, and clients that keep random numbers of requests in flight. No wait has a near
 * deadline, so if a wake-up is lost, the test hangs. */
#include "tests/common/net/net_test.h"

#include "common/base/random.h"

#include <pthread.h>
#include <stdlib.h>

enum { CLIENTS = 3, PEERS = CLIENTS + 1, REQUESTS = 1500, FLOATS = 300, AT_ONCE = 6 };

static const char *const schemes[] = {"inproc", "ipc", "tcp"};

typedef struct agent {
    transport_hub *hub;
    const char *url;
    int rank, window;
    uint64_t seed;
    status result;
    char message[256];
    pthread_t thread;
} agent;

static transport_options options_of(const agent *a)
{
    transport_options options = transport_defaults(a->rank, PEERS, 9, FLOATS * sizeof(float));
    options.window = a->window;
    options.hub = a->hub;
    return options;
}

/* The requests of a client that the server has received and not yet answered, and the answer that the server
 * is sending. */
typedef struct backlog {
    transport_message held[AT_ONCE];
    int first, count;
    float answer[FLOATS];
    transport_ticket ticket;
} backlog;

/* Answers the oldest request with its negated frame, when the buffer is free and the window has room. */
static status answer_next(transport *t, backlog *b, bool *moved)
{
    if (b->count == 0 || !transport_sent(&b->ticket)) return STATUS_OK;
    transport_message *m = &b->held[b->first];
    size_t bytes = m->frames[0].bytes;
    for (size_t i = 0; i < bytes / sizeof(float); i++) b->answer[i] = -((const float *)m->frames[0].data)[i];
    const message_frame frame = {b->answer, bytes};
    const message_header header = {.kind = MESSAGE_PARAMETERS, .step = m->header.step};
    status result = transport_send(t, m->link, &header, &frame, 1, &b->ticket);
    if (result != STATUS_OK) return result == STATUS_AGAIN ? STATUS_OK : result;
    transport_release(t, m);
    b->first = (b->first + 1) % AT_ONCE;
    b->count--;
    *moved = true;
    return STATUS_OK;
}

/* Answers requests until every client has said that it is done. */
static status serve(transport *t)
{
    backlog *backlogs = calloc(PEERS, sizeof *backlogs);
    status result = STATUS_OK;
    for (int r = 0; r < PEERS; r++) backlogs[r].ticket.wake = true;
    int done = 0;
    while (done < CLIENTS && result == STATUS_OK) {
        bool moved = false;
        transport_message m;
        result = transport_receive(t, &m);
        if (result == STATUS_OK && m.header.kind == MESSAGE_CONTROL) {
            done++;
            transport_release(t, &m);
        } else if (result == STATUS_OK) {
            backlog *b = &backlogs[m.link];
            b->held[(b->first + b->count++) % AT_ONCE] = m;
        }
        moved = result == STATUS_OK;
        if (result == STATUS_AGAIN) result = STATUS_OK;
        for (int r = 0; r < PEERS && result == STATUS_OK; r++) result = answer_next(t, &backlogs[r], &moved);
        if (!moved && result == STATUS_OK) result = transport_wait(t, CLOCK_NEVER);
    }
    for (int r = 0; r < PEERS; r++)
        while (!transport_sent(&backlogs[r].ticket) && result == STATUS_OK)
            result = transport_wait(t, CLOCK_NEVER);
    free(backlogs);
    return result;
}

static status take_answer(transport *t, int64_t *answered, bool *moved)
{
    transport_message m;
    status result = transport_receive(t, &m);
    if (result == STATUS_AGAIN) return STATUS_OK;
    if (result != STATUS_OK) return result;
    const float *values = m.frames[0].data;
    bool right = m.header.step == *answered;
    for (size_t i = 0; i < m.frames[0].bytes / sizeof(float); i++)
        right = right && values[i] == -(float)(*answered + (int64_t)i);
    transport_release(t, &m);
    if (!right) return fail(STATUS_MISMATCH, "answer %d, expected %d", (int)m.header.step, (int)*answered);
    ++*answered;
    *moved = true;
    return STATUS_OK;
}

typedef struct question {
    float values[FLOATS];
    transport_ticket ticket;
} question;

static status ask_next(transport *t, int link, uint64_t seed, question *q, int64_t *sent, bool *moved)
{
    if (!transport_sent(&q->ticket)) return STATUS_OK;
    size_t count = random_below(seed, (uint64_t)*sent, FLOATS);
    for (size_t i = 0; i < count; i++) q->values[i] = (float)(*sent + (int64_t)i);
    const message_frame frame = {q->values, count * sizeof(float)};
    const message_header header = {.kind = MESSAGE_PUSH_PULL, .step = *sent};
    status result = transport_send(t, link, &header, &frame, 1, &q->ticket);
    if (result != STATUS_OK) return result == STATUS_AGAIN ? STATUS_OK : result;
    ++*sent;
    *moved = true;
    return STATUS_OK;
}

static status request(transport *t, int link, uint64_t seed)
{
    question *questions = calloc(AT_ONCE, sizeof *questions);
    status result = STATUS_OK;
    int64_t sent = 0, answered = 0;
    for (int i = 0; i < AT_ONCE; i++) questions[i].ticket.wake = true;
    while (answered < REQUESTS && result == STATUS_OK) {
        bool moved = false;
        int64_t ahead = 1 + (int64_t)random_below(seed, (uint64_t)(REQUESTS + answered), AT_ONCE);
        if (sent < REQUESTS && sent - answered < ahead)
            result = ask_next(t, link, seed, &questions[sent % AT_ONCE], &sent, &moved);
        if (result == STATUS_OK) result = take_answer(t, &answered, &moved);
        if (result == STATUS_OK && transport_link_ended(t, link))
            result = fail(STATUS_PEER, "the server has left");
        if (!moved && result == STATUS_OK) result = transport_wait(t, CLOCK_NEVER);
    }
    const message_header done = {.kind = MESSAGE_CONTROL};
    while (result == STATUS_OK && (result = transport_send(t, link, &done, NULL, 0, NULL)) == STATUS_AGAIN)
        result = transport_wait(t, CLOCK_NEVER);
    for (int i = 0; i < AT_ONCE; i++)
        while (!transport_sent(&questions[i].ticket) && result == STATUS_OK)
            result = transport_wait(t, CLOCK_NEVER);
    free(questions);
    return result;
}

static status run_agent(const agent *a)
{
    transport_options options = options_of(a);
    transport *t = NULL;
    int link;
    TRY(transport_open(&transport_zmq, &options, &t));
    status result =
        a->rank == 0 ? transport_listen(t, a->url, NULL, 0) : transport_connect(t, 0, a->url, &link);
    if (result == STATUS_OK) result = a->rank == 0 ? serve(t) : request(t, link, a->seed);
    transport_close(&t, NS_PER_S);
    return result;
}

static void *run(void *argument)
{
    agent *a = argument;
    a->result = run_agent(a);
    strncpy(a->message, error_message(), sizeof a->message - 1);
    return NULL;
}

static void agents_converse_and_no_wake_up_is_lost(void **state)
{
    (void)state;
    for (int s = 0; s < 3; s++)
        for (int window = 1; window <= 16; window *= 4) {
            transport_hub *hub = NULL;
            char url[128];
            agent agents[PEERS];
            net_url(schemes[s], url, sizeof url);
            if (s == 0) assert_ok(transport_hub_open(&hub));
            if (s == 2) { /* All clients must be told the port. */
                transport_options options = transport_defaults(0, 1, 1, 1);
                transport *t;
                assert_ok(transport_open(&transport_zmq, &options, &t));
                assert_ok(transport_listen(t, "tcp://127.0.0.1:*", url, sizeof url));
                transport_close(&t, 0);
            }
            for (int r = 0; r < PEERS; r++) {
                agents[r] = (agent){.hub = hub,
                                    .url = url,
                                    .rank = r,
                                    .window = window,
                                    .seed = random_start((uint64_t)r, 3)};
                assert_int_equal(pthread_create(&agents[r].thread, NULL, run, &agents[r]), 0);
            }
            for (int r = 0; r < PEERS; r++) pthread_join(agents[r].thread, NULL);
            for (int r = 0; r < PEERS; r++)
                if (agents[r].result != STATUS_OK)
                    fail_msg("%s, window %d, rank %d: %s", schemes[s], window, r, agents[r].message);
            transport_hub_close(&hub);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agents_converse_and_no_wake_up_is_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
