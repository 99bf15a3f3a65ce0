/* Exchanges progress and stop requests between ranks that do not share a status table. A thread of every rank
 * sends the rank's progress to the store several times per second. The store replies with the sum of the
 * other ranks' progress.
 *
 *   a rank                                   the store
 *   gets a signal, begins no further step
 *   STATUS (signal, step begun)         ->
 *                                       <-   STATUS (signal), to all
 *   begins no further step
 *   STATUS (signal, step begun)         ->   when all ranks have reported:
 *                                       <-   STOP (highest step begun), to all
 *   runs up to this step
 *
 * The exchange needs no compute thread, so it works while the compute thread waits for a rank that has
 * stopped. */
#include "common/net/rendezvous_impl.h"

#include "common/base/least.h"
#include "common/base/log.h"
#include "common/base/random.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PERIOD_NS (NS_PER_S / 5)
/* Time within which ranks must report their step after a signal. If a rank has not reported by then, the
 * store assumes that this rank has begun one step more than the other ranks. */
#define ANSWER_NS (2 * NS_PER_S)
/* Time within which the store must decide the last step. If the store does not decide in time, it counts as
 * dead. */
#define DECISION_NS (10 * NS_PER_S)

/* ---- the store ---------------------------------------------------------------------------------- */

static void send_to(store *s, int rank, const rendezvous_packet *packet)
{
    if (s->members[rank].has_status) store_send(s, &s->members[rank].watcher, packet, NULL, 0);
}

static void answer(store *s, int rank)
{
    rendezvous_packet packet = {.kind = RENDEZVOUS_STATUS, .signal = s->signal};
    for (int r = 0; r < s->world; r++)
        if (r != rank) packet.progress += s->members[r].progress;
    send_to(s, rank, &packet);
}

void store_receive_status(store *s, const zsocket_identity *from, const rendezvous_packet *got)
{
    if (got->token != s->token || got->rank < 0 || got->rank >= s->world) {
        store_reject(s, "the status belongs to another job");
        return;
    }
    store_member *m = &s->members[got->rank];
    m->has_status = true;
    m->watcher = *from;
    m->progress = got->progress;
    m->step = got->step;
    m->signal = got->signal;
    if (got->rank != 0) status_table_mirror(s->options->table, got->rank, got->progress, got->step);
    if (s->signal || !got->signal) {
        answer(s, got->rank);
        return;
    }
    s->signal = got->signal;
    s->decide_ns = clock_now_ns() + ANSWER_NS;
    for (int r = 0; r < s->world; r++) answer(s, r);
}

/* If all ranks have reported or ANSWER_NS has passed, sends the number of the last step to all ranks. A rank
 * that has not reported may be one step ahead of the other ranks. It cannot be two steps ahead, because a
 * step needs all ranks. */
void store_decide_stop(store *s, int64_t now_ns)
{
    rendezvous_packet stop = {.kind = RENDEZVOUS_STOP, .signal = s->signal, .step = -1};
    bool all = true;
    if (!s->signal || s->decided) return;
    for (int r = 0; r < s->world; r++) {
        const store_member *m = &s->members[r];
        if (m->signal && m->step > stop.step) stop.step = m->step;
        all = all && (m->signal || m->lost || m->ended);
    }
    if (!all && now_ns < s->decide_ns) return;
    s->decided = true;
    stop.step += !all;
    for (int r = 0; r < s->world; r++) send_to(s, r, &stop);
}

/* ---- a rank ------------------------------------------------------------------------------------- */

struct status_sender {
    const rendezvous *rendezvous;
    status_table *table;
    int rank;
    uint64_t token;
    zsocket socket;
    int end_fd;
    bool has_thread, lost; /* `lost` is true if the connection to the store is lost */
    pthread_t thread;
    int64_t due_ns;
    int sent_signal;
    int64_t begun;   /* last step that this rank had begun when it began to hold */
    int64_t hold_ns; /* time at which this rank began to hold */
    _Alignas(16) unsigned char arena[RENDEZVOUS_ARENA_BYTES];
    uint8_t packet[RENDEZVOUS_PACKET_CAP];
};

static void send_status(status_sender *s, int64_t now_ns)
{
    rank_status own;
    int signal = job_stop_requested(s->table);
    if (now_ns < s->due_ns && signal == s->sent_signal) return;
    if (signal && !s->sent_signal) {
        s->begun = job_stop_hold(s->table, signal);
        s->hold_ns = now_ns;
    }
    status_table_read(s->table, s->rank, &own);
    const rendezvous_packet packet = {.kind = RENDEZVOUS_STATUS,
                                      .token = s->token,
                                      .rank = s->rank,
                                      .progress = own.progress,
                                      .step = signal ? s->begun : own.step,
                                      .signal = signal};
    size_t bytes = rendezvous_pack(&packet, s->packet, sizeof s->packet);
    zmq_send(s->socket.zmq, s->packet, bytes, ZMQ_DONTWAIT);
    s->sent_signal = signal;
    s->due_ns = now_ns + PERIOD_NS;
}

static void receive_answers(status_sender *s)
{
    rendezvous_packet got;
    zmq_msg_t part;
    zmq_msg_init(&part);
    while (zmq_msg_recv(&part, s->socket.zmq, ZMQ_DONTWAIT) >= 0) {
        if (zmq_msg_size(&part) == 0) continue;
        if (rendezvous_unpack(zmq_msg_data(&part), zmq_msg_size(&part), s->arena, &got) != STATUS_OK)
            continue;
        if (got.signal) job_stop_hold(s->table, got.signal);
        if (got.kind == RENDEZVOUS_STOP)
            job_stop_decide(s->table, got.step);
        else if (s->rank != 0)
            status_table_mirror(s->table, 0, got.progress, -1); /* the sum over all other ranks */
    }
    zmq_msg_close(&part);
}

/* Records the loss of the store. The rank continues until it notices in another way that rank 0 is lost. */
static void check_store(status_sender *s, int64_t now_ns)
{
    for (zsocket_event e; (e = zsocket_next_event(&s->socket)) != ZSOCKET_NO_EVENT;)
        s->lost = e != ZSOCKET_UP;
    if (s->sent_signal && (s->lost || now_ns >= s->hold_ns + DECISION_NS))
        job_stop_decide(s->table, s->begun);
}

/* Ends the process if its compute thread hangs, because no launcher sees its progress. A thread that waits,
 * or whose agent waits, should give up by itself. If rank 0 has ended, a thread that waits has twice the
 * limit for that. */
static void check_progress(const status_sender *s, int64_t now_ns)
{
    const rendezvous *r = s->rendezvous;
    char where[RANK_STATUS_TEXT], limit[32];
    rank_status own;
    status_table_read(s->table, s->rank, &own);
    bool works = !rank_operation_waits(own.operation) && (own.agent == RANK_START || s->lost);
    int64_t limit_ns = r->options.stall_limit_ns;
    if (own.step < 0) limit_ns = greatest(limit_ns, r->options.connect_limit_ns);
    if (!works) limit_ns = s->lost ? 2 * limit_ns : INT64_MAX;
    if (now_ns - own.time_ns < limit_ns) return;
    log_error("rank %d (host %s, process %d), %s: no progress for %s%s", s->rank, r->own.host,
              (int)r->own.pid, rank_status_format(&own, where, sizeof where),
              text_format_duration(limit, sizeof limit, (double)limit_ns), works ? "" : "; rank 0 has ended");
    _exit(status_exit_code(STATUS_PEER));
}

static void *run(void *argument)
{
    status_sender *s = argument;
    uint64_t notices;
    zmq_pollitem_t items[] = {
        {.fd = s->end_fd, .events = ZMQ_POLLIN},
        {.fd = status_table_notify_fd(s->table), .events = ZMQ_POLLIN},
        {.socket = s->socket.zmq, .events = ZMQ_POLLIN},
        {.socket = s->socket.monitor, .events = ZMQ_POLLIN},
    };
    for (;;) {
        send_status(s, clock_now_ns());
        int64_t left = s->due_ns - clock_now_ns();
        if (zmq_poll(items, 4, left > 0 ? (long)(left / NS_PER_MS) + 1 : 0) < 0 && errno != EINTR)
            return NULL;
        if (items[0].revents) return NULL;
        if (items[1].revents) eventfd_read(items[1].fd, &notices);
        receive_answers(s);
        check_store(s, clock_now_ns());
        if (s->rendezvous->options.stall_limit_ns > 0) check_progress(s, clock_now_ns());
    }
}

status status_sender_start(const rendezvous *r, const char *url, status_sender **out)
{
    const zsocket_options options = {.type = ZMQ_DEALER,
                                     .frame_bytes = RENDEZVOUS_PACKET_CAP,
                                     .token = random_token(),
                                     .rank = r->options.rank,
                                     .key = r->key};
    status_sender *s = *out = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "rendezvous: no memory to exchange the ranks' status");
    s->rendezvous = r;
    s->table = r->options.table;
    s->rank = r->options.rank;
    s->token = r->token;
    s->end_fd = eventfd(0, EFD_CLOEXEC);
    if (s->end_fd < 0) return fail_errno(STATUS_SYSTEM, "rendezvous: a descriptor");
    TRY(zsocket_open(r->context, &options, url, NULL, 0, &s->socket));
    errno = pthread_create(&s->thread, NULL, run, s);
    s->has_thread = errno == 0;
    return s->has_thread ? STATUS_OK : fail_errno(STATUS_SYSTEM, "rendezvous: a thread");
}

void status_sender_stop(status_sender **pointer)
{
    status_sender *s = *pointer;
    if (!s) return;
    if (s->has_thread) {
        eventfd_write(s->end_fd, 1);
        pthread_join(s->thread, NULL);
    }
    zsocket_close(&s->socket, 0);
    if (s->end_fd >= 0) close(s->end_fd);
    free(s);
    *pointer = NULL;
}
