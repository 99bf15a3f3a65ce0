/* Emulates device memory. It is one reserved range that the host can access only while a kernel or a copy
 * runs. So a program that accesses device memory from the host crashes here, as it would fail with a GPU.
 *
 * The range is a memfd. Other processes open it as they would open an allocation of a GPU (IPC). */
#include "tests/gpu/emulator/memory.h"
#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/stream.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST_BLOCKS = 65536, MOST_PEERS = 64, MOST_PINNED = 4096 };

typedef struct memory_block {
    size_t offset, bytes;
    int used;
} memory_block;

/* Memory that the GPU can access although it belongs to another process or to the host. */
typedef struct reached_block {
    char *data; /* NULL if the entry is free. */
    size_t bytes;
} reached_block;

/* Content of a memory handle. */
typedef struct exported {
    int64_t process;
    int fd;
    uint64_t offset, bytes;
} exported;

_Static_assert(sizeof(exported) <= sizeof(cudaIpcMemHandle_t), "a handle must fit");

/* Each process has one emulated GPU. */
static struct {
    pthread_mutex_t lock;
    char *space;
    int fd;
    size_t size, end; /* Size of the reserved range, and the end of the bytes that have been used so far. */
    memory_block blocks[MOST_BLOCKS];
    int block_count, open;
    size_t used;                       /* Bytes of blocks in use. */
    reached_block peers[MOST_PEERS];   /* Memory of other processes. */
    reached_block pinned[MOST_PINNED]; /* Pinned memory of the host. */
    int pinned_count;                  /* Number of entries of `pinned` that have been used so far. */
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the range -------------------------------------------------------------------------------- */

/* Returns the size of the GPU's memory: EMULATED_BYTES if it is set, with which tests make the memory
 * small. */
static size_t size_of_gpu(void)
{
    const char *asked = getenv("EMULATED_BYTES");
    return asked ? strtoull(asked, NULL, 10) : (size_t)8 << 30;
}

static void reserve(void)
{
    if (gpu.space) return;
    gpu.size = size_of_gpu();
    gpu.fd = memfd_create("emulated-gpu", MFD_CLOEXEC);
    if (gpu.fd < 0 || ftruncate(gpu.fd, (off_t)gpu.size) != 0) abort();
    gpu.space = mmap(NULL, gpu.size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, gpu.fd, 0);
    if (gpu.space == MAP_FAILED) abort();
}

static int protection(void)
{
    return gpu.open > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
}

static void protect(void)
{
    if (gpu.end) mprotect(gpu.space, gpu.end, protection());
    for (int i = 0; i < MOST_PEERS; i++)
        if (gpu.peers[i].data) mprotect(gpu.peers[i].data, gpu.peers[i].bytes, protection());
}

void emulator_open_memory(void)
{
    pthread_mutex_lock(&gpu.lock);
    if (gpu.open++ == 0) protect();
    pthread_mutex_unlock(&gpu.lock);
}

void emulator_close_memory(void)
{
    pthread_mutex_lock(&gpu.lock);
    if (--gpu.open == 0) protect();
    pthread_mutex_unlock(&gpu.lock);
}

/* The caller holds the lock. */
static reached_block *find_peer(const void *data)
{
    const char *at = data;
    for (int i = 0; i < MOST_PEERS; i++)
        if (gpu.peers[i].data && at >= gpu.peers[i].data && at < gpu.peers[i].data + gpu.peers[i].bytes)
            return &gpu.peers[i];
    return NULL;
}

bool emulator_owns(const void *data)
{
    const char *at = data;
    pthread_mutex_lock(&gpu.lock);
    bool own = gpu.space && at >= gpu.space && at < gpu.space + gpu.size;
    bool found = own || find_peer(data);
    pthread_mutex_unlock(&gpu.lock);
    return found;
}

/* ---- allocation ------------------------------------------------------------------------------- */

static memory_block *find_free(size_t bytes)
{
    for (int i = 0; i < gpu.block_count; i++)
        if (!gpu.blocks[i].used && gpu.blocks[i].bytes == bytes) return &gpu.blocks[i];
    if (gpu.block_count == MOST_BLOCKS || gpu.size - gpu.end < bytes) return NULL;
    memory_block *b = &gpu.blocks[gpu.block_count++];
    *b = (memory_block){.offset = gpu.end, .bytes = bytes};
    gpu.end += bytes;
    return b;
}

static memory_block *find_block(const void *data)
{
    for (int i = 0; i < gpu.block_count; i++)
        if (gpu.space + gpu.blocks[i].offset == data) return &gpu.blocks[i];
    return NULL;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&gpu.lock);
    reserve();
    memory_block *b = find_free(rounded);
    if (b) {
        b->used = 1;
        gpu.used += b->bytes;
        *out = gpu.space + b->offset;
        protect();
    }
    pthread_mutex_unlock(&gpu.lock);
    return b ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *data)
{
    emulator_drain_all();
    pthread_mutex_lock(&gpu.lock);
    memory_block *b = find_block(data);
    if (b) {
        b->used = 0;
        gpu.used -= b->bytes;
        fallocate(gpu.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->offset, (off_t)b->bytes);
    }
    pthread_mutex_unlock(&gpu.lock);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    pthread_mutex_lock(&gpu.lock);
    reserve();
    *total = gpu.size;
    *available = gpu.size - gpu.used;
    pthread_mutex_unlock(&gpu.lock);
    return cudaSuccess;
}

static reached_block *find_pinned(const void *data)
{
    const char *at = data;
    for (int i = 0; i < gpu.pinned_count; i++)
        if (gpu.pinned[i].data && at >= gpu.pinned[i].data && at < gpu.pinned[i].data + gpu.pinned[i].bytes)
            return &gpu.pinned[i];
    return NULL;
}

cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&gpu.lock);
    int i = 0;
    while (i < gpu.pinned_count && gpu.pinned[i].data) i++;
    bool room = i < MOST_PINNED;
    if (room) gpu.pinned[i] = (reached_block){data, bytes};
    if (room && i == gpu.pinned_count) gpu.pinned_count++;
    pthread_mutex_unlock(&gpu.lock);
    return room ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaHostUnregister(void *data)
{
    pthread_mutex_lock(&gpu.lock);
    reached_block *p = find_pinned(data);
    if (p) *p = (reached_block){0};
    pthread_mutex_unlock(&gpu.lock);
    return p ? cudaSuccess : cudaErrorInvalidValue;
}

/* A page in front of pinned memory holds its size. */
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    char *data = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return cudaErrorMemoryAllocation;
    *(uint64_t *)data = bytes + PAGE;
    *out = data + PAGE;
    return cudaHostRegister(*out, bytes, 0);
}

cudaError_t cudaFreeHost(void *data)
{
    uint64_t *head = (uint64_t *)((char *)data - PAGE);
    emulator_drain_all();
    cudaHostUnregister(data);
    munmap(head, *head);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags)
{
    (void)flags;
    *out = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *data)
{
    pthread_mutex_lock(&gpu.lock);
    bool pinned = find_pinned(data);
    pthread_mutex_unlock(&gpu.lock);
    out->type = emulator_owns(data) ? cudaMemoryTypeDevice
                : pinned            ? cudaMemoryTypeHost
                                    : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

/* ---- memory of other processes ---------------------------------------------------------------- */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *data)
{
    pthread_mutex_lock(&gpu.lock);
    const memory_block *b = find_block(data);
    exported e = {.process = getpid(), .fd = gpu.fd, .offset = b ? b->offset : 0, .bytes = b ? b->bytes : 0};
    pthread_mutex_unlock(&gpu.lock);
    memcpy(out->reserved, &e, sizeof e);
    return b ? cudaSuccess : cudaErrorInvalidValue;
}

static char *map_exported(const exported *e)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)e->process, e->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *data = mmap(NULL, e->bytes, protection(), MAP_SHARED | MAP_NORESERVE, fd, (off_t)e->offset);
    close(fd);
    return data == MAP_FAILED ? NULL : data;
}

/* As in CUDA, a process cannot open a handle that it has made itself. */
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    exported e;
    cudaError_t code = cudaErrorMemoryAllocation;
    memcpy(&e, handle.reserved, sizeof e);
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    if (e.process == getpid()) return cudaErrorDeviceUninitialized;
    pthread_mutex_lock(&gpu.lock);
    for (int i = 0; i < MOST_PEERS && code != cudaSuccess; i++) {
        if (gpu.peers[i].data) continue;
        char *data = map_exported(&e);
        if (!data) break;
        gpu.peers[i] = (reached_block){data, e.bytes};
        *out = data;
        code = cudaSuccess;
    }
    pthread_mutex_unlock(&gpu.lock);
    return code;
}

cudaError_t cudaIpcCloseMemHandle(void *data)
{
    pthread_mutex_lock(&gpu.lock);
    reached_block *p = find_peer(data);
    if (p) munmap(p->data, p->bytes);
    if (p) *p = (reached_block){0};
    pthread_mutex_unlock(&gpu.lock);
    return p ? cudaSuccess : cudaErrorInvalidValue;
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* Sets whole pages to zero by giving them back to the system. Returns the number of cleared bytes. */
static size_t clear_pages(char *data, size_t bytes)
{
    size_t whole = bytes / PAGE * PAGE;
    if (data < gpu.space || data >= gpu.space + gpu.size || (size_t)(data - gpu.space) % PAGE) return 0;
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return whole && fallocate(gpu.fd, mode, data - gpu.space, (off_t)whole) == 0 ? whole : 0;
}

typedef struct fill {
    void *data;
    int value;
    size_t bytes;
} fill;

static void run_fill(void *context)
{
    const fill *f = context;
    size_t cleared = f->value == 0 ? clear_pages(f->data, f->bytes) : 0;
    emulator_open_memory();
    memset((char *)f->data + cleared, f->value, f->bytes - cleared);
    emulator_close_memory();
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t s)
{
    fill f = {data, value, bytes};
    if (!emulator_record(s, run_fill, &f, sizeof f)) run_fill(&f);
    return cudaSuccess;
}

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
} copy;

static void run_copy(void *context)
{
    const copy *c = context;
    emulator_open_memory();
    memmove(c->to, c->from, c->bytes);
    emulator_close_memory();
}

static bool is_ordinary(const void *data)
{
    struct cudaPointerAttributes a;
    return cudaPointerGetAttributes(&a, data) == cudaSuccess && a.type == cudaMemoryTypeUnregistered;
}

/* As in CUDA, a copy from or to ordinary memory of the host has ended when the call returns. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    emulator_count(&emulator_control.copies);
    copy c = {to, from, bytes};
    (void)kind;
    if (!emulator_record(s, run_copy, &c, sizeof c))
        run_copy(&c);
    else if (!s->capture && emulator_has_threads() && (is_ordinary(to) || is_ordinary(from)))
        emulator_drain(s);
    return cudaSuccess;
}
