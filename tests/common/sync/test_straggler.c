#include "common/sync/straggler.h"
#include "tests/support/status_name.h"

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
        {"0:2,1:3,0:4", STATUS_USAGE, "--slow: expected each rank once, got '0:2,1:3,0:4'"},
        {"4:2", STATUS_CONFIG, "expected a rank from 0 to 3, got 4"},
        {"1:2,", STATUS_USAGE, "expected RANK:FACTOR, as in 1:2.5, got ''"},
        {"1:2,4:2", STATUS_CONFIG, "expected a rank from 0 to 3, got 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double factor;
        status rc = straggler_factor(cases[i].text, 0, 4, &factor);
        if (rc != cases[i].code || !strstr(error_message(), cases[i].says))
            fail_msg("%s: found %s '%s', expected %s '%s'", cases[i].text, status_name(rc), error_message(),
                     status_name(cases[i].code), cases[i].says);
        error_clear();
    }
}

static void several_ranks_have_factors_of_their_own(void **state)
{
    (void)state;
    static const double expected[] = {2, 1, 3.5, 1};
    for (int rank = 0; rank < 4; rank++) {
        double factor;
        assert_int_equal(straggler_factor("0:2,2:3.5", rank, 4, &factor), STATUS_OK);
        assert_true(factor == expected[rank]);
        assert_int_equal(straggler_factor(NULL, rank, 4, &factor), STATUS_OK);
        assert_true(factor == 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_texts_are_refused_with_what_is_allowed),
        cmocka_unit_test(several_ranks_have_factors_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
