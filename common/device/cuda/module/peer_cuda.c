/* Memory of one rank's GPU, opened by another rank of the machine (CUDA Runtime API, "cudaIpcGetMemHandle",
 * "cudaIpcOpenMemHandle"). A handle cannot be opened in the process that made it; ranks that are threads of
 * one process use the pointer as it is, which is valid on every GPU (unified addressing); copies between GPUs go straight
 * where peer access is enabled ("cudaDeviceEnablePeerAccess"), else through the host. */
#include "common/device/cuda/module/cuda_impl.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct cuda_share_record {
    cudaIpcMemHandle_t handle;
    uint64_t process, processes; /* the owner: its number, and the numbering that it is of */
    void *data;
    int32_t exported, rank, gpu;
} cuda_share_record;

_Static_assert(sizeof(cuda_share_record) <= DEVICE_SHARE_BYTES, "a description of memory must fit");

static uint64_t numbering_of_processes(void)
{
    struct stat s;
    return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

status cuda_share(device *base, const device_memory *memory, device_share *out)
{
    cuda_device *d = (cuda_device *)base;
    cuda_share_record record = {.process = (uint64_t)getpid(),
                                .processes = numbering_of_processes(),
                                .data = memory->data,
                                .rank = base->config.rank,
                                .gpu = d->gpu};
    TRY(cuda_use(d));
    cudaError_t code = cudaIpcGetMemHandle(&record.handle, memory->data);
    if (code != cudaSuccess) cudaGetLastError();
    record.exported = code == cudaSuccess;
    memcpy(out->bytes, &record, sizeof record);
    return STATUS_OK;
}

/* Without it copies are slower, and right. */
static status enable_access(const cuda_device *d, int gpu)
{
    int possible = 0;
    if (gpu == d->gpu) return STATUS_OK;
    TRY(cuda_use(d));
    if (cudaDeviceCanAccessPeer(&possible, d->gpu, gpu) == cudaSuccess && possible) cudaDeviceEnablePeerAccess(gpu, 0);
    cudaGetLastError(); /* it may have been enabled before */
    return STATUS_OK;
}

status cuda_peer_open(device *base, const device_share *share, device_peer *out)
{
    cuda_device *d = (cuda_device *)base;
    cuda_share_record record;
    memcpy(&record, share->bytes, sizeof record);
    if (record.process == (uint64_t)getpid() && record.processes == numbering_of_processes()) {
        *out = (device_peer){.data = record.data};
        return enable_access(d, record.gpu);
    }
    if (!record.exported)
        return fail(STATUS_CONFIG, "the driver does not export memory of rank %d's GPU to other processes (CUDA IPC)",
                    record.rank);
    TRY(cuda_use(d));
    cudaError_t code = cudaIpcOpenMemHandle(&out->data, record.handle, cudaIpcMemLazyEnablePeerAccess);
    if (code != cudaSuccess) {
        cudaGetLastError();
        return fail(STATUS_CONFIG, "rank %d, GPU %d cannot open memory of rank %d's GPU: %s (%s)", base->config.rank,
                    d->gpu, record.rank, cudaGetErrorString(code), cudaGetErrorName(code));
    }
    out->mapped = true;
    return STATUS_OK;
}

void cuda_peer_close(device *base, device_peer *peer)
{
    if (!peer->mapped) return;
    cudaSetDevice(((cuda_device *)base)->gpu);
    cudaIpcCloseMemHandle(peer->data);
}
