/* Lab 3: all-reduce over a ring. Write student_all_reduce(); README.md says what it must do. */
#include <lab.h>

#include <stdlib.h>
#include <string.h>

/* Replaces x[0..n) of every rank by the sum over all ranks. Every rank calls it with the same n. */
int student_all_reduce(lab_ring *ring, float *x, size_t n)
{
    (void)ring;
    (void)x;
    (void)n;
    return LAB_EMISSING; /* your code here */
}
