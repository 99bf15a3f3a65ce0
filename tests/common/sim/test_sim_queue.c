/* Compares the order of events with a plain sorted list. */
#include "common/sim/queue.h"

#include "common/base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EVENTS = 200 };

typedef struct recorder {
    sim_queue queue;
    sim_event events[EVENTS];
    int fired[4 * EVENTS], count;
} recorder;

typedef struct target {
    recorder *r;
    int index;
} target;

static target targets[EVENTS];

static void record(void *context)
{
    target *t = context;
    t->r->fired[t->r->count++] = t->index;
}

static void open_recorder(recorder *r, const int *ranks, int count)
{
    memset(r, 0, sizeof *r);
    r->queue = (sim_queue){0};
    for (int i = 0; i < count; i++) {
        targets[i] = (target){r, i};
        assert_int_equal(sim_event_init(&r->queue, &r->events[i], ranks[i], record, &targets[i]), STATUS_OK);
    }
}

static void events_fire_by_time_then_rank_then_order_of_scheduling(void **context)
{
    (void)context;
    static recorder r;
    static const int ranks[] = {2, 0, SIM_RANK_LAST, 0, 1, 2};
    static const sim_time times[] = {5, 5, 5, 5, 7, 3};
    static const int expected[] = {5, 1, 3, 0, 2, 4};
    open_recorder(&r, ranks, 6);
    for (int i = 0; i < 6; i++) sim_event_schedule(&r.queue, &r.events[i], times[i]);
    while (sim_queue_step(&r.queue)) {
    }
    assert_int_equal(r.count, 6);
    assert_memory_equal(r.fired, expected, sizeof expected);
    assert_int_equal(r.queue.now, 7);
    sim_queue_deinit(&r.queue);
}

static void an_event_can_be_moved_and_taken_out(void **context)
{
    (void)context;
    static recorder r;
    static const int ranks[] = {0, 0, 0};
    open_recorder(&r, ranks, 3);
    for (int i = 0; i < 3; i++) sim_event_schedule(&r.queue, &r.events[i], 10 * (i + 1));
    sim_event_schedule(&r.queue, &r.events[0], 25);
    sim_event_schedule(&r.queue, &r.events[2], SIM_NEVER);
    assert_false(sim_event_scheduled(&r.events[2]));
    assert_int_equal(sim_event_time(&r.queue, &r.events[0]), 25);
    assert_int_equal(sim_event_time(&r.queue, &r.events[2]), SIM_NEVER);
    while (sim_queue_step(&r.queue)) {
    }
    assert_int_equal(r.count, 2);
    assert_int_equal(r.fired[0], 1);
    assert_int_equal(r.fired[1], 0);
    sim_event_deinit(&r.queue, &r.events[1]);
    assert_int_equal(r.queue.registered, 2);
    sim_queue_deinit(&r.queue);
}

static void the_past_is_the_present(void **context)
{
    (void)context;
    static recorder r;
    static const int ranks[] = {0, 0};
    open_recorder(&r, ranks, 2);
    sim_event_schedule(&r.queue, &r.events[0], 100);
    assert_true(sim_queue_step(&r.queue));
    sim_event_schedule(&r.queue, &r.events[1], 50);
    assert_true(sim_queue_step(&r.queue));
    assert_int_equal(r.queue.now, 100);
    sim_queue_deinit(&r.queue);
}

typedef struct plain_entry {
    sim_time time;
    int rank, sequence, index;
} plain_entry;

static int plain_order(const void *a, const void *b)
{
    const plain_entry *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->sequence < y->sequence ? -1 : 1;
}

/* Events are scheduled, moved and removed at random. Then all events fire. */
static void many_events_fire_in_the_order_of_a_sorted_list(void **context)
{
    (void)context;
    static recorder r;
    int ranks[EVENTS];
    plain_entry plain[EVENTS];
    for (int i = 0; i < EVENTS; i++) ranks[i] = (int)random_below(1, (uint64_t)i, 7);
    open_recorder(&r, ranks, EVENTS);
    for (int i = 0; i < EVENTS; i++) plain[i] = (plain_entry){SIM_NEVER, ranks[i], 0, i};
    for (int step = 0; step < 5 * EVENTS; step++) {
        int i = (int)random_below(2, (uint64_t)step, EVENTS);
        sim_time at = random_below(3, (uint64_t)step, 10) == 0
                          ? SIM_NEVER
                          : (sim_time)random_below(4, (uint64_t)step, 40);
        sim_event_schedule(&r.queue, &r.events[i], at);
        plain[i].time = at;
        plain[i].sequence = step;
    }
    qsort(plain, EVENTS, sizeof plain[0], plain_order);
    while (sim_queue_step(&r.queue)) {
    }
    int expected = 0;
    for (; expected < EVENTS && plain[expected].time != SIM_NEVER; expected++)
        if (r.fired[expected] != plain[expected].index)
            fail_msg("event %d of the order: found %d, expected %d", expected, r.fired[expected],
                     plain[expected].index);
    assert_int_equal(r.count, expected);
    sim_queue_deinit(&r.queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_fire_by_time_then_rank_then_order_of_scheduling),
        cmocka_unit_test(an_event_can_be_moved_and_taken_out),
        cmocka_unit_test(the_past_is_the_present),
        cmocka_unit_test(many_events_fire_in_the_order_of_a_sorted_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
