/* Lab 7: a rank of a group. Arrays have exact sizes. The optimizer's state stays from step to step. */
#include "labs/runner/memory.h"

#include "labs/lab.h"

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
    runner_write((runner_message){MEMORY_REDUCE_SCATTER, 0, (int64_t)n, (int64_t)(n * sizeof *x)}, x);
    runner_message m = runner_read();
    if (m.code != LAB_OK) return m.code;
    memset(shard, 0, shard_bytes(group, n)); /* the sanitizer checks memset(), but not read() */
    runner_read_data(shard, m.bytes);
    return LAB_OK;
}

int lab_all_gather(lab_group *group, float *x, size_t n)
{
    runner_write((runner_message){MEMORY_ALL_GATHER, 0, (int64_t)n, (int64_t)shard_bytes(group, n)},
                 x + shard_begin(group, n, group->rank));
    runner_message m = runner_read();
    if (m.code == LAB_OK) runner_read_data(x, m.bytes);
    return m.code;
}

static void *exact(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) abort();
    return memory;
}

static void peaks(void)
{
    memory_peaks_case c;
    lab_memory peak = {-1, -1, -1, -1, -1, -1};
    runner_read_data(&c, (int64_t)sizeof c);
    lab_model model = {c.root, c.unit, (int)c.units, (int)c.states};
    int code = student_memory(&model, (int)c.scheme, (int)c.ranks, (int)c.rank, &peak);
    runner_write((runner_message){RUNNER_RESULT, code, 0, (int64_t)sizeof peak}, &peak);
}

static void step(lab_group *group, lab_adam *adam)
{
    memory_step_case c;
    runner_read_data(&c, (int64_t)sizeof c);
    size_t n = (size_t)c.n, bytes = n * sizeof(float);
    float *param = exact(bytes), *grad = exact(bytes);
    runner_read_data(param, (int64_t)bytes);
    runner_read_data(grad, (int64_t)bytes);
    if (c.first) {
        free(adam->m);
        free(adam->v);
        *adam = (lab_adam){(float)c.rate,
                           (float)c.beta1,
                           (float)c.beta2,
                           (float)c.eps,
                           exact(shard_bytes(group, n)),
                           exact(shard_bytes(group, n))};
    }
    adam->rate = (float)c.rate;
    runner_watch_memory();
    int code = student_sharded_step(group, adam, param, grad, n);
    int64_t most = runner_most_memory();
    runner_write((runner_message){RUNNER_RESULT, code, most, (int64_t)bytes}, param);
    free(param);
    free(grad);
}

/* Words: RANK SIZE. */
void runner_run(char **words, void (*set_up)(void))
{
    lab_group group = {atoi(words[0]), atoi(words[1])};
    lab_adam adam = {0};
    set_up();
    for (;;) {
        if (runner_read().code == MEMORY_STEP)
            step(&group, &adam);
        else
            peaks();
    }
}
