/* A steady step allocates nothing: malloc and its sisters are counted (linked with --wrap). */
#include "tests/ring/engine/engine_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static atomic_bool counting;
static atomic_int allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static void count(void)
{
    if (atomic_load(&counting)) atomic_fetch_add(&allocations, 1);
}

void *__wrap_malloc(size_t size)
{
    count();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t number, size_t size)
{
    count();
    return __real_calloc(number, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    count();
    return __real_realloc(old, size);
}

static status run_steady(engine_rank *r)
{
    for (int64_t s = 0; s < 3; s++) TRY(job_whole_step(r, s));
    pthread_barrier_wait(&r->job->barrier);
    atomic_store(&counting, true);
    for (int64_t s = 3; s < 8; s++) {
        sync_counters counters;
        ring_bucket_record records[32];
        TRY(job_whole_step(r, s));
        r->engine->type->counters(r->engine, &counters);
        ring_bucket_records(r->engine, 0, records, 32);
    }
    pthread_barrier_wait(&r->job->barrier);
    atomic_store(&counting, false);
    return STATUS_OK;
}

static void a_steady_step_allocates_nothing(void **state)
{
    (void)state;
    static const char *const words[][3] = {{NULL},
                                           {"--bucket-view", "--collective=ring"},
                                           {"--comm-hook=fp16", "--find-unused"},
                                           {"--comm-hook=powersgd", "--powersgd-start=2"},
                                           {"--join=active"}};
    for (int p = 0; p < RING_POLICIES; p++)
        for (int w = 0; w < 5; w++) {
            engine_job job = {.policy = ring_policies[p].name,
                              .words = {words[w][0], words[w][1], words[w][2]},
                              .world = 3,
                              .body = run_steady,
                              .inline_progress = (p + w) % 2 == 0};
            atomic_store(&allocations, 0);
            engine_job_run_well(&job);
            if (atomic_load(&allocations) != 0)
                fail_msg("policy %s %s: %d allocations", job.policy, words[w][0] ? words[w][0] : "",
                         atomic_load(&allocations));
        }
}

/* The count can see an allocation at all. */
static void an_allocation_is_counted(void **state)
{
    (void)state;
    atomic_store(&allocations, 0);
    atomic_store(&counting, true);
    void *volatile something = malloc(8);
    free(something);
    atomic_store(&counting, false);
    assert_int_equal(atomic_load(&allocations), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_is_counted),
        cmocka_unit_test(a_steady_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
