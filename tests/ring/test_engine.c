/* Compares averaged gradients with a plain loop, for every policy and option. */
#include "tests/ring/engine_job.h"

#include "common/base/clock.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4 };

/* ---- every policy ----------------------------------------------------------------------------- */

/* Checks parameters after SGD without momentum from parameters of zero. All numbers are exact. */
static status check_parameters(const engine_rank *r, int64_t steps)
{
    const param_set *set = r->params;
    for (int p = 0; p < set->model->param_count; p++)
        for (int64_t i = 0; i < set->pieces[p].count; i++) {
            double right = 0, found = job_element(r, &set->params, p, i);
            for (int64_t s = 0; s < steps; s++) right -= 0.125 * job_mean(r->context->world, s, p, i);
            if (found != right)
                return rank_error(STATUS_MISMATCH, "%s[%lld] is %.9g, expected %.9g",
                                  set->model->params[p].name, (long long)i, found, right);
        }
    return STATUS_OK;
}

static status check_bytes(engine_rank *r)
{
    sync_counters c;
    sync_read_counters(r->engine, &c);
    int64_t n = r->context->world, elements = r->params->logical_bytes / dtype_size(r->params->type);
    /* 2 bytes per element, for the smallest type that is sent */
    int64_t least = STEPS * 2 * (n - 1) * elements * 2 / n;
    /* Chunks end at cache lines, so some are shorter. */
    least -= STEPS * r->params->model->param_count * 64;
    if (c.bytes_sent < least || c.bytes_received < least || (n == 1 && c.bytes_sent != 0))
        return rank_error(STATUS_MISMATCH, "found %lld bytes sent and %lld received, expected at least %lld",
                          (long long)c.bytes_sent, (long long)c.bytes_received, (long long)least);
    int64_t communication =
        r->figures.hidden_computing_ns + r->figures.hidden_waiting_ns + r->figures.parts[STEP_EXPOSED];
    if (n > 1 && communication <= 0)
        return rank_error(STATUS_MISMATCH, "found %lld ns of communication in the last step",
                          (long long)communication);
    return STATUS_OK;
}

static status run_steps(engine_rank *r)
{
    for (int64_t s = 0; s < STEPS; s++) {
        TRY(job_whole_step(r, s));
        TRY(job_check_gradients(r, s));
    }
    TRY(sync_flush(r->engine));
    rank_status now;
    rank_slot_read(&r->slot, &now);
    if (now.agent != RANK_START || now.bucket != RANK_NO_BUCKET)
        return rank_error(STATUS_MISMATCH, "the table shows %s of bucket %d in flight",
                          rank_operation_name(now.agent), now.bucket);
    TRY(check_parameters(r, STEPS));
    return check_bytes(r);
}

static void every_policy_averages_gradients_on_a_thread_and_inline(void **state)
{
    (void)state;
    for (int p = 0; p < RING_POLICIES && !ring_policies[p].sharding; p++)
        for (int world = 1; world <= 4; world++) {
            engine_job job = {.policy = ring_policies[p].name,
                              .words = {NULL},
                              .world = world,
                              .body = run_steps,
                              .inline_progress = (p + world) % 2 == 0};
            engine_job_run_well(&job);
        }
}

typedef struct option_case {
    const char *policy;
    const char *words[3];
    int divide;
    const char *device;
} option_case;

static const option_case option_cases[] = {
    {"ddp", {"--bucket-cap-mb=0.01", "--first-bucket-mb=0.001"}, 0, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--bucket-view"}, 0, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--bucket-view", "--algorithm=ring"}, SHARED_DIVIDE_AFTER, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--order=registration"}, 0, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--order=reverse", "--launch=after-backward"}, 0, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--find-unused-parameters"}, SHARED_DIVIDE_AFTER, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--static-graph", "--algorithm=two-shot"}, 0, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--comm-hook=fp16"}, 0, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--comm-hook=bf16"}, SHARED_DIVIDE_AFTER, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--comm-hook=powersgd", "--powersgd-start=100"}, 0, NULL},
    {"ddp", {"--bucket-cap-mb=0.01", "--join=active"}, 0, NULL},
    {"ddp-2019", {"--order=ready", "--bucket-cap-mb=0.01"}, 0, NULL},
    {"apex", {"--message-size=3000"}, 0, NULL},
    {"apex", {"--message-size=3000", "--predivide=2"}, 0, NULL},
    {"apex", {"--message-size=3000", "--bucket-view"}, SHARED_DIVIDE_BEFORE, NULL},
    {"torch-0.4.1", {"--bucket-cap-mb=0.01"}, 0, NULL},
    {"torch-0.4.1", {"--bucket-cap-mb=0.01", "--bucket-view"}, 0, NULL},
    {"torch-0.4.1-gloo", {"--bucket-cap-mb=0.02"}, 0, NULL},
    {"naive", {"--algorithm=ring"}, SHARED_DIVIDE_BEFORE, NULL},
    {"ddp", {"--allreduce-fp32", "--bucket-cap-mb=0.01"}, 0, "reference"},
    {"ddp", {"--bucket-cap-mb=0.01", "--bucket-view"}, 0, "reference"},
};

static void options_that_only_change_the_way_keep_the_result(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof option_cases / sizeof option_cases[0]; i++) {
        const option_case *c = &option_cases[i];
        bool predivides = c->words[1] && strstr(c->words[1], "predivide");
        engine_job job = {.policy = c->policy,
                          .words = {c->words[0], c->words[1], c->words[2]},
                          .divide = c->divide,
                          .device = c->device,
                          .world = predivides ? 4 : 3,
                          .body = run_steps,
                          .inline_progress = i % 3 == 0};
        engine_job_run_well(&job);
    }
}

/* ---- micro-batches ---------------------------------------------------------------------------- */

static status run_accumulation(engine_rank *r)
{
    const sync_engine_type *t = r->engine->type;
    sync_counters before, after;
    for (int64_t s = 0; s < STEPS; s++) {
        sync_step step = job_step_of(r, s);
        step.synchronize = false;
        TRY(job_begin(r, &step)); /* broadcasts buffers once per step */
        t->counters(r->engine, &before);
        TRY(job_backward(r, &step, NULL, 0));
        TRY(job_finish(r, &step));
        TRY(job_begin(r, &step));
        TRY(job_backward(r, &step, NULL, 0));
        TRY(job_finish(r, &step));
        t->counters(r->engine, &after);
        if (after.bytes_sent != before.bytes_sent || after.messages_sent != before.messages_sent)
            return rank_error(STATUS_MISMATCH, "a micro-batch that only accumulates sent something");
        step.synchronize = true;
        TRY(job_begin(r, &step));
        TRY(job_backward(r, &step, NULL, 0));
        TRY(job_finish(r, &step));
        TRY(job_check_gradients(r, s));
    }
    return STATUS_OK;
}

static void micro_batches_that_only_accumulate_send_nothing(void **state)
{
    (void)state;
    static const char *const policies[] = {"ddp", "apex", "torch-0.4.1"};
    for (int i = 0; i < 3; i++) {
        engine_job job = {.policy = policies[i], .world = 3, .body = run_accumulation};
        engine_job_run_well(&job);
    }
}

/* ---- hooks ------------------------------------------------------------------------------------ */

static double fraction(int rank, int param, int64_t i)
{
    return sin((double)(i * 13 + rank * 7 + param)) + 0.01;
}

typedef struct hook_case {
    const char *word;
    /* Tolerance, relative to the largest gradient: a rounding on each rank, and one of the sum. */
    double relative;
} hook_case;

static status run_hook(engine_rank *r)
{
    const hook_case *c = r->job->argument;
    const param_set *set = r->params;
    int n = r->context->world;
    for (int64_t s = 0; s < STEPS; s++) {
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step));
        for (int k = 0; k < r->job->program->ready_count; k++) {
            int p = r->job->program->ready_order[k];
            for (int64_t i = 0; i < set->pieces[p].count; i++)
                job_set_element(r, &set->grads, p, i, fraction(r->context->rank, p, i));
            TRY(sync_ready(r->engine, p));
        }
        TRY(job_finish(r, &step));
        for (int p = 0; p < set->model->param_count; p++)
            for (int64_t i = 0; i < set->pieces[p].count; i++) {
                double right = 0, found = job_element(r, &set->grads, p, i);
                for (int rank = 0; rank < n; rank++) right += fraction(rank, p, i) / n;
                if (fabs(found - right) > c->relative)
                    return rank_error(STATUS_MISMATCH, "%s: %s[%lld] is %.9g, expected %.9g within %g",
                                      c->word, set->model->params[p].name, (long long)i, found, right,
                                      c->relative);
            }
    }
    return STATUS_OK;
}

static void sending_half_types_adds_only_their_rounding(void **state)
{
    (void)state;
    static const hook_case cases[] = {{"--comm-hook=fp16", 2 * 0x1p-11},
                                      {"--comm-hook=bf16", 2 * 0x1p-8},
                                      {"--comm-hook=none", 2 * 0x1p-24}};
    for (int i = 0; i < 3; i++)
        for (int divide = SHARED_DIVIDE_BEFORE; divide <= SHARED_DIVIDE_AFTER; divide++) {
            engine_job job = {.policy = "ddp",
                              .words = {cases[i].word, "--bucket-cap-mb=0.01"},
                              .divide = divide,
                              .world = 4,
                              .body = run_hook,
                              .argument = &cases[i]};
            engine_job_run_well(&job);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_averages_gradients_on_a_thread_and_inline),
        cmocka_unit_test(options_that_only_change_the_way_keep_the_result),
        cmocka_unit_test(micro_batches_that_only_accumulate_send_nothing),
        cmocka_unit_test(sending_half_types_adds_only_their_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
