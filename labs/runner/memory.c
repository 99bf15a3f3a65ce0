/* Lab 7: calls the student's functions for one rank of a group. Arrays have exact sizes. The optimizer's
 * state is kept from step to step. */
#include "labs/runner/runner.h"

#include "labs/lab.h"
#include "labs/runner/call.h"

#include <stdlib.h>
#include <string.h>

struct lab_group {
    int rank, size;
};

int lab_group_rank(const lab_group *group)
{
    return group->rank;
}

int lab_group_size(const lab_group *group)
{
    return group->size;
}

static int64_t shard_begin(const lab_group *group, size_t n, int rank)
{
    return memory_shard_begin((int64_t)n, group->size, rank);
}

static size_t shard_bytes(const lab_group *group, size_t n)
{
    return (size_t)(shard_begin(group, n, group->rank + 1) - shard_begin(group, n, group->rank)) *
           sizeof(float);
}

int lab_reduce_scatter(lab_group *group, const float *x, size_t n, float *shard)
{
    runner_message m =
        runner_ask((runner_message){MEMORY_REDUCE_SCATTER, 0, (int64_t)n, (int64_t)(n * sizeof *x)}, x);
    if (m.code != LAB_OK) return m.code;
    memset(shard, 0, shard_bytes(group, n)); /* the sanitizer checks memset(), but not read() */
    runner_read_data(shard, m.bytes);
    return LAB_OK;
}

int lab_all_gather(lab_group *group, float *x, size_t n)
{
    runner_message m =
        runner_ask((runner_message){MEMORY_ALL_GATHER, 0, (int64_t)n, (int64_t)shard_bytes(group, n)},
                   x + shard_begin(group, n, group->rank));
    if (m.code == LAB_OK) runner_read_data(x, m.bytes);
    return m.code;
}

static int step(const memory_step_case *c)
{
    static lab_adam adam;
    lab_group group = {runner_rank, runner_size};
    size_t n = (size_t)c->n, bytes = n * sizeof(float);
    float *param = memcpy(runner_memory(bytes), c + 1, bytes),
          *grad = memcpy(runner_memory(bytes), (const float *)(c + 1) + n, bytes);
    if (c->first) {
        free(adam.m);
        free(adam.v);
        adam = (lab_adam){0,
                          (float)c->beta1,
                          (float)c->beta2,
                          (float)c->eps,
                          runner_memory(shard_bytes(&group, n)),
                          runner_memory(shard_bytes(&group, n))};
    }
    adam.rate = (float)c->rate;
    runner_watch_memory();
    int code = student_sharded_step(&group, &adam, param, grad, n);
    int64_t most = runner_most_memory();
    runner_write((runner_message){RUNNER_RESULT, code, most, (int64_t)bytes}, param);
    free(param);
    free(grad);
    return CALL_HAS_ANSWERED;
}

int call_function(int which, const double *in, int n, double *out)
{
    (void)n;
    if (which == MEMORY_STEP) return step((const void *)in);
    lab_memory peak = {-1, -1, -1, -1, -1, -1};
    lab_model model = {(int64_t)in[0], (int64_t)in[1], (int)in[2], (int)in[3]};
    out[0] = student_memory(&model, (int)in[4], (int)in[5], (int)in[6], &peak);
    const int64_t numbers[] = {peak.parameters,      peak.replicas,       peak.gradients,
                               peak.optimizer_state, peak.gathered_units, peak.buckets};
    for (int i = 0; i < 6; i++) out[1 + i] = (double)numbers[i];
    return 7;
}
