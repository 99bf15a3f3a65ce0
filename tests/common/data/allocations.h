/* Counts the allocations of the project's code. A test program that is linked with ALLOCATION_WRAPS calls the
 * functions of allocations.c instead of the C library's. */
#ifndef TESTS_COMMON_DATA_ALLOCATIONS_H
#define TESTS_COMMON_DATA_ALLOCATIONS_H

int allocations_so_far(void);

#endif
