#include "common/base/clock.h"
#include "common/net/link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h> /* must come last, since it defines a macro fail() */

static void links_are_read_as_bandwidth_and_latency(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes_per_second, latency_ns;
        const char *shown;
    } cases[] = {
        {NULL, 0, 0, NULL},
        {"1GB/s,50us", 1000000000, 50000, "8 Gbit/s (1 GB/s), 50.0 us"},
        {"10Gb/s,50us", 1250000000, 50000, "10 Gbit/s (1.25 GB/s), 50.0 us"},
        {"200MB/s,1ms", 200000000, 1000000, "1.6 Gbit/s (200 MB/s), 1.00 ms"},
        {"1MiB/s,0us", 1048576, 0, "8.389 Mbit/s (1.049 MB/s), 0 ns"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        net_link link;
        char shown[80];
        assert_int_equal(net_link_parse(cases[i].text, &link), STATUS_OK);
        assert_int_equal(link.bytes_per_second, cases[i].bytes_per_second);
        assert_int_equal(link.latency_ns, cases[i].latency_ns);
        assert_int_equal(net_link_is_emulated(&link), cases[i].text != NULL);
        if (cases[i].shown) assert_string_equal(net_link_format(&link, shown, sizeof shown), cases[i].shown);
    }
}

static void malformed_links_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",           "1GB/s",       "1GB,50us", "1GB/s,",
                                        "1GB/s,50",   "fast/s,50us", "0/s,1us",  ",1us",
                                        "10gb/s,1us", "10G/s,1us"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        net_link link;
        error_clear();
        if (net_link_parse(texts[i], &link) != STATUS_USAGE || !strstr(error_message(), "--link: expected "))
            fail_msg("'%s': found '%s'", texts[i], error_message());
    }
    error_clear();
}

/* An adapter that needs 1 ns per byte, with a latency of 10 ns. */
static net_adapter adapter(void)
{
    return (net_adapter){.link = {.bytes_per_second = NS_PER_S, .latency_ns = 10}};
}

static void messages_leave_one_behind_the_other(void **state)
{
    (void)state;
    net_adapter a = adapter();
    assert_int_equal(net_adapter_send(&a, 100, 1000), 1110);
    /* This message is sent at the same time as the first one, so it leaves after the first one. */
    assert_int_equal(net_adapter_send(&a, 100, 1000), 1210);
    assert_int_equal(net_adapter_send(&a, 100, 1500), 1610); /* The link has become free again. */
    assert_int_equal(net_adapter_send(&a, 0, 1500), 1610);
}

static void what_comes_in_alone_is_not_delayed_and_what_comes_together_queues(void **state)
{
    (void)state;
    net_adapter a = adapter();
    assert_int_equal(net_adapter_receive(&a, 100, 1000), 1000);
    assert_int_equal(net_adapter_receive(&a, 100, 1100), 1100);
    assert_int_equal(net_adapter_receive(&a, 100, 1100), 1200); /* from a second sender at the same time */
    assert_int_equal(net_adapter_receive(&a, 100, 1100), 1300);
    assert_int_equal(net_adapter_receive(&a, 100, 9000), 9000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_read_as_bandwidth_and_latency),
        cmocka_unit_test(malformed_links_are_refused),
        cmocka_unit_test(messages_leave_one_behind_the_other),
        cmocka_unit_test(what_comes_in_alone_is_not_delayed_and_what_comes_together_queues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
