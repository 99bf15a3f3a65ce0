/* Random numbers are a pure function of (seed, name, index). Compares the parts of this function with
 * published values, and the whole function with values that a few lines of Python computed with big integers.
 */
#include "common/base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void name_hash_is_fnv1a(void **context)
{
    (void)context;
    /* Test vectors of the 64-bit FNV-1a hash (Fowler, Noll, Vo). */
    assert_true(random_fnv1a64("") == UINT64_C(0xcbf29ce484222325));
    assert_true(random_fnv1a64("a") == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(random_fnv1a64("foobar") == UINT64_C(0x85944171f73967e8));
    assert_true(random_fnv1a64("layer1.0.conv1.weight") == UINT64_C(0x721d90ca2264c0ea));
}

static void stream_of_start_0_is_splitmix64_of_seed_0(void **context)
{
    (void)context;
    assert_true(random_bits(0, 0) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(random_bits(0, 1) == UINT64_C(0x6e789e6aa1b965f4));
    assert_true(random_bits(0, 2) == UINT64_C(0x06c45d188009454f));
}

typedef struct golden {
    uint64_t seed;
    const char *name;
    uint64_t index, start, bits;
    double uniform, normal;
    uint64_t below_1000;
} golden;

static const golden goldens[] = {
    {0, "", 0, 0x29d234ddff3fee8a, 0x5b21f68ffa77f14c, 0x1.6c87d8p-2, -0.6481442091678603, 355},
    {1, "x", 0, 0x3e69d8a00f004bc6, 0x05091a5b3ab97166, 0x1.42468p-6, 2.262671606076864, 19},
    {1, "x", 1, 0x3e69d8a00f004bc6, 0x19b9a89174510236, 0x1.9b9a8p-4, -1.0422791926746808, 100},
    {42, "net1.weight", 0, 0x590dc462e91048ae, 0x5f57109b9c9a60e7, 0x1.7d5c4p-2, 0.6904773312149696, 372},
    {42, "net1.weight", 99, 0x590dc462e91048ae, 0xa62bdf345b39d66a, 0x1.4c57bep-1, -0.9004371036569139, 649},
    {3, "input.step0.rank1", 12345678901, 0xc686d80ae15802bd, 0x12f9be697ff2b2fa, 0x1.2f9bep-4,
     0.6007477276107728, 74},
    {UINT64_MAX, "target", 7, 0xf22a95174a8bcfc8, 0xaab8931f4bd0e9f9, 0x1.557126p-1, 0.17494750169656742,
     666},
};

static void values_are_those_of_the_formula(void **context)
{
    (void)context;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        const golden *g = &goldens[i];
        uint64_t start = random_start(g->seed, random_fnv1a64(g->name));
        assert_true(start == g->start);
        assert_true(random_bits(start, g->index) == g->bits);
        assert_true(random_uniform(start, g->index) == g->uniform);
        assert_true(random_signed(start, g->index) == 2 * g->uniform - 1);
        assert_true(random_below(start, g->index, 1000) == g->below_1000);
        assert_true(fabs(random_normal(start, g->index) - g->normal) < 1e-13);
    }
}

static void values_are_exact_in_float32_and_in_range(void **context)
{
    (void)context;
    uint64_t start = random_start(9, random_fnv1a64("range"));
    for (uint64_t i = 0; i < 100000; i++) {
        double u = random_uniform(start, i), r = random_signed(start, i);
        assert_true(u >= 0 && u < 1 && (double)(float)u == u);
        assert_true(r >= -1 && r < 1 && (double)(float)r == r);
        assert_true(random_below(start, i, 7) < 7);
    }
}

/* The mean of n draws of u is 1/2 within 5 sqrt(1 / 12 n). The mean of n normal draws is 0 within 5 /
 * sqrt(n), and the mean of their squares is 1 within 5 sqrt(2 / n). */
static void moments_are_those_of_the_distributions(void **context)
{
    (void)context;
    uint64_t start = random_start(4, random_fnv1a64("moments"));
    double n = 100000, uniform = 0, normal = 0, square = 0;
    int counts[7] = {0};
    for (uint64_t i = 0; i < 100000; i++) {
        double z = random_normal(start, i);
        uniform += random_uniform(start, i);
        normal += z;
        square += z * z;
        counts[random_below(start, i, 7)]++;
    }
    assert_true(fabs(uniform / n - 0.5) < 5 * sqrt(1 / (12 * n)));
    assert_true(fabs(normal / n) < 5 / sqrt(n));
    assert_true(fabs(square / n - 1) < 5 * sqrt(2 / n));
    for (int i = 0; i < 7; i++) assert_true(fabs(counts[i] - n / 7) < 5 * sqrt(n / 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(name_hash_is_fnv1a),
        cmocka_unit_test(stream_of_start_0_is_splitmix64_of_seed_0),
        cmocka_unit_test(values_are_those_of_the_formula),
        cmocka_unit_test(values_are_exact_in_float32_and_in_range),
        cmocka_unit_test(moments_are_those_of_the_distributions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
