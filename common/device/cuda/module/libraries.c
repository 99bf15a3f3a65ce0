#include "common/device/cuda/module/libraries.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct library_symbol {
    const char *name;
    size_t offset; /* of the pointer in its table */
} library_symbol;

#define DRIVER_SYMBOL(member, symbol) {#symbol, offsetof(driver_table, member)},
#define CUBLASLT_SYMBOL(member, symbol) {#symbol, offsetof(cublaslt_table, member)},
#define CUDNN_SYMBOL(member, symbol) {#symbol, offsetof(cudnn_table, member)},

static const library_symbol driver_symbols[] = {DRIVER_FUNCTIONS(DRIVER_SYMBOL){NULL, 0}};
#if PSRING_HAVE_CUBLASLT
static const library_symbol cublaslt_symbols[] = {CUBLASLT_FUNCTIONS(CUBLASLT_SYMBOL){NULL, 0}};
#endif
#if PSRING_HAVE_CUDNN
static const library_symbol cudnn_symbols[] = {CUDNN_FUNCTIONS(CUDNN_SYMBOL){NULL, 0}};
#endif

void *cuda_library_find(const char *const *names, char *why, size_t size)
{
    why[0] = '\0';
    for (; *names; names++) {
        void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        if (!why[0]) snprintf(why, size, "%s", dlerror());
    }
    return NULL;
}

/* For tests of the own kernels, which run where a library is missing. */
#define OWN_KERNELS "PSRING_OWN_KERNELS"

/* Fills the table; where a symbol is missing the library is as good as absent. */
static void fill(const char *const *names, const library_symbol *symbols, void *table, char *why, size_t size)
{
    void *library = cuda_library_find(names, why, size);
    if (!library) return;
    why[0] = '\0';
    for (const library_symbol *s = symbols; s->name; s++) {
        void *function = dlsym(library, s->name);
        if (!function) {
            snprintf(why, size, "%s has no %s: another version is needed", names[0], s->name);
            return;
        }
        *(void **)((char *)table + s->offset) = function;
    }
}

#if PSRING_HAVE_CUBLASLT || PSRING_HAVE_CUDNN
static void leave_out(char *why, size_t size)
{
    snprintf(why, size, "left out: " OWN_KERNELS " is set");
}
#endif

void cuda_libraries_open(cuda_libraries *out)
{
    static const char *const driver[] = {"libcuda.so.1", NULL};
    *out = (cuda_libraries){0};
    fill(driver, driver_symbols, &out->driver, out->why_driver, sizeof out->why_driver);
#if PSRING_HAVE_CUBLASLT
    static const char *const cublaslt[] = {"libcublasLt.so." PSRING_CUBLAS_MAJOR, PSRING_CUBLASLT_PATH, NULL};
    if (getenv(OWN_KERNELS)) leave_out(out->why_cublaslt, sizeof out->why_cublaslt);
    else fill(cublaslt, cublaslt_symbols, &out->cublaslt, out->why_cublaslt, sizeof out->why_cublaslt);
#else
    snprintf(out->why_cublaslt, sizeof out->why_cublaslt, "built without cuBLASLt's headers");
#endif
#if PSRING_HAVE_CUDNN
    static const char *const cudnn[] = {"libcudnn.so.9", PSRING_CUDNN_PATH, NULL};
    if (getenv(OWN_KERNELS)) leave_out(out->why_cudnn, sizeof out->why_cudnn);
    else fill(cudnn, cudnn_symbols, &out->cudnn, out->why_cudnn, sizeof out->why_cudnn);
#else
    snprintf(out->why_cudnn, sizeof out->why_cudnn, "built without cuDNN's headers");
#endif
}
