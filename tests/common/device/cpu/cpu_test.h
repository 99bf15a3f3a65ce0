/* Functions that the tests of the cpu device share. A failure ends the test. */
#ifndef TESTS_COMMON_DEVICE_CPU_CPU_TEST_H
#define TESTS_COMMON_DEVICE_CPU_CPU_TEST_H

#include "common/device/cpu/isa/isa.h"
#include "common/device/device.h"

device *cpu_test_open(int threads);

/* Returns the layout that a forward operation chooses for the parameter in `slot`. */
device_layout cpu_test_layout(device *d, const op_desc *op, int slot, shape parameter);

/* Prepares a kernel for the operation, launches it once, and releases it. `op->type` need not be set. */
void cpu_test_run(device *d, op_desc op, const device_layout *layout, void *const *operands,
                  const op_scalars *scalars);

/* Return arrays of `count` floats on the heap: uniform numbers in [-1, 1); integers from -bound to bound, so
 * that sums of products are exact; zeros; and a value that the operation must overwrite, in this order. All
 * but `copy` are functions of `name`. */
float *cpu_test_uniform(const char *name, int64_t count);
float *cpu_test_whole(const char *name, int64_t count, int bound);
float *cpu_test_blank(int64_t count);
float *cpu_test_copy(const float *from, int64_t count);

/* Fails with both values if an element of the two arrays differs in any bit. */
void cpu_test_identical(const char *what, const float *found, const float *expected, int64_t count);

/* Fails as cpu_test_identical() does, but treats +0 and -0 as equal. Use it for exact sums. */
void cpu_test_equal(const char *what, const float *found, const float *expected, int64_t count);

#endif
