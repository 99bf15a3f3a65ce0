#include "ps/server/team.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct member {
    ps_team *team;
    pthread_t thread;
    int part;
} member;

struct ps_team {
    int threads;
    member *members; /* [threads]; the first is the caller */
    int started;     /* besides the caller */
    pthread_mutex_t lock;
    pthread_cond_t posted, done;
    unsigned job; /* counts the jobs handed out */
    int running;
    bool stop;
    ps_team_function function;
    void *context;
};

static void *serve(void *argument)
{
    member *m = argument;
    ps_team *t = m->team;
    pthread_mutex_lock(&t->lock);
    for (unsigned seen = 0;;) {
        while (t->job == seen && !t->stop) pthread_cond_wait(&t->posted, &t->lock);
        if (t->stop) break;
        seen = t->job;
        pthread_mutex_unlock(&t->lock);
        t->function(t->context, m->part, t->threads);
        pthread_mutex_lock(&t->lock);
        if (--t->running == 0) pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Signals are for the thread that reads them. */
static status start(ps_team *t, int part)
{
    member *m = &t->members[part];
    *m = (member){.team = t, .part = part};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&m->thread, NULL, serve, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure) return fail(STATUS_SYSTEM, "no thread %d of a parameter server (error %d)", part, failure);
    pthread_setname_np(m->thread, "ps-sum");
    t->started++;
    return STATUS_OK;
}

status ps_team_open(int threads, ps_team **out)
{
    *out = NULL;
    ps_team *t = calloc(1, sizeof *t);
    member *members = calloc((size_t)threads, sizeof *members);
    if (!t || !members) {
        free(t);
        free(members);
        return fail(STATUS_SYSTEM, "no memory for %d threads of a parameter server", threads);
    }
    t->threads = threads;
    t->members = members;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->posted, NULL);
    pthread_cond_init(&t->done, NULL);
    status rc = STATUS_OK;
    for (int part = 1; part < threads && rc == STATUS_OK; part++) rc = start(t, part);
    if (rc != STATUS_OK) ps_team_close(&t);
    *out = t;
    return rc;
}

void ps_team_close(ps_team **team)
{
    ps_team *t = *team;
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->posted);
    pthread_mutex_unlock(&t->lock);
    for (int part = 1; part <= t->started; part++) pthread_join(t->members[part].thread, NULL);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->posted);
    pthread_mutex_destroy(&t->lock);
    free(t->members);
    free(t);
    *team = NULL;
}

void ps_team_run(ps_team *t, ps_team_function function, void *context)
{
    if (t->threads == 1) {
        function(context, 0, 1);
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->function = function;
    t->context = context;
    t->running = t->threads - 1;
    t->job++;
    pthread_cond_broadcast(&t->posted);
    pthread_mutex_unlock(&t->lock);
    function(context, 0, t->threads);
    pthread_mutex_lock(&t->lock);
    while (t->running > 0) pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}
