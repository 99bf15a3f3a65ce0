/* Tests PowerSGD: first the algorithm alone, then in the engine. */
#include "ring/hooks/powersgd.h"
#include "tests/ring/engine_job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the algorithm ---------------------------------------------------------------------------- */

enum { ROWS = 60, COLS = 100, RANK = 3 };

typedef struct matrix {
    float m[ROWS * COLS], error[ROWS * COLS], p[RANK * ROWS], q[RANK * COLS];
} matrix;

static powersgd_matrix view(matrix *x)
{
    return (powersgd_matrix){ROWS, COLS, x->m, x->error, x->p, x->q};
}

static void round_trip(matrix *x, int rank)
{
    powersgd_matrix v = view(x);
    powersgd_project(&v, rank);
    powersgd_back_project(&v, rank);
    powersgd_restore(&v, rank);
}

/* Fills a matrix of the given rank with singular values 8, 4, 2, ... */
static void low_rank(float *m, int rank)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) {
            double sum = 0;
            for (int k = 0; k < rank; k++)
                sum += 8 / (double)(1 << k) * sin(0.7 * (k + 1) * i + k) * cos(0.9 * (k + 1) * j);
            m[i * COLS + j] = (float)sum;
        }
}

static double norm(const float *x, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)x[i] * x[i];
    return sqrt(sum);
}

static void a_matrix_of_low_rank_is_restored(void **state)
{
    (void)state;
    for (int rank = 1; rank <= RANK; rank++) {
        static matrix x, original;
        powersgd_matrix v = view(&x);
        powersgd_start(&v, rank, "layer.weight");
        low_rank(x.m, rank);
        memcpy(original.m, x.m, sizeof x.m);
        round_trip(&x, rank);
        double error = norm(x.error, ROWS * COLS) / norm(original.m, ROWS * COLS);
        if (error > 1e-4) fail_msg("rank %d: relative error %g, expected at most 1e-4", rank, error);
    }
}

/* If the matrix does not change, the warm start converges to the best approximation of rank 1: the largest
 * singular value with its vectors. */
static void warm_start_converges_to_the_best_approximation(void **state)
{
    (void)state;
    static matrix x, original;
    powersgd_matrix v = view(&x);
    powersgd_start(&v, 1, "layer.weight");
    low_rank(original.m, 3);
    double first = 0, last = 0;
    for (int step = 0; step < 20; step++) {
        memcpy(x.m, original.m, sizeof x.m);
        memset(x.error, 0, sizeof x.error); /* turns off error feedback */
        round_trip(&x, 1);
        last = norm(x.error, ROWS * COLS) / norm(original.m, ROWS * COLS);
        if (step == 0) first = last;
    }
    /* Norm of the singular values that remain, 4 and 2, divided by the norm of all. */
    double best = sqrt(16 + 4) / sqrt(64 + 16 + 4);
    if (last > first || fabs(last - best) > 0.05)
        fail_msg("found %g, after %g; expected about %g", last, first, best);
}

/* Checks that the sum of the applied gradients plus the remaining error equals the sum of the true gradients,
 * although each approximation is rough. */
static void error_feedback_loses_nothing_over_the_steps(void **state)
{
    (void)state;
    static matrix x;
    static double sent[ROWS * COLS], wanted[ROWS * COLS];
    powersgd_matrix v = view(&x);
    powersgd_start(&v, 1, "layer.weight");
    memset(sent, 0, sizeof sent);
    memset(wanted, 0, sizeof wanted);
    for (int step = 0; step < 50; step++) {
        for (int i = 0; i < ROWS * COLS; i++) {
            x.m[i] = (float)sin(i * 0.37 + step);
            wanted[i] += x.m[i];
        }
        round_trip(&x, 1);
        for (int i = 0; i < ROWS * COLS; i++) sent[i] += x.m[i];
    }
    for (int i = 0; i < ROWS * COLS; i++)
        if (fabs(sent[i] + x.error[i] - wanted[i]) > 1e-4)
            fail_msg("element %d: sent %g, left %g, expected %g together", i, sent[i], (double)x.error[i],
                     wanted[i]);
}

static void a_zero_matrix_stays_zero(void **state)
{
    (void)state;
    static matrix x;
    powersgd_matrix v = view(&x);
    powersgd_start(&v, RANK, "layer.weight");
    memset(x.m, 0, sizeof x.m);
    round_trip(&x, RANK);
    for (int i = 0; i < ROWS * COLS; i++) assert_true(x.m[i] == 0 && x.error[i] == 0);
}

static void thin_and_small_tensors_are_sent_uncompressed(void **state)
{
    (void)state;
    assert_true(powersgd_pays(512, 4608, 1));
    assert_true(powersgd_pays(512, 4608, 4));
    assert_false(powersgd_pays(64, 1, 1));
    assert_false(powersgd_pays(10, 60, 8));
    assert_false(powersgd_pays(3, 3, 1));
}

/* ---- in the engine ---------------------------------------------------------------------------- */

/* Returns element (row, col) of a gradient of matrix rank 1, in PyTorch's layout. */
static float outer(int rank, int64_t step, int64_t row, int64_t col)
{
    return (float)((rank + 1) * (0.5 + (double)(row % 5)) * (1 + (double)((col + step) % 3)));
}

static status put_gradient(engine_rank *r, int64_t step, int param)
{
    const nn_param *p = &r->params->model->params[param];
    int64_t cols = p->elements / p->shape.dims[0];
    float *plain = malloc((size_t)p->elements * sizeof *plain);
    for (int64_t i = 0; i < p->elements; i++) plain[i] = outer(r->context->rank, step, i / cols, i % cols);
    status rc = param_set_import(r->params, r->stream, r->params->grads.data, param, DTYPE_F32, plain);
    free(plain);
    return rc;
}

static status check_gradient(engine_rank *r, int64_t step, int param, double tolerance)
{
    const nn_param *p = &r->params->model->params[param];
    int64_t cols = p->elements / p->shape.dims[0], n = r->context->world;
    float *plain = malloc((size_t)p->elements * sizeof *plain);
    status rc = param_set_export(r->params, r->stream, r->params->grads.data, param, DTYPE_F32, plain);
    for (int64_t i = 0; rc == STATUS_OK && i < p->elements; i++) {
        /* The mean over the ranks of rank + 1, times outer(). */
        double right = outer(0, step, i / cols, i % cols) * (double)(n + 1) / 2;
        if (fabs(plain[i] - right) > tolerance * right)
            rc = rank_error(STATUS_MISMATCH, "step %lld, %s[%lld] is %.9g, expected %.9g within %g",
                            (long long)step, p->name, (long long)i, (double)plain[i], right, tolerance);
    }
    free(plain);
    return rc;
}

/* The gradients of all ranks are multiples of one matrix of rank 1, which PowerSGD restores exactly. */
static status run_rank_one(engine_rank *r)
{
    for (int64_t s = 0; s < 6; s++) {
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step));
        for (int k = 0; k < r->job->program->ready_count; k++) {
            TRY(put_gradient(r, s, r->job->program->ready_order[k]));
            TRY(sync_ready(r->engine, r->job->program->ready_order[k]));
        }
        TRY(job_finish(r, &step));
        for (int p = 0; p < r->params->model->param_count; p++) TRY(check_gradient(r, s, p, 2e-5));
    }
    sync_counters c;
    sync_read_counters(r->engine, &c);
    return STATUS_OK;
}

static void powersgd_restores_gradients_of_rank_one(void **state)
{
    (void)state;
    static const char *const policies[] = {"ddp", "apex", "torch-0.4.1", "naive"};
    for (int i = 0; i < 8; i++) {
        engine_job job = {.policy = policies[i / 2],
                          .words = {"--comm-hook=powersgd", "--powersgd-start=2"},
                          .device = i % 2 ? "reference" : "cpu",
                          .world = 3,
                          .body = run_rank_one,
                          .divide = i % 3,
                          .inline_progress = i % 2};
        engine_job_run_well(&job);
    }
}

/* Checks that parameters stay bit-identical on all ranks. */
static status run_same_bits(engine_rank *r)
{
    static uint64_t hashes[RANKS_MAX];
    for (int64_t s = 0; s < 5; s++) {
        sync_step step = job_step_of(r, s);
        TRY(job_begin(r, &step));
        for (int k = 0; k < r->job->program->ready_count; k++) {
            int p = r->job->program->ready_order[k];
            for (int64_t i = 0; i < r->params->pieces[p].count; i++)
                job_set_element(r, &r->params->grads, p, i,
                                sin((double)(i * (r->context->rank + 2) + s * 3 + p)));
            TRY(sync_ready(r->engine, p));
        }
        TRY(job_finish(r, &step));
    }
    TRY(param_set_hash(r->params, r->stream, &hashes[r->context->rank]));
    pthread_barrier_wait(&r->job->barrier);
    if (hashes[r->context->rank] != hashes[0])
        return rank_error(STATUS_MISMATCH, "rank %d has other parameters than rank 0", r->context->rank);
    return STATUS_OK;
}

static void parameters_stay_identical_on_all_ranks(void **state)
{
    (void)state;
    static const char *const words[][2] = {{"--comm-hook=powersgd", "--powersgd-start=1"},
                                           {"--comm-hook=powersgd", "--algorithm=ring"},
                                           {"--comm-hook=bf16", "--algorithm=ring"},
                                           {"--algorithm=ring", "--join=active"},
                                           {"--algorithm=two-shot", NULL}};
    for (int i = 0; i < 5; i++) {
        engine_job job = {.policy = "ddp",
                          .words = {words[i][0], words[i][1], "--bucket-cap-mb=0.01"},
                          .world = 3,
                          .body = run_same_bits};
        engine_job_run_well(&job);
    }
}

static status run_fewer_bytes(engine_rank *r)
{
    sync_counters c;
    for (int64_t s = 0; s < 2; s++) TRY(job_whole_step(r, s));
    sync_read_counters(r->engine, &c);
    int64_t before = c.bytes_sent;
    TRY(job_whole_step(r, 2));
    sync_read_counters(r->engine, &c);
    int64_t plain = c.bytes_sent - before;
    before = c.bytes_sent;
    TRY(job_whole_step(r, 3));
    sync_read_counters(r->engine, &c);
    if ((c.bytes_sent - before) * 3 > plain * 2)
        return rank_error(STATUS_MISMATCH, "a compressed step sent %lld bytes, a plain one %lld",
                          (long long)(c.bytes_sent - before), (long long)plain);
    return STATUS_OK;
}

static void powersgd_begins_at_its_step_and_sends_less(void **state)
{
    (void)state;
    engine_job job = {.policy = "apex",
                      .words = {"--comm-hook=powersgd", "--powersgd-start=3", "--algorithm=ring"},
                      .world = 2,
                      .body = run_fewer_bytes};
    engine_job_run_well(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_matrix_of_low_rank_is_restored),
        cmocka_unit_test(warm_start_converges_to_the_best_approximation),
        cmocka_unit_test(error_feedback_loses_nothing_over_the_steps),
        cmocka_unit_test(a_zero_matrix_stays_zero),
        cmocka_unit_test(thin_and_small_tensors_are_sent_uncompressed),
        cmocka_unit_test(powersgd_restores_gradients_of_rank_one),
        cmocka_unit_test(parameters_stay_identical_on_all_ranks),
        cmocka_unit_test(powersgd_begins_at_its_step_and_sends_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
