/* Reference solution of lab 3. Mutants of mutants.json change single lines of it. */
#include <lab.h>

#include <stdlib.h>

/* Returns the first element of chunk c. The first n % size chunks have one element more than the others. */
static size_t begin_of(size_t n, int size, int c)
{
    size_t more = n % (size_t)size, index = (size_t)c;
    return index * (n / (size_t)size) + (index < more ? index : more);
}

int student_all_reduce(lab_ring *ring, float *x, size_t n)
{
    int rank = lab_rank(ring), size = lab_size(ring), rc = LAB_OK;
    float *scratch = malloc((n / (size_t)size + 1) * sizeof *scratch);
    if (!scratch) return LAB_EMEMORY;
    for (int step = 0; step < 2 * (size - 1) && rc == LAB_OK; step++) {
        int out = (rank - step + 2 * size) % size, in = (out + size - 1) % size;
        size_t out_begin = begin_of(n, size, out), out_size = begin_of(n, size, out + 1) - out_begin;
        size_t in_begin = begin_of(n, size, in), in_size = begin_of(n, size, in + 1) - in_begin;
        int adds = step < size - 1;
        float *to = adds ? scratch : x + in_begin;
        rc = lab_send_right(ring, x + out_begin, out_size);
        if (rc == LAB_OK) rc = lab_receive_left(ring, to, in_size);
        if (rc != LAB_OK) break;
        if (adds)
            for (size_t i = 0; i < in_size; i++) x[in_begin + i] += scratch[i];
    }
    free(scratch);
    return rc;
}
