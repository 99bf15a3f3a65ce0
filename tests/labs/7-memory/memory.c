/* Reference solution of lab 7. Mutants of mutants.json change single lines of it. */
#include <lab.h>

#include <math.h>
#include <stdlib.h>

/* Returns the number of elements in a rank's shard of a root or block. Shards are multiples of 16 elements,
 * except that the last shards are shorter. */
static int64_t shard_of(int64_t elements, int ranks, int rank)
{
    int64_t shard = (elements / 16 + ranks - 1) / ranks * 16, left = elements - rank * shard;
    return left < 0 ? 0 : left < shard ? left : shard;
}

int student_memory(const lab_model *model, int scheme, int ranks, int rank, lab_memory *peak)
{
    int64_t all = model->root + model->units * model->unit;
    int64_t own = shard_of(model->root, ranks, rank) + model->units * shard_of(model->unit, ranks, rank);
    int64_t in_use = model->root + (model->units < 2 ? model->units : 2) * model->unit;
    *peak = (lab_memory){0};
    if (scheme == LAB_DATA_PARALLEL) {
        peak->parameters = rank == 0 ? 4 * all : 0;
        peak->replicas = rank == 0 ? 0 : 4 * all;
        peak->gradients = peak->buckets = rank == 0 ? 8 * all : 4 * all;
        peak->optimizer_state = rank == 0 ? 4 * model->states * all : 0;
        return LAB_OK;
    }
    peak->parameters = 4 * (scheme >= LAB_ZERO3 ? own : all);
    peak->gradients = 4 * (scheme >= LAB_ZERO2 ? own : all);
    peak->optimizer_state = 4 * model->states * (scheme >= LAB_ZERO1 ? own : all);
    peak->gathered_units = scheme >= LAB_ZERO3 ? 4 * in_use : 0;
    peak->buckets = scheme == LAB_DDP ? 4 * all : scheme >= LAB_ZERO2 ? 4 * in_use : 0;
    return LAB_OK;
}

int student_sharded_step(lab_group *group, lab_adam *adam, float *param, const float *grad, size_t n)
{
    size_t size = (size_t)lab_group_size(group), rank = (size_t)lab_group_rank(group),
           c = (n + size - 1) / size;
    size_t begin = rank * c < n ? rank * c : n, end = begin + c < n ? begin + c : n;
    float *sum = malloc((c + 1) * sizeof *sum);
    if (!sum) return LAB_EMEMORY;
    int rc = lab_reduce_scatter(group, grad, n, sum);
    for (size_t i = begin; i < end && rc == LAB_OK; i++) {
        float g = sum[i - begin] / (float)size, *m = &adam->m[i - begin], *v = &adam->v[i - begin];
        *m = adam->beta1 * *m + (1 - adam->beta1) * g;
        *v = adam->beta2 * *v + (1 - adam->beta2) * g * g;
        param[i] = param[i] - adam->rate * (*m / (sqrtf(*v) + adam->eps));
    }
    if (rc == LAB_OK) rc = lab_all_gather(group, param, n);
    free(sum);
    return rc;
}
