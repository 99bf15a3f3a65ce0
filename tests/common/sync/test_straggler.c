#include "common/base/clock.h"
#include "common/sync/straggler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h> /* last: it defines a macro fail() */

static void malformed_texts_are_refused_with_what_is_allowed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        status code;
        const char *says;
    } cases[] = {
        {"1", STATUS_USAGE, "expected RANK:FACTOR, as in 1:2.5, got '1'"},
        {"x:2", STATUS_USAGE, "--slow, rank: expected an integer"},
        {"1:fast", STATUS_USAGE, "--slow, factor: expected a number from 1 to 1000, got 'fast'"},
        {"1:0.5", STATUS_USAGE, "--slow, factor: expected a number from 1 to 1000, got '0.5'"},
        {"4:2", STATUS_CONFIG, "expected a rank from 0 to 3, got 4"},
        {"1:2,", STATUS_USAGE, "expected RANK:FACTOR, as in 1:2.5, got ''"},
        {"1:2,4:2", STATUS_CONFIG, "expected a rank from 0 to 3, got 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        straggler s;
        status rc = straggler_init(&s, cases[i].text, 0, 4);
        if (rc != cases[i].code || !strstr(error_message(), cases[i].says))
            fail_msg("%s: found %s '%s', expected %s '%s'", cases[i].text, status_name(rc), error_message(),
                     status_name(cases[i].code), cases[i].says);
        error_clear();
    }
}

static void several_ranks_have_factors_of_their_own(void **state)
{
    (void)state;
    static const double stretch[] = {1, 0, 2.5, 0};
    for (int rank = 0; rank < 4; rank++) {
        straggler s;
        assert_int_equal(straggler_init(&s, "0:2,2:3.5", rank, 4), STATUS_OK);
        assert_true(s.stretch == stretch[rank]);
    }
}

/* Only lower bounds: a sleep may take longer. */
static void computation_is_stretched_on_one_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        straggler s;
        assert_int_equal(straggler_init(&s, "1:3", rank, 3), STATUS_OK);
        int64_t begin = clock_now_ns(), computed = 0;
        for (int i = 0; i < 20; i++) {
            straggler_resume(&s);
            int64_t from = clock_now_ns();
            while (clock_now_ns() < from + 100 * NS_PER_US) {
            }
            computed += clock_now_ns() - from;
            straggler_pause(&s);
        }
        int64_t slept = clock_now_ns() - begin - computed;
        assert_true(s.stretch == (rank == 1 ? 2.0 : 0.0));
        if (rank == 1 && slept + NS_PER_MS < 2 * computed)
            fail_msg("slept %d us after %d us of computation, expected twice that", (int)(slept / 1000),
                     (int)(computed / 1000));
        if (rank != 1) assert_int_equal(s.debt_ns, 0);
    }
}

static void pauses_without_computation_cost_nothing(void **state)
{
    (void)state;
    straggler s;
    assert_int_equal(straggler_init(&s, "0:1000", 0, 1), STATUS_OK);
    straggler_pause(&s);
    straggler_pause(&s);
    assert_int_equal(s.debt_ns, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_texts_are_refused_with_what_is_allowed),
        cmocka_unit_test(several_ranks_have_factors_of_their_own),
        cmocka_unit_test(computation_is_stretched_on_one_rank),
        cmocka_unit_test(pauses_without_computation_cost_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
