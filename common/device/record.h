/* Internals of device.c: recording and replaying launches. */
#ifndef COMMON_DEVICE_RECORD_H
#define COMMON_DEVICE_RECORD_H

#include "common/device/device_impl.h"

/* The stream whose launches this thread records or replays, or NULL. */
extern _Thread_local device_stream *device_recording;

bool device_join_graph(device_stream *s, status *rc);
status device_leave_graph(device_stream *s);
status device_launch_graph(device_stream *s, device_graph *graph);

/* Begins a graph if the stream has a record. Called before a launch. Returns true if the launch must not be
 * made: either a replayed graph contains the launch, or an error occurred and *rc is its status. */
static inline bool device_is_replayed(device_stream *s, status *rc)
{
    *rc = STATUS_OK;
    return s->record && device_join_graph(s, rc);
}

/* If this thread records or replays a stream, ends the stream's current graph and launches it. Called before
 * a call that cannot be part of a graph. */
static inline status device_end_graph(void)
{
    return device_recording ? device_leave_graph(device_recording) : STATUS_OK;
}

#endif
