/* cmocka with its prerequisites, and checks of statuses. */
#ifndef TESTS_PS_PS_TEST_H
#define TESTS_PS_PS_TEST_H

#include "common/base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h> /* last: it defines a macro fail() */

#define assert_ok(expression)                                                                        \
    do {                                                                                             \
        status assert_ok_ = (expression);                                                            \
        if (assert_ok_ != STATUS_OK) fail_msg("%s: %s: %s", #expression, status_name(assert_ok_), error_message()); \
    } while (0)

/* The expression fails with `code`, and the message contains `text`. Clears the record. */
#define assert_fails(expression, code, text)                                                         \
    do {                                                                                             \
        status assert_fails_ = (expression);                                                         \
        if (assert_fails_ != (code) || !strstr(error_message(), text))                               \
            fail_msg("%s: found %s '%s', expected %s '%s'", #expression, status_name(assert_fails_), \
                     error_message(), status_name(code), text);                                      \
        error_clear();                                                                               \
    } while (0)

#endif
