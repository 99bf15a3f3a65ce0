/* The programs of a sweep, and their hashes, which keep results of different builds apart. */
#include "harness/sweep/sweep.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

const char *sweep_program(const sweep *s, int point)
{
    return s->builds ? sweep_value(s, point, 0) : "/proc/self/exe";
}

static status hash_file(const char *path, uint64_t *out)
{
    struct stat about = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool is_open = file >= 0 && fstat(file, &about) == 0;
    size_t bytes = (size_t)about.st_size;
    void *at = is_open && bytes ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0) : NULL;
    status rc = !is_open || at == MAP_FAILED ? fail_errno(STATUS_UNAVAILABLE, "%s", path) : STATUS_OK;
    if (rc == STATUS_OK) *out = XXH3_64bits(at, bytes);
    if (rc == STATUS_OK && at) munmap(at, bytes);
    if (file >= 0) close(file);
    return rc;
}

status sweep_programs(const sweep *s, json_t **out)
{
    int count = s->builds ? s->points : 1;
    *out = json_array();
    status rc = STATUS_OK;
    for (int i = 0; i < count && rc == STATUS_OK; i++) {
        uint64_t hash = 0;
        rc = hash_file(sweep_program(s, i), &hash);
        if (rc == STATUS_OK) json_array_append_new(*out, json_sprintf("%016llx", (unsigned long long)hash));
    }
    return rc;
}
