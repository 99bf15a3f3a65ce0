/* Tests that a steady step of the whole train loop allocates nothing. The linker wraps malloc and similar
 * functions to count the calls of this project. Libraries must not allocate either: the C library's heap must
 * not grow from step 10 to the last step. */
#include "ps/ps.h"
#include "ring/ring.h"
#include "tests/common/data/allocations.h"
#include "tests/engines/training.h"
#include "tests/support/check.h"

#include <malloc.h>

enum { WARM = 10, STEPS = 400 };

static const training_config cases[] = {
    {.model = "wine_mlp", .engine = &sync_none, .batch = 8},
    {.model = "lenet", .engine = &sync_none, .batch = 2},
    {.model = "resnet18", .image = 32, .classes = 10, .engine = &sync_none, .batch = 2},
    {.model = "wine_mlp", .engine = &sync_ps, .world = 3, .batch = 8},
    {.model = "wine_mlp",
     .engine = &sync_ps,
     .options = "--servers 2 --payload zmq",
     .world = 2,
     .batch = 8,
     .processes = true},
    {.model = "lenet", .engine = &sync_ps, .world = 2, .batch = 2, .processes = true},
    {.model = "lenet",
     .engine = &sync_ps,
     .policy = "async",
     .world = 2,
     .batch = 2,
     .inline_progress = true},
    {.model = "wine_mlp", .engine = &sync_ring, .world = 3, .batch = 8},
    {.model = "lenet", .engine = &sync_ring, .world = 2, .batch = 2},
    {.model = "lenet",
     .engine = &sync_ring,
     .policy = "torch-0.4.1",
     .world = 2,
     .batch = 2,
     .inline_progress = true},
    {.model = "resnet18", .image = 32, .classes = 10, .engine = &sync_ring, .world = 2, .batch = 2},
    {.model = "wine_mlp", .engine = &sync_ring, .policy = "zero1", .world = 3, .batch = 8},
    {.model = "lenet",
     .engine = &sync_ring,
     .policy = "zero2",
     .world = 2,
     .batch = 2,
     .inline_progress = true},
    {.model = "lenet", .engine = &sync_ring, .policy = "zero3", .world = 3, .batch = 2},
    {.model = "lenet",
     .engine = &sync_ring,
     .policy = "fsdp",
     .options = "--group 2",
     .world = 4,
     .batch = 2},
    {.model = "lenet",
     .engine = &sync_ring,
     .policy = "zero3",
     .options = "--mixed-precision",
     .world = 2,
     .batch = 2},
};

typedef struct sight {
    int own;     /* Number of allocations that this project's code has made so far. */
    size_t heap; /* Bytes in use in all arenas of the C library. */
} sight;

typedef struct figures {
    int steps;
    sight warm, middle, end;
} figures;

static status look(training_rank *r, sight *out)
{
    TRY(sync_flush(trainer_engine(r->trainer)));
    TRY(training_barrier(r));
    struct mallinfo2 heap = mallinfo2();
    if (r->rank == 0) *out = (sight){allocations_so_far(), heap.uordblks + heap.hblkhd};
    return training_barrier(r);
}

static status train(training_rank *r)
{
    figures *f = training_context(r);
    for (int i = 0; i < WARM; i++) TRY(training_step(r));
    TRY(look(r, &f->warm));
    for (int i = WARM; i < f->steps / 2; i++) TRY(training_step(r));
    TRY(look(r, &f->middle));
    for (int i = f->steps / 2; i < f->steps; i++) TRY(training_step(r));
    return look(r, &f->end);
}

/* libzmq allocates memory for messages in flight. Queues grow by chunks of 256 messages. When a queue has
 * used up a chunk, it keeps the chunk as a spare. */
enum { SPARE_CHUNKS = 160 << 10, UNDER_WAY = 4 << 10 };

static void a_steady_step_allocates_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const training_config *c = &cases[i];
        figures f = {.steps = c->image ? 3 * WARM : STEPS};
        size_t spare = c->engine == &sync_ps ? SPARE_CHUNKS : 0;
        int before = allocations_so_far();
        char what[96];
        snprintf(what, sizeof what, "%s through %s %s", c->model, c->engine->name,
                 c->options ? c->options : "");
        assert_ok(training_run(c, &f, train));
        assert_true(f.warm.own > before); /* Checks that allocations are counted. */
        print_message("# %s: heap of %zu bytes at step %d, %zu at step %d, %zu at step %d\n", what,
                      f.warm.heap, WARM, f.middle.heap, f.steps / 2, f.end.heap, f.steps);
        if (f.end.own != f.warm.own)
            fail_msg("%s: %d allocations of our own from step %d to %d, expected 0", what,
                     f.end.own - f.warm.own, WARM, f.steps);
        if (f.end.heap > f.middle.heap + (spare ? UNDER_WAY : 0) || f.middle.heap > f.warm.heap + spare)
            fail_msg("%s: the heap has %zu bytes at step %d, %zu at step %d, %zu at step %d: it grows", what,
                     f.warm.heap, WARM, f.middle.heap, f.steps / 2, f.end.heap, f.steps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_steady_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
