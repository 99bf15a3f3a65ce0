/* Compares matrix products over integers, whose sums are exact in float32 in any order, with plain loops.
 * Tests linear layers, with at least one shape for each GEMM and with fewer rows than the kernel was prepared
 * for, and the kernels of every instruction set. */
#include "tests/common/device/cpu/cpu_test.h"
#include "tests/support/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct matmul_case {
    int64_t m, in, out, rows; /* If `rows` is 0, all m rows are computed. */
} matmul_case;

static const matmul_case cases[] = {
    {1, 1, 1, 0},         {32, 13, 64, 0},    {32, 64, 3, 0},     {7, 17, 33, 0},       {16, 16, 16, 0},
    {64, 64, 64, 0},      {5, 120, 84, 0},    {32, 400, 120, 0},  {32, 512, 10, 0},     {512, 256, 2, 0},
    {40, 300, 300, 0},    {130, 64, 128, 0},  {131, 67, 129, 0},  {200, 200, 200, 0},   {300, 100, 12, 0},
    {64, 64, 64, 3},      {200, 200, 200, 9}, {300, 100, 12, 1},  {512, 256, 2, 17},    {768, 96, 96, 0},
    {801, 333, 70, 0},    {790, 650, 17, 0},  {775, 66, 65, 769}, {900, 520, 515, 3},   {1540, 66, 65, 0},
    {128, 128, 256, 0},   {131, 133, 259, 0}, {200, 513, 401, 0}, {257, 300, 270, 150}, {512, 130, 530, 0},
    {900, 140, 610, 400}, {775, 60, 66, 0},   {515, 65, 130, 0},  {514, 64, 131, 513},  {600, 64, 128, 511},
};
enum { CASES = sizeof cases / sizeof cases[0], BOUND = 5 };

typedef struct matmul_test {
    matmul_case c;
    int threads;
    char name[96];
} matmul_test;

static void multiplications_of_whole_numbers_are_exact(void **context)
{
    const matmul_test *test = *context;
    int64_t m = test->c.m, in = test->c.in, out = test->c.out, rows = test->c.rows ? test->c.rows : m;
    linear_attributes a = {.m = m, .in = in, .out = out, .bias = true};
    op_scalars scalars = {.rows = test->c.rows}, adding = {.rows = test->c.rows, .accumulate = true};
    device *d = cpu_test_open(test->threads);
    float *x = cpu_test_whole("x", m * in, BOUND), *w = cpu_test_whole("w", out * in, BOUND);
    float *b = cpu_test_whole("b", out, BOUND), *dy = cpu_test_whole("dy", m * out, BOUND);
    float *y = cpu_test_blank(m * out), *dx = cpu_test_blank(m * in), *dw = cpu_test_blank(out * in);
    float *db = cpu_test_blank(out), *expected_y = cpu_test_blank(m * out),
          *expected_dx = cpu_test_blank(m * in);
    float *expected_dw = calloc((size_t)(out * in), sizeof *w), *expected_db = calloc((size_t)out, sizeof *w);
    memset(expected_dx, 0, (size_t)(rows * in) * sizeof *x);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t o = 0; o < out; o++) {
            expected_y[i * out + o] = b[o];
            expected_db[o] += dy[i * out + o];
            for (int64_t j = 0; j < in; j++) {
                expected_y[i * out + o] += x[i * in + j] * w[o * in + j];
                expected_dx[i * in + j] += dy[i * out + o] * w[o * in + j];
                expected_dw[o * in + j] += dy[i * out + o] * x[i * in + j];
            }
        }
    op_desc op = {.kind = OP_linear_forward, .u.linear = a};
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){x, w, b, y}, &scalars);
    cpu_test_equal("y", y, expected_y, rows * out);
    op.kind = OP_linear_backward_data;
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){dy, w, dx}, &scalars);
    cpu_test_equal("dx", dx, expected_dx, rows * in);
    op.kind = OP_linear_backward_weights;
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){x, dy, dw, db}, &scalars);
    cpu_test_equal("dw", dw, expected_dw, out * in);
    cpu_test_equal("db", db, expected_db, out);
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){x, dy, dw, db}, &adding);
    for (int64_t i = 0; i < out * in; i++) expected_dw[i] *= 2;
    cpu_test_equal("dw, added to what was there,", dw, expected_dw, out * in);
    float *const arrays[] = {x, w, b, dy, y, dx, dw, db, expected_y, expected_dx, expected_dw, expected_db};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
    device_close(&d);
}

/* ---- machine code ------------------------------------------------------------------------------ */

/* Returns the bytes of machine code that this process generated: executable memory that no file backs. */
static long machine_code_bytes(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], rights[8];
    unsigned long begin, end, inode;
    long bytes = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &begin, &end, rights, &inode) == 4 && rights[2] == 'x' &&
            inode == 0)
            bytes += (long)(end - begin);
    fclose(maps);
    return bytes;
}

/* Runs the first matrix product of the process. A step that waited for code generation took 40 ms, and
 * seconds on a busy machine. */
static void the_first_product_waits_for_no_machine_code(void **context)
{
    enum { M = 96, IN = 512, OUT = 100 };
    (void)context;
    op_desc op = {.kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = M, .in = IN, .out = OUT}};
    device *d = cpu_test_open(1);
    float *x = cpu_test_uniform("x", M * IN), *w = cpu_test_uniform("w", OUT * IN),
          *y = cpu_test_blank(M * OUT);
    device_kernel *kernel;
    device_stream *stream;
    device_memory workspace;
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &stream));
    must(device_prepare(d, &op, NULL, &kernel));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, device_kernel_workspace(kernel), &workspace));
    long prepared = machine_code_bytes();
    must(device_launch(stream, kernel, (void *[OP_MAX_OPERANDS]){x, w, NULL, y}, &(op_scalars){0},
                       workspace.data));
    assert_int_equal(machine_code_bytes(), prepared);
    device_free(d, &workspace);
    device_release(&kernel);
    device_stream_close(&stream);
    device_close(&d);
    free(x);
    free(w);
    free(y);
}

/* ---- kernels ---------------------------------------------------------------------------------- */

typedef struct kernel_case {
    int64_t m, n, k, b_stride;
    bool transpose_a, add;
} kernel_case;

static const kernel_case kernel_cases[] = {
    {1, 1, 1, 1, false, false},       {13, 70, 9, 70, false, true},    {8, 100, 20, 101, true, false},
    {30, 64, 600, 256, false, false}, {31, 133, 257, 300, true, true}, {24, 192, 3, 1000, false, true},
};

static void check_kernel(const cpu_isa *isa, const kernel_case *c)
{
    int64_t c_stride = c->n + 3, row_stride = c->transpose_a ? 1 : c->k,
            column_stride = c->transpose_a ? c->m : 1;
    float *a = cpu_test_whole("a", c->m * c->k, BOUND), *b = cpu_test_whole("b", c->k * c->b_stride, BOUND);
    float *found = cpu_test_whole("c", c->m * c_stride, BOUND),
          *expected = cpu_test_copy(found, c->m * c_stride);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            float *sum = &expected[i * c_stride + j];
            if (!c->add) *sum = 0;
            for (int64_t k = 0; k < c->k; k++)
                *sum += a[i * row_stride + k * column_stride] * b[k * c->b_stride + j];
        }
    isa->matrix->multiply(c->m, c->n, c->k, a, row_stride, column_stride, b, c->b_stride, c->add, found,
                          c_stride);
    cpu_test_equal(isa->name, found, expected, c->m * c_stride);
    float *const arrays[] = {a, b, found, expected};
    for (int i = 0; i < 4; i++) free(arrays[i]);
}

static void kernels_of_every_instruction_set_are_exact(void **context)
{
    (void)context;
    for (int i = 0; i < CPU_ISA_COUNT; i++)
        for (size_t j = 0; cpu_isa_supported(cpu_isas[i]) && j < sizeof kernel_cases / sizeof kernel_cases[0];
             j++)
            check_kernel(cpu_isas[i], &kernel_cases[j]);
}

static void transposition_exchanges_rows_and_columns(void **context)
{
    (void)context;
    enum { ROWS = 43, COLUMNS = 38, X_STRIDE = 41, Y_STRIDE = 45 };
    for (int i = 0; i < CPU_ISA_COUNT * 2; i++) {
        const cpu_isa *isa = cpu_isas[i / 2];
        if (!cpu_isa_supported(isa)) continue;
        bool add = i % 2;
        float *x = cpu_test_whole("x", ROWS * X_STRIDE, BOUND),
              *y = cpu_test_whole("y", COLUMNS * Y_STRIDE, BOUND);
        float *expected = cpu_test_copy(y, COLUMNS * Y_STRIDE);
        for (int row = 0; row < ROWS; row++)
            for (int column = 0; column < COLUMNS; column++) {
                float *to = &expected[column * Y_STRIDE + row];
                *to = (add ? *to : 0) + x[row * X_STRIDE + column];
            }
        isa->matrix->transpose(x, X_STRIDE, ROWS, COLUMNS, add, y, Y_STRIDE);
        cpu_test_equal(isa->name, y, expected, COLUMNS * Y_STRIDE);
        free(x);
        free(y);
        free(expected);
    }
}

int main(void)
{
    static matmul_test contexts[2 * CASES];
    static struct CMUnitTest tests[2 * CASES + 3];
    tests[0] = (struct CMUnitTest)cmocka_unit_test(the_first_product_waits_for_no_machine_code);
    for (int i = 0; i < 2 * CASES; i++) {
        matmul_test *t = &contexts[i];
        t->c = cases[i / 2];
        t->threads = i % 2 + 1;
        snprintf(t->name, sizeof t->name,
                 "a product of integers is exact with %d threads: %lldx%lld to %lld, %lld rows", t->threads,
                 (long long)t->c.m, (long long)t->c.in, (long long)t->c.out,
                 (long long)(t->c.rows ? t->c.rows : t->c.m));
        tests[i + 1] =
            (struct CMUnitTest){t->name, multiplications_of_whole_numbers_are_exact, NULL, NULL, t};
    }
    tests[2 * CASES + 1] = (struct CMUnitTest)cmocka_unit_test(kernels_of_every_instruction_set_are_exact);
    tests[2 * CASES + 2] = (struct CMUnitTest)cmocka_unit_test(transposition_exchanges_rows_and_columns);
    bool one_set = getenv("ONEDNN_MAX_CPU_ISA"); /* The last two tests visit all instruction sets, so they do
                                                    not run again for a single one. */
    return _cmocka_run_group_tests("matrix multiplications", tests, 2 * CASES + (one_set ? 1 : 3), NULL,
                                   NULL);
}
