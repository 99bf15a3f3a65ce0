/* A timeline of a rank: recorded into memory that is allocated before the first step, written as Chrome's
 * trace events, which Perfetto reads too ("Trace Event Format", Duman et al., 2016).
 *
 * A rank is a process with a few tracks, on which slices nest; those of streams are only there where
 * something is recorded on them (virtual devices); the parts of a step are those of its anatomy
 * (common/sync/anatomy.h). What overlaps (buckets and keys in flight) is in asynchronous slices. A flow is an
 * arrow through slices: from the gradient that made a bucket ready, to the communication that carried it, to
 * the wait that ended with it.
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

/* name, name in the viewer; in the order of display */
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

/* Where a flow passes. */
typedef enum trace_flow_point { TRACE_FLOW_BEGIN, TRACE_FLOW_STEP, TRACE_FLOW_END } trace_flow_point;

/* Allocates `capacity` events; the ones that do not fit are counted. Records nothing until it is switched on.
 */
status trace_open(int64_t capacity, trace **out);
void trace_close(trace **t);
void trace_switch(trace *t, bool on);
bool trace_is_on(const trace *t);
int64_t trace_dropped(const trace *t);

/* Names are borrowed: literals. With an index the viewer shows "name 3". */
void trace_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                 int64_t end_ns);
/* The same also after the trace was switched off: of a slice that holds what was recorded before. */
void trace_late_slice(trace *t, trace_track track, const char *name, int64_t index, int64_t begin_ns,
                      int64_t end_ns);
/* In flight; `id` distinguishes it from others of that name at the same time. */
void trace_async(trace *t, const char *name, int64_t index, int64_t id, int64_t begin_ns, int64_t end_ns);
/* The points of a flow have one id; each lies in a slice of its track. */
void trace_flow(trace *t, trace_flow_point point, trace_track track, int64_t id, int64_t ns);
/* Logical bytes of every class. */
void trace_memory(trace *t, int64_t ns, const int64_t bytes[LEDGER_CLASS_COUNT]);

/* What was recorded, for a reader after the recorded work has ended. Of a flow begin_ns is the point; of
 * memory nothing is set but the kind. */
typedef enum trace_kind { TRACE_SLICE, TRACE_ASYNC, TRACE_FLOW, TRACE_MEMORY } trace_kind;
typedef struct trace_entry {
    trace_kind kind;
    trace_track track;
    trace_flow_point point; /* of a flow */
    const char *name;
    int64_t index, id, begin_ns, end_ns;
} trace_entry;

/* Entry `i`, from 0, in the order of recording; false: there is none. */
bool trace_read(const trace *t, int64_t i, trace_entry *out);

/* Appends the events as JSON objects, each followed by a comma. `process` is a number of the rank that is
 * unique in the file, `name` what the viewer shows. */
void trace_write(const trace *t, int process, const char *name, text_buffer *out);

#endif
