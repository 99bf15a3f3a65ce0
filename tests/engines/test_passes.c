/* Tests which calls an engine gets for a parameter in each pass: need before the first use, ready after the
 * last contribution to the gradient, release after the last use. An engine that does not move parameters gets
 * no additional calls. */
#include "tests/engines/training.h"
#include "tests/support/check.h"

enum { MOST_EVENTS = 256 };

typedef struct event {
    char what; /* n for need, y for ready, r for release. */
    int param;
} event;

static event events[MOST_EVENTS];
static int event_count;
static bool each_pass;

static status note(char what, int param)
{
    assert_true(event_count < MOST_EVENTS);
    events[event_count++] = (event){what, param};
    return STATUS_OK;
}

static status note_need(sync_engine *e, int param)
{
    (void)e;
    return note('n', param);
}

static status note_ready(sync_engine *e, int param)
{
    (void)e;
    return note('y', param);
}

static status note_release(sync_engine *e, int param)
{
    (void)e;
    return note('r', param);
}

static status note_requirements(const void *options, const char *policy, int world, sync_requirements *out)
{
    TRY(sync_none.requirements(options, policy, world, out));
    out->each_pass = each_pass;
    return STATUS_OK;
}

static status one_step(training_rank *r)
{
    sync_engine_type *noting = training_context(r);
    trainer_engine(r->trainer)->type = noting; /* none_open() has set another type. */
    return training_step(r);
}

/* Returns the events of a parameter in a step, in order, as their letters. */
static const char *story_of(int param)
{
    static char text[16];
    int length = 0;
    for (int i = 0; i < event_count && length < 15; i++)
        if (events[i].param == param) text[length++] = events[i].what;
    text[length] = '\0';
    return text;
}

static void run(bool passes)
{
    sync_engine_type noting = sync_none;
    noting.requirements = note_requirements;
    noting.need = note_need;
    noting.ready = note_ready;
    noting.release = note_release;
    training_config config = {.model = "wine_mlp", .engine = &noting, .policy = "none", .batch = 4};
    each_pass = passes;
    event_count = 0;
    assert_ok(training_run(&config, &noting, one_step));
}

static void each_pass_needs_and_releases_a_parameter(void **state)
{
    (void)state;
    run(true);
    for (int param = 0; param < 4; param++) assert_string_equal(story_of(param), "nrnyr");
    /* Layer by layer in both passes: fc1 is released before fc2 is needed, and in the backward pass fc2
     * before fc1. */
    static const event order[] = {{'n', 0}, {'n', 1}, {'r', 0}, {'r', 1},
                                  {'n', 2}, {'n', 3}, {'r', 2}, {'r', 3}};
    for (int i = 0; i < 8; i++)
        if (events[i].what != order[i].what || events[i].param != order[i].param)
            fail_msg("event %d: found %c %d, expected %c %d", i, events[i].what, events[i].param,
                     order[i].what, order[i].param);
    assert_int_equal(events[event_count - 1].what, 'r');
    assert_true(events[event_count - 1].param < 2);
}

static void an_engine_that_keeps_parameters_in_place_gets_need_in_the_forward_pass_and_ready(void **state)
{
    (void)state;
    run(false);
    for (int param = 0; param < 4; param++) assert_string_equal(story_of(param), "ny");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pass_needs_and_releases_a_parameter),
        cmocka_unit_test(an_engine_that_keeps_parameters_in_place_gets_need_in_the_forward_pass_and_ready),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
