#include "common/device/cpu/parallel.h"

#include <omp.h>

/* The OpenMP library is not instrumented for ThreadSanitizer, which has to be told that a parallel region
 * begins behind what came before it and ends before what follows; and that oneDNN's threads, which it sees
 * only where they call the C library, are none of its business. */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libdnnl\n";
}
#endif

typedef struct team {
    int parts;
    int64_t count, grain, blocks;
    cpu_part_function run;
    const void *job;
} team;

/* What was written before publish() is seen behind observe(). */
static void publish(team *t)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_release(t);
#else
    (void)t;
#endif
}

static void observe(team *t)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(t);
#else
    (void)t;
#endif
}

static int64_t boundary(const team *t, int part)
{
    int64_t at = t->blocks * part / t->parts * t->grain;
    return at < t->count ? at : t->count;
}

static void run_member(team *t)
{
    observe(t);
    int members = omp_get_num_threads();
    for (int part = omp_get_thread_num(); part < t->parts; part += members)
        t->run(t->job, part, boundary(t, part), boundary(t, part + 1));
    publish(t);
}

/* Nothing but the region: what the compiler copies for its threads lies outside of the two calls above. */
__attribute__((no_sanitize("thread"))) static void run_team(team *t)
{
#pragma omp parallel num_threads(t->parts)
    run_member(t);
}

int cpu_parallel(int threads, int64_t count, int64_t grain, cpu_part_function run, const void *job)
{
    int64_t blocks = (count + grain - 1) / grain;
    team t = {blocks < threads ? (int)blocks : threads, count, grain, blocks, run, job};
    if (t.parts <= 1) {
        run(job, 0, 0, count);
        return 1;
    }
    publish(&t);
    run_team(&t);
    observe(&t);
    return t.parts;
}
