/* Records the launches of a stream as CUDA graphs, and replays them.
 *
 * Copies from or to the host, marks and fences cannot be part of a graph. Before a copy, a mark or a
 * fence, the stream therefore ends the current graph and launches it. The next launch begins a new graph.
 * In a replay, launches do nothing, because the recorded graphs contain them. */
#include "common/device/record.h"

#include <stdlib.h>

struct device_record {
    device_graph **graphs; /* [capacity] in the order of their launches */
    int count, capacity;
    int launched;  /* number of graphs launched since device_record_begin() */
    bool complete; /* true if the recording has ended, so the graphs are replayed */
    bool in_graph; /* true if a launch has been made since the last graph ended */
};

_Thread_local device_stream *device_recording;

status device_record_begin(device_stream *s, device_record **record)
{
    if (!s->device->backend->capture_begin)
        return fail(STATUS_CONFIG, "--cuda-graph: expected --device cuda, got %s", s->device->backend->name);
    if (!*record) *record = calloc(1, sizeof **record);
    if (!*record) return fail(STATUS_SYSTEM, "no memory for the record of a pass");
    (*record)->launched = 0;
    s->record = *record;
    device_recording = s;
    return STATUS_OK;
}

bool device_join_graph(device_stream *s, status *rc)
{
    device_record *r = s->record;
    if (!r->in_graph && !r->complete) *rc = s->device->backend->capture_begin(s);
    r->in_graph = *rc == STATUS_OK;
    return r->complete || *rc != STATUS_OK;
}

static status capture_graph(device_stream *s, device_record *r)
{
    device_graph *graph = NULL;
    TRY(s->device->backend->capture_end(s, &graph));
    if (r->count == r->capacity) {
        int capacity = 2 * r->capacity + 4;
        device_graph **more = realloc(r->graphs, (size_t)capacity * sizeof *more);
        if (!more) {
            s->device->backend->graph_close(graph);
            return fail(STATUS_SYSTEM, "no memory for the record of a pass");
        }
        r->graphs = more;
        r->capacity = capacity;
    }
    r->graphs[r->count++] = graph;
    return STATUS_OK;
}

status device_leave_graph(device_stream *s)
{
    device_record *r = s->record;
    if (!r->in_graph) return STATUS_OK;
    r->in_graph = false;
    if (!r->complete) TRY(capture_graph(s, r));
    if (r->launched == r->count)
        return fail(STATUS_INTERNAL, "a recorded pass has more graphs than its record");
    return device_launch_graph(s, r->graphs[r->launched++]);
}

status device_record_end(device_stream *s)
{
    device_record *r = s->record;
    status rc = device_leave_graph(s);
    s->record = NULL;
    device_recording = NULL;
    r->complete = true;
    if (rc == STATUS_OK && r->launched < r->count)
        return fail(STATUS_INTERNAL, "a recorded pass has %d graphs, its record %d", r->launched, r->count);
    return rc;
}

void device_record_close(device_record **record)
{
    device_record *r = *record;
    for (int i = 0; r && i < r->count; i++) r->graphs[i]->device->backend->graph_close(r->graphs[i]);
    if (r) free(r->graphs);
    free(r);
    *record = NULL;
}
