#include "common/net/status_table.h"

#include "common/base/doorbell.h"
#include "common/base/least.h"
#include "common/net/shm.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TABLE_MAGIC UINT32_C(0x42445033) /* the last digit is the version of the layout */

typedef struct status_table_header {
    uint32_t magic;
    int32_t world;
    uint64_t token;
    _Alignas(64) atomic_int stop; /* signal that has requested a stop, or 0 */
    /* first step that must not run, or INT64_MAX until this step has been decided */
    _Atomic int64_t stop_step;
    _Alignas(64) atomic_uint granted;
    doorbell granting;
    _Alignas(64) _Atomic double loss;
    _Alignas(64) atomic_int failure_claimed;
    atomic_int failure_ready; /* true if `failure` has been written completely */
    job_failure failure;
} status_table_header;

struct status_table {
    shm_segment memory;
    status_table_header *header;
    rank_slot *slots; /* [world] */
    int notify_fd;
};

_Static_assert(sizeof(rank_slot) == 64, "a slot is one cache line");
_Static_assert(sizeof(status_table_header) % 64 == 0, "the slots after the header start on a cache line");

static const struct {
    const char *name;
    bool waits;
} operations[RANK_OPERATION_COUNT] = {
#define OPERATION_ROW(name, text, waits) [RANK_##name] = {text, waits},
    RANK_OPERATION_LIST(OPERATION_ROW)
#undef OPERATION_ROW
};

const char *rank_operation_name(rank_operation operation)
{
    return (unsigned)operation < RANK_OPERATION_COUNT ? operations[operation].name : "unknown";
}

bool rank_operation_waits(rank_operation operation)
{
    return (unsigned)operation < RANK_OPERATION_COUNT && operations[operation].waits;
}

void rank_slot_begin(rank_slot *slot, int rank)
{
    atomic_store_explicit(&slot->rank, rank, memory_order_relaxed);
    atomic_store_explicit(&slot->pid, getpid(), memory_order_relaxed);
    atomic_store_explicit(&slot->step, -1, memory_order_relaxed);
    atomic_store_explicit(&slot->state, RANK_RUNNING, memory_order_relaxed);
    atomic_store_explicit(&slot->operation, RANK_START, memory_order_relaxed);
    rank_slot_agent(slot, RANK_START, RANK_NO_BUCKET, clock_now_ns());
}

void rank_slot_finish(rank_slot *slot)
{
    rank_slot_enter(slot, RANK_DONE, clock_now_ns());
    atomic_store_explicit(&slot->state, RANK_FINISHED, memory_order_release);
}

void rank_slot_read(const rank_slot *slot, rank_status *out)
{
    *out = (rank_status){
        .pid = atomic_load_explicit(&slot->pid, memory_order_relaxed),
        .rank = atomic_load_explicit(&slot->rank, memory_order_relaxed),
        .state = (rank_slot_state)atomic_load_explicit(&slot->state, memory_order_acquire),
        .operation = (rank_operation)atomic_load_explicit(&slot->operation, memory_order_relaxed),
        .agent = (rank_operation)atomic_load_explicit(&slot->agent, memory_order_relaxed),
        .bucket = atomic_load_explicit(&slot->bucket, memory_order_relaxed),
        .blocks_done = atomic_load_explicit(&slot->blocks_done, memory_order_acquire),
        .enqueued = atomic_load_explicit(&slot->enqueued, memory_order_relaxed),
        .started = atomic_load_explicit(&slot->started, memory_order_relaxed),
        .completed = atomic_load_explicit(&slot->completed, memory_order_relaxed),
        .step = atomic_load_explicit(&slot->step, memory_order_relaxed),
        .time_ns = atomic_load_explicit(&slot->time_ns, memory_order_relaxed),
        .progress = atomic_load_explicit(&slot->progress, memory_order_relaxed),
    };
}

char *rank_status_format(const rank_status *s, char *buffer, size_t size)
{
    char step[48] = "before step 0", agent[80] = "", collectives[96] = "";
    if (s->step >= 0) snprintf(step, sizeof step, "at step %" PRId64, s->step);
    if (s->agent != RANK_START && s->bucket >= 0)
        snprintf(agent, sizeof agent, ", %s of bucket %d in flight", rank_operation_name(s->agent),
                 s->bucket);
    else if (s->agent != RANK_START)
        snprintf(agent, sizeof agent, ", %s in flight", rank_operation_name(s->agent));
    if (s->enqueued > 0)
        snprintf(collectives, sizeof collectives, " (collectives: %u enqueued, %u started, %u completed)",
                 s->enqueued, s->started, s->completed);
    snprintf(buffer, size, "%s in %s%s%s", step, rank_operation_name(s->operation), agent, collectives);
    return buffer;
}

bool rank_status_is_behind(const rank_status *a, const rank_status *b)
{
    const uint32_t mine[] = {a->enqueued, a->started, a->completed},
                   theirs[] = {b->enqueued, b->started, b->completed};
    for (int i = 0; i < 3; i++)
        if (mine[i] != theirs[i]) return (int32_t)(mine[i] - theirs[i]) < 0;
    return false;
}

static size_t status_table_bytes(int world)
{
    return sizeof(status_table_header) + (size_t)world * sizeof(rank_slot);
}

static status_table *status_table_over(const shm_segment *memory, int notify_fd)
{
    status_table *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->memory = *memory;
    t->header = memory->data;
    t->slots = (rank_slot *)((char *)memory->data + sizeof(status_table_header));
    t->notify_fd = notify_fd;
    return t;
}

status status_table_create(uint64_t token, int world, status_table **out)
{
    shm_segment memory = {0};
    if (world < 1 || world > JOB_MOST_MEMBERS)
        return fail(STATUS_CONFIG, "status table: expected 1 to %d members, got %d", JOB_MOST_MEMBERS, world);
    TRY(shm_create("table", (int64_t)status_table_bytes(world), &memory));
    int notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status_table *t = notify_fd >= 0 ? status_table_over(&memory, notify_fd) : NULL;
    if (!t) {
        status result = fail_errno(STATUS_SYSTEM, "status table: an event descriptor and memory");
        if (notify_fd >= 0) close(notify_fd);
        shm_close(&memory);
        return result;
    }
    t->header->magic = TABLE_MAGIC;
    t->header->world = world;
    t->header->token = token;
    atomic_store(&t->header->stop_step, INT64_MAX);
    atomic_store(&t->header->granted, UINT32_MAX);
    atomic_store(&t->header->loss, NAN);
    for (int r = 0; r < world; r++) {
        atomic_store(&t->slots[r].rank, r);
        atomic_store(&t->slots[r].step, -1);
        atomic_store(&t->slots[r].bucket, RANK_NO_BUCKET);
        atomic_store(&t->slots[r].time_ns, clock_now_ns());
    }
    *out = t;
    return STATUS_OK;
}

static status check_header(const status_table_header *header, uint64_t token, int world)
{
    if (header->magic != TABLE_MAGIC)
        return fail(STATUS_PROTOCOL, "status table: got layout %08" PRIx32 ", expected %08" PRIx32,
                    header->magic, TABLE_MAGIC);
    if (header->token != token)
        return fail(STATUS_PROTOCOL, "status table: got job token %016" PRIx64 ", expected %016" PRIx64,
                    header->token, token);
    if (header->world != world)
        return fail(STATUS_CONFIG, "status table: got a world size of %d, expected %d", (int)header->world,
                    world);
    return STATUS_OK;
}

status status_table_attach(int memory_fd, int notify_fd, uint64_t token, int world, status_table **out)
{
    shm_segment memory = {0};
    status_table *t = NULL;
    status result;
    TRY_GOTO(result, shm_map(memory_fd, (int64_t)status_table_bytes(world), "the launcher", &memory), failed);
    TRY_GOTO(result, check_header(memory.data, token, world), failed);
    t = status_table_over(&memory, notify_fd);
    if (!t) {
        result = fail(STATUS_SYSTEM, "status table: no memory");
        goto failed;
    }
    *out = t;
    return STATUS_OK;
failed:
    shm_close(&memory);
    close(notify_fd);
    return result;
}

void status_table_close(status_table **t)
{
    if (!*t) return;
    shm_close(&(*t)->memory);
    close((*t)->notify_fd);
    free(*t);
    *t = NULL;
}

int status_table_memory_fd(const status_table *t)
{
    return t->memory.fd;
}

int status_table_notify_fd(const status_table *t)
{
    return t->notify_fd;
}

rank_slot *status_table_slot(status_table *t, int rank)
{
    return &t->slots[rank];
}

void status_table_read(const status_table *t, int rank, rank_status *out)
{
    rank_slot_read(&t->slots[rank], out);
}

void status_table_mirror(status_table *t, int rank, uint64_t progress, int64_t step)
{
    rank_slot *slot = &t->slots[rank];
    if (atomic_exchange_explicit(&slot->progress, progress, memory_order_relaxed) == progress) return;
    atomic_store_explicit(&slot->step, step, memory_order_relaxed);
    atomic_store_explicit(&slot->time_ns, clock_now_ns(), memory_order_relaxed);
}

int64_t status_table_others_ns(const status_table *t, const rank_slot *own)
{
    int64_t latest = 0;
    for (int r = 0; t && r < t->header->world; r++) {
        int64_t ns = atomic_load_explicit(&t->slots[r].time_ns, memory_order_relaxed);
        if (&t->slots[r] != own && ns > latest) latest = ns;
    }
    return latest;
}

/* ---- stop, turns, first failure ---- */

static void notify(const status_table *t)
{
    /* The only possible error is a full counter, which also wakes the reader. */
    eventfd_write(t->notify_fd, 1);
}

int64_t job_stop_hold(status_table *t, int signal)
{
    int none = 0;
    int64_t last = -1;
    /* The request is written before the steps are read, because job_stop_here() writes its step before it
     * reads the request. */
    if (atomic_compare_exchange_strong(&t->header->stop, &none, signal)) notify(t);
    for (int r = 0; r < t->header->world; r++) last = greatest(last, atomic_load(&t->slots[r].step));
    return last;
}

void job_stop_decide(status_table *t, int64_t last)
{
    int64_t undecided = INT64_MAX;
    atomic_compare_exchange_strong(&t->header->stop_step, &undecided, last + 1);
}

int job_stop_requested(const status_table *t)
{
    return atomic_load_explicit(&t->header->stop, memory_order_acquire);
}

bool job_stop_here(status_table *t, int rank, int64_t step, bool async)
{
    status_table_header *h = t->header;
    rank_slot *slot = &t->slots[rank];
    if (async) return job_stop_requested(t) != 0;
    int64_t before = atomic_load_explicit(&slot->step, memory_order_relaxed), end;
    atomic_store(&slot->step, step);
    if (atomic_load(&h->stop) == 0) return false;
    while ((end = atomic_load(&h->stop_step)) == INT64_MAX) clock_sleep_ns(NS_PER_MS);
    if (step >= end) atomic_store(&slot->step, before);
    return step >= end;
}

void job_turn_wait(status_table *t, int rank, uint32_t block)
{
    status_table_header *h = t->header;
    if (job_turn_granted(t) > block) return;
    rank_slot *slot = &t->slots[rank];
    rank_operation before = (rank_operation)atomic_load_explicit(&slot->operation, memory_order_relaxed);
    rank_slot_enter(slot, RANK_PARKED, clock_now_ns());
    atomic_store_explicit(&slot->state, RANK_SLEEPING, memory_order_release);
    notify(t);
    for (unsigned seen = doorbell_enter(&h->granting); job_turn_granted(t) <= block;
         seen = doorbell_rings(&h->granting))
        doorbell_sleep(&h->granting, seen, CLOCK_NEVER);
    doorbell_leave(&h->granting);
    rank_slot_enter(slot, before, clock_now_ns());
    atomic_store_explicit(&slot->state, RANK_RUNNING, memory_order_release);
}

void job_turn_done(status_table *t, int rank, uint32_t block)
{
    atomic_store_explicit(&t->slots[rank].blocks_done, block + 1, memory_order_release);
    notify(t);
}

void job_turn_grant(status_table *t, uint32_t blocks)
{
    atomic_store_explicit(&t->header->granted, blocks, memory_order_release);
    doorbell_ring(&t->header->granting);
}

uint32_t job_turn_granted(const status_table *t)
{
    return atomic_load_explicit(&t->header->granted, memory_order_acquire);
}

void job_report_loss(status_table *t, double loss)
{
    atomic_store_explicit(&t->header->loss, loss, memory_order_relaxed);
}

double job_loss(const status_table *t)
{
    return atomic_load_explicit(&t->header->loss, memory_order_relaxed);
}

bool job_fail(status_table *t, int rank, status code, const char *text)
{
    status_table_header *h = t->header;
    atomic_store_explicit(&t->slots[rank].state, RANK_FAILED, memory_order_release);
    int unclaimed = 0;
    if (!atomic_compare_exchange_strong(&h->failure_claimed, &unclaimed, 1)) return false;
    h->failure.code = code;
    rank_slot_read(&t->slots[rank], &h->failure.where);
    snprintf(h->failure.text, sizeof h->failure.text, "%s", text);
    atomic_store_explicit(&h->failure_ready, 1, memory_order_release);
    notify(t);
    return true;
}

bool job_first_failure(const status_table *t, job_failure *out)
{
    if (!atomic_load_explicit(&t->header->failure_ready, memory_order_acquire)) return false;
    *out = t->header->failure;
    return true;
}
