/* Emulates graphs. A graph is a list of the work that was enqueued while its stream was captured. */
#include "tests/gpu/emulator/stream.h"

#include <stdlib.h>
#include <string.h>

typedef struct node {
    void (*run)(void *context);
    void *context;
} node;

struct emulated_graph {
    node *nodes;
    int count, capacity;
};

/* Work that never waits. A copy of its context follows. */
typedef struct plain_work {
    void (*run)(void *context);
    void *context;
} plain_work;

static bool run_plain(void *context)
{
    const plain_work *w = context;
    emulator_pause();
    w->run(w->context);
    free(w->context);
    return true;
}

static int keep_plain(cudaStream_t s, void (*run)(void *context), const void *context, size_t bytes)
{
    plain_work w = {run, malloc(bytes)};
    if (!w.context) abort();
    memcpy(w.context, context, bytes);
    if (emulator_keep(s, run_plain, &w, sizeof w)) return 1;
    free(w.context);
    return 0;
}

int emulator_record(cudaStream_t s, void (*run)(void *context), const void *context, size_t bytes)
{
    struct emulated_graph *g = s ? s->capture : NULL;
    if (!g) return keep_plain(s, run, context, bytes);
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

/* Moves the nodes into the executable graph. The recorded graph is empty afterwards. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    **out = *graph;
    *graph = (struct emulated_graph){NULL, 0, 0};
    return cudaSuccess;
}

static bool run_graph(void *context)
{
    cudaGraphExec_t graph = *(cudaGraphExec_t *)context;
    for (int i = 0; i < graph->count; i++) {
        emulator_pause();
        graph->nodes[i].run(graph->nodes[i].context);
    }
    return true;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s)
{
    if (s->capture) return cudaErrorInvalidValue;
    if (!emulator_keep(s, run_graph, &graph, sizeof graph)) run_graph(&graph);
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
