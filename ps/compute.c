#include "ps/compute.h"

#include "common/device/sim/device_sim.h"
#include "common/sim/price.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Elements of a range, so few that the device does not start threads for a range. */
enum { RANGE = 8192 };

/* ---- bytes ------------------------------------------------------------------------------------ */

bool ps_has_bytes(const device *d)
{
    return device_get_info(d)->real;
}

void ps_charge_pass(device *d, double bytes, int threads)
{
    simulation *s = sim_device_simulation(d);
    if (!s) return;
    double rate =
        sim_profile_get(s->profile, SIM_MEMORY_BANDWIDTH) * sim_profile_at(s->profile, SIM_ELEMENTWISE, 1);
    sim_time duration =
        threads ? sim_price_sum(s->profile, bytes, threads) : sim_duration(bytes, rate * SIM_GB_PER_S);
    sim_actor_spend(sim_device_actor(d), duration);
}

bool ps_sums_on_host(device *d)
{
    return sim_device_is_host(d);
}

void ps_share_interpreter(device *d, int threads)
{
    if (sim_device_simulation(d)) sim_device_share_interpreter(d, threads);
}

void ps_wire(device *d, int replicas, int parameters)
{
    if (sim_device_simulation(d)) sim_device_wire(d, replicas, parameters);
}

void ps_await_wiring(device *d)
{
    if (sim_device_simulation(d)) sim_device_await_wiring(d);
}

/* Returns the bytes per sample of the keys and values of all attention layers. */
static int64_t cache_bytes(const nn_program *program)
{
    int64_t bytes = 0;
    for (int i = 0; i < program->op_count; i++) {
        const op_desc *op = &program->ops[i].desc;
        const attention_attributes *a = &op->u.attention;
        if (op->kind == OP_attention_forward)
            bytes += 2 * a->sequence * a->heads * a->width * (int64_t)dtype_size(op->type);
    }
    return bytes;
}

int64_t ps_returned_bytes(device *d, const nn_program *program, int64_t output_bytes)
{
    const simulation *s = sim_device_simulation(d);
    if (!s || s->config.gathered == SIM_GATHERS_LOSSES) return 0;
    return output_bytes + (s->config.gathered == SIM_GATHERS_CACHES ? cache_bytes(program) : 0);
}

/* ---- the thread pool -------------------------------------------------------------------------- */

typedef struct pool_thread {
    ps_thread_pool *pool;
    pthread_t thread;
    int index;
} pool_thread;

struct ps_thread_pool {
    int count;            /* Number of threads, including the caller's. */
    pool_thread *threads; /* [count] Element 0 stands for the caller's thread. */
    int started;
    pthread_mutex_t lock;
    pthread_cond_t submitted, done;
    unsigned jobs;
    int running;
    bool stop;
    /* The job, which the caller writes while no thread runs. */
    piece_list pieces;
    ps_range_function function;
    void *context;
    atomic_bool failed; /* the thread that sets it writes `error` */
    error_record error;
};

static void run_part(ps_thread_pool *p, int index)
{
    for (int i = 0; i < p->pieces.count; i++) {
        int64_t all = p->pieces.pieces[i].count, end = all * (index + 1) / p->count;
        for (int64_t at = all * index / p->count; at < end; at += RANGE) {
            if (p->function(p->context, index, i, at, end - at < RANGE ? end - at : RANGE) == STATUS_OK)
                continue;
            if (!atomic_exchange(&p->failed, true)) error_copy(&p->error);
            return;
        }
    }
}

static void *serve(void *argument)
{
    pool_thread *t = argument;
    ps_thread_pool *p = t->pool;
    pthread_mutex_lock(&p->lock);
    for (unsigned seen = 0;;) {
        while (p->jobs == seen && !p->stop) pthread_cond_wait(&p->submitted, &p->lock);
        if (p->stop) break;
        seen = p->jobs;
        pthread_mutex_unlock(&p->lock);
        run_part(p, t->index);
        pthread_mutex_lock(&p->lock);
        if (--p->running == 0) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Starts a thread with all signals blocked, because another thread of the process reads signals. */
static status start(ps_thread_pool *p, int index)
{
    pool_thread *t = &p->threads[index];
    *t = (pool_thread){.pool = p, .index = index};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&t->thread, NULL, serve, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (errno) return fail_errno(STATUS_SYSTEM, "parameter server: no thread %d", index);
    pthread_setname_np(t->thread, "ps-sum");
    p->started++;
    return STATUS_OK;
}

status ps_thread_pool_open(int threads, ps_thread_pool **out)
{
    *out = NULL;
    ps_thread_pool *p = calloc(1, sizeof *p);
    pool_thread *list = calloc((size_t)threads, sizeof *list);
    if (!p || !list) {
        free(p);
        free(list);
        return fail(STATUS_SYSTEM, "no memory for %d threads of a parameter server", threads);
    }
    p->count = threads;
    p->threads = list;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->submitted, NULL);
    pthread_cond_init(&p->done, NULL);
    status rc = STATUS_OK;
    for (int i = 1; i < threads && rc == STATUS_OK; i++) rc = start(p, i);
    if (rc != STATUS_OK) ps_thread_pool_close(&p);
    *out = p;
    return rc;
}

void ps_thread_pool_close(ps_thread_pool **pool)
{
    ps_thread_pool *p = *pool;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->submitted);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i <= p->started; i++) pthread_join(p->threads[i].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->submitted);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
    *pool = NULL;
}

static status finish(ps_thread_pool *p)
{
    return atomic_load(&p->failed) ? error_adopt(&p->error) : STATUS_OK;
}

status ps_thread_pool_run(ps_thread_pool *p, piece_list pieces, ps_range_function function, void *context)
{
    bool alone = p->count == 1;
    if (!alone) pthread_mutex_lock(&p->lock);
    p->pieces = pieces;
    p->function = function;
    p->context = context;
    atomic_store(&p->failed, false);
    if (alone) {
        run_part(p, 0);
        return finish(p);
    }
    p->running = p->count - 1;
    p->jobs++;
    pthread_cond_broadcast(&p->submitted);
    pthread_mutex_unlock(&p->lock);
    run_part(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->running > 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return finish(p);
}
