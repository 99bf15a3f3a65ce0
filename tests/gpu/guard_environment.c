/* Preloaded into a process. Ends the process if a thread other than the main thread adds a variable to the
 * environment. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*setter)(const char *name, const char *value, int overwrite);

__attribute__((visibility("default"))) int setenv(const char *name, const char *value, int overwrite)
{
    if (gettid() != getpid() && !getenv(name)) {
        fprintf(stderr, "a thread adds %s to the environment\n", name);
        _exit(99);
    }
    setter next;
    *(void **)&next = dlsym(RTLD_NEXT, "setenv");
    return next(name, value, overwrite);
}
