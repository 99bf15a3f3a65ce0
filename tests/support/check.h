/* Includes cmocka and the headers that cmocka needs, and defines checks of statuses. fail() is the function
 * of status.h, not cmocka's macro. */
#ifndef TESTS_SUPPORT_CHECK_H
#define TESTS_SUPPORT_CHECK_H

#include "common/base/status.h"
#include "tests/support/status_name.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h> /* Must come last, since it defines a macro fail(). */

#undef fail
#undef fail_msg
#define fail_msg(...) (print_error("ERROR: " __VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))

/* Fails the test with the recorded message unless `rc` is STATUS_OK. */
static inline void must(status rc)
{
    if (rc != STATUS_OK) fail_msg("%s: %s", status_name(rc), error_message());
}

/* Does what must() does, with the expression in the message. */
#define assert_ok(expression)                                                                                \
    do {                                                                                                     \
        status assert_ok_ = (expression);                                                                    \
        if (assert_ok_ != STATUS_OK)                                                                         \
            fail_msg("%s: %s: %s", #expression, status_name(assert_ok_), error_message());                   \
    } while (0)

/* Fails unless the expression returns `code`, with a message of one line that contains `text`. Clears the
 * recorded error. */
#define assert_fails(expression, code, text)                                                                 \
    do {                                                                                                     \
        status assert_fails_ = (expression);                                                                 \
        if (assert_fails_ != (code) || !strstr(error_message(), text) || strchr(error_message(), '\n'))      \
            fail_msg("%s: found %s '%s', expected %s '%s'", #expression, status_name(assert_fails_),         \
                     error_message(), status_name(code), text);                                              \
        error_clear();                                                                                       \
    } while (0)

#endif
