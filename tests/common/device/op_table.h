/* The table of cases that all operation tests run. It has every operation, with sizes of 1, with primes, and
 * with sizes that are no multiple of a vector. */
#ifndef TESTS_COMMON_DEVICE_OP_TABLE_H
#define TESTS_COMMON_DEVICE_OP_TABLE_H

#include "tests/common/device/op_case.h"

enum { OP_TABLE_CAPACITY = 256 };

/* Fills `cases` from its first entry on. Returns the number of cases, at most OP_TABLE_CAPACITY. */
int op_table_build(op_case *cases);

#endif
