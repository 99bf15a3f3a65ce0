/* Tests schedules of pipelines: the order in which each stage computes, how many micro-batches a stage keeps,
 * and how long it is idle. */
#include "common/pipeline/schedule.h"
#include "tests/support/check.h"

#include <stdlib.h>

enum { MOST_STAGES = 8, MOST_BATCHES = 16 };

typedef void check_function(const pipeline_shape *p);

static void for_each_shape(check_function *check)
{
    for (int s = 0; s < PIPELINE_SCHEDULE_COUNT; s++)
        for (int stages = 1; stages <= MOST_STAGES; stages++)
            for (int batches = 1; batches <= MOST_BATCHES; batches++)
                check(&(pipeline_shape){(pipeline_schedule)s, stages, batches});
}

#define complain(p, stage, format, ...)                                                                      \
    fail_msg("%s, %d stages, %d micro-batches, stage %d: " format, pipeline_schedule_names[(p)->schedule],   \
             (p)->stages, (p)->batches, stage, __VA_ARGS__)

static void check_order(const pipeline_shape *p)
{
    for (int stage = 0; stage < p->stages; stage++) {
        int next[2] = {0, 0};
        for (int i = 0; i < 2 * p->batches; i++) {
            pipeline_action a = pipeline_action_of(p, stage, i);
            if (a.batch != next[a.backward]++)
                complain(p, stage, "action %d is of micro-batch %d", i, a.batch);
            if (next[1] > next[0])
                complain(p, stage, "action %d is a backward pass before its forward pass", i);
        }
        if (next[0] != p->batches || next[1] != p->batches)
            complain(p, stage, "%d and %d passes", next[0], next[1]);
    }
}

static void every_stage_computes_the_passes_in_the_order_of_the_micro_batches(void **state)
{
    (void)state;
    for_each_shape(check_order);
}

static void check_live(const pipeline_shape *p)
{
    for (int stage = 0; stage < p->stages; stage++) {
        int live = 0, most = 0;
        for (int i = 0; i < 2 * p->batches; i++) {
            live += pipeline_action_of(p, stage, i).backward ? -1 : 1;
            if (live > most) most = live;
        }
        int limit = p->schedule == PIPELINE_GPIPE  ? p->batches
                    : p->schedule == PIPELINE_1F1B ? p->stages - stage
                                                   : 1;
        if (limit > p->batches) limit = p->batches;
        if (most != limit || pipeline_live(p, stage) != limit)
            complain(p, stage, "%d alive, expected %d", most, limit);
    }
}

static void a_stage_keeps_p_less_its_number_under_1f1b_all_under_gpipe_and_one_sequentially(void **state)
{
    (void)state;
    for_each_shape(check_live);
}

/* The time at which each pass ends, if a stage computes as soon as it has received its inputs from the stages
 * before and after it. */
typedef struct timing {
    int64_t forward_ends[MOST_STAGES][MOST_BATCHES], backward_ends[MOST_STAGES][MOST_BATCHES],
        free_at[MOST_STAGES];
    int next[MOST_STAGES];
} timing;

static bool advance(const pipeline_shape *p, timing *t, int stage, int64_t forward, int64_t backward)
{
    if (t->next[stage] == 2 * p->batches) return false;
    pipeline_action a = pipeline_action_of(p, stage, t->next[stage]);
    bool from_before = !a.backward && stage > 0, from_after = a.backward && stage < p->stages - 1;
    int64_t needs = from_before  ? t->forward_ends[stage - 1][a.batch]
                    : from_after ? t->backward_ends[stage + 1][a.batch]
                                 : 0;
    if ((from_before || from_after) && needs == 0) return false; /* the other stage has not sent it yet */
    int64_t begin = needs > t->free_at[stage] ? needs : t->free_at[stage];
    int64_t end = begin + (a.backward ? backward : forward);
    (a.backward ? t->backward_ends : t->forward_ends)[stage][a.batch] = end;
    t->free_at[stage] = end;
    t->next[stage]++;
    return true;
}

static void check_bubble(const pipeline_shape *p)
{
    enum { FORWARD = 3, BACKWARD = 7 };
    timing t = {0};
    int64_t last = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < p->stages; stage++)
            moved = advance(p, &t, stage, FORWARD, BACKWARD) || moved;
    }
    for (int stage = 0; stage < p->stages; stage++) {
        if (t.next[stage] != 2 * p->batches)
            complain(p, stage, "waits for ever before action %d", t.next[stage]);
        if (t.free_at[stage] > last) last = t.free_at[stage];
    }
    int64_t busy = p->batches * (FORWARD + BACKWARD),
            slots = p->schedule == PIPELINE_SEQUENTIAL ? p->batches * p->stages : p->batches + p->stages - 1,
            expected = slots * (FORWARD + BACKWARD);
    if (last != expected)
        complain(p, 0, "a step takes %lld, expected %lld", (long long)last, (long long)expected);
    double idle = 1 - (double)busy / (double)last, difference = idle - pipeline_bubble(p);
    if (difference > 1e-12 || difference < -1e-12)
        complain(p, 0, "idle for %g, expected %g", idle, pipeline_bubble(p));
}

static void equal_stages_are_idle_for_the_bubble_of_their_schedule(void **state)
{
    (void)state;
    for_each_shape(check_bubble);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_computes_the_passes_in_the_order_of_the_micro_batches),
        cmocka_unit_test(a_stage_keeps_p_less_its_number_under_1f1b_all_under_gpipe_and_one_sequentially),
        cmocka_unit_test(equal_stages_are_idle_for_the_bubble_of_their_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
