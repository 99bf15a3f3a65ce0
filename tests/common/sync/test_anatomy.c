/* Tests the anatomy of a step: each instant gets one label by the order in anatomy.h, and the parts add up to
 * the step. */
#include "common/sync/anatomy.h"

#include "common/base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))
enum { RANKS = 3 };

static const anatomy_phase phases[] = {
    {0, STEP_OTHER},      {100, STEP_DATA},  {200, STEP_FORWARD},
    {400, STEP_BACKWARD}, {700, STEP_OTHER}, {900, STEP_OPTIMIZER},
};

typedef struct sweep_case {
    const char *name;
    anatomy_wait waits[3];
    anatomy_span spans[3];
    int64_t parts[STEP_PARTS]; /* data, forward, backward, exposed, waiting, optimizer, other */
    int64_t hidden[2];         /* while computing, while waiting */
    int waited_for;
} sweep_case;

static const sweep_case cases[] = {
    {"nothing is waited for",
     {{{0, 0}, {0, 0, 0}}},
     {{0, 0}},
     {100, 200, 300, 0, 0, 100, 300},
     {0, 0},
     ANATOMY_NOBODY},
    {"communication while the lane executes is hidden",
     {{{0, 0}, {0, 0, 0}}},
     {{450, 650}},
     {100, 200, 300, 0, 0, 100, 300},
     {200, 0},
     ANATOMY_NOBODY},
    {"a wait during communication is exposed, before the last contribution it is waiting, else other",
     {{{700, 900}, {760, 2, 0}}},
     {{760, 850}},
     {100, 200, 300, 90, 60, 100, 150},
     {0, 0},
     2},
    {"a transfer in progress comes before waiting",
     {{{700, 900}, {850, 1, 0}}},
     {{650, 800}},
     {100, 200, 300, 100, 50, 100, 150},
     {50, 0},
     1},
    {"what another rank still computes is waited for, whatever is in progress",
     {{{700, 900}, {850, 1, 800}}},
     {{650, 820}},
     {100, 200, 300, 20, 130, 100, 150},
     {50, 100},
     1},
    {"of a rank that is not known nothing is waited for",
     {{{700, 900}, {850, ANATOMY_NOBODY, 800}}},
     {{650, 820}},
     {100, 200, 300, 120, 0, 100, 180},
     {50, 0},
     ANATOMY_NOBODY},
    {"nobody had to send anything",
     {{{700, 800}, {900, ANATOMY_NOBODY, 0}}},
     {{0, 0}},
     {100, 200, 300, 0, 0, 100, 300},
     {0, 0},
     ANATOMY_NOBODY},
    {"waiting for the loader is data, whatever is in progress",
     {{{120, 180}, {170, 1, 0}}},
     {{110, 150}},
     {100, 200, 300, 0, 0, 100, 300},
     {40, 0},
     ANATOMY_NOBODY},
    {"a wait within the forward pass is not part of it",
     {{{250, 300}, {270, 1, 0}}},
     {{0}},
     {100, 180 - 30, 300, 0, 20, 100, 330},
     {0, 0},
     1},
    {"the rank waited for longest is named",
     {{{200, 260}, {260, 0, 0}}, {{300, 330}, {330, 2, 0}}, {{400, 440}, {440, 2, 0}}},
     {{0, 0}},
     {100, 110, 260, 0, 130, 100, 300},
     {0, 0},
     2},
    {"waits and spans outside the step do not count",
     {{{-50, -20}, {-20, 1, 0}}, {{1000, 1100}, {1100, 1, 0}}},
     {{-90, -10}, {950, 1200}},
     {100, 200, 300, 0, 0, 100, 300},
     {50, 0},
     ANATOMY_NOBODY},
};

static int used_waits(const sweep_case *c)
{
    int n = 0;
    while (n < COUNT(c->waits) && c->waits[n].time.end_ns != 0) n++;
    return n;
}

static int used_spans(const sweep_case *c)
{
    int n = 0;
    while (n < COUNT(c->spans) && c->spans[n].end_ns != 0) n++;
    return n;
}

static void every_instant_gets_the_first_label_that_fits(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        const sweep_case *c = &cases[i];
        anatomy_step step = {
            0, 1000, phases, c->waits, c->spans, COUNT(phases), used_waits(c), used_spans(c), NULL};
        anatomy_figures found;
        int64_t waited[RANKS] = {0}, sum = 0;
        anatomy_sweep(&step, waited, &found);
        for (int p = 0; p < STEP_PARTS; p++) {
            sum += found.parts[p];
            if (found.parts[p] != c->parts[p])
                fail_msg("%s: part %d is %lld, expected %lld", c->name, p, (long long)found.parts[p],
                         (long long)c->parts[p]);
        }
        if (found.hidden_computing_ns != c->hidden[0] || found.hidden_waiting_ns != c->hidden[1])
            fail_msg("%s: hidden %lld while computing, %lld while waiting", c->name,
                     (long long)found.hidden_computing_ns, (long long)found.hidden_waiting_ns);
        if (sum != 1000 || found.waited_for != c->waited_for)
            fail_msg("%s: sum %lld, waited for %d", c->name, (long long)sum, found.waited_for);
    }
}

/* ---- against a clock that ticks nanosecond by nanosecond ---------------------------------------- */

enum { LENGTH = 400, ROUNDS = 300, MOST = 12 };
static const step_part executed[] = {STEP_DATA, STEP_FORWARD, STEP_BACKWARD, STEP_OPTIMIZER, STEP_OTHER};

static int64_t draw(uint64_t start, uint64_t *at, int64_t below)
{
    return (int64_t)random_below(start, (*at)++, (uint64_t)below);
}

static step_part label_at(const anatomy_step *s, int64_t ns, bool *in_progress)
{
    step_part part = STEP_OTHER;
    const anatomy_wait *wait = NULL;
    for (int i = 0; i < s->phase_count; i++)
        if (s->phases[i].begin_ns <= ns) part = s->phases[i].part;
    for (int i = 0; i < s->wait_count; i++)
        if (s->waits[i].time.begin_ns <= ns && ns < s->waits[i].time.end_ns) wait = &s->waits[i];
    *in_progress = false;
    for (int i = 0; i < s->span_count; i++)
        if (s->spans[i].begin_ns <= ns && ns < s->spans[i].end_ns) *in_progress = true;
    if (!wait || part == STEP_DATA) return part;
    bool other = wait->last.rank != ANATOMY_NOBODY;
    if (other && ns < wait->last.ready_ns) return STEP_WAITING;
    if (*in_progress) return STEP_EXPOSED;
    return other && ns < wait->last.ns ? STEP_WAITING : STEP_OTHER;
}

static void the_sweep_equals_a_look_at_every_nanosecond(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = random_start(31, (uint64_t)round), at = 0;
        anatomy_phase p[MOST];
        anatomy_wait w[MOST];
        anatomy_span s[MOST];
        int64_t t = -10;
        for (int i = 0; i < MOST; i++, t += draw(start, &at, 60))
            p[i] = (anatomy_phase){t, executed[draw(start, &at, COUNT(executed))]};
        t = -20;
        for (int i = 0; i < MOST; i++) {
            int64_t begin = t + draw(start, &at, 40), end = begin + draw(start, &at, 30);
            int64_t sent = begin + draw(start, &at, 50) - 10, ready = sent - draw(start, &at, 30);
            w[i] = (anatomy_wait){{begin, end}, {sent, (int)draw(start, &at, RANKS + 1) - 1, ready}};
            t = end;
        }
        t = -20;
        for (int i = 0; i < MOST; i++) {
            int64_t begin = t + draw(start, &at, 40), end = begin + 1 + draw(start, &at, 30);
            s[i] = (anatomy_span){begin, end};
            t = end + 1;
        }
        anatomy_step step = {0, LENGTH, p, w, s, MOST, MOST, MOST, NULL};
        anatomy_figures found;
        int64_t waited[RANKS] = {0}, expected[STEP_PARTS] = {0}, hidden[2] = {0};
        anatomy_sweep(&step, waited, &found);
        for (int64_t ns = 0; ns < LENGTH; ns++) {
            bool in_progress;
            step_part label = label_at(&step, ns, &in_progress);
            expected[label]++;
            hidden[label == STEP_WAITING] += in_progress && label != STEP_EXPOSED;
        }
        assert_memory_equal(found.parts, expected, sizeof expected);
        assert_int_equal(found.hidden_computing_ns, hidden[0]);
        assert_int_equal(found.hidden_waiting_ns, hidden[1]);
    }
}

/* ---- the recorder ------------------------------------------------------------------------------- */

typedef struct recorder {
    device *device;
    device_stream *lane;
    anatomy *anatomy;
} recorder;

static void open_recorder(recorder *r)
{
    device_config config = {.name = "cpu", .world = RANKS, .threads = 1};
    assert_int_equal(device_open(&config, &r->device), STATUS_OK);
    assert_int_equal(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->lane), STATUS_OK);
    assert_int_equal(anatomy_open(r->lane, NULL, 4, 1, RANKS, &r->anatomy), STATUS_OK);
}

static void close_recorder(recorder *r)
{
    anatomy_close(&r->anatomy);
    device_stream_close(&r->lane);
    device_close(&r->device);
}

static anatomy_figures end_step(recorder *r, int64_t begin, int64_t end)
{
    anatomy_phase computes = {begin, STEP_BACKWARD};
    anatomy_figures f;
    anatomy_end_step(r->anatomy, (anatomy_span){begin, end}, &computes, 1, &f);
    return f;
}

static void what_is_known_late_is_hidden_in_the_next_step_and_counted_once(void **state)
{
    (void)state;
    recorder r;
    open_recorder(&r);
    anatomy_add_span(r.anatomy, 10, 30);
    assert_int_equal(end_step(&r, 0, 100).hidden_computing_ns, 20);
    anatomy_add_span(r.anatomy, 20, 50);  /* 20 ns more in the step that has ended */
    anatomy_add_span(r.anatomy, 90, 130); /* 10 ns in the ended step, 30 ns in this one */
    assert_int_equal(end_step(&r, 100, 200).hidden_computing_ns, 20 + 10 + 30);
    assert_int_equal(end_step(&r, 200, 300).hidden_computing_ns, 0);
    close_recorder(&r);
}

static void overlapping_spans_are_counted_once_in_any_order(void **state)
{
    (void)state;
    recorder r;
    open_recorder(&r);
    const anatomy_span spans[] = {{50, 60}, {10, 20}, {15, 25}, {58, 70}, {5, 7}, {24, 52}, {80, 90}};
    for (int i = 0; i < COUNT(spans); i++) anatomy_add_span(r.anatomy, spans[i].begin_ns, spans[i].end_ns);
    assert_int_equal(end_step(&r, 0, 100).hidden_computing_ns, 2 + 60 + 10);
    close_recorder(&r);
}

static void spans_and_waits_without_room_are_counted_in_their_step(void **state)
{
    (void)state;
    enum { MANY = 5000 };
    recorder r;
    int number;
    open_recorder(&r);
    for (int i = 0; i < MANY; i++) anatomy_add_span(r.anatomy, 10 * i, 10 * i + 5); /* exceeds the queue */
    assert_true(end_step(&r, 0, 10 * MANY).lost > 0);
    assert_int_equal(end_step(&r, 10 * MANY, 20 * MANY).lost, 0);
    int64_t begin = 20 * MANY, lost = 0;
    for (int i = 0; i < MANY; i++) { /* fits in the queue, but not in the list of disjoint spans */
        anatomy_add_span(r.anatomy, begin + 10 * i, begin + 10 * i + 5);
        if (i % 500 == 499) lost += end_step(&r, begin, begin + 1).lost;
    }
    assert_true(lost > 0);
    end_step(&r, begin + 1, begin + 20 * MANY);
    begin = device_now_ns(r.device);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(anatomy_begin_wait(r.anatomy), STATUS_OK);
        assert_int_equal(anatomy_end_wait(r.anatomy, &number), STATUS_OK);
    }
    assert_int_equal(number, -1);
    assert_true(end_step(&r, begin, device_now_ns(r.device)).lost > 0);
    begin = device_now_ns(r.device);
    assert_int_equal(end_step(&r, begin, device_now_ns(r.device)).lost, 0);
    close_recorder(&r);
}

/* Spans are lost while two steps are under way. */
static void what_a_step_that_leads_has_lost_counts_for_both(void **state)
{
    (void)state;
    recorder r;
    open_recorder(&r);
    anatomy_lead(r.anatomy);
    for (int i = 0; i < 5000; i++) anatomy_add_span(r.anatomy, 10 * i, 10 * i + 5);
    assert_true(end_step(&r, 0, 100).lost > 0);
    assert_true(end_step(&r, 100, 200).lost > 0);
    assert_int_equal(end_step(&r, 200, 300).lost, 0);
    close_recorder(&r);
}

static void a_wait_is_between_its_two_marks(void **state)
{
    (void)state;
    recorder r;
    open_recorder(&r);
    int64_t begin = device_now_ns(r.device);
    int number = -1;
    assert_int_equal(anatomy_begin_wait(r.anatomy), STATUS_OK);
    assert_int_equal(anatomy_begin_wait(r.anatomy), STATUS_OK); /* does nothing within a wait */
    while (device_now_ns(r.device) < begin + 1000000) {
    }
    assert_int_equal(anatomy_end_wait(r.anatomy, &number), STATUS_OK);
    assert_int_equal(number, 0);
    anatomy_span time = anatomy_wait_time(r.anatomy, number);
    anatomy_name_wait(r.anatomy, number, (anatomy_sent){.ns = time.end_ns, .rank = 2});
    int64_t end = device_now_ns(r.device);
    anatomy_figures f = end_step(&r, begin, end);
    assert_int_equal(f.parts[STEP_WAITING], time.end_ns - time.begin_ns);
    assert_int_equal(f.parts[STEP_WAITING] + f.parts[STEP_BACKWARD], end - begin);
    assert_int_equal(f.waited_for, 2);
    assert_int_equal(anatomy_waited(r.anatomy)[2], f.parts[STEP_WAITING]);
    close_recorder(&r);
}

/* Results of anatomy_sweep_again(). */
typedef struct found_steps {
    anatomy_figures figures[3];
    int64_t waited_for_2[3];
    int count;
} found_steps;

static void take_step(void *context, int64_t step, const anatomy_figures *figures, const int64_t *waited_ns)
{
    found_steps *f = context;
    assert_int_equal(step, f->count);
    f->figures[step] = *figures;
    f->waited_for_2[step] = waited_ns[2];
    f->count++;
}

/* Other ranks begin calls 2 and 3 late. This rank waits for call 2, and computes during call 3. */
static void a_call_is_in_progress_from_the_latest_begin_on(void **state)
{
    (void)state;
    recorder r;
    open_recorder(&r);
    anatomy_keep_steps(r.anatomy, ANATOMY_KEPT_BYTES);
    int64_t begin = device_now_ns(r.device);
    int number = -1;
    assert_int_equal(anatomy_begin_wait(r.anatomy), STATUS_OK);
    while (device_now_ns(r.device) < begin + 1000000) {
    }
    assert_int_equal(anatomy_end_wait(r.anatomy, &number), STATUS_OK);
    anatomy_span wait = anatomy_wait_time(r.anatomy, number);
    anatomy_name_wait(r.anatomy, number, (anatomy_sent){.ns = 2, .rank = ANATOMY_CALL});
    anatomy_add_call(r.anatomy, 1, begin - 100, begin - 50);
    anatomy_add_call(r.anatomy, 2, wait.begin_ns, wait.end_ns);
    anatomy_figures f = end_step(&r, begin, wait.end_ns + 10);
    assert_int_equal(f.parts[STEP_EXPOSED], wait.end_ns - wait.begin_ns);
    anatomy_add_call(r.anatomy, 3, wait.end_ns + 5, wait.end_ns + 25); /* 5 ns are in the step before */
    anatomy_add_call(r.anatomy, 4, wait.end_ns + 30, wait.end_ns + 40);
    f = end_step(&r, wait.end_ns + 10, wait.end_ns + 60);
    assert_int_equal(f.hidden_computing_ns, 20 + 10);

    anatomy_call *calls;
    int64_t count;
    assert_int_equal(anatomy_calls(r.anatomy, &calls, &count), STATUS_OK);
    assert_int_equal(count, 4);
    assert_int_equal(calls[1].number, 2);
    assert_int_equal(calls[1].begin.ns, wait.begin_ns);
    const anatomy_call last[] = {
        {1, {.rank = ANATOMY_NOBODY}},
        {2, {.ns = wait.begin_ns + 900000, .rank = 2}},
        {3, {.ns = wait.end_ns + 12, .rank = 1}},
        {4, {.ns = wait.end_ns + 100, .rank = 1}}}; /* after the end of the call, by a wrong clock */
    found_steps found = {.count = 0};
    anatomy_sweep_again(r.anatomy, last, COUNT(last), take_step, &found);
    assert_int_equal(found.count, 2);
    assert_int_equal(found.figures[0].parts[STEP_WAITING], 900000);
    assert_int_equal(found.waited_for_2[0], 900000);
    assert_int_equal(found.figures[0].waited_for, 2);
    assert_int_equal(found.figures[0].parts[STEP_EXPOSED], wait.end_ns - wait.begin_ns - 900000);
    assert_int_equal(found.figures[0].parts[STEP_BACKWARD], wait.begin_ns - begin + 10);
    assert_int_equal(found.figures[1].hidden_computing_ns, 25 - 12);
    assert_int_equal(found.figures[1].parts[STEP_BACKWARD], 50);
    free(calls);
    close_recorder(&r);
}

static void take_numbers(void *context, int64_t step, const anatomy_figures *figures,
                         const int64_t *waited_ns)
{
    int64_t *numbers = context;
    (void)waited_ns;
    assert_int_equal(figures->hidden_computing_ns, 4);
    numbers[++numbers[0]] = step;
}

static void steps_that_are_passed_over_leave_no_gap_in_the_numbers(void **state)
{
    (void)state;
    recorder r;
    open_recorder(&r);
    anatomy_keep_steps(r.anatomy, ANATOMY_KEPT_BYTES);
    for (int64_t i = 0; i < 100; i++) {
        anatomy_keep_next(r.anatomy, i % 50 == 7 || i % 50 == 8);
        anatomy_add_call(r.anatomy, (uint64_t)i + 1, 10 * i + 2, 10 * i + 6);
        end_step(&r, 10 * i, 10 * i + 10);
    }
    anatomy_call *calls;
    int64_t count, numbers[8] = {0};
    const int64_t expected[] = {4, 7, 8, 57, 58};
    assert_int_equal(anatomy_calls(r.anatomy, &calls, &count), STATUS_OK);
    assert_int_equal(count, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(calls[i].number, expected[i + 1] + 1);
        calls[i].begin.rank = ANATOMY_NOBODY;
    }
    anatomy_sweep_again(r.anatomy, calls, count, take_numbers, numbers);
    assert_memory_equal(numbers, expected, sizeof expected);
    free(calls);
    close_recorder(&r);
}

static void count_step(void *context, int64_t step, const anatomy_figures *figures, const int64_t *waited_ns)
{
    int64_t *count = context;
    (void)waited_ns;
    assert_int_equal(step, *count);
    assert_int_equal(figures->hidden_computing_ns, 4);
    ++*count;
}

static void steps_are_kept_as_long_as_there_is_room(void **state)
{
    (void)state;
    enum { STEPS = 1000, ROOM = 8192 };
    recorder r;
    open_recorder(&r);
    anatomy_keep_steps(r.anatomy, ROOM);
    for (int64_t i = 0; i < STEPS; i++) {
        anatomy_add_call(r.anatomy, (uint64_t)i + 1, 10 * i + 2, 10 * i + 6);
        assert_int_equal(end_step(&r, 10 * i, 10 * i + 10).hidden_computing_ns, 4);
    }
    anatomy_call *calls;
    int64_t count, swept = 0;
    assert_int_equal(anatomy_calls(r.anatomy, &calls, &count), STATUS_OK);
    for (int64_t i = 0; i < count; i++) calls[i].begin.rank = ANATOMY_NOBODY;
    anatomy_sweep_again(r.anatomy, calls, count, count_step, &swept);
    assert_in_range(swept, ROOM / 200, ROOM / 50);
    assert_in_range(count, swept, swept + 1);
    free(calls);
    close_recorder(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instant_gets_the_first_label_that_fits),
        cmocka_unit_test(the_sweep_equals_a_look_at_every_nanosecond),
        cmocka_unit_test(what_is_known_late_is_hidden_in_the_next_step_and_counted_once),
        cmocka_unit_test(overlapping_spans_are_counted_once_in_any_order),
        cmocka_unit_test(spans_and_waits_without_room_are_counted_in_their_step),
        cmocka_unit_test(what_a_step_that_leads_has_lost_counts_for_both),
        cmocka_unit_test(a_wait_is_between_its_two_marks),
        cmocka_unit_test(a_call_is_in_progress_from_the_latest_begin_on),
        cmocka_unit_test(steps_are_kept_as_long_as_there_is_room),
        cmocka_unit_test(steps_that_are_passed_over_leave_no_gap_in_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
