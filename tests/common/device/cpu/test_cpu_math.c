/* Compares the exponential and the activations of every instruction set with the C library's in double. */
#include "tests/common/device/cpu/cpu_test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { POINTS = 400000, ROWS = 50 };

static double ulp(double exact)
{
    int exponent;
    frexp(exact, &exponent);
    return ldexp(1, exponent - 24);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double normal(double x)
{
    return erfc(-x / sqrt(2)) / 2;
}

static double slope_of_u(double x)
{
    return 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static double argument_u(double x)
{
    return 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

static double exact_value(activation act, double x)
{
    if (act == ACTIVATION_SILU) return x * sigmoid(x);
    if (act == ACTIVATION_GELU) return x * normal(x);
    return x * sigmoid(argument_u(x));
}

static double exact_slope(activation act, double x)
{
    if (act == ACTIVATION_SILU) return sigmoid(x) * (1 + x * sigmoid(-x));
    if (act == ACTIVATION_GELU) return normal(x) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    double u = argument_u(x);
    return sigmoid(u) * (1 + x * sigmoid(-u) * slope_of_u(x));
}

/* Returns the error of the result that comes from rounding the sigmoid's argument u. */
static double conditioning(activation act, double x)
{
    if (act != ACTIVATION_GELU_TANH) return 0;
    double u = argument_u(x);
    return fabs(x * u) * sigmoid(u) * sigmoid(-u) * 0x1p-22;
}

typedef struct value_case {
    activation act;
    double low, high, ulps;
} value_case;

static const value_case value_cases[] = {
    {ACTIVATION_SILU, -87, 87, 3.5},         {ACTIVATION_SILU, -1, 1, 3},
    {ACTIVATION_SILU, 1e-8, 1e-3, 2.5},      {ACTIVATION_GELU, -12.8, -1, 6},
    {ACTIVATION_GELU, -1, 12, 3.5},          {ACTIVATION_GELU, 1e-8, 1e-3, 2},
    {ACTIVATION_GELU_TANH, -9, 20, 3.5},     {ACTIVATION_GELU_TANH, -1, 1, 3.5},
    {ACTIVATION_GELU_TANH, 1e-8, 1e-3, 2.5},
};

static const cpu_isa *next_supported(int *i)
{
    while (*i < CPU_ISA_COUNT && !cpu_isa_supported(cpu_isas[*i])) ++*i;
    return *i < CPU_ISA_COUNT ? cpu_isas[(*i)++] : NULL;
}

static void fill_range(float *x, double low, double high)
{
    for (int i = 0; i < POINTS; i++) x[i] = (float)(low + (high - low) * i / (POINTS - 1));
}

/* Computes y = act(x), and the slope of act at x if `slope` is not NULL. */
static void evaluate(const cpu_isa *isa, activation act, const float *x, float *y, float *slope)
{
    if (!slope) {
        isa->elementwise->activate[act](x, y, POINTS);
        return;
    }
    for (int i = 0; i < POINTS; i++) y[i] = x[i];
    isa->elementwise->bias_activate[act](y, slope, NULL, POINTS / ROWS, ROWS, POINTS / ROWS);
}

static void activations_are_within_ulps(void **context)
{
    const bool *with_slope = *context;
    float *x = cpu_test_blank(POINTS), *y = cpu_test_blank(POINTS), *slope = cpu_test_blank(POINTS);
    const cpu_isa *isa;
    for (int next = 0; (isa = next_supported(&next));)
        for (size_t k = 0; k < sizeof value_cases / sizeof value_cases[0]; k++) {
            const value_case *v = &value_cases[k];
            fill_range(x, v->low, v->high);
            evaluate(isa, v->act, x, y, *with_slope ? slope : NULL);
            for (int i = 0; i < POINTS; i++) {
                double exact = exact_value(v->act, x[i]);
                if (!(fabs(y[i] - exact) <= v->ulps * ulp(exact) + conditioning(v->act, x[i])))
                    fail_msg("%s, %s(%.9g) is %.9g, exactly %.12g: %.2f ulp", isa->name,
                             activation_name(v->act), x[i], y[i], exact, fabs(y[i] - exact) / ulp(exact));
            }
        }
    free(x);
    free(y);
    free(slope);
}

static void slopes_are_exact_to_float_precision(void **context)
{
    const bool *forward = *context;
    static const activation acts[] = {ACTIVATION_SILU, ACTIVATION_GELU, ACTIVATION_GELU_TANH};
    float *x = cpu_test_blank(POINTS), *dx = cpu_test_blank(POINTS), *dy = cpu_test_blank(POINTS);
    const cpu_isa *isa;
    fill_range(x, -20, 20);
    for (int next = 0; (isa = next_supported(&next));)
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < POINTS; i++) dy[i] = 1;
            if (*forward)
                evaluate(isa, acts[k], x, dy, dx);
            else
                isa->elementwise->activate_backward[acts[k]](x, dy, dx, POINTS);
            for (int i = 0; i < POINTS; i++) {
                double exact = exact_slope(acts[k], x[i]);
                if (!(fabs(dx[i] - exact) <= 2.8e-7))
                    fail_msg("%s, %s'(%.9g) is %.9g, exactly %.12g", isa->name, activation_name(acts[k]),
                             x[i], dx[i], exact);
            }
        }
    free(x);
    free(dx);
    free(dy);
}

/* Computes exponentials by attention's backward pass: with a log-sum-exp of 0 it replaces x by exp(x). */
static void exponentials(const cpu_isa *isa, float *x, float *scratch, int64_t count)
{
    cpu_scores scores = {.s = x, .stride = count, .rows = 1, .columns = count, .visible = count, .scale = 1};
    float zero = 0;
    isa->softmax->attention_backward(&scores, scratch, &zero, &zero);
}

static void exponentials_are_within_an_ulp(void **context)
{
    (void)context;
    float *x = cpu_test_blank(POINTS), *y = cpu_test_blank(POINTS),
          *scratch = calloc(POINTS, sizeof *scratch);
    const cpu_isa *isa;
    for (int next = 0; (isa = next_supported(&next));) {
        fill_range(x, -87.3, 88.7);
        fill_range(y, -87.3, 88.7);
        exponentials(isa, y, scratch, POINTS);
        for (int i = 0; i < POINTS; i++) {
            double exact = exp(x[i]);
            if (!(fabs(y[i] - exact) <= 1.05 * ulp(exact)))
                fail_msg("%s, exp(%.9g) is %.9g, exactly %.12g", isa->name, x[i], y[i], exact);
        }
    }
    free(x);
    free(y);
    free(scratch);
}

static void exponentials_of_the_extremes_are_zero_infinite_or_not_a_number(void **context)
{
    (void)context;
    const cpu_isa *isa;
    for (int next = 0; (isa = next_supported(&next));) {
        float x[] = {-INFINITY, -1e30f, -88, 0, 89, 1e30f, INFINITY, NAN}, scratch[8] = {0};
        const float expected[] = {0, 0, 0, 1, INFINITY, INFINITY, INFINITY};
        exponentials(isa, x, scratch, 8);
        cpu_test_equal(isa->name, x, expected, 7);
        if (!isnan(x[7])) fail_msg("%s, exp(NaN) is %g", isa->name, x[7]);
    }
}

/* Checks what -ffast-math would break: denormal numbers, infinities, NaN, the sign of zero, true division. */
static void arithmetic_is_that_of_ieee_754(void **context)
{
    (void)context;
    const cpu_isa *isa;
    for (int next = 0; (isa = next_supported(&next));) {
        const float a[] = {1e-40f, INFINITY, -0.0f, 1e38f, -INFINITY, NAN},
                    b[] = {2e-40f, 1, -0.0f, 3e38f, INFINITY, 1};
        const float sums[] = {3e-40f, INFINITY, -0.0f, INFINITY};
        float y[6], thirds[] = {1, 2, 5, 7, 1e-40f, -0.0f};
        isa->elementwise->add(a, b, y, 6);
        cpu_test_identical(isa->name, y, sums, 4);
        if (!isnan(y[4]) || !isnan(y[5]))
            fail_msg("%s: infinity - infinity is %g, NaN + 1 is %g", isa->name, y[4], y[5]);
        const float expected[] = {1 / 3.0f, 2 / 3.0f, 5 / 3.0f, 7 / 3.0f, 1e-40f / 3.0f, -0.0f};
        isa->elementwise->divide(thirds, 3, 6);
        cpu_test_identical(isa->name, thirds, expected, 6);
        float relu[] = {NAN, -1, -0.0f, 1e-40f};
        isa->elementwise->activate[ACTIVATION_RELU](relu, relu, 4);
        if (!isnan(relu[0]) || relu[1] != 0 || relu[3] != 1e-40f)
            fail_msg("%s: relu of NaN, -1, 1e-40 is %g, %g, %g", isa->name, relu[0], relu[1], relu[3]);
    }
}

int main(void)
{
    static bool apart = false, together = true;
    const struct CMUnitTest tests[] = {
        {"activations are within ulps", activations_are_within_ulps, NULL, NULL, &apart},
        {"activations computed with their slopes are within ulps", activations_are_within_ulps, NULL, NULL,
         &together},
        {"slopes are exact to float precision", slopes_are_exact_to_float_precision, NULL, NULL, &apart},
        {"slopes computed with values are exact to float precision", slopes_are_exact_to_float_precision,
         NULL, NULL, &together},
        cmocka_unit_test(exponentials_are_within_an_ulp),
        cmocka_unit_test(exponentials_of_the_extremes_are_zero_infinite_or_not_a_number),
        cmocka_unit_test(arithmetic_is_that_of_ieee_754),
    };
    return cmocka_run_group_tests_name("mathematical functions of the cpu device", tests, NULL, NULL);
}
