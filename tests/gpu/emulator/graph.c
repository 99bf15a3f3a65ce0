/* Emulated graphs: lists of what was enqueued while a stream was captured. */
#include <cuda_runtime_api.h>

#include <stdlib.h>
#include <string.h>

struct emulated_stream {
    struct emulated_graph *capture;
};

typedef struct node {
    void (*run)(void *context);
    void *context;
} node;

struct emulated_graph {
    node *nodes;
    int count, capacity;
};

int emulator_record(cudaStream_t s, void (*run)(void *context), const void *context, size_t bytes)
{
    struct emulated_graph *g = s ? s->capture : NULL;
    if (!g) return 0;
    if (g->count == g->capacity) {
        g->capacity = 2 * g->capacity + 16;
        g->nodes = realloc(g->nodes, (size_t)g->capacity * sizeof *g->nodes);
        if (!g->nodes) abort();
    }
    node *n = &g->nodes[g->count++];
    *n = (node){run, malloc(bytes)};
    if (!n->context) abort();
    memcpy(n->context, context, bytes);
    return 1;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    if (s->capture) return cudaErrorInvalidValue;
    s->capture = calloc(1, sizeof *s->capture);
    return s->capture ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    *out = s->capture;
    s->capture = NULL;
    return *out ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *nodes, size_t *count)
{
    *count = (size_t)graph->count;
    return nodes ? cudaErrorInvalidValue : cudaSuccess;
}

/* The executable graph takes the nodes: the recorded one is empty from then on. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    **out = *graph;
    *graph = (struct emulated_graph){NULL, 0, 0};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s)
{
    if (s->capture) return cudaErrorInvalidValue;
    for (int i = 0; i < graph->count; i++) graph->nodes[i].run(graph->nodes[i].context);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    for (int i = 0; i < graph->count; i++) free(graph->nodes[i].context);
    free(graph->nodes);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    return cudaGraphDestroy(graph);
}
