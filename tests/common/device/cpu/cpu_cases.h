/* Cases that are so large that every thread computes a part, and that every loop over blocks has several
 * blocks. */
#ifndef TESTS_COMMON_DEVICE_CPU_CPU_CASES_H
#define TESTS_COMMON_DEVICE_CPU_CPU_CASES_H

#include "tests/common/device/op_case.h"

typedef struct cpu_case {
    const char *name;
    void (*build)(op_case *c);
    bool any_threads; /* True if results are bit-identical for all numbers of threads. */
} cpu_case;

enum { CPU_CASES = 21 };
extern const cpu_case cpu_cases[CPU_CASES];

#endif
