/* Measures the processor time of messages that are sent over ZeroMQ, as a run does. Two agents sleep until
 * they receive a message, like a worker and a server. The processor time of the whole process is counted,
 * including the transport's threads. */
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/net/transport.h"
#include "harness/sim/calibrate_impl.h"
#include "harness/train/local_ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAIR = 2, WARM = 50, WAKES = 1000, SMALL = 500, LARGE = 40, LARGE_BYTES = 4 << 20 };
#define PATIENCE_NS (20 * NS_PER_S)

typedef struct talk {
    calibration *result;
    uint64_t token;
    transport *agents[PAIR];
    transport_ticket tickets[PAIR];
    int links[PAIR]; /* Link to the other agent. */
    char url[128], *data[PAIR];
    atomic_int turn; /* Agent that wakes the other next. */
} talk;

/* Sleeps until something happens, or fails at the deadline. */
static status await(talk *t, int rank, int64_t deadline_ns)
{
    if (clock_now_ns() >= deadline_ns) return fail(STATUS_PEER, "calibration: messages do not arrive");
    return transport_wait(t->agents[rank], deadline_ns);
}

/* ---- one way ---------------------------------------------------------------------------------- */

static status send_one(talk *t, int rank, int64_t bytes)
{
    message_header header = {.kind = MESSAGE_PUSH};
    message_frame frame = {t->data[rank], (size_t)bytes};
    int64_t deadline = clock_now_ns() + PATIENCE_NS;
    for (;;) {
        status rc =
            transport_send(t->agents[rank], t->links[rank], &header, &frame, bytes > 0, &t->tickets[rank]);
        if (rc != STATUS_AGAIN) return rc;
        transport_message none;
        rc = transport_receive(t->agents[rank], &none); /* Connects to the peer, which has sent nothing. */
        if (rc != STATUS_AGAIN) return rc;
        TRY(await(t, rank, deadline));
    }
}

static status receive_one(talk *t, int rank)
{
    transport_message m;
    int64_t deadline = clock_now_ns() + PATIENCE_NS;
    for (;;) {
        status rc = transport_receive(t->agents[rank], &m);
        if (rc == STATUS_OK) transport_release(t->agents[rank], &m);
        if (rc != STATUS_AGAIN) return rc;
        TRY(await(t, rank, deadline));
    }
}

/* Sends messages to rank 1 and back. */
static status pass_messages(talk *t, int rank, int64_t bytes, int count)
{
    for (int i = 0; i < count; i++) {
        if (rank == 0) TRY(send_one(t, rank, bytes));
        TRY(receive_one(t, rank));
        if (rank == 1) TRY(send_one(t, rank, bytes));
    }
    return STATUS_OK;
}

static status pass_wakes(talk *t, int rank, int64_t bytes, int count)
{
    (void)bytes;
    for (int i = 0; i < count; i++) {
        int64_t deadline = clock_now_ns() + PATIENCE_NS;
        while (atomic_load(&t->turn) != rank) TRY(await(t, rank, deadline));
        atomic_store(&t->turn, 1 - rank);
        transport_wake(t->agents[1 - rank]);
    }
    return STATUS_OK;
}

/* ---- processor time --------------------------------------------------------------------------- */

/* Measures the processor time of one direction. Sets *us only on rank 0. */
static status measure(local_ranks *group, talk *t, int rank, int64_t bytes, int count,
                      status (*pass)(talk *t, int rank, int64_t bytes, int count), double *us)
{
    TRY(pass(t, rank, bytes, WARM < count ? WARM : count));
    TRY(local_ranks_barrier(group));
    int64_t begin = clock_cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    TRY(pass(t, rank, bytes, count));
    TRY(local_ranks_barrier(group));
    if (rank == 0) *us = (double)(clock_cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - begin) * 1e-3 / (2.0 * count);
    return STATUS_OK;
}

static status open_agent(local_ranks *group, talk *t, int rank)
{
    transport_options options = transport_defaults(rank, PAIR, t->token, LARGE_BYTES);
    t->data[rank] = calloc(1, LARGE_BYTES);
    if (!t->data[rank]) return fail(STATUS_SYSTEM, "no memory for a message");
    TRY(transport_open(&transport_zmq, &options, &t->agents[rank]));
    if (rank == 0) {
        char asked[64];
        snprintf(asked, sizeof asked, "ipc://@psring-%016" PRIx64, random_token());
        TRY(transport_listen(t->agents[0], asked, t->url, sizeof t->url));
        t->links[0] = 1;
    }
    TRY(local_ranks_barrier(group));
    return rank == 1 ? transport_connect(t->agents[1], 0, t->url, &t->links[1]) : STATUS_OK;
}

static status talk_on_rank(local_ranks *group, int rank, void *context)
{
    talk *t = context;
    double small = 0, large = 0, wake = 0;
    TRY(calibration_bind(t->result, rank));
    TRY(open_agent(group, t, rank));
    TRY(measure(group, t, rank, 0, SMALL, pass_messages, &small));
    TRY(measure(group, t, rank, LARGE_BYTES, LARGE, pass_messages, &large));
    TRY(measure(group, t, rank, 0, WAKES, pass_wakes, &wake));
    if (rank == 1) return STATUS_OK;
    double both_ends = small - wake; /* `small` includes the wake-up of the receiver. */
    t->result->wake_us = wake;
    t->result->message_us = both_ends > 0 ? both_ends / 2 : 0;
    t->result->message_copy_gbs = large > small ? 2 * LARGE_BYTES / ((large - small) * 1e3) : 0;
    return STATUS_OK;
}

status calibrate_messages(calibration *c)
{
    talk t = {.result = c, .token = (uint64_t)clock_now_ns()};
    status rc = local_ranks_run(PAIR, talk_on_rank, &t);
    for (int r = 0; r < PAIR; r++) {
        transport_close(&t.agents[r], 0);
        free(t.data[r]);
    }
    return rc;
}
