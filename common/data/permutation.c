#include "common/data/permutation.h"

#include "common/base/random.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

enum { CLASSES = 256, HELD_BACK = 5 /* one in five */ };

void permutation_fill(int32_t *out, int64_t count, uint64_t start)
{
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)random_below(start, (uint64_t)i, (uint64_t)i + 1);
        int32_t moved = out[i];
        out[i] = out[j];
        out[j] = moved;
    }
}

/* Distributes `total` over the classes by largest remainder. */
static void share_out(const int64_t *class_counts, int64_t count, int64_t total, int64_t *quota)
{
    int64_t remainder[CLASSES], left = total;
    for (int c = 0; c < CLASSES; c++) {
        quota[c] = total * class_counts[c] / count;
        remainder[c] = total * class_counts[c] % count;
        left -= quota[c];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (remainder[c] > remainder[best]) best = c;
        quota[best]++;
        remainder[best] = -1;
    }
}

status permutation_split(const uint8_t *labels, int64_t count, uint64_t seed, int32_t *picks,
                         int64_t *train_count)
{
    int64_t class_counts[CLASSES] = {0}, quota[CLASSES];
    for (int64_t i = 0; i < count; i++) class_counts[labels[i]]++;
    int64_t test_count = (count + HELD_BACK - 1) / HELD_BACK;
    share_out(class_counts, count, test_count, quota);

    bool *held_back = calloc((size_t)count, sizeof *held_back);
    if (!held_back) return fail(STATUS_SYSTEM, "no memory to split %" PRId64 " samples", count);
    permutation_fill(picks, count, random_start(seed, random_fnv1a64("data.split")));
    for (int64_t i = 0; i < count; i++) {
        if (quota[labels[picks[i]]] == 0) continue;
        quota[labels[picks[i]]]--;
        held_back[picks[i]] = true;
    }
    *train_count = count - test_count;
    int64_t train = 0, test = *train_count;
    for (int64_t i = 0; i < count; i++) picks[held_back[i] ? test++ : train++] = (int32_t)i;
    free(held_back);
    return STATUS_OK;
}
