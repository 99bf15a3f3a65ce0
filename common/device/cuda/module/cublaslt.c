#include "common/device/cuda/module/cublaslt.h"

#include "common/device/cuda/module/libraries.h"
#include "common/device/cuda/module/trial.h"

#include <stdio.h>
#include <stdlib.h>

#if PSRING_HAVE_CUBLASLT

enum { WORKSPACE_BYTES = 32 << 20, ALIGNMENT_BYTES = 16, MOST_TIMED = 8 };

struct cublaslt_matmul {
    cuda_device *device;
    op_kind kind;
    cublaslt_shape shape;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    int64_t rows;
    bool found;
    cublasLtMatmulAlgo_t algorithm;
    float ms; /* time of the algorithm, or -1 if the algorithm was not timed */
};

static const cublaslt_table *table_of(const cuda_device *d)
{
    return &d->libraries->cublaslt;
}

static status check(const cuda_device *d, cublasStatus_t code, const char *what)
{
    if (code == CUBLAS_STATUS_SUCCESS) return STATUS_OK;
    return fail(STATUS_SYSTEM, "rank %d, GPU %d: %s: %s", d->base.config.rank, d->gpu, what,
                table_of(d)->status_text(code));
}

status cublaslt_open(cuda_device *d)
{
    cublasLtHandle_t handle;
    if (d->libraries->cublaslt_found.why[0]) {
        log_warn("cuBLASLt: %s; using own matrix multiplications, many times slower",
                 d->libraries->cublaslt_found.why);
        return STATUS_OK;
    }
    TRY(check(d, table_of(d)->create(&handle), "cublasLtCreate"));
    d->cublaslt = handle;
    return STATUS_OK;
}

void cublaslt_close(cuda_device *d)
{
    if (d->cublaslt) table_of(d)->destroy(d->cublaslt);
    d->cublaslt = NULL;
}

static cudaDataType_t data_type(dtype type)
{
    return type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasComputeType_t compute_type(const cuda_device *d, const cublaslt_shape *shape)
{
    if (shape->in == DTYPE_BF16) return CUBLAS_COMPUTE_32F;
    switch ((device_precision)d->base.config.precision) {
    case DEVICE_PRECISION_TF32:
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    case DEVICE_PRECISION_BF16:
        return CUBLAS_COMPUTE_32F_FAST_16BF;
    default:
        return CUBLAS_COMPUTE_32F;
    }
}

/* ---- preparing -------------------------------------------------------------------------------- */

static cublasLtEpilogue_t epilogue_of(const cublaslt_shape *s)
{
    if (s->sums) return CUBLASLT_EPILOGUE_BGRADB;
    if (s->relu) return s->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    return s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static status set_desc(cublaslt_matmul *p, cublasLtMatmulDescAttributes_t attribute, const void *value,
                       size_t size)
{
    return check(p->device, table_of(p->device)->desc_set(p->desc, attribute, value, size),
                 "cublasLtMatmulDescSetAttribute");
}

/* Sets the address of the bias or of its gradient. The search for an algorithm derives the alignment from the
 * address. */
static status set_vector(cublaslt_matmul *p, const void *vector)
{
    if (!p->shape.bias && !p->shape.sums) return STATUS_OK;
    return set_desc(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
}

static status make_desc(cublaslt_matmul *p)
{
    const cublaslt_table *t = table_of(p->device);
    const cublaslt_shape *s = &p->shape;
    cublasOperation_t a = s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(s);
    TRY(check(p->device, t->desc_create(&p->desc, compute_type(p->device, s), CUDA_R_32F),
              "cublasLtMatmulDescCreate"));
    TRY(set_desc(p, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    TRY(set_desc(p, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    return set_desc(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
}

static status make_layout(const cuda_device *d, cublasLtMatrixLayout_t *out, dtype type, int64_t rows,
                          int64_t columns, int64_t pitch)
{
    if (*out) table_of(d)->layout_destroy(*out);
    *out = NULL;
    return check(d,
                 table_of(d)->layout_create(out, data_type(type), (uint64_t)rows, (uint64_t)columns,
                                            pitch ? pitch : rows),
                 "cublasLtMatrixLayoutCreate");
}

/* Sets the alignment and the reduction scheme. By default cuBLASLt assumes that operands are aligned to 256
 * bytes, but arenas are aligned to 64 bytes. If a multiplication is split along k, the parts are added in
 * float32, never in the type of the result. */
static cublasStatus_t set_preferences(const cublaslt_table *t, cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    size_t workspace = WORKSPACE_BYTES;
    uint32_t alignment = ALIGNMENT_BYTES,
             schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t code =
        t->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = t->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                 sizeof schemes);
    for (int i = 0; i < 4 && code == CUBLAS_STATUS_SUCCESS; i++)
        code = t->preference_set(preference, operands[i], &alignment, sizeof alignment);
    return code;
}

/* ---- finding an algorithm ---------------------------------------------------------------------- */

static void fall_back(const cublaslt_matmul *p, cublasStatus_t code)
{
    const cublaslt_shape *s = &p->shape;
    char shape[96], reason[96];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld, %s to %s", (long long)s->m, (long long)s->n,
             (long long)s->k, dtype_name(s->in), dtype_name(s->out));
    if (code == CUBLAS_STATUS_SUCCESS)
        snprintf(reason, sizeof reason, "cuBLASLt has no algorithm");
    else
        snprintf(reason, sizeof reason, "cuBLASLt: %s", table_of(p->device)->status_text(code));
    cuda_fall_back(p->device, p->kind, shape, reason,
                   s->sums ? "the bias's gradient is summed by itself" : "an own kernel multiplies");
}

typedef struct timed_choice {
    cublasLtMatmulAlgo_t algorithm;
    float ms;
} timed_choice;

/* Parts of a trial's memory: the operands and the workspace. */
enum { TRIAL_A, TRIAL_B, TRIAL_D, TRIAL_VECTOR, TRIAL_WORKSPACE, TRIAL_PARTS };

typedef struct algorithm_trial {
    cublaslt_matmul *p;
    const cublasLtMatmulHeuristicResult_t *found;
    cuda_trial trial;
} algorithm_trial;

static cublasStatus_t call_matmul(const cublaslt_matmul *p, const cublasLtMatmulAlgo_t *algorithm,
                                  cudaStream_t s, const cublaslt_operands *o, bool add, void *workspace)
{
    float one = 1, beta = add ? 1 : 0;
    return table_of(p->device)->matmul(p->device->cublaslt, p->desc, &one, o->a, p->a, o->b, p->b, &beta,
                                       o->d, p->d, o->d, p->d, algorithm, workspace, WORKSPACE_BYTES, s);
}

static status attempt(void *context, int index, cudaStream_t s, bool *works)
{
    const algorithm_trial *t = context;
    void *const *memory = t->trial.memory;
    cublaslt_operands o = {memory[TRIAL_A], memory[TRIAL_B], NULL, memory[TRIAL_D], NULL};
    TRY(set_vector(t->p, memory[TRIAL_VECTOR]));
    *works = t->found[index].state == CUBLAS_STATUS_SUCCESS &&
             call_matmul(t->p, &t->found[index].algo, s, &o, false, memory[TRIAL_WORKSPACE]) ==
                 CUBLAS_STATUS_SUCCESS;
    return STATUS_OK;
}

static status time_algorithms(cublaslt_matmul *p, const cublasLtMatmulHeuristicResult_t *found, int count)
{
    const cublaslt_shape *s = &p->shape;
    int64_t n = s->varying == CUBLASLT_N ? p->rows : s->n, k = s->varying == CUBLASLT_K ? p->rows : s->k;
    int64_t key[] = {p->kind, s->m,    s->n,    s->k,  s->transpose_a, s->transpose_b, s->varying,
                     s->bias, s->relu, s->sums, s->in, s->out,         p->rows,        s->pitch_b};
    int64_t b = s->pitch_b ? s->pitch_b * (s->transpose_b ? k : n) : k * n;
    int64_t in = dtype_size(s->in), out = dtype_size(s->out);
    size_t bytes[TRIAL_PARTS] = {(size_t)(s->m * k * in), (size_t)(b * in), (size_t)(s->m * n * out),
                                 (size_t)((s->m + n) * out), WORKSPACE_BYTES};
    timed_choice choice = {found[0].algo, -1};
    if (!cuda_recall(p->device, key, sizeof key, &choice, sizeof choice)) {
        algorithm_trial t = {.p = p, .found = found};
        int best = -1;
        status rc = cuda_trial_open(p->device, TRIAL_PARTS, bytes, &t.trial);
        if (rc == STATUS_OK && t.trial.complete)
            rc = cuda_trial_best(&t.trial, attempt, &t, count, &best, &choice.ms);
        cuda_trial_close(&t.trial);
        TRY(rc);
        if (best >= 0) choice.algorithm = found[best].algo;
        log_debug("%s %lldx%lldx%lld%s: cuBLASLt's algorithm %d of %d takes %.3f ms", op_name(p->kind),
                  (long long)s->m, (long long)n, (long long)k, s->sums ? " with sums" : "", best + 1, count,
                  (double)choice.ms);
        TRY(cuda_remember(p->device, key, sizeof key, &choice, sizeof choice));
    }
    p->algorithm = choice.algorithm;
    p->ms = choice.ms;
    return STATUS_OK;
}

/* Finds an algorithm. The result depends only on shapes and alignments, because the search always uses the
 * same address for the bias or its gradient. Every run therefore uses the same algorithm for the same
 * multiplication, even if the run continues from a checkpoint. */
static status find_algorithm(cublaslt_matmul *p, bool timed)
{
    const cublaslt_table *t = table_of(p->device);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[MOST_TIMED];
    int count = 0;
    TRY(set_vector(p, (const void *)(uintptr_t)ALIGNMENT_BYTES));
    TRY(check(p->device, t->preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
    cublasStatus_t code = set_preferences(t, preference);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = t->heuristic(p->device->cublaslt, p->desc, p->a, p->b, p->d, p->d, preference,
                            timed ? MOST_TIMED : 1, found, &count);
    t->preference_destroy(preference);
    p->found = code == CUBLAS_STATUS_SUCCESS && count > 0 && found[0].state == CUBLAS_STATUS_SUCCESS;
    if (p->found) {
        p->algorithm = found[0].algo;
        return timed ? time_algorithms(p, found, count) : STATUS_OK;
    }
    fall_back(p, code);
    return STATUS_OK;
}

/* Sets up layouts and an algorithm for `rows`. `timed` must be false after the first step. */
static status use_rows(cublaslt_matmul *p, int64_t rows, bool timed)
{
    const cublaslt_shape *s = &p->shape;
    int64_t n = s->varying == CUBLASLT_N ? rows : s->n, k = s->varying == CUBLASLT_K ? rows : s->k;
    TRY(make_layout(p->device, &p->a, s->in, s->transpose_a ? k : s->m, s->transpose_a ? s->m : k, 0));
    TRY(make_layout(p->device, &p->b, s->in, s->transpose_b ? n : k, s->transpose_b ? k : n, s->pitch_b));
    TRY(make_layout(p->device, &p->d, s->out, s->m, n, 0));
    p->rows = rows;
    return find_algorithm(p, timed);
}

status cublaslt_prepare(cuda_device *d, op_kind kind, const cublaslt_shape *shape, cublaslt_matmul **out)
{
    *out = NULL;
    if (!d->cublaslt) return STATUS_OK;
    cublaslt_matmul *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for a matrix product");
    p->device = d;
    p->kind = kind;
    p->ms = -1;
    p->shape = *shape;
    status rc = make_desc(p);
    if (rc == STATUS_OK)
        rc = use_rows(p, shape->varying == CUBLASLT_N ? shape->n : shape->k, d->base.config.benchmark);
    if (rc != STATUS_OK || !p->found) cublaslt_release(&p);
    *out = p;
    return rc;
}

void cublaslt_release(cublaslt_matmul **pointer)
{
    cublaslt_matmul *p = *pointer;
    if (!p) return;
    const cublaslt_table *t = table_of(p->device);
    if (p->a) t->layout_destroy(p->a);
    if (p->b) t->layout_destroy(p->b);
    if (p->d) t->layout_destroy(p->d);
    if (p->desc) t->desc_destroy(p->desc);
    free(p);
    *pointer = NULL;
}

float cublaslt_ms(const cublaslt_matmul *p)
{
    return p->ms;
}

size_t cublaslt_workspace(const cublaslt_matmul *p)
{
    return p ? WORKSPACE_BYTES : 0;
}

status cublaslt_set_rows(cublaslt_matmul *p, int64_t rows, bool *fits)
{
    if (rows != p->rows) TRY(use_rows(p, rows, false));
    *fits = p->found;
    return STATUS_OK;
}

status cublaslt_run(cublaslt_matmul *p, cudaStream_t s, const cublaslt_operands *o, int64_t rows, bool add,
                    void *workspace, bool *refused)
{
    bool fits;
    TRY(cublaslt_set_rows(p, rows, &fits));
    *refused = !fits;
    if (!fits) return STATUS_OK;
    TRY(set_vector(p, p->shape.sums ? o->sums : o->bias));
    cublasStatus_t code = call_matmul(p, &p->algorithm, s, o, add, workspace);
    /* In these cases cuBLASLt does not support the algorithm that the search found. */
    *refused = code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE ||
               code == CUBLAS_STATUS_ARCH_MISMATCH;
    if (!*refused) return check(p->device, code, "cublasLtMatmul");
    p->found = false;
    fall_back(p, code);
    return STATUS_OK;
}

#endif
