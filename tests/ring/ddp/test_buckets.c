#include "common/nn/program.h"
#include "models/models.h"
#include "ring/ddp/buckets.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MIB = 1 << 20, MOST = 512 };

/* Writes the numbers of the tensors, with a | between buckets, as in "0 | 1 2 | 3". */
static void describe(const bucket_schedule *s, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int k = 0; k < s->count; k++)
        for (int i = 0; i < s->buckets[k].count && used < size; i++)
            used += (size_t)snprintf(text + used, size - used, "%s%d",
                                     i   ? " "
                                     : k ? " | "
                                         : "",
                                     s->tensors[s->buckets[k].first + i]);
}

typedef struct small_case {
    const char *name;
    bucket_plan plan;
    bucket_tensor tensors[6];
    int count;
    int ready[6];
    const char *expected;
} small_case;

#define F(n)                                                                                                 \
    {                                                                                                        \
        n, DTYPE_F32, 0                                                                                      \
    }
#define U(n, unit)                                                                                           \
    {                                                                                                        \
        n, DTYPE_F32, unit                                                                                   \
    }
#define D(n)                                                                                                 \
    {                                                                                                        \
        n, DTYPE_F64, 0                                                                                      \
    }

static const small_case small_cases[] = {
    /* cases of PyTorch's own unit tests */
    {"each tensor alone reaches the limit",
     {BUCKET_REACH_BYTES, BUCKET_ORDER_REGISTRATION, 400, 400},
     {F(100), F(200), F(100), F(50)},
     4,
     {0},
     "0 | 1 | 2 | 3"},
    {"a smaller first bucket",
     {BUCKET_REACH_BYTES, BUCKET_ORDER_REGISTRATION, 40, 80},
     {F(10), F(10), F(10), F(10)},
     4,
     {0},
     "0 | 1 2 | 3"},
    {"two types have limits of their own",
     {BUCKET_REACH_BYTES, BUCKET_ORDER_REGISTRATION, 200, 400},
     {F(50), D(25), F(50), D(25), F(50), D(25)},
     6,
     {0},
     "0 | 1 | 2 4 | 3 5"},
    /* cases of the other rules and orders */
    {"units, in the order in which the last of each is ready",
     {BUCKET_UNITS, BUCKET_ORDER_REVERSE, 0, 0},
     {U(10, 2), U(10, 0), U(10, 0), U(10, 1), U(10, 2)},
     5,
     {0},
     "3 | 2 1 | 4 0"},
    {"reverse order",
     {BUCKET_REACH_BYTES, BUCKET_ORDER_REVERSE, 40, 80},
     {F(10), F(10), F(10), F(10)},
     4,
     {0},
     "3 | 2 1 | 0"},
    {"last first",
     {BUCKET_REACH_BYTES, BUCKET_ORDER_LAST_FIRST, 40, 80},
     {F(10), F(10), F(10), F(10)},
     4,
     {0},
     "3 | 1 2 | 0"},
    {"ready order",
     {BUCKET_REACH_BYTES, BUCKET_ORDER_READY, 40, 80},
     {F(10), F(10), F(10), F(10)},
     4,
     {2, 0, 3, 1},
     "2 | 0 3 | 1"},
    {"elements, not bytes",
     {BUCKET_REACH_ELEMENTS, BUCKET_ORDER_REVERSE, 20, 20},
     {F(10), D(10), F(9), F(1)},
     4,
     {0},
     "3 2 0 | 1"},
    {"within a limit",
     {BUCKET_WITHIN_BYTES, BUCKET_ORDER_REGISTRATION, 80, 80},
     {F(10), F(10), F(1), F(30), F(1)},
     5,
     {0},
     "0 1 | 2 | 3 | 4"},
    {"one a type",
     {BUCKET_ONE, BUCKET_ORDER_REGISTRATION, 0, 0},
     {F(1), D(1), F(1), D(1)},
     4,
     {0},
     "0 2 | 1 3"},
    {"each", {BUCKET_EACH, BUCKET_ORDER_REVERSE, 0, 0}, {F(1), D(1), F(1)}, 3, {0}, "2 | 1 | 0"},
    {"nothing", {BUCKET_REACH_BYTES, BUCKET_ORDER_REGISTRATION, 1, 1}, {F(1)}, 0, {0}, ""},
};

static void small_cases_are_assigned_as_written_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof small_cases / sizeof small_cases[0]; i++) {
        const small_case *c = &small_cases[i];
        bucket_schedule schedule;
        char found[128];
        assert_int_equal(bucket_schedule_open(c->count, &schedule), STATUS_OK);
        bucket_assign(&c->plan, c->tensors, c->count, c->ready, &schedule);
        describe(&schedule, found, sizeof found);
        if (strcmp(found, c->expected) != 0)
            fail_msg("%s: found '%s', expected '%s'", c->name, found, c->expected);
        bucket_schedule_close(&schedule);
    }
}

/* ---- golden ----------------------------------------------------------------------------------- */

/* Lists the model's parameters. Returns their number, or 0 if there is no such model. */
static int model_tensors(const char *name, bucket_tensor *out)
{
    model_options options = {.name = name};
    nn_model *m = NULL;
    assert_int_equal(model_build(&options, &m), STATUS_OK);
    int count = m->param_count;
    assert_true(count <= MOST);
    for (int i = 0; i < count; i++)
        out[i] = (bucket_tensor){m->params[i].elements, DTYPE_F32, m->params[i].unit};
    nn_model_free(&m);
    return count;
}

static void compare_with_golden(const json_t *c, const bucket_schedule *s)
{
    const char *model = json_string_value(json_object_get(c, "model"));
    const json_t *bytes = json_object_get(c, "buckets_bytes"),
                 *tensors = json_object_get(c, "buckets_tensors");
    if ((size_t)s->count != json_array_size(bytes))
        fail_msg("%s: found %d buckets, expected %zu", model, s->count, json_array_size(bytes));
    for (int k = 0; k < s->count; k++) {
        long long b = json_integer_value(json_array_get(bytes, (size_t)k));
        long long t = json_integer_value(json_array_get(tensors, (size_t)k));
        if (s->buckets[k].bytes != b || s->buckets[k].count != t)
            fail_msg("%s: bucket %d has %lld bytes in %d tensors, expected %lld in %lld", model, k,
                     (long long)s->buckets[k].bytes, s->buckets[k].count, b, t);
    }
}

static void every_golden_case_has_the_buckets_of_pytorch(void **state)
{
    (void)state;
    char path[512];
    json_error_t error;
    const char *root = getenv("SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/golden/buckets/pytorch.json", root ? root : ".");
    json_t *golden = json_load_file(path, 0, &error);
    if (!golden) fail_msg("%s: %s", path, error.text);
    json_t *cases = json_object_get(golden, "cases"), *c;
    size_t i;
    assert_int_equal(json_array_size(cases), 12);
    json_array_foreach(cases, i, c)
    {
        static bucket_tensor tensors[MOST];
        const json_t *limits = json_object_get(c, "limits_bytes");
        bool reverse = strcmp(json_string_value(json_object_get(c, "order")), "reverse") == 0;
        bucket_plan plan = {BUCKET_REACH_BYTES, reverse ? BUCKET_ORDER_REVERSE : BUCKET_ORDER_REGISTRATION,
                            json_integer_value(json_array_get(limits, 0)),
                            json_integer_value(json_array_get(limits, json_array_size(limits) - 1))};
        int count = model_tensors(json_string_value(json_object_get(c, "model")), tensors);
        assert_int_equal(count, json_integer_value(json_object_get(c, "parameters")));
        bucket_schedule schedule;
        assert_int_equal(bucket_schedule_open(count, &schedule), STATUS_OK);
        bucket_assign(&plan, tensors, count, NULL, &schedule);
        compare_with_golden(c, &schedule);
        bucket_schedule_close(&schedule);
    }
    json_decref(golden);
}

static void every_tensor_is_in_one_bucket_of_its_type(void **state)
{
    (void)state;
    static bucket_tensor tensors[MOST];
    static int ready[MOST];
    for (int i = 0; i < MOST; i++) {
        tensors[i] = (bucket_tensor){1 + i * 37 % 1000, i % 3 ? DTYPE_F32 : DTYPE_F64, i % 3};
        ready[i] = (i * 5 + 3) % MOST; /* 5 and 512 have no common factor, so this is a permutation */
    }
    bucket_schedule schedule;
    assert_int_equal(bucket_schedule_open(MOST, &schedule), STATUS_OK);
    for (int rule = 0; rule < BUCKET_RULE_COUNT; rule++)
        for (int order = 0; order < BUCKET_ORDER_COUNT; order++) {
            bucket_plan plan = {(bucket_rule)rule, (bucket_order)order, 2000, 9000};
            bool seen[MOST] = {false};
            bucket_assign(&plan, tensors, MOST, ready, &schedule);
            int total = 0;
            for (int k = 0; k < schedule.count; k++) {
                const bucket *b = &schedule.buckets[k];
                int64_t elements = 0;
                dtype type = tensors[schedule.tensors[b->first]].type;
                assert_int_equal(b->first, total);
                for (int i = 0; i < b->count; i++) {
                    int tensor = schedule.tensors[b->first + i];
                    assert_false(seen[tensor]);
                    seen[tensor] = true;
                    assert_int_equal(tensors[tensor].type, type);
                    elements += tensors[tensor].elements;
                }
                assert_int_equal(elements, b->elements);
                assert_int_equal(elements * dtype_size(type), b->bytes);
                total += b->count;
            }
            assert_int_equal(total, MOST);
        }
    bucket_schedule_close(&schedule);
}

/* There are six gradients. Gradient 5 is alone in a bucket, 4 to 2 share one, and 1 and 0 share one. Gradient
 * 4 becomes ready late, so its bucket waits, and so does the one after it. */
static void buckets_are_launched_in_order_when_all_their_gradients_are_ready(void **state)
{
    (void)state;
    static const bucket_plan plan = {BUCKET_REACH_BYTES, BUCKET_ORDER_REVERSE, 4, 12};
    static const bucket_tensor tensors[6] = {F(1), F(1), F(1), F(1), F(1), F(1)};
    static const struct {
        int ready;
        bool completes;
        int launched[3]; /* Buckets in the order of launches. BUCKET_NONE ends the list. */
    } steps[] = {{5, true, {0, BUCKET_NONE}}, {3, false, {BUCKET_NONE}}, {2, false, {BUCKET_NONE}},
                 {1, false, {BUCKET_NONE}},   {0, true, {BUCKET_NONE}},  {4, true, {1, 2, BUCKET_NONE}}};
    bucket_schedule s;
    assert_int_equal(bucket_schedule_open(6, &s), STATUS_OK);
    bucket_assign(&plan, tensors, 6, NULL, &s);
    for (int step = 0; step < 2; step++) {
        bucket_begin_step(&s);
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            assert_int_equal(bucket_gradient_ready(&s, steps[i].ready), steps[i].completes);
            for (int k = 0;; k++) {
                assert_int_equal(bucket_take_complete(&s), steps[i].launched[k]);
                if (steps[i].launched[k] == BUCKET_NONE) break;
            }
        }
    }
    bucket_schedule_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_launched_in_order_when_all_their_gradients_are_ready),
        cmocka_unit_test(small_cases_are_assigned_as_written_down),
        cmocka_unit_test(every_golden_case_has_the_buckets_of_pytorch),
        cmocka_unit_test(every_tensor_is_in_one_bucket_of_its_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
