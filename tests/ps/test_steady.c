/* Checks that steps after the first allocate nothing. The linker wraps malloc and similar functions to count
 * calls. */
#include "tests/common/data/allocations.h"
#include "tests/ps/job.h"
#include "tests/support/check.h"

enum { WARM = 5, STEPS = 40 };

#define MOMENTUM                                                                                             \
    {                                                                                                        \
        .kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9                                                    \
    }
#define CLIPPED                                                                                              \
    {                                                                                                        \
        .kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9, .clip_norm = 3                                    \
    }

static const job_config cases[] = {
    {.world = 3, .optimizer = MOMENTUM},
    {.world = 3, .options = "--servers 2", .optimizer = CLIPPED},
    {.world = 3, .processes = true, .options = "--servers 3", .optimizer = MOMENTUM},
    {.world = 3,
     .processes = true,
     .options = "--servers 2 --payload zmq --partition-bytes 600",
     .optimizer = MOMENTUM},
    {.world = 3, .processes = true, .options = "--payload zmq --server-optimizer off", .optimizer = MOMENTUM},
    {.world = 3, .policy = "ssp", .options = "--server-threads 2", .optimizer = MOMENTUM},
    {.world = 3, .policy = "async", .options = "--servers 2", .optimizer = CLIPPED},
    {.world = 2, .inline_progress = true, .optimizer = MOMENTUM},
};

static status train(local_ranks *group, job_rank *r)
{
    int *counted = r->job->context, before = 0;
    for (int64_t step = 0; step < WARM; step++) TRY(job_step(r));
    TRY(sync_ps.flush(r->engine));
    TRY(local_ranks_barrier(group));
    if (r->rank == 0) before = allocations_so_far();
    TRY(local_ranks_barrier(group));
    for (int64_t step = 0; step < STEPS; step++) TRY(job_step(r));
    TRY(sync_ps.flush(r->engine));
    TRY(local_ranks_barrier(group));
    if (r->rank == 0) *counted = allocations_so_far() - before;
    return STATUS_OK;
}

static void a_steady_step_allocates_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j;
        int counted = -1, before = allocations_so_far();
        job_open(&cases[i], &j);
        j.context = &counted;
        assert_ok(job_run(&j, train));
        assert_true(allocations_so_far() > before); /* shows that allocations are counted */
        if (counted != 0)
            fail_msg("%s, %s: %d allocations in %d steps, expected 0",
                     cases[i].policy ? cases[i].policy : "sync", cases[i].options ? cases[i].options : "",
                     counted, STEPS);
        job_close(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_steady_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
