#include "common/data/loader.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

typedef enum slot_state {
    SLOT_FREE,
    SLOT_FILLING,
    /* a thread is making the batch, but the consumer has jumped to another step, so the batch will be
     * dropped */
    SLOT_ABANDONED,
    SLOT_READY,
    SLOT_FAILED, /* the batch could not be made; see `error` */
    SLOT_LENT
} slot_state;

typedef struct slot {
    slot_state state;
    int64_t step; /* step of the batch, unless the slot is free */
    void *inputs, *targets;
    batch_view batch;
    error_record error;
} slot;

typedef struct loader {
    batch_source source;
    batch_maker maker;
    loader_memory memory;
    int depth, threads;
    pthread_t ids[LOADER_MAX_THREADS];
    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t work;  /* signaled when a buffer becomes free or the loader is being closed */
    pthread_cond_t done;  /* signaled when a batch is ready or has failed */
    slot slots[LOADER_MAX_DEPTH];
    int64_t next_made; /* step of the next batch that a free thread will begin to make */
    /* step that the consumer will request next, unless the consumer jumps to another step */
    int64_t next_asked;
    int workers;
    bool closing;
} loader;

static slot *find(loader *l, slot_state state)
{
    for (int i = 0; i < l->depth; i++)
        if (l->slots[i].state == state) return &l->slots[i];
    return NULL;
}

/* Returns the slot in which the batch of `step` is ready or has failed, or NULL. */
static slot *find_made(loader *l, int64_t step)
{
    for (int i = 0; i < l->depth; i++) {
        slot *s = &l->slots[i];
        if (s->step == step && (s->state == SLOT_READY || s->state == SLOT_FAILED)) return s;
    }
    return NULL;
}

static status make(loader *l, int worker, slot *s)
{
    batch_position position = batch_position_of_step(&l->source, s->step);
    s->batch = (batch_view){.inputs = s->inputs,
                            .targets = s->targets,
                            .step = s->step,
                            .epoch = position.epoch,
                            .epoch_step = position.epoch_step};
    return l->maker.make(l->maker.context, worker, s->inputs, s->targets, &s->batch);
}

static void *work(void *argument)
{
    loader *l = argument;
    pthread_mutex_lock(&l->lock);
    int worker = l->workers++;
    for (;;) {
        slot *s = NULL;
        while (!l->closing && !(s = find(l, SLOT_FREE))) pthread_cond_wait(&l->work, &l->lock);
        if (l->closing) break;
        s->state = SLOT_FILLING;
        s->step = l->next_made++;
        pthread_mutex_unlock(&l->lock);
        error_clear();
        status result = make(l, worker, s);
        pthread_mutex_lock(&l->lock);
        if (s->state == SLOT_ABANDONED) {
            s->state = SLOT_FREE;
            continue;
        }
        if (result != STATUS_OK) error_copy(&s->error);
        s->state = result == STATUS_OK ? SLOT_READY : SLOT_FAILED;
        pthread_cond_signal(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Drops the batches that have been prepared, and continues with `step`. The caller must hold the lock. */
static void jump(loader *l, int64_t step)
{
    for (int i = 0; i < l->depth; i++) {
        slot *s = &l->slots[i];
        if (s->state == SLOT_READY || s->state == SLOT_FAILED) s->state = SLOT_FREE;
        if (s->state == SLOT_FILLING) s->state = SLOT_ABANDONED;
    }
    l->next_made = l->next_asked = step;
    pthread_cond_broadcast(&l->work);
}

static bool all_on_loan(const loader *l)
{
    for (int i = 0; i < l->depth; i++)
        if (l->slots[i].state != SLOT_LENT) return false;
    return true;
}

static status take(loader *l, int64_t step, batch_view *out)
{
    slot *s;
    if (all_on_loan(l))
        return fail(STATUS_INTERNAL, "loader: step %" PRId64 ": expected at most %d buffers on loan, got %d",
                    step, l->depth - 1, l->depth);
    if (step != l->next_asked) jump(l, step);
    if (l->threads == 0) {
        s = find(l, SLOT_FREE);
        s->step = step;
        TRY(make(l, 0, s));
    } else {
        while (!(s = find_made(l, step))) pthread_cond_wait(&l->done, &l->lock);
        if (s->state == SLOT_FAILED) return error_adopt(&s->error);
    }
    s->state = SLOT_LENT;
    l->next_asked = step + 1;
    *out = s->batch;
    return STATUS_OK;
}

static status loader_next(batch_source *source, int64_t step, batch_view *out)
{
    loader *l = (loader *)source;
    pthread_mutex_lock(&l->lock);
    status result = take(l, step, out);
    pthread_mutex_unlock(&l->lock);
    return result;
}

/* Returns true if the batch has been made, and false if it has failed. The next request for the step of a
 * failed batch returns the error. */
static bool loader_ready(batch_source *source, int64_t step)
{
    loader *l = (loader *)source;
    pthread_mutex_lock(&l->lock);
    const slot *s = l->threads > 0 && step == l->next_asked ? find_made(l, step) : NULL;
    bool ready = s && s->state == SLOT_READY;
    pthread_mutex_unlock(&l->lock);
    return ready;
}

static void loader_return(batch_source *source, const batch_view *b)
{
    loader *l = (loader *)source;
    pthread_mutex_lock(&l->lock);
    slot *s = l->slots;
    while (s->inputs != b->inputs) s++;
    assert(s->state == SLOT_LENT && s->step == b->step);
    s->state = SLOT_FREE;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
}

static void loader_close(batch_source *source)
{
    loader *l = (loader *)source;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->threads; i++) pthread_join(l->ids[i], NULL);
    for (int i = 0; i < l->depth; i++) {
        if (l->slots[i].inputs) l->memory.release(l->memory.context, l->slots[i].inputs);
        if (l->slots[i].targets) l->memory.release(l->memory.context, l->slots[i].targets);
    }
    pthread_cond_destroy(&l->done);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    l->maker.close(l->maker.context);
    free(l);
}

static const batch_source_type loader_type = {
    .next = loader_next,
    .ready = loader_ready,
    .give_back = loader_return,
    .close = loader_close,
};

/* ---- open ------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    size_t least = bytes ? bytes : 1;
    return (least + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static status allocate_plain(void *context, size_t bytes, void **out)
{
    (void)context;
    *out = aligned_alloc(ALIGNMENT, bytes);
    return *out ? STATUS_OK : fail(STATUS_SYSTEM, "loader: no memory for a buffer of %zu bytes", bytes);
}

static void release_plain(void *context, void *data)
{
    (void)context;
    free(data);
}

static status allocate_slots(loader *l)
{
    size_t input_bytes = aligned(l->maker.input_bytes), target_bytes = aligned(l->maker.target_bytes);
    for (int i = 0; i < l->depth; i++) {
        TRY(l->memory.allocate(l->memory.context, input_bytes, &l->slots[i].inputs));
        TRY(l->memory.allocate(l->memory.context, target_bytes, &l->slots[i].targets));
    }
    return STATUS_OK;
}

/* Starts the threads of the loader with all signals blocked, so that the system delivers signals to the other
 * threads of the process. */
static status start_threads(loader *l, int threads)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (l->threads < threads && (errno = pthread_create(&l->ids[l->threads], NULL, work, l)) == 0)
        l->threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (l->threads == threads) return STATUS_OK;
    return fail_errno(STATUS_SYSTEM, "loader: no thread %d of %d", l->threads + 1, threads);
}

int loader_depth(int threads)
{
    int depth = threads + 1;
    return depth < LOADER_MIN_DEPTH ? LOADER_MIN_DEPTH : depth > LOADER_MAX_DEPTH ? LOADER_MAX_DEPTH : depth;
}

status loader_open(const batch_maker *maker, batch_source **out)
{
    static const loader_memory plain = {.allocate = allocate_plain, .release = release_plain};
    assert(maker->threads >= 0 && maker->threads <= LOADER_MAX_THREADS && maker->first_step >= 0);
    *out = NULL;
    loader *l = calloc(1, sizeof *l);
    if (!l) {
        maker->close(maker->context);
        return fail(STATUS_SYSTEM, "no memory for a loader");
    }
    l->source = (batch_source){.type = &loader_type,
                               .form = maker->form,
                               .largest_batch = maker->largest_batch,
                               .steps_per_epoch = maker->steps_per_epoch};
    l->maker = *maker;
    l->memory = maker->memory ? *maker->memory : plain;
    l->depth = loader_depth(maker->threads);
    l->next_made = l->next_asked = maker->first_step;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    status result = allocate_slots(l);
    if (result == STATUS_OK) result = start_threads(l, maker->threads);
    *out = &l->source;
    if (result != STATUS_OK) batch_source_close(out);
    return result;
}
