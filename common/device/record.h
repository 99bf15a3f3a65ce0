/* Recorded launches, for device.c. */
#ifndef COMMON_DEVICE_RECORD_H
#define COMMON_DEVICE_RECORD_H

#include "common/device/device_impl.h"

/* The stream for which this thread has a record, or NULL. */
extern _Thread_local device_stream *device_recording;

bool device_join_graph(device_stream *s, status *rc);
status device_leave_graph(device_stream *s);
status device_launch_graph(device_stream *s, device_graph *graph);

/* Begins a graph if the stream has a record. Called before a launch. Returns true if the launch must not
 * be made, because a replayed graph contains it or because of the failure *rc. */
static inline bool device_is_replayed(device_stream *s, status *rc)
{
    *rc = STATUS_OK;
    return s->record && device_join_graph(s, rc);
}

/* Ends the graph of the stream for which this thread has a record, and launches the graph. Called before a
 * call that cannot be part of a graph. */
static inline status device_end_graph(void)
{
    return device_recording ? device_leave_graph(device_recording) : STATUS_OK;
}

#endif
