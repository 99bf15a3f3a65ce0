#include "ring/bench/bench.h"
#include "tests/common/collectives/ranks.h"

#include "common/base/clock.h"
#include "tests/support/status_name.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_ROWS = 64 };

typedef struct rows {
    ring_bench_row row[MOST_ROWS];
    int count;
} rows;

typedef struct bench_test {
    ring_bench_options options;
    rows *rows;
    collective_tuning *tuning; /* Tuning, or NULL for none. */
} bench_test;

static void keep(void *context, const ring_bench_row *row)
{
    rows *r = context;
    if (r->count < MOST_ROWS) r->row[r->count++] = *row;
}

static ring_bench_config config_of(const rank_context *context, const ring_bench_options *options)
{
    return (ring_bench_config){.rank = context->rank,
                               .world = context->world,
                               .job_token = context->token,
                               .timeout_ns = 20 * NS_PER_S,
                               .options = options};
}

static status rank_of_bench(rank_context *context)
{
    const bench_test *t = context->shared;
    ring_bench_config config = config_of(context, &t->options);
    if (!t->tuning) return ring_bench(&config, keep, t->rows);
    collective_tuning tuning;
    TRY(ring_bench_tune(&config, &tuning));
    if (context->rank == 0) *t->tuning = tuning;
    return STATUS_OK;
}

static ring_bench_options small(void)
{
    ring_bench_options o;
    option_binding binding = {.table = &ring_bench_option_table, .storage = &o};
    error_clear();
    assert_int_equal(options_defaults(&binding, 1), STATUS_OK);
    assert_true(o.check);
    o.begin = 100;
    o.end = 1000;
    o.factor = 10;
    o.iterations = 8;
    return o;
}

static void every_operation_has_a_row_with_right_results(void **state)
{
    (void)state;
    static rows found;
    bench_test t = {small(), &found, NULL};
    t.options.algorithms = "ring,two-shot";
    t.options.operations = "all_reduce,reduce,broadcast,all_gather,reduce_scatter,gather,scatter,all_to_all";
    for (int type = 0; type < 6; type += 2) {
        found.count = 0;
        t.options.type = type;
        t.options.op = type;
        ranks_run_well(3, rank_of_bench, &t);
        assert_int_equal(found.count, 8 * 2 * 2);
        for (int i = 0; i < found.count; i++) {
            const ring_bench_row *r = &found.row[i];
            assert_string_equal(r->collective, "shm");
            assert_string_equal(r->algorithm, i % 2 ? "two-shot" : "ring");
            assert_int_equal(r->ranks, 3);
            assert_int_equal(r->bytes, r->count * dtype_size(r->type));
            assert_true(r->out_of_place.run && r->out_of_place.wrong == 0);
            assert_int_equal(r->out_of_place.iterations, 8);
            assert_true(r->in_place.run == (r->kind != COLLECTIVE_ALL_TO_ALL));
            if (r->in_place.run) assert_true(r->in_place.wrong == 0);
            const ring_bench_times *u = &r->out_of_place;
            assert_true(u->best_us <= u->median_us && u->median_us <= u->p90_us && u->p90_us <= u->p99_us &&
                        u->p99_us <= u->worst_us);
        }
    }
}

static ring_bench_row example(void)
{
    ring_bench_row row = {.collective = "shm",
                          .algorithm = "two-shot",
                          .kind = COLLECTIVE_ALL_REDUCE,
                          .type = DTYPE_F32,
                          .op = REDUCE_SUM,
                          .ranks = 4,
                          .bytes = 4000000,
                          .count = 1000000};
    row.out_of_place = (ring_bench_times){.run = true,
                                          .iterations = 5,
                                          .median_us = 1000,
                                          .p90_us = 1100,
                                          .p99_us = 1300,
                                          .algorithm_gbs = 4,
                                          .bus_gbs = 6,
                                          .wrong = 0};
    row.in_place = (ring_bench_times){
        .run = true, .iterations = 5, .median_us = 500, .algorithm_gbs = 8, .bus_gbs = 12, .wrong = -1};
    return row;
}

static void a_line_has_nccl_tests_columns_and_fits_80(void **state)
{
    (void)state;
    ring_bench_row row = example(), other = example();
    text_buffer text = {0}, more = {0};
    char wrong[2][8];
    long long bytes, count;
    double time[2], alg[2], bus[2];
    ring_bench_line(&row, NULL, &text);
    assert_non_null(strstr(text.data, "# shm two-shot, all_reduce, float32, sum, root -1\n"));
    for (const char *line = text.data; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 80);
    ring_bench_line(&row, &row, &more);
    assert_null(strchr(more.data, '#')); /* this line belongs to the same group */
    int fields = sscanf(more.data, "%lld %lld %lf %lf %lf %7s %lf %lf %lf %7s", &bytes, &count, &time[0],
                        &alg[0], &bus[0], wrong[0], &time[1], &alg[1], &bus[1], wrong[1]);
    assert_int_equal(fields, 10);
    assert_int_equal(bytes, 4000000);
    assert_int_equal(count, 1000000);
    assert_true(time[0] == 1000 && bus[0] == 6 && alg[1] == 8);
    assert_string_equal(wrong[0], "0");
    assert_string_equal(wrong[1], "N/A");
    other.op = REDUCE_MAX;
    ring_bench_line(&other, &row, &more);
    assert_non_null(strstr(more.data, "# shm two-shot, all_reduce, float32, max, root -1\n"));
    text_free(&text);
    text_free(&more);
}

static void the_footer_averages_and_counts_wrong_elements(void **state)
{
    (void)state;
    ring_bench_row row[2] = {example(), example()};
    text_buffer text = {0};
    ring_bench_footer(row, 2, &text);
    assert_non_null(strstr(text.data, ": 0 OK"));
    assert_non_null(strstr(text.data, "Avg bus bandwidth    : 9 GB/s"));
    text_free(&text);
    row[1].in_place.wrong = 3;
    ring_bench_footer(row, 2, &text);
    assert_non_null(strstr(text.data, ": 3 FAILED"));
    text_free(&text);
}

static void json_holds_the_row(void **state)
{
    (void)state;
    ring_bench_row row = example();
    row.in_place.run = false;
    json_t *object = ring_bench_json(&row);
    assert_non_null(object);
    assert_int_equal(json_integer_value(json_object_get(object, "size_bytes")), 4000000);
    assert_string_equal(json_string_value(json_object_get(object, "reduction")), "sum");
    assert_string_equal(json_string_value(json_object_get(object, "collective")), "shm");
    assert_string_equal(json_string_value(json_object_get(object, "algorithm")), "two-shot");
    assert_true(json_is_null(json_object_get(object, "in_place")));
    const json_t *times = json_object_get(object, "out_of_place");
    assert_true(json_real_value(json_object_get(times, "bus_bandwidth_bytes_per_s")) == 6e9);
    json_decref(object);
}

static void invalid_options_are_errors(void **state)
{
    (void)state;
    static const struct {
        const char *collectives, *algorithms, *operations;
        int64_t begin, end, root;
        const char *text;
    } cases[] = {
        {"shm", "ring", "all_reduce", 100, 10, 0, "--begin, --end"},
        {"shm", "ring", "all_reduce", 10, 100, 7, "--root: expected a rank from 0 to "},
        {"shm", "ring", "allreduce", 10, 100, 0, "bench: operation: expected one of all_reduce, "},
        {"tree", "auto", "all_reduce", 10, 100, 0, "--collective: expected one of shm, mpi, got 'tree'"},
        {"", "auto", "all_reduce", 10, 100, 0, "--collective: expected a name, got none"},
        {"shm", "", "all_reduce", 10, 100, 0, "--algorithm: expected a name, got none"},
        {"shm", "tree", "all_reduce", 10, 100, 0,
         "--algorithm: expected one of ring, two-shot, tuned with --collective shm, got 'tree'"},
        {"shm", "ring,library", "all_reduce", 10, 100, 0,
         "--algorithm: expected one of ring, two-shot, tuned with --collective shm, got 'library'"},
        {"mpi", "two-shot", "all_reduce", 10, 100, 0,
         "--algorithm: expected one of ring, library with --collective mpi, got 'two-shot'"},
        {"shm", "tuned", "all_reduce", 10, 100, 0, "--algorithm: tuned needs --collective-table FILE"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rows none = {.count = 0};
        bench_test t = {small(), &none, NULL};
        rank_context result;
        t.options.collectives = cases[i].collectives;
        t.options.algorithms = cases[i].algorithms;
        t.options.operations = cases[i].operations;
        t.options.begin = cases[i].begin;
        t.options.end = cases[i].end;
        t.options.root = cases[i].root;
        ranks_run(1, rank_of_bench, &t, &result);
        if (result.error.code != STATUS_USAGE || !strstr(result.error.message, cases[i].text))
            fail_msg("found %s '%s', expected '%s'", status_name(result.error.code), result.error.message,
                     cases[i].text);
    }
}

/* ---- tuning ----------------------------------------------------------------------------------- */

static void a_table_is_measured_for_all_numbers_of_ranks(void **state)
{
    (void)state;
    collective_tuning table = {0};
    bench_test t = {small(), NULL, &table};
    ranks_run_well(3, rank_of_bench, &t);
    assert_true(table.count >= 2);
    assert_int_equal(table.rows[0].most_ranks, 2);
    assert_int_equal(table.rows[table.count - 1].most_ranks, 64);
    assert_true(table.rows[table.count - 1].most_bytes == INT64_MAX);
}

static void a_table_is_written_and_read(void **state)
{
    (void)state;
    collective_tuning table = {.rows = {{2, 4096, COLLECTIVE_ALGORITHM_TWO_SHOT},
                                        {8, INT64_MAX, COLLECTIVE_ALGORITHM_RING}},
                               .count = 2},
                      again;
    text_buffer text = {0};
    collective_tuning_write(&table, &text);
    assert_int_equal(collective_tuning_read(text.data, &again), STATUS_OK);
    assert_memory_equal(&table, &again, sizeof table);
    text_free(&text);
    assert_int_equal(collective_tuning_choose(&table, 2, 4096), COLLECTIVE_ALGORITHM_TWO_SHOT);
    assert_int_equal(collective_tuning_choose(&table, 2, 4097), COLLECTIVE_ALGORITHM_RING);
    assert_int_equal(collective_tuning_choose(&table, 9, 1), COLLECTIVE_ALGORITHM_RING);
    error_clear();
    assert_int_equal(collective_tuning_read("# rows\n\nranks<=2 bytes<=10 tree\n", &again), STATUS_DATA);
    assert_non_null(strstr(error_message(), "line 3: expected one of ring, two-shot, got 'tree'"));
    error_clear();
    assert_int_equal(collective_tuning_read("ranks<=2 ring\n", &again), STATUS_DATA);
    error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_has_a_row_with_right_results),
        cmocka_unit_test(a_line_has_nccl_tests_columns_and_fits_80),
        cmocka_unit_test(the_footer_averages_and_counts_wrong_elements),
        cmocka_unit_test(json_holds_the_row),
        cmocka_unit_test(invalid_options_are_errors),
        cmocka_unit_test(a_table_is_measured_for_all_numbers_of_ranks),
        cmocka_unit_test(a_table_is_written_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
