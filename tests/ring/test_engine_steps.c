/* Tests parts of the engine other than sums of gradients: start, buffers, order of buckets, ranks without
 * data, unused parameters, records and ledger. */
#include "tests/ring/engine_job.h"

#include "common/base/clock.h"
#include "ring/engine_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SMALL_BUCKETS "--bucket-cap-mb=0.01"

static int find(const engine_rank *r, const char *name)
{
    return nn_find_param(r->params->model, name);
}

static status expect_gradient(const engine_rank *r, int param, int64_t i, double right, const char *what)
{
    double found = job_element(r, &r->params->grads, param, i);
    if (found == right) return STATUS_OK;
    return rank_error(STATUS_MISMATCH, "%s: %s[%lld] is %.9g, expected %.9g", what,
                      r->params->model->params[param].name, (long long)i, found, right);
}

/* ---- start and buffers ------------------------------------------------------------------------ */

static void start_differently(engine_rank *r)
{
    const param_set *set = r->params;
    for (int p = 0; p < set->model->param_count; p++)
        for (int64_t i = 0; i < set->pieces[p].count; i++)
            job_set_element(r, &set->params, p, i, r->context->rank + 1);
}

static float *buffer_of(const engine_rank *r, int buffer)
{
    return (float *)r->params->buffers.data + r->params->buffer_pieces[buffer].offset;
}

static status expect_buffers(const engine_rank *r, float right, const char *when)
{
    const param_set *set = r->params;
    for (int b = 0; b < set->model->buffer_count; b++)
        for (int64_t i = 0; i < set->buffer_pieces[b].count; i++)
            if (buffer_of(r, b)[i] != right)
                return rank_error(STATUS_MISMATCH, "%s: buffer %d of rank %d is %g, expected %g", when, b,
                                  r->context->rank, (double)buffer_of(r, b)[i], (double)right);
    return STATUS_OK;
}

/* Writes buffers as a forward pass would. */
static void write_buffers(engine_rank *r, int64_t step)
{
    const param_set *set = r->params;
    for (int b = 0; b < set->model->buffer_count; b++)
        for (int64_t i = 0; i < set->buffer_pieces[b].count; i++)
            buffer_of(r, b)[i] = (float)(100 * step + r->context->rank);
}

static status run_buffers(engine_rank *r)
{
    bool shared = *(const bool *)r->job->argument;
    write_buffers(r, 7);
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step));
        if (s == 0 && job_element(r, &r->params->params, 3, 0) != 1)
            return rank_error(STATUS_MISMATCH, "rank %d does not start from rank 0's parameters",
                              r->context->rank);
        int owner = s == 0 || shared ? 0 : r->context->rank;
        TRY(expect_buffers(r, (float)(s == 0 ? 700 : 100 * (s - 1)) + (float)owner, "after begin_forward"));
        write_buffers(r, s);
        TRY(job_backward(r, &step, NULL, 0));
        TRY(job_finish(r, &step));
    }
    TRY(expect_buffers(r, 200 + (float)r->context->rank, "before settling"));
    TRY(sync_flush(r->engine));
    return expect_buffers(r, 200, "settled");
}

static void buffers_are_those_of_rank_0_if_the_policy_broadcasts_them(void **state)
{
    (void)state;
    static const bool yes = true, no = false;
    static const struct {
        const char *policy, *word;
        const bool *shared;
    } cases[] = {{"ddp", NULL, &yes},
                 {"torch-0.4.1", NULL, &yes},
                 {"apex", NULL, &no},
                 {"naive", NULL, &no},
                 {"ddp", "--broadcast-buffers=no", &no},
                 {"apex", "--broadcast-buffers=yes", &yes}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_job job = {.policy = cases[i].policy,
                          .words = {cases[i].word},
                          .world = 3,
                          .body = run_buffers,
                          .argument = cases[i].shared,
                          .prepare = start_differently,
                          .inline_progress = i % 2 == 0};
        engine_job_run_well(&job);
    }
}

/* ---- order ------------------------------------------------------------------------------------ */

/* Gradients become ready in a different order on every rank. From the second step on, all ranks form buckets
 * in the order of rank 0. */
static status run_order(engine_rank *r)
{
    const nn_program *p = r->job->program;
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step));
        TRY(job_backward(r, &step, NULL, 3 + r->context->rank));
        TRY(job_finish(r, &step));
        TRY(job_check_gradients(r, s));
    }
    const bucket_schedule *list = &((const ring_engine *)r->engine)->schedule;
    /* All gradients have the same type, so the list has this order. */
    for (int i = 0; i < p->ready_count; i++)
        if (list->tensors[i] != p->ready_order[(i + 3) % p->ready_count])
            return rank_error(STATUS_MISMATCH,
                              "place %d of rank %d's buckets: found parameter %d, expected %d", i,
                              r->context->rank, list->tensors[i], p->ready_order[(i + 3) % p->ready_count]);
    if (list->count < 3) return rank_error(STATUS_MISMATCH, "only %d buckets", list->count);
    return STATUS_OK;
}

static void buckets_are_rebuilt_in_rank_0_s_order(void **state)
{
    (void)state;
    engine_job job = {
        .policy = "ddp", .words = {SMALL_BUCKETS, "--first-bucket-mb=0.001"}, .world = 3, .body = run_order};
    engine_job_run_well(&job);
    engine_job apex = {.policy = "apex", .words = {"--message-size=2000"}, .world = 3, .body = run_order};
    engine_job_run_well(&apex);
}

/* ---- ranks without data ----------------------------------------------------------------------- */

/* Rank 0 has data only in step 0, rank 1 in all steps, and rank 2 in steps 0 and 1. */
static bool has_data(int rank, int64_t step)
{
    return rank == 1 || (rank == 0 && step == 0) || (rank == 2 && step <= 1);
}

static status run_join(engine_rank *r)
{
    bool active = *(const bool *)r->job->argument;
    int n = r->context->world, param = find(r, "fc1.weight");
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        if (!has_data(r->context->rank, s)) step.samples = step.targets = 0;
        TRY(job_begin(r, &step));
        if (s > 0) TRY(expect_buffers(r, (float)(100 * (s - 1)) + (float)(s == 0 ? 0 : 1), "joined"));
        write_buffers(r, s);
        if (step.samples > 0) TRY(job_backward(r, &step, NULL, 0));
        TRY(job_finish(r, &step));
        int with_data = 0;
        for (int rank = 0; rank < n; rank++) with_data += has_data(rank, s);
        for (int64_t i = 0; i < 50; i++) {
            double sum = 0;
            for (int rank = 0; rank < n; rank++)
                if (has_data(rank, s)) sum += n * job_value(rank, s, param, i);
            TRY(expect_gradient(r, param, i, (float)(sum / (active ? with_data : n)), "joined"));
        }
    }
    return STATUS_OK;
}

static void a_rank_without_data_contributes_zeros(void **state)
{
    (void)state;
    static const bool world = false, active = true;
    for (int i = 0; i < 2; i++) {
        engine_job job = {.policy = i ? "apex" : "ddp",
                          .words = {"--join=world", "--broadcast-buffers=yes"},
                          .world = 3,
                          .body = run_join,
                          .argument = &world};
        engine_job_run_well(&job);
        engine_job other = {.policy = "ddp",
                            .words = {"--join=active"},
                            .divide = SHARED_DIVIDE_AFTER,
                            .world = 3,
                            .body = run_join,
                            .argument = &active,
                            .inline_progress = i == 0};
        engine_job_run_well(&other);
    }
}

/* ---- unused parameters ------------------------------------------------------------------------ */

/* On rank 0 fc2.bias has no gradient. fc1.bias has no gradient on any rank. */
static status run_unused(engine_rank *r)
{
    bool skip[32] = {false};
    int partly = find(r, "fc2.bias"), never = find(r, "fc1.bias"), n = r->context->world;
    skip[never] = true;
    skip[partly] = r->context->rank == 0;
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step));
        TRY(job_backward(r, &step, skip, 0));
        TRY(job_finish(r, &step));
        for (int64_t i = 0; i < 10; i++) {
            TRY(expect_gradient(r, never, i, 0, "unused"));
            TRY(expect_gradient(r, partly, i, job_mean(n, s, partly, i) - job_value(0, s, partly, i),
                                "on some ranks"));
        }
    }
    return STATUS_OK;
}

static void unused_parameters_count_as_zero(void **state)
{
    (void)state;
    static const char *const words[] = {"--find-unused-parameters", "--static-graph"};
    for (int i = 0; i < 2; i++)
        for (int p = 0; p < RING_POLICIES && !ring_policies[p].sharding; p++) {
            engine_job job = {
                .policy = ring_policies[p].name, .words = {words[i]}, .world = 3, .body = run_unused};
            engine_job_run_well(&job);
        }
}

/* ---- sums over the ranks ---------------------------------------------------------------------- */

static status run_group_sum(engine_rank *r)
{
    double values[16];
    sync_step step = job_step_of(r, 0);
    TRY(job_begin(r, &step));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 16; i++) values[i] = (r->context->rank + 1) * 0.125 * (i + k);
        TRY(sync_group_sum(r->engine, values, 16));
        for (int i = 0; i < 16; i++)
            if (values[i] != 6 * 0.125 * (i + k))
                return rank_error(STATUS_MISMATCH, "sum %d of %d: %g", i, k, values[i]);
        TRY(sync_ready(r->engine, r->job->program->ready_order[k]));
    }
    if (sync_group_sum(r->engine, values, 4000) != STATUS_INTERNAL)
        return rank_error(STATUS_MISMATCH, "4000 values were taken");
    error_clear();
    TRY(job_backward(r, &step, (bool[32]){[0] = false}, 0) == STATUS_CONFIG ? STATUS_OK : STATUS_MISMATCH);
    return STATUS_OK;
}

static void sums_over_the_ranks_run_between_buckets(void **state)
{
    (void)state;
    engine_job job = {.policy = "naive", .world = 3, .body = run_group_sum, .group_values = 16};
    rank_context results[RANKS_MAX];
    engine_job_run(&job, results);
    for (int r = 0; r < 3; r++) /* run_group_sum() ends with this error */
        if (!strstr(results[r].error.message, "became ready twice"))
            fail_msg("rank %d: %s", r, results[r].error.message);
}

/* ---- algorithms -------------------------------------------------------------------------------- */

/* Numbers of collectives that the engine posts. Bucket calls are all-reduces of gradients, and own calls are
 * all others. The `controls` are the calls among them that use two-shot with any --algorithm. CMakeLists.txt
 * wraps collective_post(). */
static _Atomic int bucket_calls, bucket_controls, own_calls, own_controls;

status __real_collective_post(collective_group *group, const collective_call *call, collective_ticket *out);
status __wrap_collective_post(collective_group *group, const collective_call *call, collective_ticket *out);

status __wrap_collective_post(collective_group *group, const collective_call *call, collective_ticket *out)
{
    bool bucket = call->kind == COLLECTIVE_ALL_REDUCE && call->type == DTYPE_F32;
    atomic_fetch_add(bucket ? &bucket_calls : &own_calls, 1);
    if (call->control) atomic_fetch_add(bucket ? &bucket_controls : &own_controls, 1);
    return __real_collective_post(group, call, out);
}

static status run_all_calls(engine_rank *r)
{
    for (int64_t s = 0; s < 3; s++) {
        double values[16] = {1};
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step)); /* posts parameters, buffers, order, activity */
        TRY(sync_group_sum(r->engine, values, 16));
        if (values[0] != 3) return rank_error(STATUS_MISMATCH, "a sum of 3 ranks is %g", values[0]);
        TRY(job_backward(r, &step, NULL, 0));
        TRY(job_finish(r, &step));
        TRY(job_check_gradients(r, s));
    }
    return STATUS_OK;
}

static void the_algorithm_is_of_buckets_and_small_sums_buffers_and_order_keep_two_shot(void **state)
{
    (void)state;
    engine_job job = {.policy = "ddp",
                      .words = {"--algorithm=ring", SMALL_BUCKETS, "--join=world"},
                      .world = 3,
                      .body = run_all_calls,
                      .group_values = 16};
    bucket_calls = bucket_controls = own_calls = own_controls = 0;
    engine_job_run_well(&job);
    assert_true(bucket_calls > 3 * 3); /* 3 ranks, 3 steps; the first step has one bucket */
    assert_int_equal(bucket_controls, 0);
    assert_true(own_calls >= 3 * 3 * 2);
    assert_int_equal(own_controls, own_calls);
}

/* ---- records ---------------------------------------------------------------------------------- */

static status check_record(const ring_bucket_record *b, int64_t step, int bucket, const bucket_schedule *list)
{
    bool sorted = b->ready_ns > 0 && b->ready_ns <= b->launched_ns && b->launched_ns <= b->finished_ns &&
                  b->started_ns > 0 && b->started_ns <= b->finished_ns &&
                  b->wait_begin_ns <= b->wait_end_ns && b->finished_ns <= b->wait_end_ns;
    if (b->step != step || b->bucket != bucket || b->bytes != list->buckets[bucket].bytes || !sorted)
        return rank_error(
            STATUS_MISMATCH,
            "record %lld: step %lld, bucket %d, %lld bytes, ready %lld, launched %lld, started %lld, "
            "finished %lld, waited %lld to %lld; expected step %lld, bucket %d, %lld bytes",
            (long long)b->id, (long long)b->step, b->bucket, (long long)b->bytes, (long long)b->ready_ns,
            (long long)b->launched_ns, (long long)b->started_ns, (long long)b->finished_ns,
            (long long)b->wait_begin_ns, (long long)b->wait_end_ns, (long long)step, bucket,
            (long long)list->buckets[bucket].bytes);
    return STATUS_OK;
}

static status run_records(engine_rank *r)
{
    int64_t last = 0;
    for (int64_t s = 0; s < 1400; s++) { /* exceeds the capacity of the records */
        TRY(job_whole_step(r, s));
        const bucket_schedule *list = &((const ring_engine *)r->engine)->schedule;
        ring_bucket_record records[32];
        int count = ring_bucket_records(r->engine, last, records, 32);
        if (count != list->count)
            return rank_error(STATUS_MISMATCH, "step %lld: %d records of %d buckets", (long long)s, count,
                              list->count);
        for (int k = 0; k < count; k++) {
            if (records[k].id != last + 1 + k) return rank_error(STATUS_MISMATCH, "a record is missing");
            TRY(check_record(&records[k], s, k, list));
        }
        last += count;
    }
    return STATUS_OK;
}

static void the_times_of_every_bucket_are_recorded(void **state)
{
    (void)state;
    engine_job job = {.policy = "ddp-2019", .words = {SMALL_BUCKETS}, .world = 2, .body = run_records};
    engine_job_run_well(&job);
}

/* ---- ledger ----------------------------------------------------------------------------------- */

typedef struct ledger_case {
    const char *policy, *word, *other;
    /* Bytes of buckets in each phase, in units of the parameters' bytes. */
    double begin, backward, reduce, after;
} ledger_case;

static status run_ledger(engine_rank *r)
{
    const ledger_case *c = r->job->argument;
    double p = (double)r->params->logical_bytes;
    const ledger_account *buckets = &r->ledger.classes[LEDGER_BUCKETS];
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step));
        double begin = (double)buckets->current / p;
        TRY(job_backward(r, &step, NULL, 0));
        double backward = (double)buckets->current / p;
        ledger_reset_peaks(&r->ledger);
        TRY(job_finish(r, &step));
        double reduce = (double)buckets->peak / p, after = (double)buckets->current / p;
        if (s < 1) continue;
        if (begin != c->begin || backward != c->backward || reduce != c->reduce || after != c->after)
            return rank_error(STATUS_MISMATCH, "%s: found %.3f %.3f %.3f %.3f, expected %.3f %.3f %.3f %.3f",
                              c->policy, begin, backward, reduce, after, c->begin, c->backward, c->reduce,
                              c->after);
        if (r->ledger.classes[LEDGER_GRADIENTS].current != r->params->logical_bytes)
            return rank_error(STATUS_MISMATCH, "gradients of %lld bytes",
                              (long long)r->ledger.classes[LEDGER_GRADIENTS].current);
    }
    return STATUS_OK;
}

static void the_ledger_holds_buckets_only_while_they_are_allocated(void **state)
{
    (void)state;
    static const ledger_case cases[] = {
        {"ddp", NULL, NULL, 1, 1, 1, 1},
        {"ddp", "--bucket-view", NULL, 0, 0, 0, 0},
        {"ddp", "--comm-hook=fp16", NULL, 0.5, 0.5, 0.5, 0.5},
        {"flat", NULL, NULL, 1, 1, 1, 1},
        {"apex", NULL, NULL, 0, 1, 1, 0},
        {"torch-0.4.1", NULL, NULL, 0, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_job job = {.policy = cases[i].policy,
                          .words = {cases[i].word},
                          .world = 2,
                          .body = run_ledger,
                          .argument = &cases[i]};
        engine_job_run_well(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_those_of_rank_0_if_the_policy_broadcasts_them),
        cmocka_unit_test(buckets_are_rebuilt_in_rank_0_s_order),
        cmocka_unit_test(a_rank_without_data_contributes_zeros),
        cmocka_unit_test(unused_parameters_count_as_zero),
        cmocka_unit_test(sums_over_the_ranks_run_between_buckets),
        cmocka_unit_test(the_algorithm_is_of_buckets_and_small_sums_buffers_and_order_keep_two_shot),
        cmocka_unit_test(the_times_of_every_bucket_are_recorded),
        cmocka_unit_test(the_ledger_holds_buckets_only_while_they_are_allocated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
