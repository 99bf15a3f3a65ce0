/* Tests a record after a run with more steps than the record can hold. The record keeps sums over all steps,
 * and sums over blocks of steps. */
#include "common/base/random.h"
#include "harness/result/record.h"
#include "harness/result/run_result.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KEPT = RECORD_STRETCHES * RECORD_BLOCK, RANKS = 2, GAP_EVERY = 1000, FIRST_INDEX = 5 };

/* The times of step `i` depend only on `i` and this number, so that a test can compute them again. The median
 * is about 400 us. One step of 50 is six times as long, and one of 1024 much longer. */
static uint64_t series = 3;
static step_times times_of(int64_t i)
{
    uint64_t stream = random_start(series, 7);
    double slow = i % 1024 == 1023 ? 30 : random_below(stream, (uint64_t)(3 * i), 50) == 0 ? 6 : 1;
    double wave = 1 + 0.2 * sin((double)i / 20000) + 0.05 * random_normal(stream, (uint64_t)i);
    int64_t total = llround(4e5 * slow * wave), forward = total / 3, lost = i % 777 == 776;
    step_times t = {.total = total, .slowdown = STEP_NOT_MEASURED, .copy = STEP_NOT_MEASURED};
    anatomy_figures f = {.parts = {[STEP_FORWARD] = forward, [STEP_WAITING] = total - forward},
                         .hidden_waiting_ns = forward / 2,
                         .lost = lost};
    step_set_anatomy(&t, &f);
    t.last_bucket = i % 2 ? 100 : STEP_NOT_MEASURED;
    return t;
}

/* Records steps. If `gaps` is set, other work lies between some of them. */
static void record_steps(record *r, int64_t steps, bool gaps)
{
    int64_t now = 1000, waited[RANKS] = {0, 1};
    for (int64_t i = r->count; i < steps; i++) {
        step_result result = {.index = FIRST_INDEX + i,
                              .times = times_of(i),
                              .loss = i % 3 ? 2.0 / (double)(i + 1) : (double)NAN,
                              .samples = i % 11 ? 16 : 2,
                              .waited_for = 1,
                              .waited_ns = waited};
        if (gaps && i % GAP_EVERY == GAP_EVERY - 1) now += 12345;
        result.end_ns = now += result.times.total;
        record_step(r, &result);
    }
}

static void open_record(record *r, int64_t steps, bool gaps)
{
    assert_int_equal(record_init(r, steps, 0, RANKS, 1), STATUS_OK);
    record_steps(r, steps, gaps);
}

static const int64_t lengths[] = {1, 15, 16, 17, KEPT, KEPT + 1, 2 * KEPT, 2 * KEPT + 1, 100000, 1000003};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static void up_to_4096_steps_all_are_kept(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS && lengths[l] <= KEPT; l++) {
        record r;
        open_record(&r, lengths[l], true);
        assert_int_equal(r.level, 0);
        assert_int_equal(r.kept, lengths[l]);
        for (int64_t i = 0; i < r.kept; i++) {
            step_times expected = times_of(i);
            assert_int_equal(r.steps[i].index, FIRST_INDEX + i);
            assert_memory_equal(&r.steps[i].times, &expected, sizeof expected);
        }
        record_deinit(&r);
    }
}

static void sums_of_stretches_are_over_all_steps(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS; l++) {
        record r;
        open_record(&r, lengths[l], true);
        int64_t step = 0, gaps = 0, end = r.stretches[0].sum.begin_ns;
        assert_in_range(r.stretch_count, 1, RECORD_STRETCHES);
        for (int64_t i = 0; i < r.stretch_count; i++) {
            record_stretch *s = &r.stretches[i];
            int64_t sums[RECORD_PHASES] = {0}, known[RECORD_PHASES] = {0}, samples = 0, losses = 0;
            double loss = 0;
            for (int64_t n = 0; n < s->steps; n++, step++) {
                step_times t = times_of(step);
                for (int p = 0; p < RECORD_PHASES; p++) {
                    bool measured = record_times(&t)[p] != STEP_NOT_MEASURED;
                    sums[p] += measured ? record_times(&t)[p] : 0;
                    known[p] += measured;
                }
                samples += step % 11 ? 16 : 2;
                losses += step % 3 > 0;
                loss += step % 3 ? 2.0 / (double)(step + 1) : 0;
            }
            assert_memory_equal(record_times(&s->sum.times), sums, sizeof sums);
            assert_memory_equal(record_times(&s->known), known, sizeof known);
            assert_int_equal(s->sum.samples, samples);
            assert_int_equal(s->losses, losses);
            assert_true(fabs(s->sum.loss - loss) < 1e-12);
            assert_int_equal(s->sum.index, FIRST_INDEX + step - 1);
            assert_int_equal(s->sum.end_ns - s->sum.begin_ns - s->gaps_ns, s->sum.times.total);
            gaps += s->gaps_ns + s->sum.begin_ns - end;
            end = s->sum.end_ns;
        }
        assert_int_equal(step, lengths[l]);
        assert_int_equal(gaps, 12345 * (lengths[l] / GAP_EVERY));
        assert_int_equal(r.wall_ns, end - r.stretches[0].sum.begin_ns - gaps);
        record_deinit(&r);
    }
}

static void a_stretch_keeps_16_consecutive_steps_of_its_own(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS; l++) {
        record r;
        int64_t begin = 0, kept = 0;
        open_record(&r, lengths[l], false);
        assert_int_equal(r.steps[0].index, FIRST_INDEX);
        for (int64_t i = 0; i < r.stretch_count; i++) {
            int64_t length = r.stretches[i].steps, of_it = 0;
            for (; kept < r.kept && r.steps[kept].index - FIRST_INDEX < begin + length; kept++, of_it++) {
                step_times expected = times_of(r.steps[kept].index - FIRST_INDEX);
                assert_memory_equal(&r.steps[kept].times, &expected, sizeof expected);
                if (of_it > 0) assert_int_equal(r.steps[kept].index, r.steps[kept - 1].index + 1);
            }
            if (i + 1 < r.stretch_count)
                assert_int_equal(of_it, RECORD_BLOCK);
            else
                assert_in_range(of_it, 0, RECORD_BLOCK);
            begin += length;
        }
        assert_int_equal(kept, r.kept);
        record_deinit(&r);
    }
}

static void ranks_that_have_measured_unequal_numbers_of_steps_keep_the_same(void **state)
{
    (void)state;
    const int64_t pairs[][2] = {{4090, 4100}, {1, 5000},      {100, 100000},
                                {8000, 8193}, {16384, 16385}, {12345, 300000}};
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        record few, many;
        open_record(&few, pairs[p][0], true);
        open_record(&many, pairs[p][1], true);
        record_merge(&few, many.level);
        assert_int_equal(few.level, many.level);
        for (int64_t i = 0; i < few.kept; i++) assert_int_equal(few.steps[i].index, many.steps[i].index);
        assert_true(few.kept == many.kept || many.steps[few.kept].index >= FIRST_INDEX + pairs[p][0]);
        for (int64_t i = 0; i + 1 < few.stretch_count; i++)
            assert_memory_equal(&few.stretches[i], &many.stretches[i], sizeof *many.stretches);
        record_deinit(&few);
        record_deinit(&many);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Takes the p95 of the kept steps, and finds which quantile of all steps this time is. Returns the quantile
 * minus 0.95. */
static double error_of_p95(int64_t steps)
{
    record r;
    open_record(&r, steps, true);
    double *kept = calloc((size_t)r.kept, sizeof *kept), below = 0;
    assert_non_null(kept);
    for (int64_t i = 0; i < r.kept; i++) kept[i] = (double)r.steps[i].times.total;
    qsort(kept, (size_t)r.kept, sizeof *kept, ascending);
    double p95 = kept[llround(0.95 * (double)(r.kept - 1))];
    for (int64_t i = 0; i < steps; i++) below += (double)times_of(i).total < p95;
    free(kept);
    record_deinit(&r);
    return below / (double)steps - 0.95;
}

/* For 2,048 to 4,096 independently drawn steps the error is 0.5 to 0.34 percentage points. */
static void the_p95_of_kept_steps_is_near_that_of_all(void **state)
{
    (void)state;
    enum { SERIES = 20 };
    static const int64_t many[] = {KEPT + 1, 2 * KEPT, 30000, 100000};
    for (size_t l = 0; l < sizeof many / sizeof many[0]; l++) {
        double squares = 0, most = 0;
        for (series = 3; series < 3 + SERIES; series++) {
            double error = error_of_p95(many[l]);
            squares += error * error;
            most = fmax(most, fabs(error));
        }
        print_message(
            "%lld steps: the p95 of kept steps is off by %.2f percentage points (rms), %.2f at most\n",
            (long long)many[l], 100 * sqrt(squares / SERIES), 100 * most);
        assert_true(sqrt(squares / SERIES) < 0.006 && most < 0.015);
    }
    series = 3;
}

/* After a run with NCCL or MPI, the anatomy of every step that may have been kept is computed again. */
static void parts_that_are_known_late_are_those_of_kept_steps(void **state)
{
    (void)state;
    enum { STEPS = 10000 };
    record r;
    int64_t waited[RANKS] = {0, 7}, sum = 0, known = 0;
    assert_int_equal(record_init(&r, STEPS, 0, RANKS, 1), STATUS_OK);
    r.late_parts = true;
    bool *soon = calloc(STEPS, sizeof *soon);
    assert_non_null(soon);
    for (int64_t i = 0; i < STEPS; i++) {
        soon[i] = record_keeps_soon(&r);
        record_steps(&r, i + 1, false);
    }
    for (int64_t i = 0; i < STEPS; i++) {
        anatomy_figures f = {.parts = {[STEP_FORWARD] = times_of(i).total - 7, [STEP_WAITING] = 7},
                             .waited_for = 1};
        if (soon[i]) record_correct_step(&r, FIRST_INDEX + i, &f, waited);
    }
    assert_int_equal(r.corrected, r.kept);
    for (int64_t i = 0; i < r.stretch_count; i++) {
        sum += r.stretches[i].sum.times.parts[STEP_WAITING];
        known += r.stretches[i].known.parts[STEP_WAITING];
    }
    assert_int_equal(known, r.kept);
    assert_int_equal(sum, 7 * r.kept);
    assert_int_equal(r.waited_ns[1], 7 * r.kept);
    free(soon);
    record_deinit(&r);
}

static void of_many_evaluations_every_nth_is_kept_and_the_last(void **state)
{
    (void)state;
    for (int64_t count = 1; count <= 20001; count += count < 4090 || count > 4100 ? 500 : 1) {
        record r;
        assert_int_equal(record_init(&r, 1, count, RANKS, 1), STATUS_OK);
        for (int64_t i = 0; i < count; i++) record_evaluation_result(&r, (record_evaluation){.step = i});
        assert_in_range(r.evaluation_count, count < RECORD_EVALUATIONS ? count : RECORD_EVALUATIONS / 2,
                        RECORD_EVALUATIONS);
        for (int64_t i = 0; i + 1 < r.evaluation_count; i++)
            assert_int_equal(r.evaluations[i].step, i * r.evaluation_stride);
        assert_int_equal(r.evaluations[r.evaluation_count - 1].step, count - 1);
        record_deinit(&r);
    }
}

/* Returns the job of rank 0 and of a rank that measures `fewer` steps. */
static json_t *job_of(int64_t steps, int64_t fewer, bool synchronous, bool gaps)
{
    const clock_alignment clock = {.aligned = false};
    int level = 0;
    json_t *ranks = json_array(),
           *job = json_pack("{s:b, s:i}", "synchronous", (int)synchronous, "world_size", RANKS);
    for (int i = 0; i < RANKS; i++) {
        record r;
        json_t *rank = json_object();
        open_record(&r, i == 0 ? steps : fewer, gaps);
        record_merge(&r, level);
        if (i == 0) level = r.level;
        record_to_json(&r, &clock, rank);
        json_array_append_new(ranks, rank);
        record_deinit(&r);
    }
    assert_int_equal(job_result_add_times(job, ranks), STATUS_OK);
    json_decref(ranks);
    return job;
}

static double number_at(const json_t *job, const char *object, const char *key)
{
    return json_number_value(json_object_get(json_object_get(job, object), key));
}

/* Both ranks measure the same times, so each step of the job equals a step of a rank. */
static void a_jobs_times_are_sums_over_all_steps(void **state)
{
    (void)state;
    const int64_t steps = 100000;
    int64_t wall = 0, samples = 0, forward = 0, known = 0;
    for (int64_t i = 0; i < steps; i++) {
        step_times t = times_of(i);
        wall += t.total;
        samples += RANKS * (i % 11 ? 16 : 2);
        forward += t.parts[STEP_FORWARD] != STEP_NOT_MEASURED ? t.parts[STEP_FORWARD] : 0;
        known += t.parts[STEP_FORWARD] != STEP_NOT_MEASURED;
    }
    for (int c = 0; c < 4; c++) {
        json_t *job = job_of(steps, steps, c & 1, c & 2);
        assert_int_equal(llround(1e9 * number_at(job, "throughput", "wall_s")), wall);
        assert_true(fabs(number_at(job, "throughput", "samples") - (double)samples) < 1e-3);
        assert_int_equal(llround(number_at(job, "step_time", "count")), steps);
        assert_in_range(llround(number_at(job, "step_time", "kept")), KEPT / 2, KEPT);
        assert_true(fabs(1e9 * number_at(job, "step_time", "mean_s") - (double)wall / (double)steps) < 1e-3);
        const json_t *phases = json_object_get(job, "phases");
        assert_int_equal(llround(number_at(phases, "forward_s", "count")), known);
        assert_true(fabs(1e9 * number_at(phases, "forward_s", "mean_s") - (double)forward / (double)known) <
                    1e-3);
        json_decref(job);
    }
}

static void a_job_counts_the_steps_that_all_ranks_have_measured(void **state)
{
    (void)state;
    const int64_t fewer[] = {0, 1, 4096, 49999, 50000};
    for (int i = 0; i < 5; i++) {
        json_t *job = job_of(50000, fewer[i], false, false);
        assert_int_equal(llround(number_at(job, "step_time", "count")), fewer[i]);
        assert_in_range(llround(number_at(job, "step_time", "kept")), 0, fewer[i]);
        json_decref(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(up_to_4096_steps_all_are_kept),
        cmocka_unit_test(sums_of_stretches_are_over_all_steps),
        cmocka_unit_test(a_stretch_keeps_16_consecutive_steps_of_its_own),
        cmocka_unit_test(ranks_that_have_measured_unequal_numbers_of_steps_keep_the_same),
        cmocka_unit_test(the_p95_of_kept_steps_is_near_that_of_all),
        cmocka_unit_test(parts_that_are_known_late_are_those_of_kept_steps),
        cmocka_unit_test(of_many_evaluations_every_nth_is_kept_and_the_last),
        cmocka_unit_test(a_jobs_times_are_sums_over_all_steps),
        cmocka_unit_test(a_job_counts_the_steps_that_all_ranks_have_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
