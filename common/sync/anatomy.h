/* The anatomy of a step gives each instant of the step a label, which says how the rank spent the time.
 *
 * The lane is the compute thread, or the compute stream if the device runs kernels asynchronously. Each
 * instant of a step gets the first of these labels that fits:
 *
 *   the lane executes                                            data, forward, backward, optimizer, other
 *   the lane waits for the loader                                data
 *   the lane waits, and another rank computes the awaited value  waiting
 *   the lane waits, and a transfer or sum is in progress         exposed communication
 *   the lane waits, and another rank has not sent the value      waiting
 *   the lane waits for another reason                            other
 *
 * The labels follow from three kinds of records. The train loop records the phases of the lane. Engines
 * record the waits of the lane. For each wait, an engine also records which rank sent the last contribution
 * to the awaited value, and when. The thread that communicates records spans, which are intervals in which a
 * transfer or a sum for this rank was in progress.
 *
 * One sweep at the end of the step labels all instants, so the parts add up exactly to the duration of the
 * step, in integer nanoseconds. The time of communication is the union of the spans. Communication is exposed
 * while the lane waits for the communication to end. Communication is hidden while the lane computes, waits
 * for the loader, or waits for a value that another rank still computes. The last case counts as hidden
 * because the lane would wait for that rank even if communication took no time.
 *
 * Some spans are recorded only after the step in which they lie has ended. The next step counts them as
 * communication that was hidden by computation.
 *
 * NCCL and MPI do not report when other ranks began their part of a call. Therefore a rank that uses NCCL or
 * MPI keeps the records of its steps. After the run the ranks exchange the times at which each rank began
 * each call, and each rank sweeps all steps again. In the second sweep, the span of a call begins at the time
 * at which the last rank began the call. */
#ifndef COMMON_SYNC_ANATOMY_H
#define COMMON_SYNC_ANATOMY_H

#include "common/device/device.h"
#include "common/trace/trace.h"

typedef enum step_part {
    STEP_DATA,
    STEP_FORWARD,
    STEP_BACKWARD,
    STEP_EXPOSED, /* exposed communication */
    STEP_WAITING, /* waiting for other ranks */
    STEP_OPTIMIZER,
    STEP_OTHER,
    STEP_PARTS
} step_part;

enum { ANATOMY_NOBODY = -1, ANATOMY_CALL = -2 };

/* A phase of the lane. The lane executes `part` from `begin_ns` until the next phase begins. */
typedef struct anatomy_phase {
    int64_t begin_ns;
    step_part part;
} anatomy_phase;

typedef struct anatomy_span {
    int64_t begin_ns, end_ns;
} anatomy_span;

/* The last contribution to a value for which a rank waits. */
typedef struct anatomy_sent {
    int64_t ns; /* time at which the contribution was sent, or number of the call if `rank` is ANATOMY_CALL */
    /* Rank of the sender. ANATOMY_NOBODY if the sender is not known, or if no other rank had to send.
     * ANATOMY_CALL if the sender is the rank that began a call last. anatomy_sweep_again() looks up this
     * rank. */
    int rank;
    int64_t ready_ns; /* time at which the sender had computed the value; 0 if not known */
} anatomy_sent;

typedef struct anatomy_wait {
    anatomy_span time;
    anatomy_sent last;
} anatomy_wait;

typedef struct anatomy_figures {
    int64_t parts[STEP_PARTS]; /* ns of each part; the sum is the duration of the step */
    /* communication that was hidden while the lane waited for another rank's computation */
    int64_t hidden_waiting_ns;
    int64_t hidden_computing_ns; /* all other hidden communication */
    int waited_for;              /* rank for which this rank waited longest, or ANATOMY_NOBODY */
    /* number of waits and spans that were dropped for lack of room; if it is not 0, the parts are wrong */
    int64_t lost;
} anatomy_figures;

/* ---- the sweep ---- */

/* The records of a step. Phases, waits and spans are sorted by time. The first phase begins at begin_ns or
 * earlier. Waits do not overlap each other, and spans do not overlap each other. The sweep ignores waits and
 * spans outside of the step. */
typedef struct anatomy_step {
    int64_t begin_ns, end_ns;
    const anatomy_phase *phases;
    const anatomy_wait *waits;
    const anatomy_span *spans;
    int phase_count, wait_count, span_count;
    trace *trace; /* trace to which the parts are written, or NULL */
} anatomy_step;

/* Labels the instants of a step. Adds to waited_ns[r] the time that the lane waited for rank r. */
void anatomy_sweep(const anatomy_step *step, int64_t *waited_ns, anatomy_figures *out);

/* ---- the recorder of a rank ---- */

typedef struct anatomy anatomy;

/* Opens a recorder. `lane` and `trace` are borrowed. `trace` may be NULL. The recorder has room for steps of
 * `batches` micro-batches over `params` parameters. Waits and spans that do not fit are counted in
 * anatomy_figures.lost. After anatomy_open(), memory is allocated only for kept steps. */
status anatomy_open(device_stream *lane, trace *trace, int params, int batches, int world, anatomy **out);
void anatomy_close(anatomy **a);

/* Mark the start and the end of a wait of the lane. Only the thread that launches the work of the lane calls
 * these functions. If a wait has begun and not ended, anatomy_begin_wait() does nothing. anatomy_end_wait()
 * sets *number to an identifier of the wait for the functions below, or to -1 if the wait was not
 * recorded. */
status anatomy_begin_wait(anatomy *a);
status anatomy_end_wait(anatomy *a, int *number);
/* Sets the cause of a wait. May be called until the step ends. */
void anatomy_name_wait(anatomy *a, int number, anatomy_sent last);
/* Returns the begin and the end of a wait. Called after the lane has passed the wait. */
anatomy_span anatomy_wait_time(const anatomy *a, int number);

/* Assigns all later waits to the next step. Called when the next step begins before the lane has passed the
 * end of the current step. At most two steps are in flight. */
void anatomy_lead(anatomy *a);
/* Returns true if the wait belongs to the step that ends next. */
bool anatomy_ends(const anatomy *a, int number);

/* Adds an interval in which a transfer or a sum for this rank was in progress. Only one thread calls this
 * function: the thread of the agent if there is an agent. */
void anatomy_add_span(anatomy *a, int64_t begin_ns, int64_t end_ns);

/* Adds an interval, as anatomy_add_span() does. Only the thread that launches the work of the lane calls this
 * function, before the end of the step. */
void anatomy_insert_span(anatomy *a, int64_t begin_ns, int64_t end_ns);

/* Adds a collective call that this rank began at begin_ns. Called by the thread that calls
 * anatomy_add_span(). Calls are numbered from 1, and a call has the same number on all ranks. */
void anatomy_add_call(anatomy *a, uint64_t number, int64_t begin_ns, int64_t end_ns);

/* Labels the oldest step, and drops the waits of this step. Called after the lane has passed the end of the
 * step. */
void anatomy_end_step(anatomy *a, anatomy_span step, const anatomy_phase *phases, int phase_count,
                      anatomy_figures *out);
/* Returns an array of length `world`. Element r is the time in ns that the lane waited for rank r in the last
 * step. */
const int64_t *anatomy_waited(const anatomy *a);

/* ---- calls whose start on other ranks is known only after the run ---- */

/* Keeps the records of steps until `most_bytes` bytes are used. A step needs some hundred bytes. Must be
 * called before the first step. */
enum { ANATOMY_KEPT_BYTES = 64 << 20 };
void anatomy_keep_steps(anatomy *a, size_t most_bytes);
bool anatomy_keeps_steps(const anatomy *a);
/* Chooses whether to keep the step that ends next and all later steps, as long as there is room. */
void anatomy_keep_next(anatomy *a, bool keep);

/* The number of a call, and the time at which a rank began the call. */
typedef struct anatomy_call {
    uint64_t number;
    anatomy_sent begin;
} anatomy_call;
/* Compares the numbers of two calls for qsort() and bsearch(). */
int anatomy_by_number(const void *a, const void *b);
/* Sets *calls to an array of this rank's calls in kept steps, sorted by number, and *count to the number of
 * calls. The caller frees the array. */
status anatomy_calls(const anatomy *a, anatomy_call **calls, int64_t *count);
/* Receives the figures of a kept step. `step` is the index of the step among all steps. */
typedef void anatomy_swept(void *context, int64_t step, const anatomy_figures *figures,
                           const int64_t *waited_ns);
/* Labels the kept steps again, in order, and calls `swept` for each step. calls[count] are sorted by number.
 * calls[i].begin says which rank began call i last, and at which time of this rank's clock. The rank is
 * ANATOMY_NOBODY if this rank itself was the last, or if the last rank is not known. */
void anatomy_sweep_again(anatomy *a, const anatomy_call *calls, int64_t count, anatomy_swept *swept,
                         void *context);

#endif
