/* Tests that all engines compute the same averaged gradient of a step. If every sum is exact, the gradients
 * are bit-identical. Otherwise they differ at most by the rounding errors of different orders of addition. */
#include "ps/ps.h"
#include "ring/ring.h"
#include "tests/engines/training.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>

enum { BATCH = 8 };

static const struct {
    const sync_engine_type *engine;
    const char *policy, *options;
} engines[] = {
    {&sync_ps, "sync", ""},
    {&sync_ps, "sync", "--partition-bytes 100"},
    {&sync_ps, "sync", "--server-optimizer off"},
    {&sync_ring, "ddp", "--algorithm ring"},
    {&sync_ring, "ddp", "--algorithm two-shot"},
    {&sync_ring, "apex", "--algorithm ring --message-size 40"},
    {&sync_ring, "torch-0.4.1", ""},
    {&sync_ring, "zero1", ""},
    {&sync_ring, "zero2", "--algorithm two-shot"},
    {&sync_ring, "zero3", ""},
    {&sync_ring, "fsdp", ""},
};
enum { ENGINES = sizeof engines / sizeof engines[0] };

/* Sums of small integers are exact in any order, so the division of the sum by the number of all samples is
 * the only rounding. The division rounds if n is 3 or 5, and does not if n is 1, 2 or 8. */
static void sums_of_integers_average_to_the_same_bits(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 5, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        int n = worlds[w], other_than_zero = 0;
        training_average sum, average;
        training_config config = {
            .model = "toy", .integers = true, .sum_loss = true, .divide = SHARED_DIVIDE_AFTER};
        config.engine = &sync_none;
        config.batch = n * BATCH;
        assert_ok(training_gradient(&config, &sum));
        assert_int_equal(sum.elements, 165);
        for (int64_t i = 0; i < sum.elements; i++) {
            /* The sum is exact. */
            assert_true(fabsf(sum.values[i]) < 0x1p24F && sum.values[i] == rintf(sum.values[i]));
            other_than_zero += sum.values[i] != 0;
        }
        assert_true(other_than_zero > 100);
        for (int e = 0; e < ENGINES; e++) {
            config.engine = engines[e].engine;
            config.policy = engines[e].policy;
            config.options = engines[e].options;
            config.world = n;
            config.batch = BATCH;
            assert_ok(training_gradient(&config, &average));
            assert_int_equal(average.elements, sum.elements);
            for (int64_t i = 0; i < sum.elements; i++)
                if (average.values[i] != sum.values[i] / (float)n)
                    fail_msg("%d ranks, %s %s %s, element %lld: found %.9g, expected %.9g / %d = %.9g", n,
                             engines[e].engine->name, engines[e].policy, engines[e].options, (long long)i,
                             average.values[i], sum.values[i], n, sum.values[i] / (float)n);
            free(average.values);
        }
        free(sum.values);
    }
}

typedef struct bound_case {
    const char *model;
    int world;
    int64_t batch;
    int divide;
    const char *options;
    int64_t image, classes;
} bound_case;

static const bound_case bound_cases[] = {
    {"wine_mlp", 3, 8, SHARED_DIVIDE_AFTER, "--algorithm ring", 0, 0},
    {"wine_mlp", 5, 8, SHARED_DIVIDE_AFTER, "--algorithm ring", 0, 0},
    {"wine_mlp", 8, 4, SHARED_DIVIDE_AFTER, "--algorithm ring", 0, 0},
    {"lenet", 3, 4, SHARED_DIVIDE_AFTER, "--algorithm ring", 0, 0},
    {"lenet", 5, 4, SHARED_DIVIDE_AFTER, "--algorithm ring --bucket-cap-mb 0.01", 0, 0},
    {"lenet", 5, 4, SHARED_DIVIDE_BEFORE, "--algorithm ring", 0, 0},
    {"resnet18", 3, 2, SHARED_DIVIDE_AFTER, "--algorithm ring", 32, 10},
    {"lenet", 5, 4, SHARED_DIVIDE_POLICY, "--algorithm ring", 0, 0},
};

typedef struct bound_figures {
    /* [world] Gradients of the samples of each rank alone, from runs with the same kernels. */
    training_average *own;
    training_average ps, ring;
    double worst; /* Largest error, as a share of the limit. */
    /* Number of elements that exceed the limit of the sums, but not the limit that also includes the rounding
     * of the divisions. */
    int64_t tight;
    int64_t different;
} bound_figures;

static void compute(const bound_case *b, bound_figures *f)
{
    training_config config = {
        .model = b->model, .classes = b->classes, .image = b->image, .engine = &sync_none, .batch = b->batch};
    *f = (bound_figures){.own = calloc((size_t)b->world, sizeof *f->own)};
    assert_non_null(f->own);
    for (int r = 0; r < b->world; r++) {
        config.first = r * b->batch;
        assert_ok(training_gradient(&config, &f->own[r]));
    }
    config.first = 0;
    config.world = b->world;
    config.divide = b->divide;
    config.engine = &sync_ps;
    assert_ok(training_gradient(&config, &f->ps));
    config.engine = &sync_ring;
    config.policy = "ddp";
    config.options = b->options;
    assert_ok(training_gradient(&config, &f->ring));
    assert_int_equal(f->ps.elements, f->own[0].elements);
    assert_int_equal(f->ring.elements, f->own[0].elements);
}

/* A sum of n terms has n - 1 roundings. If both engines divide in the same way before they add, |ring - ps|
 * <= 2 (n-1) 2^-24 sum |g_i| / n. If they divide after the sum, each division rounds once more. */
static void compare(const bound_case *b, bound_figures *f)
{
    int n = b->world;
    for (int64_t i = 0; i < f->ps.elements; i++) {
        double sum = 0, sizes = 0, ps = f->ps.values[i], ring = f->ring.values[i];
        for (int r = 0; r < n; r++) {
            sum += f->own[r].values[i];
            sizes += fabs((double)f->own[r].values[i]);
        }
        double unit = 0x1p-24 * sizes / n, of_sums = 2 * (n - 1) * unit, exact = sum / n;
        double limit = b->divide == SHARED_DIVIDE_BEFORE ? of_sums : of_sums + 2 * unit;
        if (fabs(ring - ps) > limit || fabs(ps - exact) > n * unit || fabs(ring - exact) > n * unit)
            fail_msg("%s, %d ranks, %s, element %lld: ps %.9g, ring %.9g, expected %.17g, at most %.3g apart",
                     b->model, n, b->options, (long long)i, ps, ring, exact, limit);
        if (limit > 0 && fabs(ring - ps) / limit > f->worst) f->worst = fabs(ring - ps) / limit;
        f->tight += fabs(ring - ps) > of_sums;
        f->different += ring != ps;
    }
}

static void ring_and_server_differ_by_no_more_than_the_order_of_sums(void **state)
{
    (void)state;
    int64_t different = 0;
    for (size_t c = 0; c < sizeof bound_cases / sizeof bound_cases[0]; c++) {
        const bound_case *b = &bound_cases[c];
        bound_figures f;
        compute(b, &f);
        compare(b, &f);
        print_message(
            "# %s, %d ranks, %s: %.3g of the limit at most, %lld of %lld elements by the divisions\n",
            b->model, b->world, b->options, f.worst, (long long)f.tight, (long long)f.ps.elements);
        different += f.different;
        for (int r = 0; r < b->world; r++) free(f.own[r].values);
        free(f.own);
        free(f.ps.values);
        free(f.ring.values);
    }
    assert_true(different > 0); /* Some elements differ, so the orders of addition differ. */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_integers_average_to_the_same_bits),
        cmocka_unit_test(ring_and_server_differ_by_no_more_than_the_order_of_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
