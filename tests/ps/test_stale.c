/* Tests bounded staleness and asynchronous updates. */
#include "ps/keys.h"
#include "tests/ps/job.h"
#include "tests/support/check.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { STEPS = 8 };

#define MOMENTUM                                                                                             \
    {                                                                                                        \
        .kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01                              \
    }
#define CLIPPED                                                                                              \
    {                                                                                                        \
        .kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9, .clip_norm = 3                                    \
    }
#define ADAM                                                                                                 \
    {                                                                                                        \
        .kind = OPTIMIZER_ADAM, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8                       \
    }

static void run_cases(const job_config *cases, size_t count, job_function function, void *context)
{
    for (size_t i = 0; i < count; i++) {
        job j;
        job_open(&cases[i], &j);
        j.context = context;
        status rc = job_run(&j, function);
        if (rc != STATUS_OK)
            fail_msg("%s, %d ranks, %s: %s: %s", cases[i].policy, cases[i].world,
                     cases[i].options ? cases[i].options : "", status_name(rc), error_message());
        job_close(&j);
    }
}
#define RUN(cases, function, context) run_cases(cases, sizeof(cases) / sizeof(cases)[0], function, context)

/* ---- results ---------------------------------------------------------------------------------- */

/* Gradients do not depend on parameters and rounds are applied in order, so staleness does not change the
 * result. */
static status train_and_compare(local_ranks *group, job_rank *r)
{
    (void)group;
    job_reference expected;
    job_reference_open(r->job, &expected);
    status rc = STATUS_OK;
    for (int64_t step = 0; step < STEPS && rc == STATUS_OK; step++) {
        rc = job_step(r);
        job_reference_step(r->job, &expected, step);
        if (rc != STATUS_OK || step % 3 != 1) continue;
        rc = sync_ps.flush(r->engine);
        if (rc == STATUS_OK) job_expect_params(r, expected.params);
        if (rc == STATUS_OK) job_expect_buffers(r, 0, step);
    }
    job_reference_close(&expected);
    return rc;
}

static void bounded_staleness_ends_with_the_bits_of_sync(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 3, .policy = "ssp", .options = "--staleness 0", .optimizer = MOMENTUM},
        {.world = 3, .policy = "ssp", .options = "--staleness 0", .optimizer = CLIPPED},
        {.world = 3, .policy = "ssp", .options = "--staleness 0", .divide = SHARED_DIVIDE_BEFORE},
        {.world = 3, .policy = "ssp", .options = "--staleness 2", .optimizer = MOMENTUM},
        {.world = 2, .policy = "ssp", .options = "--staleness 1 --servers 2", .optimizer = ADAM},
        {.world = 2, .policy = "ssp", .processes = true, .options = "--servers 2", .optimizer = MOMENTUM},
        {.world = 2,
         .policy = "ssp",
         .processes = true,
         .options = "--payload zmq --servers 2",
         .optimizer = MOMENTUM},
        {.world = 3,
         .policy = "ssp",
         .inline_progress = true,
         .options = "--staleness 4 --servers 3",
         .optimizer = MOMENTUM},
        {.world = 2,
         .policy = "ssp",
         .processes = true,
         .options = "--servers 2 --server-placement own",
         .optimizer = MOMENTUM},
        {.world = 1, .policy = "async", .optimizer = MOMENTUM},
        {.world = 1, .policy = "async", .optimizer = CLIPPED},
        {.world = 1, .policy = "sync", .options = "--consistency async", .optimizer = ADAM},
    };
    RUN(cases, train_and_compare, NULL);
}

/* All values are integers or powers of two. So sums are exact, and the order of updates does not matter. */
static status train_asynchronously(local_ranks *group, job_rank *r)
{
    (void)group;
    const param_set *set = r->params;
    for (int64_t step = 0; step < STEPS; step++) TRY(job_step(r));
    TRY(sync_ps.flush(r->engine));
    job_expect_buffers(r, 0, STEPS - 1);
    for (int p = 0; p < set->model->param_count && !r->error[0]; p++) {
        for (int64_t i = 0; i < set->pieces[p].count && !r->error[0]; i++) {
            double wanted = job_initial(p, i), found = job_param(set, set->params.data, p, i);
            for (int rank = 0; rank < r->job->config.world; rank++)
                for (int64_t step = 0; step < STEPS; step++) wanted -= 0.125 * job_gradient(rank, step, p, i);
            if (found != wanted)
                snprintf(r->error, sizeof r->error, "rank %d, parameter %d[%d]: found %.17g, expected %.17g",
                         r->rank, p, (int)i, found, wanted);
        }
    }
    return job_step(r); /* training continues after a flush */
}

static void asynchronous_updates_are_all_made(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 3, .policy = "async"},
        {.world = 4, .policy = "async", .options = "--servers 3 --partition-bytes 700"},
        {.world = 2, .policy = "async", .processes = true, .options = "--servers 2"},
        {.world = 2, .policy = "async", .processes = true, .options = "--servers 2 --payload zmq"},
        {.world = 3, .policy = "async", .options = "--server-placement own --servers 2"},
        {.world = 2, .policy = "async", .processes = true, .options = "--server-placement own"},
        {.world = 3, .policy = "async", .inline_progress = true, .options = "--servers 2 --server-threads 2"},
    };
    RUN(cases, train_asynchronously, NULL);
}

/* Flushes when rank 0 has made no step but the other ranks have, as after an early signal. */
static status stop_before_the_first_step(local_ranks *group, job_rank *r)
{
    (void)group;
    for (int i = 0; i < 3 * r->rank; i++) TRY(job_step(r));
    TRY(sync_ps.flush(r->engine));
    return sync_ps.flush(r->engine); /* a checkpoint flushes again */
}

static void a_rank_without_a_step_takes_part_in_flushes(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 3, .policy = "async", .stall_timeout_ns = 5 * NS_PER_S},
        {.world = 3, .policy = "async", .options = "--servers 2", .stall_timeout_ns = 5 * NS_PER_S},
        {.world = 2, .policy = "async", .inline_progress = true, .stall_timeout_ns = 5 * NS_PER_S},
    };
    RUN(cases, stop_before_the_first_step, NULL);
}

static status train_only(local_ranks *group, job_rank *r)
{
    (void)group;
    for (int64_t step = 0; step < STEPS; step++) TRY(job_step(r));
    return sync_ps.flush(r->engine);
}

static void clipping_works_where_pushes_are_applied_one_by_one(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 3, .policy = "async", .optimizer = CLIPPED},
        {.world = 3, .policy = "async", .options = "--servers 3", .optimizer = CLIPPED},
        {.world = 2,
         .policy = "async",
         .processes = true,
         .options = "--servers 2 --payload zmq",
         .optimizer = CLIPPED},
        {.world = 3, .policy = "ssp", .options = "--servers 2", .optimizer = CLIPPED},
    };
    RUN(cases, train_only, NULL);
}

/* ---- who may be ahead ------------------------------------------------------------------------- */

typedef struct lead_watch {
    int64_t bound;
    /* Number of steps that a rank has begun, and of steps whose push has begun. */
    _Atomic int64_t begun[8], pushed[8];
} lead_watch;

/* In each step, rank 0 waits until rank 1 is ahead by the bound. No rank may be ahead by more than the
 * bound. */
static status train_in_step(local_ranks *group, job_rank *r)
{
    (void)group;
    lead_watch *w = r->job->context;
    int world = r->job->config.world;
    for (int64_t step = 0; step < STEPS; step++) {
        sync_step s = job_begin(r);
        TRY(job_forward(r, &s));
        atomic_store(&w->begun[r->rank], step + 1);
        for (int q = 0; q < world && !r->error[0]; q++) {
            int64_t pushed = atomic_load(&w->pushed[q]);
            if (pushed < step - w->bound)
                snprintf(r->error, sizeof r->error,
                         "rank %d computes step %d, rank %d has pushed %d steps, the bound is %d", r->rank,
                         (int)step, q, (int)pushed, (int)w->bound);
        }
        int64_t reach = step + w->bound + 1 < STEPS ? step + w->bound + 1 : STEPS;
        while (r->rank == 0 && atomic_load(&w->begun[1]) < reach) clock_sleep_ns(NS_PER_US);
        atomic_store(&w->pushed[r->rank], step + 1);
        TRY(job_backward(r, &s));
    }
    TRY(sync_ps.flush(r->engine));
    ps_report report;
    ps_read_report(r->engine, &report);
    if (report.most > w->bound)
        snprintf(r->error, sizeof r->error, "rank %d read parameters that lacked %d updates, the bound is %d",
                 r->rank, (int)report.most, (int)w->bound);
    if (r->rank == 1 && report.most != w->bound)
        snprintf(r->error, sizeof r->error, "rank 1 was %d updates ahead, it could be %d", (int)report.most,
                 (int)w->bound);
    return STATUS_OK;
}

static void a_rank_may_be_as_far_ahead_as_the_bound_says_and_no_further(void **state)
{
    (void)state;
    for (int64_t bound = 0; bound <= 3; bound++) {
        char options[64];
        snprintf(options, sizeof options, "--staleness %d", (int)bound);
        const job_config cases[] = {
            {.world = 2, .policy = "ssp", .options = options},
            {.world = 3, .policy = "ssp", .processes = true, .options = options},
        };
        for (size_t i = 0; i < 2; i++) {
            lead_watch watch = {.bound = bound};
            run_cases(&cases[i], 1, train_in_step, &watch);
        }
    }
}

/* ---- reports ---------------------------------------------------------------------------------- */

static status train_and_count(local_ranks *group, job_rank *r)
{
    TRY(train_only(group, r));
    ps_policy policy;
    ps_plan *plan;
    TRY(ps_policy_resolve(r->job->config.policy, &r->job->options, r->job->config.world, &policy));
    TRY(ps_plan_make(r->job->program, r->params, (int)policy.servers, policy.partition_bytes, &plan));
    int64_t expected = (int64_t)plan->key_count * STEPS, total = 0, weighted = 0, last = 0;
    ps_plan_free(&plan);
    ps_report report;
    ps_read_report(r->engine, &report);
    for (int i = 0; i < PS_STALENESS_BINS; i++) {
        total += report.stale[i];
        weighted += report.stale[i] * i;
        if (report.stale[i]) last = i;
    }
    bool consistent =
        total == report.reads && last == report.most && report.mean * (double)total == (double)weighted;
    if (report.reads != expected || !consistent)
        snprintf(r->error, sizeof r->error,
                 "rank %d: %d reads, %d in the histogram, expected are %d; largest %d, %d", r->rank,
                 (int)report.reads, (int)total, (int)expected, (int)report.most, (int)last);
    if (policy.consistency == PS_SYNC && report.most != 0)
        snprintf(r->error, sizeof r->error, "rank %d was %d updates late under sync", r->rank,
                 (int)report.most);
    return STATUS_OK;
}

static void the_histogram_holds_every_read(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 3, .policy = "sync", .options = "--servers 2"},
        {.world = 3, .policy = "ssp", .options = "--servers 2"},
        {.world = 3, .policy = "async", .options = "--servers 2"},
        {.world = 4, .policy = "async", .processes = true},
        {.world = 2, .policy = "async", .optimizer = CLIPPED},
    };
    RUN(cases, train_and_count, NULL);
}

static void a_rank_is_told_how_far_it_may_be_ahead(void **state)
{
    (void)state;
    static const struct {
        const char *policy, *options;
        int64_t lead;
    } cases[] = {
        {"sync", NULL, 0}, {"ssp", NULL, 3}, {"ssp", "--staleness 7", 7}, {"async", NULL, JOB_UNBOUNDED}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j;
        int64_t lead = -2;
        job_open(&(job_config){.world = 2, .policy = cases[i].policy, .options = cases[i].options}, &j);
        assert_ok(ps_lead(&j.options, cases[i].policy, 2, &lead));
        assert_int_equal(lead, cases[i].lead);
        job_close(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounded_staleness_ends_with_the_bits_of_sync),
        cmocka_unit_test(asynchronous_updates_are_all_made),
        cmocka_unit_test(a_rank_without_a_step_takes_part_in_flushes),
        cmocka_unit_test(clipping_works_where_pushes_are_applied_one_by_one),
        cmocka_unit_test(a_rank_may_be_as_far_ahead_as_the_bound_says_and_no_further),
        cmocka_unit_test(the_histogram_holds_every_read),
        cmocka_unit_test(a_rank_is_told_how_far_it_may_be_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
