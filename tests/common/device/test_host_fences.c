/* Tests streams and fences of devices whose stream is the calling thread, with several threads. No test
 * measures time. If a wait ends too early, the test sees that the awaited event has not happened yet. */
#include "common/device/device.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* Removes cmocka's macro: here fail() is that of status.h. */

enum { WAITERS = 4, ROUNDS = 2000, RACES = 200, FAILERS = 2, DELAY_NS = 3000000 };

typedef struct fixture {
    device *device;
    device_stream *stream;
    device_fence *fence;
} fixture;

static int set_up(void **context)
{
    fixture *f = calloc(1, sizeof *f);
    device_config config = {.name = "reference", .world = 1, .threads = 1};
    *context = f;
    return !f || device_open(&config, &f->device) || device_fence_open(f->device, &f->fence) ||
           device_stream_open(f->device, DEVICE_STREAM_COMPUTE, &f->stream);
}

static int tear_down(void **context)
{
    fixture *f = *context;
    device_stream_close(&f->stream);
    device_fence_close(&f->fence);
    device_close(&f->device);
    free(f);
    error_clear();
    return 0;
}

static void value_only_grows(void **context)
{
    const fixture *f = *context;
    assert_true(device_fence_reached(f->fence, 0));
    assert_false(device_fence_reached(f->fence, 1));
    device_fence_reach(f->fence, 5);
    device_fence_reach(f->fence, 3);
    assert_true(device_fence_reached(f->fence, 5));
    assert_false(device_fence_reached(f->fence, 6));
    assert_int_equal(device_stream_signal(f->stream, f->fence, 7), STATUS_OK);
    assert_int_equal(device_stream_wait(f->stream, f->fence, 7), STATUS_OK);
    assert_int_equal(device_stream_wait(f->stream, f->fence, 2), STATUS_OK);
    assert_int_equal(device_stream_synchronize(f->stream), STATUS_OK);
}

/* ---- waiting threads -------------------------------------------------------------------------- */

typedef struct waiter {
    device *device;
    device_fence *fence;
    uint64_t value;
    const int *payload; /* The other thread writes this value before it advances the fence. */
    int seen;
    status result;
    error_record error;
    pthread_t thread;
} waiter;

static void *wait_for_value(void *argument)
{
    waiter *w = argument;
    device_stream *stream;
    w->result = device_stream_open(w->device, DEVICE_STREAM_COMPUTE, &stream);
    if (w->result == STATUS_OK) {
        w->result = device_stream_wait(stream, w->fence, w->value);
        if (w->result == STATUS_OK) w->seen = *w->payload;
        device_stream_close(&stream);
    }
    error_copy(&w->error);
    error_clear();
    return NULL;
}

static void start_waiters(const fixture *f, waiter *waiters, const int *payload)
{
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] =
            (waiter){.device = f->device, .fence = f->fence, .value = 1 + (uint64_t)i, .payload = payload};
        assert_int_equal(pthread_create(&waiters[i].thread, NULL, wait_for_value, &waiters[i]), 0);
    }
}

static void join_waiters(waiter *waiters)
{
    for (int i = 0; i < WAITERS; i++) assert_int_equal(pthread_join(waiters[i].thread, NULL), 0);
}

static void one_reach_wakes_all_waiters(void **context)
{
    waiter waiters[WAITERS];
    int payload = 0;
    start_waiters(*context, waiters, &payload);
    clock_sleep_ns(DELAY_NS); /* The delay lets the threads sleep rather than spin. */
    payload = 42;
    device_fence_reach(((fixture *)*context)->fence, WAITERS);
    join_waiters(waiters);
    for (int i = 0; i < WAITERS; i++) {
        assert_int_equal(waiters[i].result, STATUS_OK);
        assert_int_equal(waiters[i].seen, 42);
    }
}

static void failure_wakes_all_waiters_with_its_message(void **context)
{
    const fixture *f = *context;
    waiter waiters[WAITERS];
    int payload = 0;
    error_record error = {STATUS_PEER, "rank 3 was lost"};
    start_waiters(f, waiters, &payload);
    clock_sleep_ns(DELAY_NS);
    device_fence_fail(f->fence, &error);
    join_waiters(waiters);
    for (int i = 0; i < WAITERS; i++) {
        assert_int_equal(waiters[i].result, STATUS_PEER);
        assert_int_equal(waiters[i].error.code, STATUS_PEER);
        assert_string_equal(waiters[i].error.message, "rank 3 was lost");
    }
}

static void wait_behind_a_failure_fails_too(void **context)
{
    const fixture *f = *context;
    error_record error = {STATUS_IO, "first"}, second = {STATUS_PEER, "second"};
    device_fence_reach(f->fence, 1);
    device_fence_fail(f->fence, &error);
    device_fence_fail(f->fence, &second);
    assert_int_equal(device_stream_wait(f->stream, f->fence, 2), STATUS_IO);
    assert_string_equal(error_message(), "first");
    error_clear();
    assert_int_equal(device_stream_wait(f->stream, f->fence, 1), STATUS_OK);
}

typedef struct failer {
    device_fence **fences; /* [RACES] One fence for each race. */
    atomic_int *arrived;
    error_record error;
    pthread_t thread;
} failer;

static void *fail_fences(void *argument)
{
    const failer *f = argument;
    for (int i = 0; i < RACES; i++) {
        atomic_fetch_add(f->arrived, 1);
        /* Spins, so that the threads fail their fences at the same time. */
        while (atomic_load(f->arrived) < FAILERS * (i + 1)) {
        }
        device_fence_fail(f->fences[i], &f->error);
    }
    return NULL;
}

static void of_failures_at_once_one_is_kept_whole(void **context)
{
    const fixture *f = *context;
    device_fence *fences[RACES];
    failer failers[FAILERS];
    atomic_int arrived = 0;
    for (int i = 0; i < RACES; i++) assert_int_equal(device_fence_open(f->device, &fences[i]), STATUS_OK);
    for (int i = 0; i < FAILERS; i++) {
        failers[i] = (failer){.fences = fences, .arrived = &arrived, .error = {.code = STATUS_PEER}};
        memset(failers[i].error.message, 'a' + i, 1000);
        assert_int_equal(pthread_create(&failers[i].thread, NULL, fail_fences, &failers[i]), 0);
    }
    for (int i = 0; i < RACES; i++) {
        assert_int_equal(device_stream_wait(f->stream, fences[i], 1), STATUS_PEER);
        int matching = 0;
        for (int k = 0; k < FAILERS; k++) matching += strcmp(error_message(), failers[k].error.message) == 0;
        assert_int_equal(matching, 1);
        error_clear();
    }
    for (int i = 0; i < FAILERS; i++) assert_int_equal(pthread_join(failers[i].thread, NULL), 0);
    for (int i = 0; i < RACES; i++) device_fence_close(&fences[i]);
}

/* ---- handing data to and fro ------------------------------------------------------------------ */

typedef struct rally {
    device *device;
    device_fence *there, *back;
    int64_t ball; /* The value is not atomic: the fences order every access. */
    status result;
} rally;

static void *return_the_ball(void *argument)
{
    rally *r = argument;
    device_stream *stream;
    r->result = device_stream_open(r->device, DEVICE_STREAM_COMMUNICATION, &stream);
    for (uint64_t i = 1; r->result == STATUS_OK && i <= ROUNDS; i++) {
        r->result = device_stream_wait(stream, r->there, i);
        r->ball *= 2;
        device_fence_reach(r->back, i);
    }
    device_stream_close(&stream);
    return NULL;
}

static void data_is_handed_over_in_order(void **context)
{
    const fixture *f = *context;
    rally r = {.device = f->device, .there = f->fence};
    pthread_t thread;
    assert_int_equal(device_fence_open(f->device, &r.back), STATUS_OK);
    assert_int_equal(pthread_create(&thread, NULL, return_the_ball, &r), 0);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        r.ball = (int64_t)i;
        assert_int_equal(device_stream_signal(f->stream, r.there, i), STATUS_OK);
        assert_int_equal(device_stream_wait(f->stream, r.back, i), STATUS_OK);
        assert_int_equal(r.ball, 2 * i);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.result, STATUS_OK);
    device_fence_close(&r.back);
}

/* ---- progress while waiting ------------------------------------------------------------------- */

typedef struct engine {
    device_fence *fence;
    int calls;
    bool breaks;
} engine;

static status progress(void *context, bool *worked)
{
    engine *e = context;
    *worked = ++e->calls < 5;
    if (e->breaks && e->calls == 3) return fail(STATUS_PROTOCOL, "the engine stopped");
    if (e->calls == 10) device_fence_reach(e->fence, 1);
    return STATUS_OK;
}

static void wait_drives_the_idle_function(void **context)
{
    const fixture *f = *context;
    engine e = {.fence = f->fence};
    device_set_idle(f->device, progress, &e);
    assert_int_equal(device_stream_wait(f->stream, f->fence, 1), STATUS_OK);
    assert_int_equal(e.calls, 10);
    assert_int_equal(device_stream_wait(f->stream, f->fence, 1), STATUS_OK);
    assert_int_equal(e.calls, 10);
}

static void failing_idle_function_ends_the_wait(void **context)
{
    const fixture *f = *context;
    engine e = {.fence = f->fence, .breaks = true};
    device_set_idle(f->device, progress, &e);
    assert_int_equal(device_stream_wait(f->stream, f->fence, 1), STATUS_PROTOCOL);
    assert_string_equal(error_message(), "the engine stopped");
    assert_int_equal(e.calls, 3);
}

static void marks_follow_the_clock(void **context)
{
    const fixture *f = *context;
    int64_t before = device_now_ns(f->device);
    assert_int_equal(device_mark(f->stream, 0), STATUS_OK);
    assert_int_equal(device_mark(f->stream, DEVICE_MARKS - 1), STATUS_OK);
    int64_t first = device_mark_ns(f->stream, 0), last = device_mark_ns(f->stream, DEVICE_MARKS - 1);
    assert_true(before <= first && first <= last && last <= clock_now_ns());
}

#define FENCE_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FENCE_TEST(value_only_grows),
        FENCE_TEST(one_reach_wakes_all_waiters),
        FENCE_TEST(failure_wakes_all_waiters_with_its_message),
        FENCE_TEST(wait_behind_a_failure_fails_too),
        FENCE_TEST(of_failures_at_once_one_is_kept_whole),
        FENCE_TEST(data_is_handed_over_in_order),
        FENCE_TEST(wait_drives_the_idle_function),
        FENCE_TEST(failing_idle_function_ends_the_wait),
        FENCE_TEST(marks_follow_the_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
