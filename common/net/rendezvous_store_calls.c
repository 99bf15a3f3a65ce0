/* The part of the store that accepts or refuses hellos, and handles collective calls one after another. */
#include "common/net/rendezvous_impl.h"

#include "common/base/log.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Copies a text that came over the network. Replaces unprintable characters, and copies at most `size`
 * bytes. */
static void printable(char *out, size_t size, const char *text)
{
    size_t i = 0;
    for (; text[i] && i + 1 < size; i++) out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    out[i] = '\0';
}

static void copy_line(char out[128], const char *text)
{
    enum { MOST = 120 };
    size_t length = strcspn(text, "\n");
    printable(out, 1 + (length < MOST ? length : MOST), text);
}

/* Finds the first line in which the texts differ. Returns false if the texts are equal or one of them is
 * missing. */
static bool first_difference(const char *ours, const char *theirs, char a[128], char b[128])
{
    if (!ours[0] || !theirs[0]) return false;
    while (*ours || *theirs) {
        size_t m = strcspn(ours, "\n"), n = strcspn(theirs, "\n");
        if (m != n || memcmp(ours, theirs, m) != 0) {
            copy_line(a, ours);
            copy_line(b, theirs);
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
    if (h->config_hash == s->options->config_hash) return STATUS_OK;
    if (first_difference(s->options->config_text, h->config_text, ours, theirs))
        return fail(STATUS_PROTOCOL, "configuration: rank %d has '%s', rank 0 has '%s'", h->rank, theirs,
                    ours);
    return fail(STATUS_PROTOCOL, "configuration: rank %d has hash %016" PRIx64 ", rank 0 has %016" PRIx64,
                h->rank, h->config_hash, s->options->config_hash);
}

static status check(const store *s, const rendezvous_packet *h)
{
    char program[64], name[128];
    if (h->protocol != RENDEZVOUS_PROTOCOL)
        return fail(STATUS_PROTOCOL, "rendezvous protocol: rank %d has version %" PRIu32 ", rank 0 has %d",
                    h->rank, h->protocol, RENDEZVOUS_PROTOCOL);
    if (h->token != s->token) /* The error message must not show the token, which is a secret. */
        return fail(STATUS_PROTOCOL,
                    "job token: rank %d has a different token from the job at %s: two jobs use one address",
                    h->rank, s->address);
    if (s->joined == s->world)
        return fail(STATUS_PROTOCOL,
                    "job token: rank %d comes to the job at %s, whose %d ranks have all joined: two jobs use "
                    "one address",
                    h->rank, s->address, s->world);
    printable(program, sizeof program, h->program);
    if (strcmp(h->program, s->options->program) != 0)
        return fail(STATUS_PROTOCOL, "program version: rank %d has '%s', rank 0 has '%s'", h->rank, program,
                    s->options->program);
    if (h->world != s->world)
        return fail(STATUS_CONFIG, "world size: rank %d has %d, rank 0 has %d", h->rank, h->world, s->world);
    if (h->rank < 0 || h->rank >= s->world)
        return fail(STATUS_CONFIG, "rank: expected 0 to %d, got %d", s->world - 1, h->rank);
    if (s->members[h->rank].joined)
        return fail(STATUS_CONFIG, "rank %d is taken twice: by %s, and by process %" PRIu32, h->rank,
                    store_name(s, h->rank, name, sizeof name), h->pid);
    /* If the rank has failed, any configuration is accepted. */
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
    /* The member that the process claims to be, or NULL if the claimed rank does not exist. */
    const store_member *m = hello->rank >= 0 && hello->rank < s->world ? &s->members[hello->rank] : NULL;
    bool taken = m && m->joined;
    /* The hello comes from a process that has joined before. The process has reconnected and sent its hello
     * again. */
    if (taken && memcmp(&m->identity, from, sizeof *from) == 0) return;
    /* True if the job still waits for this rank. If an awaited rank cannot join, the job fails. If another
     * process claims a rank that has joined, the job continues. */
    bool awaited = hello->token == s->token && !taken && s->joined < s->world;
    error_clear();
    status rc = awaited && s->failed != STATUS_OK ? fail(s->failed, "%s", s->failure) : check(s, hello);
    if (rc == STATUS_OK) {
        welcome(s, from, hello);
        return;
    }
    if (!awaited) log_warn("rendezvous: refused a rank: %s", error_message());
    const rendezvous_packet refused = {.kind = RENDEZVOUS_REFUSED, .code = rc, .text = error_message()};
    store_send(s, from, &refused, NULL, 0);
    if (awaited && s->failed == STATUS_OK) store_fail(s, rc, "%s", error_message());
    if (awaited) s->joined++;
    error_clear();
}

/* Returns true if the rank makes the same call as the other ranks. Otherwise fails the store and returns
 * false. */
static bool agrees(store *s, int rank, const rendezvous_packet *call)
{
    const store_call *c = &s->call;
    if (call->root == c->root && call->blobs == c->blobs && strcmp(call->call, c->name) == 0) return true;
    store_fail(s, STATUS_PROTOCOL, "rendezvous: rank %d calls %s (root %d), rank %d calls %s (root %d)", rank,
               call->call, call->root, c->first, c->name, c->root);
    return false;
}

static void send_result(store *s)
{
    const store_call *c = &s->call;
    const rendezvous_packet result = {.kind = RENDEZVOUS_RESULT, .sequence = c->sequence, .blobs = c->blobs};
    for (int r = 0; r < s->world; r++)
        store_send(s, &s->members[r].identity, &result, &s->members[c->root], c->blobs);
    store_release_blobs(s);
    s->call.sequence++;
}

/* Fails the store if a rank has left, because a rank that has left cannot take part in further calls. */
static bool fail_if_a_rank_left(store *s)
{
    char name[128];
    for (int r = 0; r < s->world; r++) {
        if (!s->members[r].ended) continue;
        store_fail(s, STATUS_PEER, "rendezvous: %s: %s has left", s->call.name,
                   store_name(s, r, name, sizeof name));
        return true;
    }
    return false;
}

void store_receive_call(store *s, int rank, const rendezvous_packet *call, zmq_msg_t *blob)
{
    store_member *m = &s->members[rank];
    store_call *c = &s->call;
    if (s->failed != STATUS_OK) return; /* The store has already sent the error to the rank. */
    bool in_range =
        call->root >= 0 && call->root < s->world && call->blobs >= 0 && call->blobs <= s->world - call->root;
    if (call->sequence != c->sequence || m->called || !in_range) {
        store_fail(s, STATUS_PROTOCOL, "rendezvous: rank %d makes call %" PRIu64 ", due is call %" PRIu64,
                   rank, call->sequence, c->sequence);
        return;
    }
    if (c->callers == 0) {
        c->first = rank;
        c->root = call->root;
        c->blobs = call->blobs;
        snprintf(c->name, sizeof c->name, "%s", call->call);
    }
    if (!agrees(s, rank, call) || fail_if_a_rank_left(s)) return;
    zmq_msg_init(&m->blob);
    zmq_msg_move(&m->blob, blob);
    m->called = true;
    m->limit_ns = call->timeout_ms * NS_PER_MS;
    m->deadline_ns = clock_now_ns() + m->limit_ns;
    if (++c->callers == s->world) send_result(s);
}

int64_t store_next_deadline(const store *s)
{
    int64_t next = CLOCK_NEVER;
    for (int r = 0; r < s->world && s->failed == STATUS_OK; r++)
        if (s->members[r].called && s->members[r].deadline_ns < next) next = s->members[r].deadline_ns;
    return next;
}

/* If a rank that has not called makes progress, extends the deadlines of the ranks that have called. */
static void move_deadlines(store *s)
{
    int64_t moved_ns = 0;
    rank_status missing;
    for (int r = 0; r < s->world && s->options->table; r++) {
        if (s->members[r].called) continue;
        status_table_read(s->options->table, r, &missing);
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
    store_fail(s, STATUS_PEER, "rendezvous at %s: %s: no call from rank%s %s in time", s->address,
               s->call.name, count == 1 ? "" : "s", missing.data ? missing.data : "?");
    text_free(&missing);
}
