/* Counts allocations of the project's code in a test program that is linked with ALLOCATION_WRAPS: the
 * linker puts the functions of allocations.c in place of the C library's. */
#ifndef TESTS_COMMON_DATA_ALLOCATIONS_H
#define TESTS_COMMON_DATA_ALLOCATIONS_H

int allocations_so_far(void);

#endif
