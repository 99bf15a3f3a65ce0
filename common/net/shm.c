#include "common/net/shm.h"

#include "common/base/random.h"
#include "common/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Checks the size of a segment before it is created. Without this check, Linux would create a segment that is
 * larger than the machine's memory, and kill processes later. A segment above the file size limit would kill
 * this process with SIGXFSZ. */
static status check_size(const char *name, int64_t bytes, const char *size)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    struct rlimit limit;
    char allowed[32];
    if (bytes < 1 || (double)bytes > memory)
        return fail(STATUS_SYSTEM, "shared memory '%s': expected at most the machine's %s, got %s", name,
                    text_format_bytes(allowed, sizeof allowed, memory), size);
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= (rlim_t)bytes)
        return STATUS_OK;
    return fail(STATUS_SYSTEM, "shared memory '%s' needs %s, the file size limit is %s: raise it (ulimit -f)",
                name, size, text_format_bytes(allowed, sizeof allowed, (double)limit.rlim_cur));
}

static status allocate(const char *name, int64_t bytes, const char *size, int fd)
{
    int result;
    do result = fallocate(fd, 0, 0, bytes);
    while (result != 0 && errno == EINTR);
    if (result != 0)
        return fail_errno(STATUS_SYSTEM, "shared memory '%s' needs %s, which the system does not have", name,
                          size);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return fail_errno(STATUS_SYSTEM, "shared memory '%s': its size cannot be sealed", name);
    return STATUS_OK;
}

static status map(int fd, int64_t bytes, const char *whose, shm_segment *out)
{
    void *data = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char size[32];
    if (data == MAP_FAILED)
        return fail_errno(STATUS_SYSTEM, "shared memory of %s: %s cannot be mapped", whose,
                          text_format_bytes(size, sizeof size, (double)bytes));
    *out = (shm_segment){.fd = fd, .data = data, .bytes = bytes};
    return STATUS_OK;
}

status shm_create(const char *name, int64_t bytes, shm_segment *out)
{
    char size[32];
    text_format_bytes(size, sizeof size, (double)bytes);
    TRY(check_size(name, bytes, size));
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail_errno(STATUS_SYSTEM, "shared memory '%s' needs %s and a file descriptor", name, size);
    /* The segment is mapped before its pages are allocated. mmap() fails if the segment exceeds ulimit -v,
     * and then no page has been allocated. */
    status result =
        ftruncate(fd, bytes) == 0
            ? map(fd, bytes, name, out)
            : fail_errno(STATUS_SYSTEM, "shared memory '%s' needs %s, it cannot be sized", name, size);
    if (result != STATUS_OK)
        close(fd);
    else if ((result = allocate(name, bytes, size, fd)) != STATUS_OK)
        shm_close(out);
    return result;
}

status shm_map(int fd, int64_t bytes, const char *whose, shm_segment *out)
{
    struct stat file;
    status result;
    if (fstat(fd, &file) != 0)
        result = fail_errno(STATUS_SYSTEM, "shared memory of %s: its size cannot be read", whose);
    else if (file.st_size < bytes)
        result = fail(STATUS_PROTOCOL, "shared memory of %s: got %" PRId64 " bytes, expected %" PRId64, whose,
                      (int64_t)file.st_size, bytes);
    /* Without this seal a peer could shrink the memfd while it is mapped here. */
    else if (!(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK))
        result = fail(STATUS_PROTOCOL, "shared memory of %s: not a sealed memfd", whose);
    else
        result = map(fd, bytes, whose, out);
    if (result != STATUS_OK) close(fd);
    return result;
}

void shm_close(shm_segment *segment)
{
    if (!segment->data) return;
    munmap(segment->data, (size_t)segment->bytes);
    close(segment->fd);
    *segment = (shm_segment){0};
}

uint64_t shm_host_id(void)
{
    char text[128] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text, 64);
        text[got > 0 ? got : 0] = '\0';
        close(fd);
    }
    struct stat space;
    size_t used = strlen(text);
    if (stat("/proc/self/ns/net", &space) == 0)
        snprintf(text + used, sizeof text - used, "net %ju", (uintmax_t)space.st_ino);
    return random_fnv1a64(text);
}
