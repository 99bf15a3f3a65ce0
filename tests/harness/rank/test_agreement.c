/* Tests the row about the agreement of engines, with files like those that ranks write. Differences are below
 * and above the bound. */
#include "harness/rank/agreement.h"
#include "models/models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, PADDING = 3 };

typedef struct test_file {
    agreement_head *head;
    piece *pieces;
    float *averages, *magnitudes;
    size_t bytes;
} test_file;

static nn_model *model;

/* Makes a file with averages of 1 and magnitudes of 4. The gaps between parameters hold other values. */
static test_file make_file(void)
{
    test_file f;
    int64_t arena = model->parameter_elements + PADDING * model->param_count, at = 0;
    f.bytes = sizeof *f.head + (size_t)model->param_count * sizeof(piece) + 2 * (size_t)arena * sizeof(float);
    f.head = calloc(1, f.bytes);
    assert_non_null(f.head);
    *f.head = (agreement_head){.arena_elements = arena,
                               .averaged = model->parameter_elements,
                               .params = model->param_count,
                               .ranks = RANKS};
    f.pieces = (piece *)(f.head + 1);
    f.averages = (float *)(f.pieces + model->param_count);
    f.magnitudes = f.averages + arena;
    for (int p = 0; p < model->param_count; p++, at += PADDING) {
        f.pieces[p] = (piece){at, model->params[p].elements};
        for (int64_t i = 0; i < f.pieces[p].count; i++, at++) f.averages[at] = 1, f.magnitudes[at] = 4;
    }
    return f;
}

static json_t *compare(test_file *ps, test_file *ring, const char *unlike)
{
    json_t *found = agreement_compare((sync_blob){ps->head, ps->bytes}, (sync_blob){ring->head, ring->bytes},
                                      model, RANKS, unlike);
    free(ps->head);
    free(ring->head);
    assert_non_null(found);
    return found;
}

static bool is_true(const json_t *found, const char *key)
{
    return json_is_true(json_object_get(found, key));
}

static void equal_averages_are_bit_identical(void **state)
{
    (void)state;
    test_file ps = make_file(), ring = make_file();
    ps.averages[ps.pieces[0].count] = 7; /* This element is padding. */
    json_t *found = compare(&ps, &ring, NULL);
    assert_true(is_true(found, "compared") && is_true(found, "bit_identical") &&
                is_true(found, "within_bound"));
    json_decref(found);
}

/* The bound is 2 * 3 * 2^-24 * 4 / 4 = 6 * 2^-24. Above 1, neighboring float32 values differ by 2 * 2^-24. */
static void differences_are_held_against_the_bound_of_their_element(void **state)
{
    (void)state;
    for (int steps = 1; steps <= 5; steps++) {
        test_file ps = make_file(), ring = make_file();
        ring.averages[ring.pieces[1].offset + 1] += (float)steps * 0x1p-23F;
        json_t *found = compare(&ps, &ring, NULL);
        assert_true(is_true(found, "compared") && !is_true(found, "bit_identical"));
        assert_true(is_true(found, "within_bound") == (steps <= 3));
        assert_float_equal(json_number_value(json_object_get(found, "largest_share_of_bound")), steps / 3.0,
                           1e-6);
        assert_string_equal(json_string_value(json_object_get(found, "largest_share_in")),
                            model->params[1].name);
        assert_string_equal(json_string_value(json_object_get(found, "bound")), "2 (n - 1) 2^-24 sum|g| / n");
        json_decref(found);
    }
}

static void values_where_no_rank_has_a_gradient_and_nan_are_beyond_it(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        test_file ps = make_file(), ring = make_file();
        ring.averages[0] = i ? (float)NAN : 1.5F;
        ring.magnitudes[0] = i ? 4 : 0;
        json_t *found = compare(&ps, &ring, NULL);
        assert_true(is_true(found, "compared") && !is_true(found, "within_bound"));
        assert_true(json_is_null(json_object_get(found, "largest_share_of_bound")));
        json_decref(found);
    }
}

static void what_cannot_be_compared_has_a_reason(void **state)
{
    (void)state;
    static const char *const parts[] = {"no averages", "--comm-hook", "recorded", "arenas differ", "scaled"};
    for (int i = 0; i < 5; i++) {
        test_file ps = make_file(), ring = make_file();
        if (i == 0) ps.head->averaged--;
        if (i == 1) strcpy(ring.head->reason, "--comm-hook changes it");
        if (i == 2) ps.bytes = 0;
        if (i == 3) ring.head->ranks--;
        json_t *found = compare(&ps, &ring, i == 4 ? "scaled" : NULL);
        assert_false(is_true(found, "compared"));
        assert_non_null(strstr(json_string_value(json_object_get(found, "reason")), parts[i]));
        json_decref(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_averages_are_bit_identical),
        cmocka_unit_test(differences_are_held_against_the_bound_of_their_element),
        cmocka_unit_test(values_where_no_rank_has_a_gradient_and_nan_are_beyond_it),
        cmocka_unit_test(what_cannot_be_compared_has_a_reason),
    };
    if (model_build(&(model_options){.name = "toy"}, &model) != STATUS_OK) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nn_model_free(&model);
    return failed;
}
