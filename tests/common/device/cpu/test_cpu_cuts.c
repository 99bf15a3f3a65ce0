/* The result of an element does not depend on where an array was cut, since the last, incomplete vector goes
 * through the same instructions as the others. Compares every bit, on every instruction set. */
#include "tests/common/device/cpu/cpu_test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 203 };

/* Cuts arrays into pieces of every length below two vectors, at every offset within a vector. */
static const int cuts[][5] = {{COUNT},
                              {1, COUNT},
                              {16, 17, 32, 48, COUNT},
                              {3, 10, 11, 29, COUNT},
                              {5, 36, 101, 102, COUNT},
                              {7, 15, 23, 31, COUNT},
                              {8, 12, 14, 15, COUNT}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

typedef struct arrays {
    float *a, *b, *c, *d;
} arrays;

/* Runs over elements [first, end) of the arrays, all of which may be read and written. */
typedef void (*cut_function)(const cpu_isa *isa, arrays x, int first, int end);

static arrays fresh_arrays(void)
{
    return (arrays){cpu_test_uniform("a", COUNT), cpu_test_uniform("b", COUNT), cpu_test_uniform("c", COUNT),
                    cpu_test_uniform("d", COUNT)};
}

static void free_arrays(arrays x)
{
    free(x.a);
    free(x.b);
    free(x.c);
    free(x.d);
}

static void check_cuts(const char *what, cut_function run)
{
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (!cpu_isa_supported(cpu_isas[i])) continue;
        arrays whole = fresh_arrays();
        run(cpu_isas[i], whole, 0, COUNT);
        for (int cut = 1; cut < CUTS; cut++) {
            arrays x = fresh_arrays();
            for (int begin = 0, j = 0; begin < COUNT; begin = cuts[cut][j++])
                run(cpu_isas[i], x, begin, cuts[cut][j]);
            cpu_test_identical(what, x.a, whole.a, COUNT);
            cpu_test_identical(what, x.b, whole.b, COUNT);
            cpu_test_identical(what, x.c, whole.c, COUNT);
            cpu_test_identical(what, x.d, whole.d, COUNT);
            free_arrays(x);
        }
        free_arrays(whole);
    }
}

static void run_sgd(const cpu_isa *isa, arrays x, int first, int end)
{
    cpu_sgd_step s = {.learning_rate = 0.1f,
                      .weight_decay = 1e-4f,
                      .gradient_scale = 0.7f,
                      .momentum = 0.9f,
                      .undamped = 0.95f,
                      .has_momentum = true,
                      .nesterov = true};
    isa->optimizer->sgd(&s, x.a + first, x.b + first, x.c + first, end - first);
    s.has_momentum = false;
    isa->optimizer->sgd(&s, x.d + first, x.b + first, NULL, end - first);
}

static void run_adam(const cpu_isa *isa, arrays x, int first, int end)
{
    cpu_adam_step s = {.decay = 0.999f,
                       .weight_decay = 0.01f,
                       .gradient_scale = 0.3f,
                       .beta1 = 0.9f,
                       .beta1_rest = 0.1f,
                       .beta2 = 0.999f,
                       .beta2_rest = 0.001f,
                       .eps = 1e-8f,
                       .step_size = 1e-3f,
                       .root_correction2 = 0.03f};
    for (int i = first; i < end; i++) x.d[i] *= x.d[i];
    isa->optimizer->adam(&s, x.a + first, x.b + first, x.c + first, x.d + first, end - first);
}

static void run_divide(const cpu_isa *isa, arrays x, int first, int end)
{
    isa->elementwise->divide(x.a + first, 3, end - first);
}

static void run_add(const cpu_isa *isa, arrays x, int first, int end)
{
    isa->elementwise->add(x.a + first, x.b + first, x.c + first, end - first);
    isa->elementwise->add(x.c + first, x.d + first, x.d + first, end - first);
}

static void run_activations(const cpu_isa *isa, arrays x, int first, int end)
{
    for (int act = 0; act < ACTIVATION_COUNT; act++) {
        isa->elementwise->activate_backward[act](x.a + first, x.b + first, x.b + first, end - first);
        isa->elementwise->activate[act](x.a + first, x.a + first, end - first);
    }
}

static void run_clear(const cpu_isa *isa, arrays x, int first, int end)
{
    isa->elementwise->clear(x.a + first, end - first);
}

/* One row, with as many channels as elements in the piece. */
static void run_batchnorm(const cpu_isa *isa, arrays x, int first, int end)
{
    cpu_batchnorm_data d = {.c = end - first,
                            .x = x.a + first,
                            .residual = x.b + first,
                            .mean = x.c + first,
                            .scale = x.d + first,
                            .beta = x.b + first,
                            .y = x.a + first};
    isa->batchnorm->apply[ACTIVATION_SILU](&d, 0, 1);
    d.dy = x.c + first;
    cpu_batchnorm_gradient g = {.a = x.b + first, .b = x.d + first, .e = x.a + first, .dx = x.c + first};
    isa->batchnorm->backward_apply[ACTIVATION_GELU](&d, &g, 0, 1);
}

static void run_squared_error(const cpu_isa *isa, arrays x, int first, int end)
{
    isa->softmax->squared_error(x.a + first, x.b + first, x.c + first, 7, end - first);
}

static void sgd_can_be_cut_anywhere(void **context)
{
    (void)context;
    check_cuts("sgd", run_sgd);
}

static void adam_can_be_cut_anywhere(void **context)
{
    (void)context;
    check_cuts("adam", run_adam);
}

static void elementwise_operations_can_be_cut_anywhere(void **context)
{
    (void)context;
    check_cuts("divide", run_divide);
    check_cuts("add", run_add);
    check_cuts("clear", run_clear);
    check_cuts("activations", run_activations);
    check_cuts("squared error", run_squared_error);
}

static void channels_of_batchnorm_can_be_cut_anywhere(void **context)
{
    (void)context;
    check_cuts("batchnorm", run_batchnorm);
}

static double sum_of_cuts(const cpu_isa *isa, const float *x, const int *ends)
{
    cpu_long_sum sum = {0, 0};
    for (int begin = 0, j = 0; begin < COUNT; begin = ends[j++])
        isa->optimizer->sum_squares(x + begin, ends[j] - begin, &sum);
    return sum.high + sum.low;
}

static void sums_of_squares_can_be_cut_anywhere(void **context)
{
    (void)context;
    float *x = cpu_test_uniform("x", COUNT);
    for (int i = 0; i < COUNT; i++) x[i] *= i % 3 ? 1 : 1e4f;
    double expected = sum_of_cuts(cpu_isas[0], x, cuts[0]), exact = 0;
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (!cpu_isa_supported(cpu_isas[i])) continue;
        for (int cut = 0; cut < CUTS; cut++) {
            double found = sum_of_cuts(cpu_isas[i], x, cuts[cut]);
            if (found != expected)
                fail_msg("%s, cut %d: %a, expected %a", cpu_isas[i]->name, cut, found, expected);
        }
    }
    for (int i = 0; i < COUNT; i++) exact += (double)x[i] * x[i];
    if (!(fabs(expected - exact) <= 1e-13 * exact))
        fail_msg("the sum is %.17g, plainly %.17g", expected, exact);
    free(x);
}

static void batchnorm_sums_each_channel_separately(void **context)
{
    (void)context;
    enum { ROWS = 29, CHANNELS = 7 };
    float *x = cpu_test_whole("x", ROWS * CHANNELS, 9);
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (!cpu_isa_supported(cpu_isas[i])) continue;
        double sums[2 * CHANNELS] = {0};
        cpu_isas[i]->batchnorm->stats(x, ROWS, CHANNELS, sums);
        for (int c = 0; c < CHANNELS; c++) {
            double sum = 0, squares = 0;
            for (int row = 0; row < ROWS; row++) {
                double value = x[row * CHANNELS + c];
                sum += value;
                squares += value * value;
            }
            if (sums[c] != sum || sums[CHANNELS + c] != squares)
                fail_msg("%s, channel %d: sums %g and %g, expected %g and %g", cpu_isas[i]->name, c, sums[c],
                         sums[CHANNELS + c], sum, squares);
        }
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_can_be_cut_anywhere),
        cmocka_unit_test(adam_can_be_cut_anywhere),
        cmocka_unit_test(elementwise_operations_can_be_cut_anywhere),
        cmocka_unit_test(channels_of_batchnorm_can_be_cut_anywhere),
        cmocka_unit_test(sums_of_squares_can_be_cut_anywhere),
        cmocka_unit_test(batchnorm_sums_each_channel_separately),
    };
    return cmocka_run_group_tests_name("kernels of the cpu device, cut anywhere", tests, NULL, NULL);
}
