/* Streams that have a thread, which runs their work in order (stream.h). */
#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/stream.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOKS = 200, NAP_US = 50 };

static struct {
    pthread_mutex_t lock;
    struct emulated_stream *first;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *run_stream(void *argument)
{
    cudaStream_t s = argument;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->closing) pthread_cond_wait(&s->changed, &s->lock);
        emulated_work *w = s->first;
        if (!w) break;
        pthread_mutex_unlock(&s->lock);
        for (int looks = 0; !w->run(w->context); looks++) {
            if (looks < LOOKS)
                sched_yield();
            else
                usleep(NAP_US);
        }
        pthread_mutex_lock(&s->lock);
        s->first = w->next;
        if (!s->first) s->last = NULL;
        s->done++;
        pthread_cond_broadcast(&s->changed);
        free(w);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Starts a thread that blocks all signals, so that the program's own threads receive them. The caller holds
 * the lock. */
static void start_thread(cudaStream_t s)
{
    sigset_t signals, before;
    sigfillset(&signals);
    pthread_sigmask(SIG_SETMASK, &signals, &before);
    if (pthread_create(&s->thread, NULL, run_stream, s)) abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->has_thread = true;
}

void emulator_stream_open(cudaStream_t s)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->owner = pthread_self();
    pthread_mutex_lock(&all.lock);
    s->next_of_all = all.first;
    all.first = s;
    pthread_mutex_unlock(&all.lock);
}

void emulator_stream_close(cudaStream_t s)
{
    pthread_mutex_lock(&all.lock);
    struct emulated_stream **at = &all.first;
    while (*at != s) at = &(*at)->next_of_all;
    *at = s->next_of_all;
    pthread_mutex_unlock(&all.lock);
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
}

void emulator_append(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes)
{
    emulated_work *w = malloc(sizeof *w + bytes);
    if (!w) abort();
    *w = (emulated_work){.run = run, .context = w + 1};
    memcpy(w->context, context, bytes);
    if (s->last)
        s->last->next = w;
    else
        s->first = w;
    s->last = w;
}

bool emulator_queue(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes,
                    bool always)
{
    pthread_mutex_lock(&s->lock);
    bool kept = always || s->given != s->done;
    if (kept) {
        emulator_append(s, run, context, bytes);
        s->given++;
        if (!s->has_thread) start_thread(s);
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return kept;
}

void emulator_queue_drain(cudaStream_t s)
{
    pthread_mutex_lock(&s->lock);
    if (s->done < s->given) emulator_count(&emulator_control.idle_waits);
    for (uint64_t given = s->given; s->done < given;) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

uint64_t emulator_queue_given(cudaStream_t s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t given = s->given;
    pthread_mutex_unlock(&s->lock);
    return given;
}

/* The owner does not open or close streams during this call, but other threads may. */
void emulator_settle(pthread_t owner)
{
    enum { MOST = 64 };
    cudaStream_t own[MOST];
    int count = 0;
    pthread_mutex_lock(&all.lock);
    for (cudaStream_t s = all.first; s; s = s->next_of_all)
        if (pthread_equal(s->owner, owner) && count < MOST) own[count++] = s;
    pthread_mutex_unlock(&all.lock);
    for (int i = 0; i < count; i++) emulator_queue_drain(own[i]);
}
