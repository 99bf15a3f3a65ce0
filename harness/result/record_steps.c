/* Records steps in stretches, which merge as a run goes on. */
#include "harness/result/record.h"

#include "common/base/least.h"
#include "common/base/random.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof(step_times) == RECORD_PHASES * sizeof(int64_t), "a phase for each time");

status record_init(record *r, int64_t steps, int64_t evaluations, int world, int params)
{
    int64_t kept = least(steps, RECORD_STRETCHES * RECORD_BLOCK);
    *r = (record){.capacity = steps,
                  .evaluation_capacity = least(evaluations, RECORD_EVALUATIONS),
                  .evaluation_stride = 1,
                  .world = world,
                  .waiting_error_ns = -1,
                  .overlap.capacity = params + 1};
    r->waited_ns = calloc((size_t)world, sizeof *r->waited_ns);
    r->steps = calloc((size_t)kept + 1, sizeof *r->steps);
    r->stretches = calloc(RECORD_STRETCHES, sizeof *r->stretches);
    r->evaluations = calloc((size_t)r->evaluation_capacity + 1, sizeof *r->evaluations);
    r->overlap.records = calloc((size_t)params + 1, sizeof *r->overlap.records);
    if (r->steps && r->stretches && r->evaluations && r->waited_ns && r->overlap.records) return STATUS_OK;
    record_deinit(r);
    return fail(STATUS_SYSTEM, "no memory to record %lld steps", (long long)steps);
}

void record_deinit(record *r)
{
    free(r->steps);
    free(r->stretches);
    free(r->evaluations);
    free(r->waited_ns);
    free(r->overlap.records);
    *r = (record){0};
}

/* ---- merging ---------------------------------------------------------------------------------- */

/* Two adjacent stretches become stretch `number`. Returns 0 if the kept steps of the first one remain, and 1
 * if the kept steps of the second one remain. The first kept steps of a run always remain. */
static int chosen(int64_t number, int level)
{
    return number > 0 && random_bits((uint64_t)level, (uint64_t)number) >> 63;
}

/* Returns the first kept step of stretch `number` at `level`, counted from the start of the stretch.
 * Repeats the choices of all merges from which the stretch results. */
static int64_t block_of(int64_t number, int level)
{
    int64_t at = number;
    for (int l = level; l > 0; l--) at = 2 * at + chosen(at, l);
    return (at - (number << level)) * RECORD_BLOCK;
}

/* Appends `next`, a step or a sum of `steps` steps, to the stretch. */
static void join(record_stretch *to, const recorded_step *next, int64_t steps, int64_t losses,
                 int64_t gaps_ns)
{
    if (to->steps == 0) to->sum.begin_ns = to->sum.end_ns = next->begin_ns;
    if (losses > 0) to->sum.loss += next->loss;
    to->gaps_ns += gaps_ns + next->begin_ns - to->sum.end_ns;
    to->sum.end_ns = next->end_ns;
    to->sum.index = next->index;
    to->sum.samples += next->samples;
    to->losses += losses;
    to->steps += steps;
}

static void join_stretch(record_stretch *to, record_stretch *next)
{
    join(to, &next->sum, next->steps, next->losses, next->gaps_ns);
    for (int p = 0; p < RECORD_PHASES; p++) {
        record_times(&to->sum.times)[p] += record_times(&next->sum.times)[p];
        record_times(&to->known)[p] += record_times(&next->known)[p];
    }
}

/* Adds the measured times of a step, or subtracts the times if `sign` is -1. */
static void add_times(record_stretch *to, step_times *times, int sign)
{
    const int64_t *ns = record_times(times);
    int64_t *sums = record_times(&to->sum.times), *known = record_times(&to->known);
    for (int p = 0; p < RECORD_PHASES; p++) {
        if (ns[p] == STEP_NOT_MEASURED) continue;
        sums[p] += sign * ns[p];
        known[p] += sign;
    }
}

static void merge(record *r)
{
    int64_t kept = r->kept, count = r->stretch_count;
    r->kept = 0;
    r->level++;
    for (int64_t i = 0; 2 * i < count; i++) {
        int64_t from = (2 * i + chosen(i, r->level)) * RECORD_BLOCK,
                steps = from < kept ? least(kept - from, RECORD_BLOCK) : 0;
        memmove(&r->steps[r->kept], &r->steps[from], (size_t)steps * sizeof *r->steps);
        r->kept += steps;
        r->stretches[i] = r->stretches[2 * i];
        if (2 * i + 1 < count) join_stretch(&r->stretches[i], &r->stretches[2 * i + 1]);
    }
    r->stretch_count = (count + 1) / 2;
}

void record_merge(record *r, int level)
{
    while (r->level < level) merge(r);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static record_stretch *current(record *r)
{
    record_stretch *s = &r->stretches[r->stretch_count - 1];
    if (r->stretch_count > 0 && s->steps < RECORD_BLOCK << r->level) return s;
    if (r->stretch_count == RECORD_STRETCHES) merge(r);
    r->block = block_of(r->stretch_count, r->level);
    s = &r->stretches[r->stretch_count++];
    *s = (record_stretch){0};
    return s;
}

static bool is_kept(const record *r, int64_t step)
{
    return step >= r->block && step < r->block + RECORD_BLOCK;
}

bool record_keeps_soon(const record *r)
{
    if (r->stretch_count == 0) return true;
    int64_t next = r->stretches[r->stretch_count - 1].steps;
    return is_kept(r, next) || is_kept(r, next + 1) || next + 1 >= RECORD_BLOCK << r->level;
}

void record_step(record *r, const step_result *result)
{
    assert(r->count < r->capacity);
    record_stretch *s = current(r);
    recorded_step *step = is_kept(r, s->steps) ? &r->steps[r->kept++] : &r->passed;
    *step = (recorded_step){.index = result->index,
                            .loss = result->loss,
                            .waited_for = result->waited_for,
                            .begin_ns = result->end_ns - result->times.total,
                            .end_ns = result->end_ns,
                            .samples = result->samples,
                            .times = result->times};
    if (r->late_parts) {
        step_set_anatomy(&step->times, &(anatomy_figures){.lost = 1});
        step->waited_for = ANATOMY_NOBODY;
    }
    bool known = step->times.communication != STEP_NOT_MEASURED;
    for (int i = 0; known && i < r->world; i++) r->waited_ns[i] += result->waited_ns[i];
    join(s, step, 1, isfinite(step->loss), 0);
    add_times(s, &step->times, 1);
    r->count++;
    r->last_loss = step->loss;
    r->wall_ns += step->times.total;
    r->samples += step->samples;
}

void record_correct_step(record *r, int64_t index, const anatomy_figures *figures, const int64_t *waited_ns)
{
    recorded_step *step = &r->steps[r->corrected];
    if (r->corrected == r->kept || step->index != index) return;
    record_stretch *s = &r->stretches[r->corrected++ / RECORD_BLOCK];
    add_times(s, &step->times, -1);
    step_set_anatomy(&step->times, figures);
    add_times(s, &step->times, 1);
    step->waited_for = figures->lost == 0 ? figures->waited_for : ANATOMY_NOBODY;
    for (int i = 0; figures->lost == 0 && i < r->world; i++) r->waited_ns[i] += waited_ns[i];
}
