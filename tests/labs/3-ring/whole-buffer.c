/* A mutant of lab 3 that has its own file: every rank passes whole buffers around, n - 1 times. */
#include <lab.h>

#include <stdlib.h>
#include <string.h>

int student_all_reduce(lab_ring *ring, float *x, size_t n)
{
    float *passing = malloc((n + 1) * sizeof *passing);
    int rc = passing ? LAB_OK : LAB_EMEMORY;
    if (passing && n > 0) memcpy(passing, x, n * sizeof *x);
    for (int step = 1; step < lab_size(ring) && rc == LAB_OK; step++) {
        rc = lab_send_right(ring, passing, n);
        if (rc == LAB_OK) rc = lab_receive_left(ring, passing, n);
        for (size_t i = 0; i < n && rc == LAB_OK; i++) x[i] += passing[i];
    }
    free(passing);
    return rc;
}
