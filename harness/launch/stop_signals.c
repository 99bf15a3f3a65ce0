/* Takes the signals that stop a job in an orderly way: INT, TERM, HUP, USR1. */
#include "harness/launch/launch.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

/* Signals of the process, and the thread that takes them. */
static sigset_t taken;
static pthread_t taker;
static bool has_taker;

static const int stops[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
enum { STOPS = sizeof stops / sizeof stops[0] };

void stop_signals_block(sigset_t *out, sigset_t *before)
{
    struct sigaction action;
    sigset_t unused;
    if (!out) out = &unused;
    sigemptyset(out);
    for (int i = 0; i < STOPS; i++)
        if (sigaction(stops[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(out, stops[i]);
    pthread_sigmask(SIG_BLOCK, out, before);
}

int stop_signals_pending(void)
{
    sigset_t pending;
    sigpending(&pending);
    for (int i = 0; i < STOPS; i++)
        if (sigismember(&pending, stops[i])) return stops[i];
    return 0;
}

static void *take(void *table)
{
    int64_t first_ns = 0;
    for (int signal; sigwait(&taken, &signal) == 0;) {
        if (first_ns != 0 && clock_now_ns() - first_ns >= STOP_SIGNALS_NS) _exit(128 + signal);
        if (first_ns != 0) continue;
        first_ns = clock_now_ns();
        job_stop_hold(table, signal);
    }
    return NULL;
}

status stop_signals_open(status_table *t)
{
    stop_signals_block(&taken, NULL);
    errno = pthread_create(&taker, NULL, take, t);
    if (errno != 0) return fail_errno(STATUS_SYSTEM, "no thread for signals");
    has_taker = true;
    return STATUS_OK;
}

/* The signals stay blocked, because the process is about to end. */
void stop_signals_close(void)
{
    if (!has_taker) return;
    pthread_cancel(taker);
    pthread_join(taker, NULL);
    has_taker = false;
}
