/* Tests the loader with batch makers that the test controls: order, jumps, errors, sleeping, closing, memory.
 */
#include "tests/common/data/fixture.h"

#include "common/base/clock.h"
#include "common/data/loader.h"
#include "tests/common/data/allocations.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 6, EPOCH = 5 };

/* ---- a maker ---------------------------------------------------------------------------------- */

/* Input i of step s is 1000 s + i, and target i is s. A step has 1 to BATCH samples. */
typedef struct fake {
    int64_t failing; /* Step that cannot be made, or -1 for none. */
    int64_t slow;    /* Step that waits until `released` is set, or -1 for none. */
    atomic_bool released;
    atomic_int made, at_once, most_at_once, closed;
    /* The lowest step that a worker has begun to make, plus 1, or 0 if no step has begun. */
    atomic_int lowest;
    atomic_int workers[LOADER_MAX_THREADS]; /* Number of batches that each worker is making. */
    atomic_bool collided;                   /* True if one worker made two batches at the same time. */
} fake;

static int64_t size_of_step(int64_t step)
{
    return 1 + step % BATCH;
}

static status fake_make(void *context, int worker, void *inputs, void *targets, batch_view *b)
{
    fake *f = context;
    int now = ++f->at_once;
    if (now > f->most_at_once) f->most_at_once = now;
    if (f->workers[worker]++ != 0) f->collided = true;
    if (!f->lowest || b->step < f->lowest - 1) f->lowest = (int)b->step + 1;
    while (b->step == f->slow && !f->released) clock_sleep_ns(NS_PER_MS);
    b->count = b->targets_counted = size_of_step(b->step);
    for (int64_t i = 0; i < b->count; i++) {
        ((float *)inputs)[i] = (float)(1000 * b->step + i);
        ((int32_t *)targets)[i] = (int32_t)b->step;
    }
    f->workers[worker]--;
    f->at_once--;
    f->made++;
    if (b->step == f->failing) return fail(STATUS_DATA, "step %d is broken", (int)b->step);
    return STATUS_OK;
}

static void fake_close(void *context)
{
    ((fake *)context)->closed++;
}

static batch_source *open_loader(fake *f, int threads, int64_t first_step)
{
    batch_source *source;
    batch_maker maker = {.context = f,
                         .form = {.kind = DATA_FEATURES, .features = 1, .classes = 2},
                         .largest_batch = BATCH,
                         .steps_per_epoch = EPOCH,
                         .input_bytes = BATCH * sizeof(float),
                         .target_bytes = BATCH * sizeof(int32_t),
                         .make = fake_make,
                         .close = fake_close};
    maker.threads = threads;
    maker.first_step = first_step;
    must(loader_open(&maker, &source));
    return source;
}

static void expect_batch(const batch_view *b, int64_t step)
{
    assert_int_equal(b->step, step);
    assert_int_equal(b->epoch, step / EPOCH);
    assert_int_equal(b->epoch_step, step % EPOCH);
    assert_int_equal(b->count, size_of_step(step));
    for (int64_t i = 0; i < b->count; i++) {
        assert_true(((const float *)b->inputs)[i] == (float)(1000 * step + i));
        assert_int_equal(((const int32_t *)b->targets)[i], step);
    }
}

static void take_and_return(batch_source *source, int64_t step)
{
    batch_view b;
    must(batch_source_next(source, step, &b));
    expect_batch(&b, step);
    batch_source_return(source, &b);
}

#define NOTHING                                                                                              \
    {                                                                                                        \
        .failing = -1, .slow = -1                                                                            \
    }

/* ---- tests ------------------------------------------------------------------------------------ */

static void batches_come_in_order_whatever_the_number_of_threads(void **state)
{
    (void)state;
    for (int threads = 0; threads <= LOADER_MAX_THREADS; threads++) {
        fake f = NOTHING;
        batch_source *source = open_loader(&f, threads, 0);
        for (int64_t step = 0; step < 200; step++) take_and_return(source, step);
        batch_source_close(&source);
        assert_null(source);
        assert_int_equal(f.closed, 1);
        assert_in_range(f.most_at_once, 1, threads ? threads : 1);
        assert_false(f.collided);
    }
}

static void all_buffers_but_one_may_be_on_loan(void **state)
{
    (void)state;
    for (int threads = 0; threads <= LOADER_MAX_THREADS; threads++) {
        fake f = NOTHING;
        batch_view held[LOADER_MAX_DEPTH], extra;
        int depth = loader_depth(threads);
        batch_source *source = open_loader(&f, threads, 0);
        for (int64_t first = 0; first < 40; first += depth) {
            for (int i = 0; i < depth; i++) must(batch_source_next(source, first + i, &held[i]));
            for (int i = 0; i < depth; i++) expect_batch(&held[i], first + i);
            assert_fails(batch_source_next(source, first + depth, &extra), STATUS_INTERNAL,
                         "buffers on loan, got ");
            for (int i = depth - 1; i >= 0; i--) batch_source_return(source, &held[i]);
        }
        batch_source_close(&source);
    }
}

static void a_batch_is_ready_when_it_is_made_and_next_in_turn(void **state)
{
    (void)state;
    fake f = {.failing = 2, .slow = 1};
    batch_source *source = open_loader(&f, 1, 0);
    while (f.made < 1 || !batch_source_ready(source, 0)) clock_sleep_ns(NS_PER_MS / 10);
    assert_false(batch_source_ready(source, 1)); /* Step 1 is being made, and step 0 is the next one. */
    take_and_return(source, 0);
    assert_false(batch_source_ready(source, 1));
    f.released = true;
    while (!batch_source_ready(source, 1)) clock_sleep_ns(NS_PER_MS / 10);
    assert_false(batch_source_ready(source, 7));
    take_and_return(source, 1);
    while (f.made < 3) clock_sleep_ns(NS_PER_MS / 10);
    /* The batch has failed. The error is reported when its step is asked for. */
    assert_false(batch_source_ready(source, 2));
    batch_source_close(&source);
    fake made_by_the_caller = NOTHING;
    source = open_loader(&made_by_the_caller, 0, 0);
    assert_false(batch_source_ready(source, 0));
    batch_source_close(&source);
}

static void a_jump_gives_the_step_asked_for(void **state)
{
    (void)state;
    static const int64_t steps[] = {0, 1, 2, 50, 51, 3, 4, 5, 5, 5, 1000000, 0, 7, 8, 7, 8};
    for (int threads = 0; threads <= LOADER_MAX_THREADS; threads++) {
        fake f = NOTHING;
        batch_source *source = open_loader(&f, threads, 0);
        for (int round = 0; round < 20; round++)
            for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) take_and_return(source, steps[i]);
        batch_source_close(&source);
    }
}

static void a_jump_leaves_what_is_on_loan_alone(void **state)
{
    (void)state;
    fake f = NOTHING;
    batch_view held, other;
    batch_source *source = open_loader(&f, 2, 0);
    must(batch_source_next(source, 0, &held));
    for (int64_t step = 100; step < 110; step++) {
        must(batch_source_next(source, 2 * step, &other));
        expect_batch(&held, 0);
        expect_batch(&other, 2 * step);
        batch_source_return(source, &other);
    }
    must(batch_source_next(source, 0, &other)); /* Asks for the same step once more. */
    expect_batch(&held, 0);
    expect_batch(&other, 0);
    batch_source_return(source, &held);
    expect_batch(&other, 0);
    batch_source_return(source, &other);
    take_and_return(source, 1);
    batch_source_close(&source);
}

static void a_jump_over_a_batch_in_the_making_discards_it(void **state)
{
    (void)state;
    fake f = {.failing = -1, .slow = 0};
    batch_view held[3];
    batch_source *source = open_loader(&f, 2, 0);
    while (f.lowest != 1) clock_sleep_ns(NS_PER_MS); /* Waits until a worker makes step 0. */
    /* Takes one of the 3 buffers, but not the one in which step 0 is being made. */
    take_and_return(source, 11);
    f.released = true;
    for (int64_t step = 12; step < 30; step++) take_and_return(source, step);
    /* All 3 buffers hold batches again. */
    for (int i = 0; i < 3; i++) must(batch_source_next(source, 30 + i, &held[i]));
    for (int i = 0; i < 3; i++) expect_batch(&held[i], 30 + i);
    batch_source_close(&source);
    assert_int_equal(f.most_at_once, 2);
    assert_false(f.collided);
}

static void a_loader_can_start_at_any_step(void **state)
{
    (void)state;
    fake f = NOTHING;
    batch_source *source = open_loader(&f, 1, 37);
    while (f.made == 0) clock_sleep_ns(NS_PER_MS);
    take_and_return(source, 37);
    assert_int_equal(f.lowest - 1, 37);
    batch_source_close(&source);
}

static void an_error_reaches_the_consumer_at_its_step_and_stays(void **state)
{
    (void)state;
    for (int threads = 0; threads <= LOADER_MAX_THREADS; threads++) {
        fake f = {.failing = 5, .slow = -1};
        batch_view b;
        batch_source *source = open_loader(&f, threads, 0);
        for (int64_t step = 0; step < 5; step++) take_and_return(source, step);
        for (int i = 0; i < 3; i++)
            assert_fails(batch_source_next(source, 5, &b), STATUS_DATA, "step 5 is broken");
        take_and_return(source, 6);
        take_and_return(source, 7);
        batch_source_close(&source);
    }
}

static int64_t process_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void threads_use_no_time_while_the_consumer_is_parked(void **state)
{
    (void)state;
    fake f = NOTHING;
    batch_source *source = open_loader(&f, 3, 0);
    take_and_return(source, 0);
    while (f.made < 1 + loader_depth(3)) clock_sleep_ns(NS_PER_MS); /* the ring is full again */
    int64_t before = process_cpu_ns();
    clock_sleep_ns(300 * NS_PER_MS);
    int64_t used = process_cpu_ns() - before;
    if (used > 30 * NS_PER_MS)
        fail_msg("found %d us of processor time, wanted at most 30000", (int)(used / 1000));
    assert_int_equal(f.made, 1 + loader_depth(3));
    batch_source_close(&source);
}

static void closing_ends_threads_that_sleep_or_work(void **state)
{
    (void)state;
    for (int threads = 0; threads <= LOADER_MAX_THREADS; threads++) {
        for (int taken = 0; taken < 3; taken++) {
            fake f = NOTHING;
            batch_source *source = open_loader(&f, threads, 0);
            for (int64_t step = 0; step < taken; step++) take_and_return(source, step);
            batch_source_close(&source);
            int made = f.made;
            assert_int_equal(f.at_once, 0);
            assert_int_equal(f.closed, 1);
            clock_sleep_ns(NS_PER_MS);
            assert_int_equal(f.made, made);
        }
    }
}

static void a_steady_step_allocates_nothing(void **state)
{
    (void)state;
    for (int threads = 0; threads <= LOADER_MAX_THREADS; threads += 2) {
        fake f = NOTHING;
        batch_source *source = open_loader(&f, threads, 0);
        take_and_return(source, 0);
        int before = allocations_so_far();
        for (int64_t step = 1; step < 100; step++) take_and_return(source, step);
        assert_int_equal(allocations_so_far(), before);
        assert_true(before > 0);
        batch_source_close(&source);
    }
}

typedef struct pool {
    int left, in_use;
    size_t bytes;
} pool;

static status pool_allocate(void *context, size_t bytes, void **out)
{
    pool *p = context;
    if (p->left-- == 0) return fail(STATUS_SYSTEM, "the pool is empty");
    p->in_use++;
    p->bytes += bytes;
    *out = aligned_alloc(64, bytes);
    return STATUS_OK;
}

static void pool_release(void *context, void *data)
{
    ((pool *)context)->in_use--;
    free(data);
}

static void buffers_come_from_the_memory_given_and_go_back(void **state)
{
    (void)state;
    for (int buffers = 0; buffers <= 4; buffers++) {
        fake f = NOTHING;
        pool p = {.left = buffers};
        loader_memory memory = {&p, pool_allocate, pool_release};
        batch_maker maker = {.context = &f,
                             .input_bytes = 100,
                             .target_bytes = 8,
                             .make = fake_make,
                             .close = fake_close,
                             .threads = 1,
                             .memory = &memory};
        batch_source *source;
        status result = loader_open(&maker, &source);
        if (buffers < 4) {
            assert_fails(result, STATUS_SYSTEM, "the pool is empty");
            assert_null(source);
        } else {
            must(result);
            assert_int_equal(p.bytes, 2 * (128 + 64));
            batch_source_close(&source);
        }
        assert_int_equal(p.in_use, 0);
        assert_int_equal(f.closed, 1);
    }
}

static void positions_convert_to_steps_and_back(void **state)
{
    (void)state;
    fake f = NOTHING;
    batch_source *source = open_loader(&f, 0, 0);
    for (int64_t step = 0; step < 3 * EPOCH; step++) {
        batch_position position = batch_position_of_step(source, step);
        assert_int_equal(position.epoch, step / EPOCH);
        assert_int_equal(position.epoch_step, step % EPOCH);
        assert_int_equal(batch_step_of_position(source, position), step);
    }
    batch_source_close(&source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_come_in_order_whatever_the_number_of_threads),
        cmocka_unit_test(all_buffers_but_one_may_be_on_loan),
        cmocka_unit_test(a_batch_is_ready_when_it_is_made_and_next_in_turn),
        cmocka_unit_test(a_jump_gives_the_step_asked_for),
        cmocka_unit_test(a_jump_leaves_what_is_on_loan_alone),
        cmocka_unit_test(a_jump_over_a_batch_in_the_making_discards_it),
        cmocka_unit_test(a_loader_can_start_at_any_step),
        cmocka_unit_test(an_error_reaches_the_consumer_at_its_step_and_stays),
        cmocka_unit_test(threads_use_no_time_while_the_consumer_is_parked),
        cmocka_unit_test(closing_ends_threads_that_sleep_or_work),
        cmocka_unit_test(a_steady_step_allocates_nothing),
        cmocka_unit_test(buffers_come_from_the_memory_given_and_go_back),
        cmocka_unit_test(positions_convert_to_steps_and_back),
    };
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
