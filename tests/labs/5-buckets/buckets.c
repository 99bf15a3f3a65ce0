/* Reference solution of lab 5. Mutants of mutants.json change single lines of it. */
#include <lab.h>

#include <stdlib.h>

int student_assign(const int64_t *bytes, int count, int64_t first_limit, int64_t limit, int *bucket_of)
{
    int bucket = 0;
    int64_t filled = 0;
    for (int i = 0; i < count; i++) {
        bucket_of[i] = bucket;
        filled += bytes[i];
        if (filled >= (bucket == 0 ? first_limit : limit)) {
            bucket++;
            filled = 0;
        }
    }
    return filled > 0 ? bucket + 1 : bucket;
}

int student_backward(lab_step *step, const int *bucket_of, int count, int buckets)
{
    int *pending = calloc((size_t)buckets + 1, sizeof *pending);
    int gradient, next = 0, rc = pending ? LAB_OK : LAB_EMEMORY;
    for (int i = 0; i < count && pending; i++) pending[bucket_of[i]]++;
    while (rc == LAB_OK && (rc = lab_next_gradient(step, &gradient)) == LAB_OK) {
        pending[bucket_of[gradient]]--;
        while (next < buckets && pending[next] == 0 && rc == LAB_OK) rc = lab_launch(step, next++);
    }
    if (rc == LAB_END) rc = LAB_OK;
    for (int b = 0; b < buckets && rc == LAB_OK; b++) rc = lab_wait(step, b);
    free(pending);
    return rc;
}

/* Returns how much of [begin, end) is not covered by computation. `compute` is sorted. */
static double uncovered(const lab_span *compute, int computes, double begin, double end)
{
    double sum = 0;
    for (int i = 0; i < computes && begin < end; i++) {
        if (compute[i].begin > begin) sum += (compute[i].begin < end ? compute[i].begin : end) - begin;
        if (compute[i].end > begin) begin = compute[i].end;
    }
    return begin < end ? sum + end - begin : sum;
}

static int by_begin(const void *a, const void *b)
{
    double x = ((const lab_span *)a)->begin, y = ((const lab_span *)b)->begin;
    return (x > y) - (x < y);
}

static lab_span *sorted(const lab_span *spans, int count)
{
    lab_span *copy = malloc(((size_t)count + 1) * sizeof *copy);
    for (int i = 0; i < count && copy; i++) copy[i] = spans[i];
    if (copy) qsort(copy, (size_t)count, sizeof *copy, by_begin);
    return copy;
}

double student_exposed(const lab_span *compute, int computes, const lab_span *flight, int flights)
{
    lab_span *c = sorted(compute, computes), *f = sorted(flight, flights);
    double sum = 0, done = flights > 0 && f ? f[0].begin : 0;
    for (int i = 0; i < flights && c && f; i++) {
        double begin = f[i].begin > done ? f[i].begin : done;
        sum += uncovered(c, computes, begin, f[i].end);
        if (f[i].end > done) done = f[i].end;
    }
    free(c);
    free(f);
    return sum;
}
