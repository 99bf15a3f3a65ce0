/* Recorded work: what is launched on a stream while it is captured becomes a CUDA graph, which one call launches
 * again with the operands and scalars that it had. Capture is per thread, so that other threads of the process go
 * on meanwhile (CUDA Runtime API, cudaThreadExchangeStreamCaptureMode). */
#include "common/device/cuda/module/cuda_impl.h"

#include <stdlib.h>

typedef struct cuda_graph {
    device_graph base;
    cudaGraphExec_t executable; /* NULL: nothing was recorded, and nothing is launched */
} cuda_graph;

status cuda_capture_begin(device_stream *base)
{
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    return cuda_check(d, cudaStreamBeginCapture(((cuda_stream *)base)->stream, cudaStreamCaptureModeThreadLocal),
                      "cudaStreamBeginCapture");
}

status cuda_capture_end(device_stream *base, device_graph **out)
{
    cuda_device *d = (cuda_device *)base->device;
    cudaGraph_t recorded = NULL;
    cuda_graph *g = calloc(1, sizeof *g);
    TRY(cuda_use(d));
    status rc = cuda_check(d, cudaStreamEndCapture(((cuda_stream *)base)->stream, &recorded), "cudaStreamEndCapture");
    if (rc == STATUS_OK && !g) rc = fail(STATUS_SYSTEM, "no memory for a graph");
    if (rc == STATUS_OK) {
        size_t count = 0;
        g->base.device = base->device;
        rc = cuda_check(d, cudaGraphGetNodes(recorded, NULL, &count), "cudaGraphGetNodes");
        log_debug("recorded a CUDA graph of %zu nodes", count);
        if (rc == STATUS_OK && count > 0)
            rc = cuda_check(d, cudaGraphInstantiate(&g->executable, recorded, 0), "cudaGraphInstantiate");
    }
    if (recorded) cudaGraphDestroy(recorded);
    if (rc != STATUS_OK) free(g);
    else *out = &g->base;
    return rc;
}

status cuda_graph_launch(device_stream *base, device_graph *graph)
{
    cuda_device *d = (cuda_device *)base->device;
    cudaGraphExec_t executable = ((cuda_graph *)graph)->executable;
    if (!executable) return STATUS_OK;
    TRY(cuda_use(d));
    return cuda_check(d, cudaGraphLaunch(executable, ((cuda_stream *)base)->stream), "cudaGraphLaunch");
}

void cuda_graph_close(device_graph *graph)
{
    cudaGraphExec_t executable = ((cuda_graph *)graph)->executable;
    cudaSetDevice(((cuda_device *)graph->device)->gpu);
    if (executable) cudaGraphExecDestroy(executable);
    free(graph);
}
