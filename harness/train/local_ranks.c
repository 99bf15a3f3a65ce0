#include "harness/train/local_ranks.h"

#include "common/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct local_ranks {
    int world;
    local_rank_function function;
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int waiting;
    unsigned round;
    error_record failure;  /* first failure, or the first one that is a cause */
    sync_blob *handshakes; /* [world] copies */
};

typedef struct local_rank {
    local_ranks *group;
    int rank;
    pthread_t thread;
} local_rank;

/* Returns true if the error only reports that another rank has failed. */
static bool is_consequence(const error_record *e)
{
    return e->code == STATUS_PEER || e->code == STATUS_STOPPED;
}

static void record_failure(local_ranks *g)
{
    error_record mine;
    error_copy(&mine);
    pthread_mutex_lock(&g->lock);
    if (g->failure.code == STATUS_OK || (is_consequence(&g->failure) && !is_consequence(&mine)))
        g->failure = mine;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void *run_rank(void *argument)
{
    local_rank *r = argument;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %d", r->rank);
    log_set_prefix(r->group->world > 1 ? prefix : "");
    error_clear();
    if (r->group->function(r->group, r->rank, r->group->context) != STATUS_OK) record_failure(r->group);
    return NULL;
}

status local_ranks_barrier(local_ranks *g)
{
    pthread_mutex_lock(&g->lock);
    unsigned round = g->round;
    if (++g->waiting == g->world) {
        g->waiting = 0;
        g->round++;
        pthread_cond_broadcast(&g->changed);
    }
    while (g->round == round && g->failure.code == STATUS_OK) pthread_cond_wait(&g->changed, &g->lock);
    bool passed = g->round != round;
    pthread_mutex_unlock(&g->lock);
    return passed ? STATUS_OK : fail(STATUS_STOPPED, "another rank has failed");
}

status local_ranks_exchange(local_ranks *g, int rank, sync_blob mine, const sync_blob **all)
{
    TRY(local_ranks_barrier(g)); /* waits until all ranks have read the last exchange */
    sync_blob *handshake = &g->handshakes[rank];
    free(handshake->data);
    *handshake = (sync_blob){malloc(mine.bytes + 1), mine.bytes};
    if (!handshake->data) return fail(STATUS_SYSTEM, "no memory for a handshake of %zu bytes", mine.bytes);
    if (mine.bytes) memcpy(handshake->data, mine.data, mine.bytes);
    *all = g->handshakes;
    return local_ranks_barrier(g);
}

status local_ranks_connect(local_ranks *g, int rank, trainer *t)
{
    sync_blob mine;
    const sync_blob *handshakes;
    TRY(sync_handshake(trainer_engine(t), &mine));
    TRY(local_ranks_exchange(g, rank, mine, &handshakes));
    return trainer_connect(t, handshakes);
}

/* Sets the variables of CUDA and NCCL before the threads start. setenv() in a thread would move the
 * environment while other threads read it. */
static void add_variables(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    setenv("NCCL_HOSTID", "", 0);
}

status local_ranks_run(int world, local_rank_function function, void *context)
{
    local_ranks g = {.world = world, .function = function, .context = context};
    local_rank *ranks = calloc((size_t)world, sizeof *ranks);
    g.handshakes = calloc((size_t)world, sizeof *g.handshakes);
    int started = 0;
    pthread_mutex_init(&g.lock, NULL);
    pthread_cond_init(&g.changed, NULL);
    add_variables();
    bool enough = ranks && g.handshakes;
    if (!enough) fail(STATUS_SYSTEM, "no memory for %d ranks", world);
    if (!enough) record_failure(&g);
    for (; enough && started < world; started++) {
        ranks[started] = (local_rank){.group = &g, .rank = started};
        errno = pthread_create(&ranks[started].thread, NULL, run_rank, &ranks[started]);
        if (errno) {
            fail_errno(STATUS_SYSTEM, "no thread for rank %d", started);
            record_failure(&g);
            break;
        }
    }
    for (int i = 0; i < started; i++) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; g.handshakes && i < world; i++) free(g.handshakes[i].data);
    pthread_cond_destroy(&g.changed);
    pthread_mutex_destroy(&g.lock);
    free(ranks);
    free(g.handshakes);
    if (g.failure.code == STATUS_OK) return STATUS_OK;
    error_clear();
    return error_adopt(&g.failure);
}
