/* Emulates matrix products of cuBLASLt by plain loops in double precision over column-major matrices of
 * float32 or bfloat16. Factors are rounded to TF32 or bfloat16 if the compute type allows this.
 *
 * The emulator checks the rules for callers (docs/cuda.md, "Reviewed against", names their sources): types
 * must go together, pointers must be aligned as the search was told, the workspace must begin at a multiple
 * of 256 bytes, and the algorithm must have been found for this very product. For the vector of biases, the
 * search looks at its address, and NULL counts as aligned to 256. If the search was told that a vector is
 * aligned to more than 16 bytes, its algorithm sums in two parts. So runs that are to be bit-identical must
 * request the same alignment.
 *
 * Two things are not supported, so that tests reach the callers' alternatives: the gradient of a bias over an
 * odd number of rows, and factors of bfloat16 if the result has an odd number of rows. A search finds up to
 * three algorithms. If a test makes the others slow (control.h), the second one is the fastest. */
#include "common/device/cuda/module/libraries.h"
#include "common/reduce/half.h"
#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/memory.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { ALGORITHMS = 3, FASTEST = 1 };
enum {
    WORKSPACE_BYTES = 4096,
    WORKSPACE_ALIGNMENT = 256,
    MOST_ALIGNMENT = 256,
    LEAST_ALIGNMENT = 16,
    A = 0,
    B = 1,
    C = 2,
    D = 3
};

void emulator_fill_cublaslt(cublaslt_table *out);

struct emulated_cublaslt {
    int unused;
};

struct emulated_matrix {
    cudaDataType_t type;
    int64_t rows, columns, leading;
};

struct emulated_product {
    cublasComputeType_t compute;
    cublasOperation_t transpose[2];
    cublasLtEpilogue_t epilogue;
    void *vector;
};

struct emulated_preference {
    size_t workspace;
    uint32_t alignment[4], schemes;
};

/* The product for which a search found an algorithm. The algorithm holds it as its data. */
typedef struct found {
    uint32_t problem, vector_alignment, alignment[4], index;
} found;
_Static_assert(sizeof(found) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm says what it was found for");

/* ---- descriptors ------------------------------------------------------------------------------ */

static cublasStatus_t make(void *out, size_t bytes)
{
    void *made = calloc(1, bytes);
    *(void **)out = made;
    return made ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t drop(void *made)
{
    free(made);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *to, size_t bytes, const void *value, size_t size)
{
    if (!value || size != bytes) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    return make(out, sizeof **out);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop(handle);
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t code)
{
    return code == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : code == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                 : "CUBLAS_STATUS_NOT_SUPPORTED";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t leading)
{
    if (leading < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t code = make(out, sizeof **out);
    if (code == CUBLAS_STATUS_SUCCESS)
        **out = (struct emulated_matrix){type, (int64_t)rows, (int64_t)columns, leading};
    return code;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return drop(layout);
}

/* The emulator has no batches, and only column-major order. */
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t size)
{
    (void)layout, (void)attribute, (void)value, (void)size;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasStatus_t code = make(out, sizeof **out);
    if (code == CUBLAS_STATUS_SUCCESS)
        **out = (struct emulated_product){.compute = compute, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    return code;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return drop(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->transpose[A], sizeof(int32_t), value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->transpose[B], sizeof(int32_t), value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, sizeof(uint32_t), value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->vector, sizeof(void *), value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    cublasStatus_t code = make(out, sizeof **out);
    for (int i = 0; code == CUBLAS_STATUS_SUCCESS && i < 4; i++) (*out)->alignment[i] = MOST_ALIGNMENT;
    return code;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return drop(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&preference->workspace, sizeof preference->workspace, value, size);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set(&preference->schemes, sizeof preference->schemes, value, size);
    return set(&preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
               sizeof(uint32_t), value, size);
}

/* ---- a product -------------------------------------------------------------------------------- */

/* A product that is enqueued, or recorded in a graph. */
typedef struct work {
    struct emulated_product desc;
    struct emulated_matrix matrix[4]; /* The matrices a, b, c and d. */
    const void *in[3];
    void *out;
    float alpha, beta;
    int parts; /* Number of parts into which the algorithm divides sums. */
} work;

static int64_t rows_of(const work *k, int factor)
{
    return k->desc.transpose[factor] == CUBLAS_OP_T ? k->matrix[factor].columns : k->matrix[factor].rows;
}

static int64_t columns_of(const work *k, int factor)
{
    return k->desc.transpose[factor] == CUBLAS_OP_T ? k->matrix[factor].rows : k->matrix[factor].columns;
}

/* Checks that both factors have the same type, and that the result has this type or float32. */
static cublasStatus_t check(const work *k)
{
    const struct emulated_matrix *a = &k->matrix[A], *b = &k->matrix[B], *c = &k->matrix[C],
                                 *d = &k->matrix[D];
    bool fits = rows_of(k, A) == d->rows && columns_of(k, B) == d->columns &&
                columns_of(k, A) == rows_of(k, B) && c->rows == d->rows && c->columns == d->columns &&
                c->type == d->type;
    bool bf16 = a->type == CUDA_R_16BF, fast = k->desc.compute != CUBLAS_COMPUTE_32F;
    if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || (!bf16 && d->type != CUDA_R_32F) || (bf16 && fast))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (bf16 && d->rows % 2) return CUBLAS_STATUS_NOT_SUPPORTED;
    return k->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB && rows_of(k, B) % 2 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                             : CUBLAS_STATUS_SUCCESS;
}

static double get(const struct emulated_matrix *m, const void *data, int64_t i)
{
    return m->type == CUDA_R_32F ? ((const float *)data)[i] : bf16_to_float(((const uint16_t *)data)[i]);
}

static void put(const struct emulated_matrix *m, void *data, int64_t i, double value)
{
    if (m->type == CUDA_R_32F)
        ((float *)data)[i] = (float)value;
    else
        ((uint16_t *)data)[i] = bf16_from_float((float)value);
}

/* TF32 has ten bits after the leading one. */
static double rounded(const work *k, double value)
{
    if (k->desc.compute == CUBLAS_COMPUTE_32F_FAST_16BF) return bf16_to_float(bf16_from_float((float)value));
    if (k->desc.compute == CUBLAS_COMPUTE_32F || !isfinite(value)) return value;
    uint32_t bits = half_float_as_bits((float)value);
    return half_bits_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

/* Returns the rows of op(a) or the columns of op(b), rounded as the multiplication does. */
static double *vectors(const work *k, int which)
{
    const struct emulated_matrix *m = &k->matrix[which];
    int64_t terms = rows_of(k, B), count = which == A ? rows_of(k, A) : columns_of(k, B);
    /* True if the vector is a column in memory. */
    bool along = (k->desc.transpose[which] == CUBLAS_OP_T) == (which == A);
    double *out = malloc((size_t)(terms * count) * sizeof *out);
    if (!out) abort();
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 0; t < terms; t++)
            out[i * terms + t] =
                rounded(k, get(m, k->in[which], along ? t + i * m->leading : i + t * m->leading));
    return out;
}

static double finish(const work *k, int64_t row, double value)
{
    if (k->desc.epilogue & CUBLASLT_EPILOGUE_BIAS) value += get(&k->matrix[D], k->desc.vector, row);
    return k->desc.epilogue & CUBLASLT_EPILOGUE_RELU && value <= 0 ? 0 : value;
}

static double dot(const double *a, const double *b, int64_t terms, int parts)
{
    double sum = 0;
    for (int p = 0; p < parts; p++) {
        double part = 0;
        for (int64_t t = p * terms / parts; t < (p + 1) * terms / parts; t++) part += a[t] * b[t];
        sum += parts > 1 ? (double)(float)part : part;
    }
    return sum;
}

static void multiply(const work *k, const double *a, const double *b)
{
    const struct emulated_matrix *c = &k->matrix[C], *d = &k->matrix[D];
    int64_t terms = rows_of(k, B);
    for (int64_t j = 0; j < d->columns; j++)
        for (int64_t i = 0; i < d->rows; i++) {
            double sum = dot(a + i * terms, b + j * terms, terms, k->parts);
            double value =
                k->alpha * sum + (k->beta != 0 ? k->beta * get(c, k->in[C], i + j * c->leading) : 0);
            put(d, k->out, i + j * d->leading, finish(k, i, value));
        }
}

/* Sums the terms of the products for each column of op(b). The sums overwrite the output, whatever beta
 * is. */
static void sum_columns(const work *k, const double *b)
{
    int64_t terms = rows_of(k, B);
    for (int64_t j = 0; j < k->matrix[D].columns; j++) {
        double sum = 0;
        for (int64_t t = 0; t < terms; t++) sum += b[j * terms + t];
        put(&k->matrix[D], k->desc.vector, j, sum);
    }
}

static void run(void *context)
{
    const work *k = context;
    emulator_open_memory();
    double *a = vectors(k, A), *b = vectors(k, B);
    multiply(k, a, b);
    if (k->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) sum_columns(k, b);
    free(a);
    free(b);
    emulator_close_memory();
}

/* ---- searching and running -------------------------------------------------------------------- */

static uint32_t mix(uint32_t hash, int64_t value)
{
    return (hash ^ (uint32_t)value) * 16777619u;
}

static uint32_t problem_of(const work *k)
{
    uint32_t hash = mix(mix(2166136261u, k->desc.compute), k->desc.epilogue);
    for (int i = 0; i < 4; i++) {
        if (i < 2) hash = mix(hash, k->desc.transpose[i]);
        hash = mix(mix(mix(mix(hash, k->matrix[i].type), k->matrix[i].rows), k->matrix[i].columns),
                   k->matrix[i].leading);
    }
    return hash;
}

static bool is_aligned(const void *data, uint32_t alignment)
{
    return (uintptr_t)data % alignment == 0;
}

static uint32_t alignment_of(const void *data)
{
    uint32_t alignment = MOST_ALIGNMENT;
    while (!is_aligned(data, alignment)) alignment /= 2;
    return alignment;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t *out, int *count)
{
    work k = {.desc = *desc, .matrix = {*a, *b, *c, *d}};
    found f = {problem_of(&k), alignment_of(desc->vector), {0}, 0};
    cublasStatus_t code = check(&k);
    *count = 0;
    if (asked < 1 || !handle) return CUBLAS_STATUS_INVALID_VALUE;
    if (code != CUBLAS_STATUS_SUCCESS || preference->workspace < WORKSPACE_BYTES) return code;
    memcpy(f.alignment, preference->alignment, sizeof f.alignment);
    for (*count = 0; *count < asked && *count < ALGORITHMS; ++*count) {
        f.index = (uint32_t)*count;
        out[*count] = (cublasLtMatmulHeuristicResult_t){.workspaceSize = WORKSPACE_BYTES,
                                                        .state = CUBLAS_STATUS_SUCCESS};
        memcpy(&out[*count].algo, &f, sizeof f);
    }
    return CUBLAS_STATUS_SUCCESS;
}

static bool has_vector(const work *k)
{
    return k->desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB);
}

static bool may_run(const work *k, const found *f, const void *workspace, size_t bytes)
{
    for (int i = 0; i < 4; i++)
        if (!is_aligned(i < D ? k->in[i] : k->out, f->alignment[i])) return false;
    if (has_vector(k) && (!emulator_owns(k->desc.vector) || !is_aligned(k->desc.vector, f->vector_alignment)))
        return false;
    return f->problem == problem_of(k) && workspace && bytes >= WORKSPACE_BYTES &&
           is_aligned(workspace, WORKSPACE_ALIGNMENT) && k->in[C] == k->out;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                              cudaStream_t s)
{
    const float *of_product = alpha, *of_c = beta;
    work k = {*desc, {*a_layout, *b_layout, *c_layout, *d_layout}, {a, b, c}, d, *of_product, *of_c, 1};
    found f;
    cublasStatus_t code = check(&k);
    memcpy(&f, algorithm, sizeof f);
    k.parts = has_vector(&k) && f.vector_alignment > LEAST_ALIGNMENT ? 2 : 1;
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    if (emulator_control.fails_sums && desc->epilogue == CUBLASLT_EPILOGUE_BGRADB)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!handle || !may_run(&k, &f, workspace, bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    if (f.index != FASTEST) emulator_be_slow(s);
    if (emulator_control.slow_sums && desc->epilogue == CUBLASLT_EPILOGUE_BGRADB)
        emulator_take(s, 3000000000);
    emulator_count(f.index == FASTEST ? &emulator_control.fast_products : &emulator_control.first_products);
    if (!emulator_record(s, run, &k, sizeof k)) run(&k);
    return CUBLAS_STATUS_SUCCESS;
}

#define FUNCTION(member, symbol) .member = symbol,
void emulator_fill_cublaslt(cublaslt_table *out)
{
    *out = (cublaslt_table){CUBLASLT_FUNCTIONS(FUNCTION)};
}
