#include "tests/common/device/cpu/cpu_test.h"

#include "common/base/random.h"
#include "tests/common/device/op_runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

device *cpu_test_open(int threads)
{
    device_config config = {.name = "cpu", .world = 1, .threads = threads};
    device *d = NULL;
    must(device_open(&config, &d));
    return d;
}

device_layout cpu_test_layout(device *d, const op_desc *op, int slot, shape parameter)
{
    device_layout layout;
    op_desc typed = *op;
    typed.type = DTYPE_F32;
    must(device_choose_layout(d, &typed, slot, parameter, &layout));
    return layout;
}

void cpu_test_run(device *d, op_desc op, const device_layout *layout, void *const *operands,
                  const op_scalars *scalars)
{
    device_stream *stream = NULL;
    device_kernel *kernel = NULL;
    device_memory workspace;
    op.type = DTYPE_F32;
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &stream));
    must(device_prepare(d, &op, layout, &kernel));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, device_kernel_workspace(kernel), &workspace));
    must(device_launch(stream, kernel, operands, scalars, workspace.data));
    must(device_stream_synchronize(stream));
    device_free(d, &workspace);
    device_release(&kernel);
    device_stream_close(&stream);
}

static float *array(int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    return x;
}

float *cpu_test_uniform(const char *name, int64_t count)
{
    uint64_t start = random_start(1, random_fnv1a64(name));
    float *x = array(count);
    for (int64_t i = 0; i < count; i++) x[i] = (float)random_signed(start, (uint64_t)i);
    return x;
}

float *cpu_test_whole(const char *name, int64_t count, int bound)
{
    uint64_t start = random_start(1, random_fnv1a64(name));
    float *x = array(count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)((int)random_below(start, (uint64_t)i, (uint64_t)(2 * bound + 1)) - bound);
    return x;
}

float *cpu_test_blank(int64_t count)
{
    float *x = array(count);
    for (int64_t i = 0; i < count; i++) x[i] = 1e30f;
    return x;
}

float *cpu_test_copy(const float *from, int64_t count)
{
    float *x = array(count);
    memcpy(x, from, (size_t)count * sizeof *x);
    return x;
}

void cpu_test_identical(const char *what, const float *found, const float *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&found[i], &expected[i], sizeof found[i]) != 0)
            fail_msg("%s[%lld] is %a, expected %a", what, (long long)i, found[i], expected[i]);
}

void cpu_test_equal(const char *what, const float *found, const float *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(found[i] == expected[i]))
            fail_msg("%s[%lld] is %.9g, expected %.9g", what, (long long)i, found[i], expected[i]);
}
