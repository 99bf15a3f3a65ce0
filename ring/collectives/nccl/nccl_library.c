#include "ring/collectives/nccl/nccl_library.h"

#include <dlfcn.h>
#include <stdio.h>

enum { LEAST_VERSION = 21900 };

#define NCCL_SYMBOL(member, symbol) {#symbol, offsetof(nccl_library, member)},
static const struct {
    const char *name;
    size_t offset; /* of the pointer in the table */
} symbols[] = {NCCL_FUNCTIONS(NCCL_SYMBOL)};

static void *find(char *why, size_t size)
{
    static const char *const names[] = {"libnccl.so.2", PSRING_NCCL_PATH};
    void *library = NULL;
    why[0] = '\0';
    for (int i = 0; i < 2 && !library; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!library && i == 0) snprintf(why, size, "%s", dlerror());
    }
    return library;
}

bool nccl_library_open(nccl_library *out, char *why, size_t size)
{
    int version = 0;
    void *library = find(why, size);
    if (!library) return false;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *function = dlsym(library, symbols[i].name);
        *(void **)((char *)out + symbols[i].offset) = function;
        if (function) continue;
        snprintf(why, size, "libnccl.so.2 has no %s: 2.19 or later is needed", symbols[i].name);
        return false;
    }
    if (out->version(&version) == ncclSuccess && version >= LEAST_VERSION) return true;
    snprintf(why, size, "found version %d.%d, 2.19 or later is needed", version / 10000, version / 100 % 100);
    return false;
}
