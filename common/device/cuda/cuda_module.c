#include "common/device/cuda/cuda_module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char file_name[] = "libpsring_cuda.so";

static const cuda_host host = {.fail = fail,
                               .error_context = error_context,
                               .error_copy = error_copy,
                               .error_adopt = error_adopt,
                               .log_line = log_line};

static void folder_of_program(char *out, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    out[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
}

/* The first of the places where the file is; NULL if it is nowhere. */
static const char *find(char *path, size_t size)
{
    char folder[PATH_MAX];
    const char *named = getenv("PSRING_CUDA_MODULE");
    if (named) {
        snprintf(path, size, "%s", named);
        return path;
    }
    folder_of_program(folder, sizeof folder);
    snprintf(path, size, "%s/%s", folder, file_name);
    if (access(path, R_OK) == 0) return path;
    snprintf(path, size, "%s/../lib/psring/%s", folder, file_name);
    if (access(path, R_OK) == 0) return path;
    snprintf(path, size, "%s/%s", PSRING_MODULE_DIR, file_name);
    return access(path, R_OK) == 0 ? path : NULL;
}

status cuda_module_open(const cuda_module **out, void **library)
{
    char path[PATH_MAX + 64];
    *out = NULL;
    if (!find(path, sizeof path))
        return fail(STATUS_UNAVAILABLE,
                    "device cuda: the module %s is not installed: this program was built without the CUDA "
                    "Toolkit; use --device cpu",
                    file_name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return fail(STATUS_UNAVAILABLE, "device cuda: the module cannot be opened: %s", dlerror());
    const cuda_module *module = dlsym(handle, CUDA_MODULE_SYMBOL);
    if (!module || module->version != CUDA_MODULE_VERSION || module->layout != CUDA_MODULE_LAYOUT)
        return fail(STATUS_UNAVAILABLE, "device cuda: %s was built from another version of this program", path);
    module->attach(&host);
    if (library) *library = handle;
    *out = module;
    return STATUS_OK;
}

int cuda_count_gpus(void)
{
    const cuda_module *module;
    char path[PATH_MAX + 64];
    if (!find(path, sizeof path) || cuda_module_open(&module, NULL) != STATUS_OK) {
        error_clear();
        return 0;
    }
    return module->count_gpus();
}

/* A device that the module opened has the module's back end: nothing but open comes here. */
static status open_through_module(const device_config *config, device **out)
{
    const cuda_module *module;
    TRY(cuda_module_open(&module, NULL));
    return module->backend->open(config, out);
}

const device_backend device_cuda = {.name = "cuda", .open = open_through_module};
