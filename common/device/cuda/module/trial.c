#include "common/device/cuda/module/trial.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TIMED = 2, REPEATS = 4 };

/* Allocates zeroed memory. *out stays NULL if the GPU has no memory left. */
static status allocate(const cuda_device *d, size_t bytes, void **out)
{
    if (cudaMalloc(out, bytes) == cudaSuccess) return cuda_zero(d, *out, bytes);
    cudaGetLastError();
    *out = NULL;
    return STATUS_OK;
}

status cuda_trial_open(const cuda_device *d, int count, const size_t *bytes, cuda_trial *t)
{
    *t = (cuda_trial){.device = d, .complete = true};
    assert(count <= TRIAL_MEMORY);
    TRY(cuda_check(d, cudaEventCreate(&t->begin), "cudaEventCreate"));
    TRY(cuda_check(d, cudaEventCreate(&t->end), "cudaEventCreate"));
    for (int i = 0; i < count; i++) {
        TRY(allocate(d, bytes[i] ? bytes[i] : 1, &t->memory[i]));
        t->complete = t->complete && t->memory[i];
    }
    return STATUS_OK;
}

void cuda_trial_close(cuda_trial *t)
{
    for (int i = 0; i < TRIAL_MEMORY; i++)
        if (t->memory[i]) cudaFree(t->memory[i]);
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
}

/* Records several runs as one graph, because an operation of a library may take several launches, and the
 * host's time between them must not be measured. *out is NULL if the runs cannot be recorded. */
static void record_runs(const cuda_trial *t, cuda_attempt run, void *context, int index, cudaGraphExec_t *out)
{
    cudaStream_t s = t->device->anchor_stream;
    cudaGraph_t recorded = NULL;
    bool works = true;
    *out = NULL;
    cudaError_t code = cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    if (code == cudaSuccess) {
        for (int i = 0; i < REPEATS && works; i++)
            works = run(context, index, s, &works) == STATUS_OK && works;
        code = cudaStreamEndCapture(s, &recorded);
    }
    if (code == cudaSuccess && works) code = cudaGraphInstantiate(out, recorded, 0);
    if (code != cudaSuccess) *out = NULL;
    if (recorded) cudaGraphDestroy(recorded);
    cudaGetLastError();
}

/* Times one run, or REPEATS runs if `recorded` is not NULL. */
static status time_once(cuda_trial *t, cuda_attempt run, void *context, int index, cudaGraphExec_t recorded,
                        bool *works, float *ms)
{
    const cuda_device *d = t->device;
    *works = true;
    TRY(cuda_check(d, cudaEventRecord(t->begin, d->anchor_stream), "cudaEventRecord"));
    if (recorded)
        TRY(cuda_check(d, cudaGraphLaunch(recorded, d->anchor_stream), "cudaGraphLaunch"));
    else
        TRY(run(context, index, d->anchor_stream, works));
    if (!*works) return STATUS_OK;
    TRY(cuda_check(d, cudaEventRecord(t->end, d->anchor_stream), "cudaEventRecord"));
    TRY(cuda_check(d, cudaEventSynchronize(t->end), "an operation that is timed"));
    return cuda_check(d, cudaEventElapsedTime(ms, t->begin, t->end), "cudaEventElapsedTime");
}

status cuda_trial_time(cuda_trial *t, cuda_attempt run, void *context, int index, float *best)
{
    cudaGraphExec_t recorded = NULL;
    float ms = 0;
    bool works;
    *best = -1;
    TRY(time_once(t, run, context, index, NULL, &works, &ms));
    if (!works) return STATUS_OK;
    record_runs(t, run, context, index, &recorded);
    status rc = STATUS_OK;
    for (int i = 0; i <= TIMED && rc == STATUS_OK && works; i++) {
        rc = time_once(t, run, context, index, recorded, &works, &ms);
        if (recorded) ms /= REPEATS;
        if (i == 1 || (i > 1 && ms < *best)) *best = ms;
    }
    if (recorded) cudaGraphExecDestroy(recorded);
    return rc;
}

status cuda_trial_best(cuda_trial *t, cuda_attempt run, void *context, int count, int *best, float *best_ms)
{
    *best = -1;
    *best_ms = -1;
    for (int i = 0; i < count; i++) {
        float ms;
        TRY(cuda_trial_time(t, run, context, i, &ms));
        if (ms < 0 || (*best >= 0 && ms >= *best_ms)) continue;
        *best = i;
        *best_ms = ms;
    }
    return STATUS_OK;
}

/* ---- remembered choices ----------------------------------------------------------------------- */

struct cuda_choice {
    size_t bytes;
    unsigned char key[CHOICE_KEY_BYTES], value[CHOICE_VALUE_BYTES];
    struct cuda_choice *next;
};

bool cuda_recall(const cuda_device *d, const void *key, size_t bytes, void *value, size_t size)
{
    const struct cuda_choice *c = d->chosen;
    while (c && !(c->bytes == bytes && memcmp(c->key, key, bytes) == 0)) c = c->next;
    if (c) memcpy(value, c->value, size);
    return c != NULL;
}

status cuda_remember(cuda_device *d, const void *key, size_t bytes, const void *value, size_t size)
{
    assert(bytes <= CHOICE_KEY_BYTES && size <= CHOICE_VALUE_BYTES);
    struct cuda_choice *c = calloc(1, sizeof *c);
    if (!c) return fail(STATUS_SYSTEM, "no memory for the timed algorithms");
    c->bytes = bytes;
    memcpy(c->key, key, bytes);
    memcpy(c->value, value, size);
    c->next = d->chosen;
    d->chosen = c;
    return STATUS_OK;
}

void cuda_forget(cuda_device *d)
{
    while (d->chosen) {
        struct cuda_choice *next = d->chosen->next;
        free(d->chosen);
        d->chosen = next;
    }
}
