/* Checks that a steady step allocates nothing. The linker wraps malloc, calloc and realloc (--wrap) to count
 * calls. */
#include "tests/ring/engine_job.h"
#include "tests/support/status_name.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static atomic_bool counting;
static atomic_int allocations;
static atomic_int failing; /* number of the allocation that fails, from 1, or 0 if none fails */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

/* Counts an allocation. Returns true if the allocation must fail. */
static bool count(void)
{
    if (!atomic_load(&counting)) return false;
    return atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&failing);
}

void *__wrap_malloc(size_t size)
{
    return count() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t number, size_t size)
{
    return count() ? NULL : __real_calloc(number, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return count() ? NULL : __real_realloc(old, size);
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
        sync_read_counters(r->engine, &counters);
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
                                           {"--bucket-view", "--algorithm=ring"},
                                           {"--comm-hook=fp16", "--find-unused-parameters"},
                                           {"--comm-hook=powersgd", "--powersgd-start=2"},
                                           {"--join=active"}};
    for (int p = 0; p < RING_POLICIES && !ring_policies[p].sharding; p++)
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

/* ---- failing allocations ---------------------------------------------------------------------- */

/* Opens and connects a second engine next to the first one, and closes it. */
static status open_another(engine_rank *r)
{
    sync_context context = r->engine->context;
    sync_engine *another = NULL;
    sync_blob handshake;
    context.job_token++;
    status rc = sync_open(&sync_ring, &context, &another);
    if (rc == STATUS_OK) rc = sync_ring.handshake(another, &handshake);
    if (rc == STATUS_OK) rc = sync_ring.connect(another, &handshake);
    sync_close(&another);
    return rc;
}

static status run_failures(engine_rank *r)
{
    ledger before = r->ledger;
    for (int k = 1; k < 500; k++) {
        atomic_store(&allocations, 0);
        atomic_store(&failing, k);
        atomic_store(&counting, true);
        status rc = open_another(r);
        atomic_store(&counting, false);
        bool reached = atomic_load(&allocations) >= k;
        /* All allocations have succeeded, since there are fewer than k. */
        if (!reached && rc == STATUS_OK) return STATUS_OK;
        if (rc != STATUS_SYSTEM || !strstr(error_message(), "no memory"))
            return rank_error(STATUS_MISMATCH, "allocation %d failed: found %s '%s'", k, status_name(rc),
                              error_message());
        error_clear();
        for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
            if (r->ledger.classes[c].current != before.classes[c].current)
                return rank_error(STATUS_MISMATCH, "allocation %d failed: the ledger keeps %s", k,
                                  ledger_class_name((ledger_class)c));
    }
    return rank_error(STATUS_MISMATCH, "no end");
}

static void every_allocation_that_fails_is_named(void **state)
{
    (void)state;
    static const char *const words[] = {NULL, "--comm-hook=powersgd"};
    for (int i = 0; i < 2; i++) {
        engine_job job = {.policy = "ddp", .words = {words[i]}, .world = 1, .body = run_failures};
        engine_job_run_well(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_is_counted),
        cmocka_unit_test(a_steady_step_allocates_nothing),
        cmocka_unit_test(every_allocation_that_fails_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
