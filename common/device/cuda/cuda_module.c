#include "common/device/cuda/cuda_module.h"

#include "common/base/program.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char file_name[] = "libpsring_cuda.so";

static bool find_file(char *path, size_t size)
{
    static const char *const folders[] = {"", "/../lib/psring"};
    const char *named = getenv("PSRING_CUDA_MODULE");
    char program[PATH_MAX];
    if (named) {
        snprintf(path, size, "%s", named);
        return true;
    }
    program_folder(program);
    for (int i = 0; i < 2; i++) {
        snprintf(path, size, "%s%s/%s", program, folders[i], file_name);
        if (access(path, R_OK) == 0) return true;
    }
    snprintf(path, size, "%s/%s", PSRING_MODULE_DIR, file_name);
    return access(path, R_OK) == 0;
}

static status open_module(void **library, const cuda_module **out)
{
    char path[PATH_MAX + 64];
    if (!find_file(path, sizeof path))
        return fail(STATUS_UNAVAILABLE,
                    "device cuda: the module %s is not installed: this program was built without the CUDA "
                    "Toolkit; use --device cpu",
                    file_name);
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*library) return fail(STATUS_UNAVAILABLE, "device cuda: the module cannot be opened: %s", dlerror());
    const cuda_module *module = dlsym(*library, CUDA_MODULE_SYMBOL);
    if (!module || module->version != CUDA_MODULE_VERSION || module->layout != CUDA_MODULE_LAYOUT)
        return fail(STATUS_UNAVAILABLE, "device cuda: %s was built from another version of this program",
                    path);
    *out = module;
    return STATUS_OK;
}

status cuda_module_open(const cuda_module **out)
{
    void *library;
    *out = NULL;
    return open_module(&library, out);
}

status cuda_module_find(const char *symbol, const void **out)
{
    void *library;
    const cuda_module *module;
    TRY(open_module(&library, &module));
    *out = dlsym(library, symbol);
    return STATUS_OK;
}

int cuda_count_gpus(void)
{
    const cuda_module *module;
    if (cuda_module_open(&module) == STATUS_OK) return module->count_gpus();
    error_clear();
    return 0;
}

static status load(const device_backend **backend)
{
    const cuda_module *module;
    TRY(cuda_module_open(&module));
    *backend = module->backend;
    return STATUS_OK;
}

const device_backend device_cuda = {.name = "cuda", .load = load};
