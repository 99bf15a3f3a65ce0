#include "common/device/host/host.h"

#include "common/base/text.h"
#include "common/reduce/reduce.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

static status no_memory(size_t bytes)
{
    char text[32];
    return fail_errno(STATUS_SYSTEM, "no memory for %s", text_format_bytes(text, sizeof text, (double)bytes));
}

static status map_shared(size_t bytes, device_memory *out)
{
    int fd = memfd_create("harness-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return fail_errno(STATUS_SYSTEM, "no shared memory (memfd_create)");
    /* The seals keep the memory from shrinking while peers have it mapped. */
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return no_memory(bytes);
    }
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (data == MAP_FAILED) {
        close(fd);
        return no_memory(bytes);
    }
    out->data = data;
    out->fd = fd;
    return STATUS_OK;
}

/* Maps anonymous memory. Aligns large memory to 2 MiB: maps 2 MiB more than needed and unmaps both ends. */
static void *map_private(size_t bytes)
{
    size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *start = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    if (!slack) return start;
    size_t head = (HUGE_PAGE - (size_t)start % HUGE_PAGE) % HUGE_PAGE;
    if (head) munmap(start, head);
    if (slack - head) munmap(start + head + bytes, slack - head);
    madvise(start + head, bytes, MADV_HUGEPAGE);
    return start + head;
}

/* Allocates PRIVATE memory with mmap and SHARED memory with a memfd. Private memory is zeroed and touched, so
 * that a step has no page faults; if it is large, huge pages are requested. */
status host_allocate(device *d, device_memory_kind kind, size_t bytes, device_memory *out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = (bytes + page - 1) / page * page;
    if (rounded == 0) rounded = page;
    out->bytes = rounded;
    if (kind == DEVICE_MEMORY_SHARED) return map_shared(rounded, out);
    out->data = map_private(rounded);
    if (!out->data) return no_memory(bytes);
    memset(out->data, 0, rounded);
    return STATUS_OK;
}

void host_free(device *d, device_memory *memory)
{
    munmap(memory->data, memory->bytes);
    if (memory->fd >= 0) close(memory->fd);
}

/* Copies elements of equal types, or of two floating-point types. */
static status convert(void *to, dtype to_type, const void *from, dtype from_type, int64_t count)
{
    if (to_type == from_type)
        memcpy(to, from, (size_t)(count * dtype_size(to_type)));
    else if (!reduce_converts(to_type, from_type))
        return fail(STATUS_INTERNAL, "no copy from %s to %s", dtype_name(from_type), dtype_name(to_type));
    else
        reduce_convert(to_type, to, from_type, from, count, 1);
    return STATUS_OK;
}

status host_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type, int64_t count)
{
    return s->device->info.real ? convert(to, type, host, host_type, count) : STATUS_OK;
}

status host_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                     int64_t count)
{
    return convert(host, host_type, from, type, count);
}

/* Converts with the kernels of common/reduce. This function and the following ones do nothing on a device
 * without tensor bytes. */
status host_convert(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                    int64_t count, double divisor)
{
    if (!s->device->info.real || (to == from && divisor == 1)) return STATUS_OK;
    if (to_type == from_type && divisor == 1)
        memmove(to, from, (size_t)(count * dtype_size(to_type)));
    else if (to == from)
        reduce_divide(to_type, to, from, count, divisor);
    else
        reduce_convert(to_type, to, from_type, from, count, divisor);
    return STATUS_OK;
}

status host_pack(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                 double divisor)
{
    for (int i = 0; i < count; i++)
        TRY(host_convert(s, ranges[i].to, to_type, ranges[i].from, from_type, ranges[i].count, divisor));
    return STATUS_OK;
}

status host_add(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count)
{
    if (s->device->info.real) reduce_pair(type, REDUCE_SUM, to, a, b, count);
    return STATUS_OK;
}

status host_clear(device_stream *s, void *data, size_t bytes)
{
    if (s->device->info.real) memset(data, 0, bytes);
    return STATUS_OK;
}
