/* Accepts or refuses hellos in the store, and carries out collective calls one after another. */
#include "common/net/rendezvous_impl.h"

#include "common/base/log.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Copies a text from the network for a terminal: printable, at most `size` bytes. */
static void printable(char *out, size_t size, const char *text)
{
    size_t i = 0;
    for (; text[i] && i + 1 < size; i++) out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    out[i] = '\0';
}

static size_t line_length(const char *line)
{
    return strcspn(line, "\n");
}

/* Finds the first line in which the texts differ. Returns false if the texts are equal or one is missing. */
static bool first_difference(const char *ours, const char *theirs, char a[128], char b[128])
{
    if (!ours[0] || !theirs[0]) return false;
    while (*ours || *theirs) {
        size_t m = line_length(ours), n = line_length(theirs);
        if (m != n || memcmp(ours, theirs, m) != 0) {
            char text[128];
            snprintf(text, sizeof text, "%.*s", (int)(m < 120 ? m : 120), ours);
            printable(a, 128, text);
            snprintf(text, sizeof text, "%.*s", (int)(n < 120 ? n : 120), theirs);
            printable(b, 128, text);
            return true;
        }
        ours += m + (ours[m] == '\n');
        theirs += n + (theirs[n] == '\n');
    }
    return false;
}

static status check_config(const store *s, const rendezvous_packet *h)
{
    char ours[128], theirs[128];
    if (h->config_hash == s->config_hash) return STATUS_OK;
    if (first_difference(s->config_text, h->config_text, ours, theirs))
        return fail(STATUS_PROTOCOL, "configuration: rank %d has '%s', rank 0 has '%s'", h->rank, theirs,
                    ours);
    return fail(STATUS_PROTOCOL, "configuration: rank %d has hash %016" PRIx64 ", rank 0 has %016" PRIx64,
                h->rank, h->config_hash, s->config_hash);
}

static status check(const store *s, const rendezvous_packet *h)
{
    char program[64], name[128];
    if (h->protocol != RENDEZVOUS_PROTOCOL)
        return fail(STATUS_PROTOCOL, "rendezvous protocol: rank %d has version %" PRIu32 ", rank 0 has %d",
                    h->rank, h->protocol, RENDEZVOUS_PROTOCOL);
    if (h->token != s->token) /* the message must not show the token */
        return fail(STATUS_PROTOCOL,
                    "job token: rank %d has a different token from the job at %s: two jobs use one address",
                    h->rank, s->address);
    if (s->joined == s->world)
        return fail(STATUS_PROTOCOL,
                    "job token: rank %d comes to the job at %s, whose %d ranks have all joined: two jobs use "
                    "one address",
                    h->rank, s->address, s->world);
    printable(program, sizeof program, h->program);
    if (strcmp(h->program, s->program) != 0)
        return fail(STATUS_PROTOCOL, "program version: rank %d has '%s', rank 0 has '%s'", h->rank, program,
                    s->program);
    if (h->world != s->world)
        return fail(STATUS_CONFIG, "world size: rank %d has %d, rank 0 has %d", h->rank, h->world, s->world);
    if (h->rank < 0 || h->rank >= s->world)
        return fail(STATUS_CONFIG, "rank: expected 0 to %d, got %d", s->world - 1, h->rank);
    if (s->members[h->rank].joined)
        return fail(STATUS_CONFIG, "rank %d is taken twice: by %s, and by process %" PRIu32, h->rank,
                    store_name(s, h->rank, name, sizeof name), h->pid);
    /* Accepts any configuration of a rank that has failed. */
    return h->code == STATUS_OK ? check_config(s, h) : STATUS_OK;
}

void store_receive_failure(store *s, int rank, const rendezvous_packet *failure)
{
    char name[128], text[800];
    if (s->failed != STATUS_OK) return;
    printable(text, sizeof text, failure->text);
    store_fail(s, failure->code, "%s: %s", store_name(s, rank, name, sizeof name), text);
}

static void welcome(store *s, const zsocket_identity *from, const rendezvous_packet *hello)
{
    store_member *m = &s->members[hello->rank];
    m->joined = true;
    m->identity = *from;
    m->pid = hello->pid;
    printable(m->host, sizeof m->host, hello->host);
    s->joined++;
    store_send(s, from, &(rendezvous_packet){.kind = RENDEZVOUS_WELCOME}, NULL, 0);
    if (hello->code != STATUS_OK) store_receive_failure(s, hello->rank, hello);
}

void store_receive_hello(store *s, const zsocket_identity *from, const rendezvous_packet *hello)
{
    const store_member *m =
        hello->rank >= 0 && hello->rank < s->world ? &s->members[hello->rank] : NULL; /* claimed rank */
    bool taken = m && m->joined;
    /* A rank sends its hello again after a reconnection. */
    if (taken && memcmp(&m->identity, from, sizeof *from) == 0) return;
    /* True if the job waits for this rank. If an awaited rank cannot join, the job fails. A second claim to a
     * taken rank changes nothing. */
    bool awaited = hello->token == s->token && !taken && s->joined < s->world;
    error_record refusal;
    error_clear();
    if (awaited && s->failed != STATUS_OK)
        fail(s->failed, "%s", s->failure);
    else if (check(s, hello) != STATUS_OK && !awaited)
        log_warn("rendezvous: refused a rank: %s", error_message());
    error_copy(&refusal);
    error_clear();
    if (refusal.code == STATUS_OK) {
        welcome(s, from, hello);
        return;
    }
    const rendezvous_packet refused = {
        .kind = RENDEZVOUS_REFUSED, .code = refusal.code, .text = refusal.message};
    store_send(s, from, &refused, NULL, 0);
    if (!awaited) return;
    if (s->failed == STATUS_OK) store_fail(s, refusal.code, "%s", refusal.message);
    s->joined++;
}

static void begin(store_call *c, int rank, const rendezvous_packet *call)
{
    c->first = rank;
    c->operation = call->operation;
    c->root = call->root;
    snprintf(c->tag, sizeof c->tag, "%s", call->tag);
}

/* Returns true if the rank makes the same call as the others, and fails the store if not. */
static bool agrees(store *s, int rank, const rendezvous_packet *call)
{
    const store_call *c = &s->call;
    if (call->operation != c->operation || strcmp(call->tag, c->tag) != 0 || call->root != c->root) {
        store_fail(s, STATUS_PROTOCOL,
                   "rendezvous: rank %d calls %s '%s' (root %d), rank %d calls %s '%s' (root %d)", rank,
                   rendezvous_operation_name(call->operation), call->tag, call->root, c->first,
                   rendezvous_operation_name(c->operation), c->tag, c->root);
        return false;
    }
    return true;
}

/* Sends the result to every rank: the blobs of all ranks, the blob of the root, or none. */
static void complete(store *s)
{
    const store_call *c = &s->call;
    bool broadcast = c->operation == RENDEZVOUS_BROADCAST, barrier = c->operation == RENDEZVOUS_BARRIER;
    int first = broadcast ? c->root : 0, count = broadcast ? 1 : barrier ? 0 : s->world;
    const rendezvous_packet result = {.kind = RENDEZVOUS_RESULT, .sequence = c->sequence, .blobs = count};
    for (int r = 0; r < s->world; r++)
        store_send(s, &s->members[r].identity, &result, &s->members[first], count);
    store_release_blobs(s);
    s->call.sequence++;
}

/* Fails the store if a rank has left, because it cannot take part in a call any more. */
static bool fail_if_a_rank_left(store *s)
{
    char name[128];
    for (int r = 0; r < s->world; r++) {
        if (!s->members[r].ended) continue;
        store_fail(s, STATUS_PEER, "rendezvous: %s '%s': %s has left",
                   rendezvous_operation_name(s->call.operation), s->call.tag,
                   store_name(s, r, name, sizeof name));
        return true;
    }
    return false;
}

void store_receive_call(store *s, int rank, const rendezvous_packet *call, zmq_msg_t *blob)
{
    store_member *m = &s->members[rank];
    store_call *c = &s->call;
    if (s->failed != STATUS_OK) return; /* the rank has received the error */
    if (call->sequence != c->sequence || m->called || call->root < 0 || call->root >= s->world) {
        store_fail(s, STATUS_PROTOCOL, "rendezvous: rank %d makes call %" PRIu64 ", due is call %" PRIu64,
                   rank, call->sequence, c->sequence);
        return;
    }
    if (c->callers == 0) begin(c, rank, call);
    if (!agrees(s, rank, call) || fail_if_a_rank_left(s)) return;
    zmq_msg_init(&m->blob);
    zmq_msg_move(&m->blob, blob);
    m->called = true;
    m->limit_ns = call->timeout_ms * NS_PER_MS;
    m->deadline_ns = clock_now_ns() + m->limit_ns;
    if (++c->callers == s->world) complete(s);
}

int64_t store_next_deadline(const store *s)
{
    int64_t next = CLOCK_NEVER;
    for (int r = 0; r < s->world && s->failed == STATUS_OK; r++)
        if (s->members[r].called && s->members[r].deadline_ns < next) next = s->members[r].deadline_ns;
    return next;
}

/* Extends the deadlines of ranks that have called while a rank that has not called makes progress. */
static void move_deadlines(store *s)
{
    int64_t moved_ns = 0;
    rank_status missing;
    for (int r = 0; r < s->world && s->table; r++) {
        if (s->members[r].called) continue;
        status_table_read(s->table, r, &missing);
        if (missing.time_ns > moved_ns) moved_ns = missing.time_ns;
    }
    for (int r = 0; r < s->world; r++) {
        store_member *m = &s->members[r];
        if (m->called && m->deadline_ns < moved_ns + m->limit_ns) m->deadline_ns = moved_ns + m->limit_ns;
    }
}

void store_check_deadline(store *s, int64_t now_ns)
{
    if (now_ns < store_next_deadline(s)) return;
    move_deadlines(s);
    if (now_ns < store_next_deadline(s)) return;
    text_buffer missing = {0};
    int count = 0;
    for (int r = 0; r < s->world; r++)
        if (!s->members[r].called) text_append(&missing, "%s%d", count++ ? ", " : "", r);
    store_fail(s, STATUS_PEER, "rendezvous at %s: %s '%s': no call from rank%s %s in time", s->address,
               rendezvous_operation_name(s->call.operation), s->call.tag, count == 1 ? "" : "s",
               missing.data ? missing.data : "?");
    text_free(&missing);
}
