/* Collectives through Open MPI. MPI takes contiguous operands and int counts, so a call runs in rounds: the
 * whole at once where it is contiguous, else through a staging buffer. Before its rounds every call
 * gathers the members' descriptions, since MPI itself may hang or mix data where ranks disagree. */
#include "common/base/clock.h"
#include "common/base/text.h"
#include "ring/collectives/mpi/collective_mpi_impl.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STAGING_BYTES = 1 << 20, PAIR_STAGING_BYTES = 64 << 10, SLEEP_NS = 100000000, POLL_NS = 20000, YIELDS = 400 };

status mpi_fail(const mpi_world *w, int code, const char *what)
{
    char text[160];
    w->module->error_text(code, text, sizeof text);
    return fail(STATUS_UNAVAILABLE, "collectives mpi: %s: %s", what, text);
}

/* ---- worlds ----------------------------------------------------------------------------------- */

/* Next to the program, where it is installed relative to the program, then where it was built. */
static void *open_module(void)
{
    char program[PATH_MAX], path[PATH_MAX + 64];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    static const char *const places[] = {"%s/libpsring_mpi.so", "%s/../lib/psring/libpsring_mpi.so"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, i == 0 ? places[0] : places[1], program);
        void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (library) return library;
    }
    return dlopen(PSRING_MODULE_DIR "/libpsring_mpi.so", RTLD_NOW | RTLD_GLOBAL);
}

static status load(mpi_world *w)
{
    w->library = open_module();
    if (!w->library)
        return fail(STATUS_UNAVAILABLE,
                    "collectives mpi: the module libpsring_mpi.so cannot be opened: %s; "
                    "without Open MPI take ring, two-shot or auto",
                    dlerror());
    w->module = dlsym(w->library, MPI_MODULE_SYMBOL);
    if (!w->module || w->module->version != MPI_MODULE_VERSION)
        return fail(STATUS_UNAVAILABLE, "collectives mpi: libpsring_mpi.so is of another version");
    return STATUS_OK;
}

static status check_launched(const collective_config *config)
{
    if (config->world == 1 || getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK")) return STATUS_OK;
    return fail(STATUS_UNAVAILABLE, "collectives mpi: this process was not started by mpirun");
}

static status mpi_open(const collective_config *config, collective_world **out)
{
    if (net_link_is_emulated(&config->link))
        return fail(STATUS_CONFIG, "--link: expected --collective auto, ring or two-shot, got mpi: "
                                   "what MPI sends cannot be paced");
    TRY(check_launched(config));
    mpi_world *w = calloc(1, sizeof *w);
    if (!w) return fail(STATUS_SYSTEM, "no memory for collectives");
    status rc;
    int rank = -1, size = 0;
    w->base.config = *config;
    TRY_GOTO(rc, load(w), failed);
    int code = w->module->open(reduce_pair, &rank, &size);
    if (code)
        rc = mpi_fail(w, code, "MPI_Init");
    else if (rank != config->rank || size != config->world)
        rc = fail(STATUS_CONFIG, "collectives mpi: found rank %d of %d in MPI, expected %d of %d", rank, size,
                  config->rank, config->world);
    if (rc != STATUS_OK) goto failed;
    *out = &w->base;
    return STATUS_OK;
failed:
    free(w);
    return rc;
}

static void mpi_close(collective_world *world)
{
    free(world); /* the library stays: MPI cannot be unloaded */
}

static void mpi_group_close(collective_group *group)
{
    mpi_group *g = (mpi_group *)group;
    mpi_world *w = (mpi_world *)group->world;
    for (mpi_group **at = &w->groups; *at; at = &(*at)->next) {
        if (*at != g) continue;
        *at = g->next;
        break;
    }
    for (int i = 0; g->queues && i < g->queue_count; i++) {
        free(g->queues[i].calls);
        free(g->queues[i].request);
        free(g->queues[i].staging);
    }
    if (g->comm) w->module->group_close(g->comm);
    free(g->queues);
    free(g->prints);
    free(g->counts);
    free(g);
}

static status init_queues(const mpi_world *w, mpi_group *g)
{
    for (int i = 0; i < g->queue_count; i++) {
        mpi_queue *q = &g->queues[i];
        q->group = g;
        q->pair = i > 0;
        q->capacity = i > 0 ? 8 : COLLECTIVE_QUEUE;
        q->calls = calloc((size_t)q->capacity, sizeof *q->calls);
        q->request = malloc((size_t)w->module->request_bytes);
        q->staging_bytes = i > 0 ? PAIR_STAGING_BYTES : STAGING_BYTES;
        if (w->base.config.staging_bytes > 0) q->staging_bytes = w->base.config.staging_bytes;
        q->staging = malloc((size_t)q->staging_bytes);
        if (!q->calls || !q->request || !q->staging)
            return fail(STATUS_SYSTEM, "no memory for group '%s'", g->base.name);
    }
    return STATUS_OK;
}

static status mpi_group_open(collective_world *world, const char *name, const int *ranks, int count,
                             collective_group **out)
{
    mpi_world *w = (mpi_world *)world;
    mpi_group *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for group '%s'", name);
    g->base = (collective_group){.world = world, .size = count};
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->config.rank) g->base.rank = i;
    g->queue_count = 1 + 2 * count; /* all; to each rank; from each rank */
    g->queues = calloc((size_t)g->queue_count, sizeof *g->queues);
    g->prints = calloc(((size_t)count + 1) * PRINT_WORDS, sizeof *g->prints);
    g->counts = calloc(4 * (size_t)count, sizeof *g->counts);
    status rc = STATUS_OK;
    if (!g->queues || !g->prints || !g->counts) {
        rc = fail(STATUS_SYSTEM, "no memory for group '%s'", name);
        goto failed;
    }
    TRY_GOTO(rc, init_queues(w, g), failed);
    int code = w->module->group_open(ranks, count, &g->comm);
    if (code) {
        rc = mpi_fail(w, code, "MPI_Comm_create_group");
        goto failed;
    }
    g->next = w->groups;
    w->groups = g;
    *out = &g->base;
    return STATUS_OK;
failed:
    mpi_group_close(&g->base);
    return rc;
}

/* ---- calls ------------------------------------------------------------------------------------ */

static mpi_queue *queue_of(const mpi_group *g, const collective_call *call, int *index)
{
    *index = call->kind == COLLECTIVE_SEND      ? 1 + call->root
             : call->kind == COLLECTIVE_RECEIVE ? 1 + g->base.size + call->root
                                                : 0;
    return &g->queues[*index];
}

static mpi_queued *queued(const mpi_queue *q, uint64_t sequence)
{
    return &q->calls[sequence % (uint64_t)q->capacity];
}

static status mpi_post(collective_group *group, const collective_call *call, collective_ticket *out)
{
    int index;
    mpi_queue *q = queue_of((mpi_group *)group, call, &index);
    if (q->posted - q->completed == (uint64_t)q->capacity) return STATUS_AGAIN;
    *queued(q, ++q->posted) = (mpi_queued){.call = *call};
    *out = (collective_ticket){index, q->posted};
    return STATUS_OK;
}

static bool mpi_done(const collective_group *group, collective_ticket ticket)
{
    return ((const mpi_group *)group)->queues[ticket.queue].completed >= ticket.sequence;
}

static collective_times mpi_times(const collective_group *group, collective_ticket ticket)
{
    return queued(&((const mpi_group *)group)->queues[ticket.queue], ticket.sequence)->times;
}

static status stalled(const mpi_queue *q)
{
    char call[128], limit[32];
    const collective_config *c = &q->group->base.world->config;
    return fail(STATUS_PEER,
                "%s (call %llu of group '%s'): no progress for %s in rank %d; MPI does not report whom it "
                "waits for",
                collective_call_format(q->call, call, sizeof call), (unsigned long long)q->completed + 1,
                q->group->base.name, text_format_duration(limit, sizeof limit, (double)c->stall_timeout_ns), c->rank);
}

static status advance(mpi_queue *q, int64_t now_ns, bool *worked)
{
    bool done = false;
    if (q->phase == QUEUE_IDLE) {
        q->call = &queued(q, q->completed + 1)->call;
        q->since_ns = now_ns;
        *worked = true;
        return mpi_begin_check(q);
    }
    TRY(mpi_test(q, &done));
    if (!done) return STATUS_OK;
    *worked = true;
    q->since_ns = now_ns;
    if (q->phase == QUEUE_CHECKING) {
        TRY(mpi_end_check(q));
        queued(q, q->completed + 1)->times.started_ns = now_ns;
        return mpi_first_round(q);
    }
    bool more = false;
    TRY(mpi_end_round(q, &more));
    if (more) return STATUS_OK;
    queued(q, q->completed + 1)->times.finished_ns = now_ns;
    q->phase = QUEUE_IDLE;
    q->completed++;
    return STATUS_OK;
}

static status mpi_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    mpi_world *w = (mpi_world *)world;
    w->seen = doorbell_rings(&w->bell);
    for (mpi_group *g = w->groups; g; g = g->next) {
        for (int i = 0; i < g->queue_count; i++) {
            mpi_queue *q = &g->queues[i];
            if (q->completed == q->posted) continue;
            TRY(advance(q, now_ns, worked));
            int64_t deadline = collective_deadline(q->since_ns, world->config.stall_timeout_ns);
            if (now_ns >= deadline) return stalled(q);
            if (deadline < *deadline_ns) *deadline_ns = deadline;
        }
    }
    if (*worked) w->fruitless = 0;
    return STATUS_OK;
}

static bool has_calls(const mpi_world *w)
{
    for (const mpi_group *g = w->groups; g; g = g->next)
        for (int i = 0; i < g->queue_count; i++)
            if (g->queues[i].completed != g->queues[i].posted) return true;
    return false;
}

/* There is no waiting for MPI and for a wake-up at the same time: with calls in flight MPI is polled, first without
 * and later with short sleeps in between. */
static void mpi_wait(collective_world *world, int64_t deadline_ns)
{
    mpi_world *w = (mpi_world *)world;
    bool busy = has_calls(w);
    if (busy && w->fruitless++ < YIELDS) {
        sched_yield();
        return;
    }
    int64_t poll_ns = clock_now_ns() + (busy ? POLL_NS : SLEEP_NS);
    doorbell_enter(&w->bell);
    doorbell_sleep(&w->bell, w->seen, deadline_ns < poll_ns ? deadline_ns : poll_ns);
    doorbell_leave(&w->bell);
}

static void mpi_wake(collective_world *world)
{
    doorbell_ring(&((mpi_world *)world)->bell);
}

static void mpi_abort(collective_world *world, const error_record *why)
{
    mpi_world *w = (mpi_world *)world;
    w->module->give_up(status_exit_code(why->code));
}

const collective_type collective_mpi = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .group_open = mpi_group_open,
    .group_close = mpi_group_close,
    .post = mpi_post,
    .done = mpi_done,
    .times = mpi_times,
    .progress = mpi_progress,
    .wait = mpi_wait,
    .wake = mpi_wake,
    .abort = mpi_abort,
};
