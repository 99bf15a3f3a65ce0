/* Takes the signals that stop a job in an orderly way: INT, TERM, HUP, USR1. */
#include "harness/launch/launch.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

/* Thread that takes the signals of the process. */
static struct {
    sigset_t set;
    pthread_t thread;
    bool has_thread;
} taker;

void stop_signals_block(sigset_t *out, sigset_t *before)
{
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    struct sigaction action;
    sigemptyset(out);
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++)
        if (sigaction(stops[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(out, stops[i]);
    pthread_sigmask(SIG_BLOCK, out, before);
}

static void *take(void *table)
{
    int64_t first_ns = 0;
    for (int signal; sigwait(&taker.set, &signal) == 0;) {
        if (first_ns != 0 && clock_now_ns() - first_ns >= STOP_SIGNALS_NS) _exit(128 + signal);
        if (first_ns != 0) continue;
        first_ns = clock_now_ns();
        job_stop_hold(table, signal);
    }
    return NULL;
}

status stop_signals_open(status_table *t)
{
    stop_signals_block(&taker.set, NULL);
    errno = pthread_create(&taker.thread, NULL, take, t);
    if (errno != 0) return fail_errno(STATUS_SYSTEM, "no thread for signals");
    taker.has_thread = true;
    return STATUS_OK;
}

/* The signals stay blocked, because the process is about to end. */
void stop_signals_close(void)
{
    if (!taker.has_thread) return;
    pthread_cancel(taker.thread);
    pthread_join(taker.thread, NULL);
    taker.has_thread = false;
}
