/* A timeline of a rank. Events are recorded into memory that is allocated before the first step, and written
 * as Chrome's trace events, which Perfetto also reads ("Trace Event Format", Duman et al., 2016).
 *
 * A rank appears as a process with a few tracks of nested slices. A stream has a track only if it has slices,
 * as on virtual devices. Another track shows the parts of a step (common/sync/anatomy.h). Buckets and keys in
 * flight overlap, so they are asynchronous slices. A flow is an arrow through slices: from the gradient that
 * completed a bucket, to the bucket's communication, to the wait for the bucket.
 *
 * Any thread may record. Every function accepts NULL and then does nothing. All ranks use one clock. */
#ifndef COMMON_TRACE_TRACE_H
#define COMMON_TRACE_TRACE_H

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/memory/ledger.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct trace trace;

/* Columns: name, name in the viewer. The rows are in the order of display. */
#define TRACE_TRACK_LIST(X)                                                                                  \
    X(COMPUTE, "compute")                                                                                    \
    X(COMMUNICATION, "communication")                                                                        \
    X(OPTIMIZER, "optimizer")                                                                                \
    X(COMPUTE_STREAM, "compute stream")                                                                      \
    X(COPY_STREAM, "copy stream")                                                                            \
    X(PARTS, "parts of the step")

#define TRACE_TRACK_ENUM(name, text) TRACE_##name,
typedef enum trace_track { TRACE_TRACK_LIST(TRACE_TRACK_ENUM) TRACE_TRACKS } trace_track;
#undef TRACE_TRACK_ENUM

enum { TRACE_NO_INDEX = -1 };

typedef enum trace_flow_point { TRACE_FLOW_BEGIN, TRACE_FLOW_STEP, TRACE_FLOW_END } trace_flow_point;

/* Allocates room for `capacity` events. Later events are only counted. Records nothing until
 * trace_switch(). */
status trace_open(int64_t capacity, trace **out);
void trace_close(trace **t);
void trace_switch(trace *t, bool on);
bool trace_is_on(const trace *t);
int64_t trace_dropped(const trace *t);

/* Records a slice. Borrows `name`, which is a literal. If there is an index, the viewer shows "name 3". */
void trace_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                 int64_t end_ns);
/* Records a slice even if the trace is off, for a slice that encloses earlier events. */
void trace_late_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                      int64_t end_ns);
/* Records an interval in flight. `id` distinguishes intervals with the same name at the same time. */
void trace_async(trace *t, const char *name, int64_t index, int64_t id, int64_t begin_ns, int64_t end_ns);
/* Records a point of a flow. All points of a flow have the same id, and each lies in a slice of its track. */
void trace_flow(trace *t, trace_flow_point point, trace_track track, int64_t id, int64_t ns);
/* Records the logical bytes of every class. */
void trace_memory(trace *t, int64_t ns, const int64_t bytes[LEDGER_CLASS_COUNT]);

/* A recorded event. Events may be read after the recorded work has ended. In a flow, begin_ns is the time of
 * the point. In memory events, `name` is a class of the ledger and end_ns its bytes. */
typedef enum trace_kind { TRACE_SLICE, TRACE_ASYNC, TRACE_FLOW, TRACE_MEMORY } trace_kind;
typedef struct trace_entry {
    trace_kind kind;
    trace_track track;
    trace_flow_point point; /* only in flows */
    const char *name;
    int64_t index, id, begin_ns, end_ns;
} trace_entry;

/* Reads entry `i`, from 0, in the order of recording. Returns false if there is none. */
bool trace_read(const trace *t, int64_t i, trace_entry *out);

/* Appends the name that the viewer shows, and the sort index, of a process (`thread` 0) or of one of its
 * threads. */
void trace_write_name(int process, int thread, const char *name, int place, text_buffer *out);

/* Appends the events as JSON objects, each followed by a comma. `process` is a number for the rank, which is
 * unique in the file. The viewer shows `name`. */
void trace_write(const trace *t, int process, const char *name, text_buffer *out);

#endif
