/* The table of cases that all operation tests go through: every operation, over shapes that include 1,
 * primes and what no vector width divides. */
#ifndef TESTS_COMMON_DEVICE_OP_TABLE_H
#define TESTS_COMMON_DEVICE_OP_TABLE_H

#include "tests/common/device/op_case.h"

enum { OP_TABLE_CAPACITY = 256 };

/* Fills cases[0..OP_TABLE_CAPACITY) from the front; returns how many. */
int op_table_build(op_case *cases);

#endif
