/* Status codes and the record of the first failure of a thread. */
#include "common/base/status.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* Removes cmocka's macro: here fail() is that of status.h. */

static int clear(void **context)
{
    (void)context;
    error_clear();
    return 0;
}

static void exit_codes_are_those_promised(void **context)
{
    (void)context;
    assert_int_equal(status_exit_code(STATUS_OK), 0);
    assert_int_equal(status_exit_code(STATUS_MISMATCH), 1);
    assert_int_equal(status_exit_code(STATUS_USAGE), 64);
    assert_int_equal(status_exit_code(STATUS_DATA), 65);
    assert_int_equal(status_exit_code(STATUS_UNAVAILABLE), 69);
    assert_int_equal(status_exit_code(STATUS_PEER), 75);
    assert_int_equal(status_exit_code(STATUS_CONFIG), 78);
    assert_int_equal(status_exit_code(STATUS_STOPPED), 130);
    assert_int_equal(status_exit_code((status)STATUS_COUNT), status_exit_code(STATUS_INTERNAL));
}

static void first_failure_is_kept(void **context)
{
    (void)context;
    assert_int_equal(error_code(), STATUS_OK);
    assert_string_equal(error_message(), "");
    assert_int_equal(fail(STATUS_DATA, "line %d: found '%s'", 3, "x"), STATUS_DATA);
    assert_int_equal(fail(STATUS_IO, "later"), STATUS_IO);
    assert_int_equal(error_code(), STATUS_DATA);
    assert_string_equal(error_message(), "line 3: found 'x'");
    error_clear();
    assert_int_equal(error_code(), STATUS_OK);
    assert_string_equal(error_message(), "");
    fail(STATUS_IO, "after clearing");
    assert_string_equal(error_message(), "after clearing");
}

static void context_goes_in_front(void **context)
{
    (void)context;
    fail(STATUS_DATA, "bad magic");
    error_context("file %s", "a.bin");
    error_context("loader");
    assert_string_equal(error_message(), "loader: file a.bin: bad magic");
    assert_int_equal(error_code(), STATUS_DATA);
}

static void errno_is_told_and_kept(void **context)
{
    (void)context;
    errno = ENOENT;
    assert_int_equal(fail_errno(STATUS_IO, "cannot open '%s'", "x"), STATUS_IO);
    assert_string_equal(error_message(), "cannot open 'x': No such file or directory");
    assert_int_equal(errno, ENOENT);
}

static void messages_longer_than_the_record_are_cut(void **context)
{
    (void)context;
    char text[3000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    fail(STATUS_DATA, "%s", text);
    assert_int_equal(strlen(error_message()), sizeof((error_record *)0)->message - 1);
    error_context("%s", text);
    error_context("front");
    assert_memory_equal(error_message(), "front: aaa", 10);
    assert_true(strlen(error_message()) < sizeof((error_record *)0)->message);
    error_clear();
    errno = EIO;
    fail_errno(STATUS_DATA, "%s", text);
    assert_true(strlen(error_message()) < sizeof((error_record *)0)->message);
}

static void quoted_values_are_cut_and_apostrophes_cut_nothing(void **context)
{
    (void)context;
    char value[301];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    fail(STATUS_DATA, "got '%s' here", value);
    assert_int_equal(strlen(error_message()), strlen("got '' here") + 203);
    assert_non_null(strstr(error_message(), "v...' here"));
    error_clear();
    fail(STATUS_DATA, "this rank's %s", value);
    assert_int_equal(strlen(error_message()), strlen("this rank's ") + 300);
}

static void *record_on_another_thread(void *argument)
{
    if (error_code() != STATUS_OK) return NULL; /* This thread does not see the record of the other thread. */
    fail(STATUS_PEER, "rank 2 was lost");
    error_copy(argument);
    return argument;
}

static void record_is_carried_between_threads(void **context)
{
    (void)context;
    pthread_t thread;
    error_record carried;
    void *finished;
    fail(STATUS_IO, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, record_on_another_thread, &carried), 0);
    assert_int_equal(pthread_join(thread, &finished), 0);
    assert_non_null(finished);
    assert_string_equal(error_message(), "of this thread");
    assert_int_equal(error_adopt(&carried), STATUS_PEER);
    assert_string_equal(error_message(),
                        "of this thread"); /* The thread keeps the message that it recorded first. */
    error_clear();
    assert_int_equal(error_adopt(&carried), STATUS_PEER);
    assert_int_equal(error_code(), STATUS_PEER);
    assert_string_equal(error_message(), "rank 2 was lost");
}

static status two_steps(status first, status second, int *reached)
{
    TRY(first);
    *reached = 1;
    TRY(second);
    *reached = 2;
    return STATUS_OK;
}

static status with_cleanup(status first, int *cleaned)
{
    status rc;
    TRY_GOTO(rc, first, out);
    rc = STATUS_STOPPED;
out:
    *cleaned += 1;
    return rc;
}

static void macros_jump_on_failure_alone(void **context)
{
    (void)context;
    int reached = 0, cleaned = 0;
    assert_int_equal(two_steps(STATUS_OK, STATUS_OK, &reached), STATUS_OK);
    assert_int_equal(reached, 2);
    reached = 0;
    assert_int_equal(two_steps(STATUS_AGAIN, STATUS_OK, &reached), STATUS_AGAIN);
    assert_int_equal(reached, 0);
    assert_int_equal(two_steps(STATUS_OK, STATUS_IO, &reached), STATUS_IO);
    assert_int_equal(reached, 1);
    assert_int_equal(with_cleanup(STATUS_DATA, &cleaned), STATUS_DATA);
    assert_int_equal(with_cleanup(STATUS_OK, &cleaned), STATUS_STOPPED);
    assert_int_equal(cleaned, 2);
}

#define STATUS_TEST(function) cmocka_unit_test_setup_teardown(function, clear, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STATUS_TEST(exit_codes_are_those_promised),
        STATUS_TEST(first_failure_is_kept),
        STATUS_TEST(context_goes_in_front),
        STATUS_TEST(errno_is_told_and_kept),
        STATUS_TEST(messages_longer_than_the_record_are_cut),
        STATUS_TEST(quoted_values_are_cut_and_apostrophes_cut_nothing),
        STATUS_TEST(record_is_carried_between_threads),
        STATUS_TEST(macros_jump_on_failure_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
