/* The anatomy of a rank's step: on what each of its instants was spent.
 *
 * The lane is the compute thread or, where kernels run after the host has launched them, the compute stream.
 * Every instant of a step gets the first label that fits:
 *
 *   the lane executes                                            data, forward, backward, optimizer, other
 *   it waits for the loader                                      data
 *   it waits for something that another rank has not computed    waiting
 *   it waits while a transfer or a sum for the rank is in progress    exposed communication
 *   it waits for something that another rank has not sent        waiting
 *   it waits for anything else                                   other
 *
 * Recorded are the lane's phases (by the train loop), its waits with the time and rank of the last
 * contribution to what was awaited (by engines), and spans in which a transfer or a sum was in progress (by
 * the engine's agent). One sweep at the end of the step labels it, so its parts add up to the step in integer
 * nanoseconds. Communication is the union of the spans: its exposed part is that in which the lane waited,
 * the rest is hidden: while the lane computed or waited for the loader, or while it waited for what another
 * rank still computed, where it would have waited without it too.
 *
 * A span may become known after its step has ended. What lies in the previous step then counts as hidden in
 * this one, while the lane computed.
 *
 * NCCL and MPI do not report when other ranks began their part of a call. Then a rank keeps what its steps
 * were made of; after the run the ranks' begins are merged, and every step is swept again: a call is in
 * progress from the latest of its begins on. */
#ifndef COMMON_SYNC_ANATOMY_H
#define COMMON_SYNC_ANATOMY_H

#include "common/device/device.h"
#include "common/trace/trace.h"

typedef enum step_part {
    STEP_DATA,
    STEP_FORWARD,
    STEP_BACKWARD,
    STEP_EXPOSED, /* communication */
    STEP_WAITING, /* for other ranks */
    STEP_OPTIMIZER,
    STEP_OTHER,
    STEP_PARTS
} step_part;

enum { ANATOMY_NOBODY = -1, ANATOMY_CALL = -2 };

/* What the lane executes from `begin_ns` on, until the next phase begins. */
typedef struct anatomy_phase {
    int64_t begin_ns;
    step_part part;
} anatomy_phase;

typedef struct anatomy_span {
    int64_t begin_ns, end_ns;
} anatomy_span;

/* The last contribution to something that a rank waits for. */
typedef struct anatomy_sent {
    int64_t ns; /* when it was sent */
    int rank;   /* who sent it; ANATOMY_NOBODY: not known, or nobody had to; ANATOMY_CALL: the last rank to
                 * begin call `ns`, for   anatomy_sweep_again() */
    int64_t ready_ns; /* when that rank had computed it; 0: not known */
} anatomy_sent;

typedef struct anatomy_wait {
    anatomy_span time;
    anatomy_sent last;
} anatomy_wait;

typedef struct anatomy_figures {
    int64_t parts[STEP_PARTS]; /* ns; they add up to the step */
    int64_t hidden_waiting_ns; /* communication that is not exposed: while the lane waited for another rank */
    int64_t hidden_computing_ns; /* else */
    int waited_for;              /* the rank waited for longest; ANATOMY_NOBODY: none */
    int64_t lost; /* waits and spans without room for them: where there are any, the parts are not known */
} anatomy_figures;

/* ---- the sweep ---- */

/* Phases, waits and spans are in order of time. The first phase begins at begin_ns or before; neither waits
 * nor spans overlap among themselves, and those outside the step are passed over. */
typedef struct anatomy_step {
    int64_t begin_ns, end_ns;
    const anatomy_phase *phases;
    const anatomy_wait *waits;
    const anatomy_span *spans;
    int phase_count, wait_count, span_count;
} anatomy_step;

/* `waited_ns` [ranks, at least] becomes the time waited for each rank; the caller has cleared it. */
void anatomy_sweep(const anatomy_step *step, int64_t *waited_ns, anatomy_figures *out);

/* ---- the recorder of a rank ---- */

typedef struct anatomy anatomy;

/* `lane` and `trace` (of the rank, or NULL) are borrowed. Room for the waits and spans of steps of so many
 * micro-batches over `params` parameters; further ones are counted in the step's figures. Nothing is
 * allocated later. */
status anatomy_open(device_stream *lane, trace *trace, int params, int batches, int world, anatomy **out);
void anatomy_close(anatomy **a);

/* The thread that feeds the lane: the lane waits from begin to end. A second begin before the end does
 * nothing. *number: of the wait in this step, for the two calls below; -1: it was not recorded. */
status anatomy_begin_wait(anatomy *a);
status anatomy_end_wait(anatomy *a, int *number);
/* What the wait was for: any time before the end of the step. */
void anatomy_name_wait(anatomy *a, int number, anatomy_sent last);
/* Once the lane has passed it. */
anatomy_span anatomy_wait_time(const anatomy *a, int number);

/* Waits that begin from now on belong to another step, the lane not having passed the end of the one before:
 * two at most are under way. */
void anatomy_lead(anatomy *a);
/* Whether the wait belongs to the step that ends next. */
bool anatomy_ends(const anatomy *a, int number);

/* One thread, the rank's agent: a transfer or a sum for this rank was in progress. */
void anatomy_add_span(anatomy *a, int64_t begin_ns, int64_t end_ns);

/* The same by the thread that feeds the lane, before the end of the step. */
void anatomy_insert_span(anatomy *a, int64_t begin_ns, int64_t end_ns);

/* By the agent, of a call in which this rank took part from begin_ns on. `number`: from 1, the same on all
 * ranks. */
void anatomy_add_call(anatomy *a, uint64_t number, int64_t begin_ns, int64_t end_ns);

/* The lane has passed the end of the oldest step with these phases. Its waits are forgotten. */
void anatomy_end_step(anatomy *a, anatomy_span step, const anatomy_phase *phases, int phase_count,
                      anatomy_figures *out);
/* [world] of the last step: time waited for each rank, ns. */
const int64_t *anatomy_waited(const anatomy *a);

/* ---- calls whose begins on other ranks are known after the run ---- */

/* Before the first step: calls will be added. From now on steps are kept (some hundred bytes each), as long
 * as there is room. */
enum { ANATOMY_KEPT_BYTES = 64 << 20 };
void anatomy_keep_steps(anatomy *a, size_t most_bytes);
bool anatomy_keeps_steps(const anatomy *a);
/* Whether the step that ends next, and those after it, are kept if there is room. */
void anatomy_keep_next(anatomy *a, bool keep);

/* When a rank began a call; of all ranks the last to begin it. */
typedef struct anatomy_call {
    uint64_t number;
    anatomy_sent begin;
} anatomy_call;
/* Compares the numbers of two calls for qsort() and bsearch(). */
int anatomy_by_number(const void *a, const void *b);
/* *calls [*count] of this rank in steps that were kept, by their numbers; the caller's, to be freed. */
status anatomy_calls(const anatomy *a, anatomy_call **calls, int64_t *count);
/* Sweeps the steps that were kept again, in order, and hands out each: `step` counts from 0, also those not
 * kept. calls[count], by their numbers: the last rank to begin each, and when, on this rank's clock;
 * ANATOMY_NOBODY: this rank, or not known. */
typedef void anatomy_swept(void *context, int64_t step, const anatomy_figures *figures,
                           const int64_t *waited_ns);
void anatomy_sweep_again(anatomy *a, const anatomy_call *calls, int64_t count, anatomy_swept *swept,
                         void *context);

#endif
