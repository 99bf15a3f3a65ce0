/* A timeline of a rank. Events are recorded into memory that is allocated before the first step, and written
 * as Chrome's trace events, which Perfetto also reads ("Trace Event Format", Duman et al., 2016).
 *
 * A rank appears as a process with a few tracks of nested slices. A stream has a track only if slices have
 * been recorded for it, as on virtual devices. Another track shows the parts of a step
 * (common/sync/anatomy.h). The communication of several buckets or keys may overlap in time, so the
 * communication of each bucket or key is an asynchronous slice. A flow is an arrow through slices. It leads
 * from the gradient that completed a bucket to the communication of the bucket, and to the wait for the
 * bucket.
 *
 * Any thread may record events. If the trace is NULL, every function does nothing. All ranks use the same
 * clock. */
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

/* Allocates room for `capacity` events. Further events are counted but not recorded. Recording begins with
 * trace_switch(). */
status trace_open(int64_t capacity, trace **out);
void trace_close(trace **t);
void trace_switch(trace *t, bool on);
bool trace_is_on(const trace *t);
int64_t trace_dropped(const trace *t);

/* Records a slice. Borrows `name`, which is a literal. If there is an index, the viewer shows "name 3". */
void trace_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                 int64_t end_ns);
/* Records a slice even if recording is off. Used for a slice that encloses events recorded earlier. */
void trace_late_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                      int64_t end_ns);
/* Records an asynchronous slice. `id` distinguishes slices of the same name that overlap. */
void trace_async(trace *t, const char *name, int64_t index, int64_t id, int64_t begin_ns, int64_t end_ns);
/* Records a point of a flow. All points of a flow have the same id, and each point lies in a slice of
 * `track`. */
void trace_flow(trace *t, trace_flow_point point, trace_track track, int64_t id, int64_t ns);
/* Records the logical bytes of every class of the ledger at a time. */
void trace_memory(trace *t, int64_t ns, const int64_t bytes[LEDGER_CLASS_COUNT]);

/* A recorded event. Events may be read after the recorded work has ended. For a point of a flow, begin_ns is
 * the time of the point. For memory, `name` is a class of the ledger, and end_ns is the number of bytes of
 * this class. */
typedef enum trace_kind { TRACE_SLICE, TRACE_ASYNC, TRACE_FLOW, TRACE_MEMORY } trace_kind;
typedef struct trace_entry {
    trace_kind kind;
    trace_track track;
    trace_flow_point point; /* used only by points of flows */
    const char *name;
    int64_t index, id, begin_ns, end_ns;
} trace_entry;

/* Reads entry `i`, from 0, in the order of recording. Returns false if there is none. */
bool trace_read(const trace *t, int64_t i, trace_entry *out);

/* Appends the name that the viewer shows for a process or a thread, and the sort index `place`. `thread` is 0
 * for the process. */
void trace_write_name(int process, int thread, const char *name, int place, text_buffer *out);

/* Appends the events as JSON objects, each followed by a comma. `process` is a number that identifies the
 * rank in the file. The viewer shows `name` for this rank. */
void trace_write(const trace *t, int process, const char *name, text_buffer *out);

#endif
