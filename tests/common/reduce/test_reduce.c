#include "common/base/random.h"
#include "common/reduce/half.h"
#include "common/reduce/reduce_impl.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LONGEST = 5003, SOURCES = 17 };

static const int64_t counts[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 1009, 1023, 1024, 1025, 2048, LONGEST};
static const dtype types[] = {DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32};

enum { COUNTS = sizeof counts / sizeof counts[0], TYPES = sizeof types / sizeof types[0] };

/* One element of any type. */
typedef union value {
    double f;
    int64_t i;
} value;

static bool is_integer(dtype type)
{
    return type == DTYPE_I64 || type == DTYPE_I32;
}

static value load(dtype type, const void *at, int64_t i)
{
    switch (type) {
    case DTYPE_F64:
        return (value){.f = ((const double *)at)[i]};
    case DTYPE_F32:
        return (value){.f = ((const float *)at)[i]};
    case DTYPE_F16:
        return (value){.f = f16_to_float(((const uint16_t *)at)[i])};
    case DTYPE_BF16:
        return (value){.f = bf16_to_float(((const uint16_t *)at)[i])};
    case DTYPE_I64:
        return (value){.i = ((const int64_t *)at)[i]};
    default:
        return (value){.i = ((const int32_t *)at)[i]};
    }
}

static void store(dtype type, void *at, int64_t i, value v)
{
    switch (type) {
    case DTYPE_F64:
        ((double *)at)[i] = v.f;
        break;
    case DTYPE_F32:
        ((float *)at)[i] = (float)v.f;
        break;
    case DTYPE_F16:
        ((uint16_t *)at)[i] = f16_from_float((float)v.f);
        break;
    case DTYPE_BF16:
        ((uint16_t *)at)[i] = bf16_from_float((float)v.f);
        break;
    case DTYPE_I64:
        ((int64_t *)at)[i] = v.i;
        break;
    default:
        ((int32_t *)at)[i] = (int32_t)v.i;
    }
}

/* Fills floating-point types with fractions, so that the order of summation shows, and other types with small
 * integers. */
static void fill(dtype type, void *at, int64_t count, int source)
{
    for (int64_t i = 0; i < count; i++) {
        double r = random_signed(random_start(11, (uint64_t)source), (uint64_t)i);
        store(type, at, i, is_integer(type) ? (value){.i = (int64_t)(r * 9)} : (value){.f = r * 3});
    }
}

/* Computes one step of a reduction in float64 or int64, and returns the exact result. For one operation on
 * narrower types, rounding it to float64 first and then to the type gives the same as rounding once, since
 * float64 has 53 bits (Figueroa, "When is double rounding innocuous?", 1995). */
static value combine(dtype type, reduce_op op, value a, value b)
{
    if (is_integer(type)) {
        switch (op) {
        case REDUCE_MIN:
            return (value){.i = a.i < b.i ? a.i : b.i};
        case REDUCE_MAX:
            return (value){.i = a.i > b.i ? a.i : b.i};
        case REDUCE_PRODUCT:
            return (value){.i = (int64_t)((uint64_t)a.i * (uint64_t)b.i)};
        default:
            return (value){.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i)};
        }
    }
    switch (op) {
    case REDUCE_MIN:
        return (value){.f = fmin(a.f, b.f)};
    case REDUCE_MAX:
        return (value){.f = fmax(a.f, b.f)};
    case REDUCE_PRODUCT:
        return (value){.f = a.f * b.f};
    default:
        return (value){.f = a.f + b.f};
    }
}

/* Rounds to the type in which the reduction keeps a partial result: float32 for the half types. */
static value keep(dtype type, value v)
{
    if (type == DTYPE_I32)
        v.i = (int32_t)v.i;
    else if (type != DTYPE_F64 && type != DTYPE_I64)
        v.f = (float)v.f;
    return v;
}

static value divide(dtype type, value v, int n)
{
    if (is_integer(type))
        v.i /= n;
    else
        v.f /= n;
    return keep(type, v);
}

static void expect_equal(const char *what, dtype type, reduce_op op, int64_t count, const void *found,
                         const void *expected)
{
    size_t size = (size_t)dtype_size(type);
    if (memcmp(found, expected, (size_t)count * size) == 0) return;
    for (int64_t i = 0; i < count; i++) {
        value f = load(type, found, i), e = load(type, expected, i);
        if (memcmp((const char *)found + (size_t)i * size, (const char *)expected + (size_t)i * size, size) ==
            0)
            continue;
        if (is_integer(type))
            fail_msg("%s, %s %s of %lld: element %lld is %lld, expected %lld", what, dtype_name(type),
                     reduce_op_name(op), (long long)count, (long long)i, (long long)f.i, (long long)e.i);
        fail_msg("%s, %s %s of %lld: element %lld is %.17g, expected %.17g", what, dtype_name(type),
                 reduce_op_name(op), (long long)count, (long long)i, f.f, e.f);
    }
}

static double inputs[SOURCES][LONGEST];
static double results[SOURCES][LONGEST + 8];
static double expected[LONGEST];

#define SET(name) &reduce_kernels_##name,
static const reduce_kernels *const sets[] = {PROCESSOR_ISA_LIST(SET)};
enum { SETS = sizeof sets / sizeof sets[0] };

static bool can_run(const reduce_kernels *set)
{
#define CAN_RUN(name)                                                                                        \
    if (set == &reduce_kernels_##name) return processor_has_##name();
    PROCESSOR_ISA_LIST(CAN_RUN)
    return false;
}

static void a_pair_equals_a_plain_loop_in_every_type_operation_and_instruction_set(void **state)
{
    (void)state;
    for (size_t s = 0; s < SETS; s++) {
        if (!can_run(sets[s])) continue;
        for (int t = 0; t < TYPES; t++) {
            dtype type = types[t];
            fill(type, inputs[0], LONGEST, 0);
            fill(type, inputs[1], LONGEST, 1);
            for (int op = 0; op < REDUCE_OP_COUNT; op++)
                for (int c = 0; c < COUNTS; c++) {
                    for (int64_t i = 0; i < counts[c]; i++)
                        store(type, expected, i,
                              keep(type,
                                   combine(type, op, load(type, inputs[0], i), load(type, inputs[1], i))));
                    sets[s]->pair[type][op](results[0], inputs[0], inputs[1], counts[c]);
                    expect_equal(sets[s]->name, type, op, counts[c], results[0], expected);
                    memcpy(results[0], inputs[0], sizeof inputs[0]);
                    sets[s]->pair[type][op](results[0], results[0], inputs[1], counts[c]);
                    expect_equal("in place", type, op, counts[c], results[0], expected);
                    memcpy(results[0], inputs[1], sizeof inputs[1]);
                    sets[s]->pair[type][op](results[0], inputs[0], results[0], counts[c]);
                    expect_equal("in place, second operand", type, op, counts[c], results[0], expected);
                }
        }
    }
}

static void plain_many(dtype type, reduce_op op, int sources, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        value v = load(type, inputs[0], i);
        for (int s = 1; s < sources; s++) v = keep(type, combine(type, op, v, load(type, inputs[s], i)));
        if (op == REDUCE_MEAN) v = divide(type, v, sources);
        store(type, expected, i, v);
    }
}

static void many_sources_are_reduced_in_order_and_rounded_once(void **state)
{
    (void)state;
    static const int source_counts[] = {1, 2, 3, 4, 5, 8, SOURCES};
    const void *ins[SOURCES];
    void *outs[SOURCES];
    for (int s = 0; s < SOURCES; s++) ins[s] = inputs[s];
    for (size_t set = 0; set < SETS; set++) {
        if (!can_run(sets[set])) continue;
        for (int t = 0; t < TYPES; t++) {
            dtype type = types[t];
            for (int s = 0; s < SOURCES; s++) fill(type, inputs[s], LONGEST, s);
            for (int op = 0; op < REDUCE_OP_COUNT; op++)
                for (size_t n = 0; n < sizeof source_counts / sizeof source_counts[0]; n++) {
                    int sources = source_counts[n], outputs = (int)n + 1;
                    int64_t count = counts[(n * 5 + (size_t)op * 3 + set) % COUNTS];
                    plain_many(type, op, sources, count);
                    for (int k = 0; k < outputs; k++) outs[k] = results[k];
                    sets[set]->many[type][op](outs, outputs, ins, sources, count,
                                              op == REDUCE_MEAN ? sources : 1);
                    for (int k = 0; k < outputs; k++)
                        expect_equal(sets[set]->name, type, op, count, results[k], expected);
                }
        }
    }
}

static void many_sources_may_be_the_destinations(void **state)
{
    (void)state;
    enum { RANKS = 4 };
    void *outs[RANKS];
    const void *ins[RANKS];
    for (int s = 0; s < RANKS; s++) {
        fill(DTYPE_F32, inputs[s], LONGEST, s);
        memcpy(results[s], inputs[s], sizeof inputs[s]);
        outs[s] = results[s];
        ins[s] = results[s];
    }
    plain_many(DTYPE_F32, REDUCE_MEAN, RANKS, LONGEST);
    reduce_many(DTYPE_F32, REDUCE_MEAN, outs, RANKS, ins, RANKS, LONGEST);
    for (int s = 0; s < RANKS; s++)
        expect_equal("in place", DTYPE_F32, REDUCE_MEAN, LONGEST, results[s], expected);
}

static void nothing_is_written_behind_the_last_element(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++)
        for (int c = 0; c < COUNTS; c++) {
            size_t size = (size_t)dtype_size(types[t]);
            unsigned char *end = (unsigned char *)results[0] + (size_t)counts[c] * size;
            const void *ins[2] = {inputs[0], inputs[1]};
            void *out = results[0];
            memset(results[0], 0x5a, sizeof results[0]);
            reduce_pair(types[t], REDUCE_SUM, out, ins[0], ins[1], counts[c]);
            reduce_many(types[t], REDUCE_SUM, &out, 1, ins, 2, counts[c]);
            reduce_divide(types[t], out, ins[0], counts[c], 3);
            for (int i = 0; i < 8; i++) assert_int_equal(end[i], 0x5a);
        }
}

/* Divides by powers of two and by other numbers. Some quotients are subnormal, zero or infinite. */
static void a_division_is_a_true_one(void **state)
{
    (void)state;
    static const double divisors[] = {2, 3, 4, 7, 8, 0.5, 1024, 1.5, 0x1p-30};
    float *in = (float *)inputs[0], *out = (float *)results[0];
    fill(DTYPE_F32, inputs[0], LONGEST, 0);
    for (int i = 0; i < 200; i++) in[i] *= 0x1p-130f;
    in[200] = INFINITY;
    in[201] = -0.0f;
    in[202] = FLT_MAX;
    for (size_t set = 0; set < SETS; set++) {
        if (!can_run(sets[set])) continue;
        for (size_t d = 0; d < sizeof divisors / sizeof divisors[0]; d++) {
            volatile float divisor = (float)divisors[d];
            sets[set]->convert[DTYPE_F32][DTYPE_F32](out, in, LONGEST, divisors[d]);
            int differ = 0;
            for (int i = 0; i < LONGEST; i++) {
                float right = in[i] / divisor;
                if (memcmp(&out[i], &right, sizeof right) != 0)
                    fail_msg("%g / %g: found %.9g, expected %.9g", (double)in[i], divisors[d], (double)out[i],
                             (double)right);
                differ += out[i] != in[i] * (1.0f / divisor);
            }
            /* This divisor shows the difference between a division and a multiplication by the inverse. */
            if (divisors[d] == 3) assert_true(differ > 0);
        }
    }
}

static void nan_wins_min_and_max_from_either_side(void **state)
{
    (void)state;
    for (int op = REDUCE_MIN; op <= REDUCE_MAX; op++)
        for (int side = 0; side < 2; side++) {
            float a[20], b[20], out[20];
            for (int i = 0; i < 20; i++) {
                a[i] = side ? 1 : NAN;
                b[i] = side ? NAN : 1;
            }
            reduce_pair(DTYPE_F32, op, out, a, b, 20);
            for (int i = 0; i < 20; i++) assert_true(isnan(out[i]));
        }
}

/* Up to version 14, Clang has the type only on processors that compute in it. */
#if !defined(__clang__) || __clang_major__ > 14
static void every_float16_converts_to_float32_as_by_the_compiler(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t h = (uint16_t)bits;
        _Float16 known;
        memcpy(&known, &h, sizeof h);
        float found = f16_to_float(h), wanted = (float)known;
        if (isnan(wanted))
            assert_true(isnan(found));
        else if (half_float_as_bits(found) != half_float_as_bits(wanted))
            fail_msg("0x%04x: found %.9g, expected %.9g", bits, (double)found, (double)wanted);
    }
}

/* Converts every float16, every value half way between two of them, and the two float32 neighbors of each
 * value half way. */
static void float32_converts_to_float16_as_by_the_compiler(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint32_t around = half_float_as_bits(f16_to_float((uint16_t)bits));
        static const int32_t offsets[] = {0, 1, -1, 0x0fff, 0x1000, 0x1001, 0x1fff};
        for (size_t k = 0; k < sizeof offsets / sizeof offsets[0]; k++) {
            float x = half_bits_as_float(around + (uint32_t)offsets[k]);
            _Float16 known = (_Float16)x;
            uint16_t wanted, found = f16_from_float(x);
            memcpy(&wanted, &known, sizeof wanted);
            if (isnan(x)) {
                assert_int_equal(found & 0x7fff, 0x7e00);
            } else if (found != wanted) {
                fail_msg("%.9g: found 0x%04x, expected 0x%04x", (double)x, found, wanted);
            }
        }
    }
    for (int e = -30; e < -10; e++) { /* Values half way between subnormal numbers. */
        for (uint32_t m = 0; m < 4096; m++) {
            float x = ldexpf(1.0f + (float)m / 4096.0f, e);
            _Float16 known = (_Float16)x;
            uint16_t wanted, found = f16_from_float(x);
            memcpy(&wanted, &known, sizeof wanted);
            if (found != wanted) fail_msg("%.9g: found 0x%04x, expected 0x%04x", (double)x, found, wanted);
        }
    }
}
#else
static void every_float16_converts_to_float32_as_by_the_compiler(void **state)
{
    (void)state;
    print_message("skipped: this compiler has no _Float16\n");
    skip();
}

static void float32_converts_to_float16_as_by_the_compiler(void **state)
{
    every_float16_converts_to_float32_as_by_the_compiler(state);
}
#endif

static void float32_goes_to_the_nearest_bfloat16_even_on_ties(void **state)
{
    (void)state;
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
        {0x3f818000, 0x3f82}, {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80},
        {0x7f800001, 0x7fc0}, {0xffc12345, 0xffc0}, {0x00000001, 0x0000}, {0x80018000, 0x8002},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint16_t found = bf16_from_float(half_bits_as_float(cases[i].from));
        if (found != cases[i].to)
            fail_msg("0x%08x: found 0x%04x, expected 0x%04x", cases[i].from, found, cases[i].to);
    }
}

static void conversions_divide_first_and_round_once(void **state)
{
    (void)state;
    static const dtype floating[] = {DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (size_t set = 0; set < SETS; set++) {
        if (!can_run(sets[set])) continue;
        for (int from = 0; from < 4; from++)
            for (int to = 0; to < 4; to++) {
                dtype f = floating[from], t = floating[to];
                bool wide = f == DTYPE_F64 || t == DTYPE_F64;
                fill(f, inputs[0], LONGEST, from);
                for (int64_t i = 0; i < LONGEST; i++) {
                    double v = load(f, inputs[0], i).f / 3;
                    store(t, expected, i, (value){.f = wide ? v : (float)v});
                }
                sets[set]->convert[t][f](results[0], inputs[0], LONGEST, 3);
                expect_equal(dtype_name(f), t, REDUCE_SUM, LONGEST, results[0], expected);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_equals_a_plain_loop_in_every_type_operation_and_instruction_set),
        cmocka_unit_test(many_sources_are_reduced_in_order_and_rounded_once),
        cmocka_unit_test(many_sources_may_be_the_destinations),
        cmocka_unit_test(nothing_is_written_behind_the_last_element),
        cmocka_unit_test(a_division_is_a_true_one),
        cmocka_unit_test(nan_wins_min_and_max_from_either_side),
        cmocka_unit_test(every_float16_converts_to_float32_as_by_the_compiler),
        cmocka_unit_test(float32_converts_to_float16_as_by_the_compiler),
        cmocka_unit_test(float32_goes_to_the_nearest_bfloat16_even_on_ties),
        cmocka_unit_test(conversions_divide_first_and_round_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
