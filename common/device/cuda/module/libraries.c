#include "common/device/cuda/module/libraries.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

bool cuda_library_open(const char *const *names, const char *const *symbols, void *table, char *why,
                       size_t size)
{
    void *library = NULL;
    why[0] = '\0';
    for (const char *const *name = names; *name && !library; name++) {
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (!library && !why[0]) snprintf(why, size, "%s", dlerror());
    }
    if (!library) return false;
    why[0] = '\0';
    for (int i = 0; symbols[i]; i++) {
        void *function = ((void **)table)[i] = dlsym(library, symbols[i]);
        if (function) continue;
        snprintf(why, size, "%s has no %s: another version is needed", names[0], symbols[i]);
        return false;
    }
    return true;
}

/* Environment variable that makes the kernels of this module run in place of the libraries, for tests. */
#define OWN_KERNELS "PSRING_OWN_KERNELS"

#if PSRING_HAVE_CUBLASLT || PSRING_HAVE_CUDNN
static void open_optional(const char *const *names, const char *const *symbols, void *table,
                          cuda_found *found)
{
    if (getenv(OWN_KERNELS))
        snprintf(found->why, sizeof found->why, "left out: " OWN_KERNELS " is set");
    else
        cuda_library_open(names, symbols, table, found->why, sizeof found->why);
}
#endif

void cuda_libraries_open(cuda_libraries *out)
{
    static const char *const driver[] = {"libcuda.so.1", NULL};
    static const char *const driver_symbols[] = {DRIVER_FUNCTIONS(LIBRARY_SYMBOL) NULL};
    *out = (cuda_libraries){0};
    cuda_library_open(driver, driver_symbols, &out->driver, out->driver_found.why,
                      sizeof out->driver_found.why);
#if PSRING_HAVE_CUBLASLT
    static const char *const cublaslt[] = {"libcublasLt.so." PSRING_CUBLAS_MAJOR, PSRING_CUBLASLT_PATH, NULL};
    static const char *const cublaslt_symbols[] = {CUBLASLT_FUNCTIONS(LIBRARY_SYMBOL) NULL};
    open_optional(cublaslt, cublaslt_symbols, &out->cublaslt, &out->cublaslt_found);
#else
    snprintf(out->cublaslt_found.why, sizeof out->cublaslt_found.why, "built without cuBLASLt's headers");
#endif
#if PSRING_HAVE_CUDNN
    static const char *const cudnn[] = {"libcudnn.so.9", PSRING_CUDNN_PATH, NULL};
    static const char *const cudnn_symbols[] = {CUDNN_FUNCTIONS(LIBRARY_SYMBOL) NULL};
    open_optional(cudnn, cudnn_symbols, &out->cudnn, &out->cudnn_found);
#else
    snprintf(out->cudnn_found.why, sizeof out->cudnn_found.why, "built without cuDNN's headers");
#endif
}
