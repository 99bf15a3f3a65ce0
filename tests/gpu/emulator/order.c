/* Runs the work of emulated streams in the order that EMULATED_ORDER says (stream.h). */
#include "tests/gpu/emulator/stream.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum order { AT_ONCE, AHEAD, LATE, EARLY } order;
enum { PAUSE_US = 300 };

static _Thread_local struct emulated_stream *keeping; /* Streams of this thread that keep work. */

/* The value of EMULATED_ORDER. It is read before there are ranks, since ranks set variables of the
 * environment, and no thread may read it at the same time. */
static order order_of_process = AT_ONCE;

__attribute__((constructor)) static void read_order(void)
{
    const char *text = getenv("EMULATED_ORDER");
    if (text)
        order_of_process = strcmp(text, "early") == 0 ? EARLY : strcmp(text, "ahead") == 0 ? AHEAD : LATE;
}

bool emulator_has_threads(void)
{
    return order_of_process == AT_ONCE || order_of_process == AHEAD;
}

void emulator_pause(void)
{
    if (order_of_process == AHEAD) usleep(PAUSE_US);
}

static bool keep(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes)
{
    emulator_append(s, run, context, bytes);
    if (s->listed) return true;
    s->listed = true;
    s->next = keeping;
    keeping = s;
    return true;
}

bool emulator_keep(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes)
{
    if (!s) return false;
    if (emulator_has_threads()) return emulator_queue(s, run, context, bytes, order_of_process == AHEAD);
    return keep(s, run, context, bytes);
}

void emulator_keep_always(cudaStream_t s, bool (*run)(void *context), const void *context, size_t bytes)
{
    if (emulator_has_threads())
        emulator_queue(s, run, context, bytes, true);
    else
        keep(s, run, context, bytes);
}

static bool run_first(cudaStream_t s)
{
    emulated_work *w = s->first;
    if (!w || !w->run(w->context)) return false;
    s->first = w->next;
    if (!s->first) s->last = NULL;
    free(w);
    return true;
}

/* Runs work of other streams: as much as possible if `far` is set, otherwise a single piece. */
static bool run_others(cudaStream_t s, bool far)
{
    bool any = false;
    for (struct emulated_stream *other = keeping; other; other = other->next)
        while (other != s && run_first(other)) {
            any = true;
            if (!far) return true;
        }
    return any;
}

void emulator_drain(cudaStream_t s)
{
    if (!s) return;
    if (emulator_has_threads()) {
        emulator_queue_drain(s);
        return;
    }
    while (s->first) {
        if (order_of_process == EARLY) run_others(s, true);
        if (!run_first(s) && !run_others(s, false))
            sched_yield(); /* The stream waits for a value that another thread will write. */
    }
    struct emulated_stream **at = &keeping;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    s->listed = false;
}

void emulator_drain_all(void)
{
    if (emulator_has_threads()) emulator_settle(pthread_self());
    while (keeping) emulator_drain(keeping);
}
