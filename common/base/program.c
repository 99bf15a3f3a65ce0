#include "common/base/program.h"

#include <string.h>
#include <unistd.h>

void program_folder(char out[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    out[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
}
