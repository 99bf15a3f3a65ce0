/* Converts numbers and units from text and back, finds the nearest word, and appends to growing strings. */
#include "common/base/text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef status (*integer_parser)(const char *what, const char *text, int64_t *out);

typedef struct parsed {
    const char *text;
    bool good;
    int64_t value;
} parsed;

static const parsed bytes[] = {
    {"0", true, 0},
    {"100", true, 100},
    {"100B", true, 100},
    {"4K", true, 4096},
    {"4k", true, 4096},
    {"4KiB", true, 4096},
    {"4KB", true, 4000},
    {"25MiB", true, 26214400},
    {"25mib", true, 26214400},
    {"25MB", true, 25000000},
    {"25mb", true, 25000000},
    {"25Mb", false, 0}, /* The suffix "Mb" usually means megabits. */
    {"25b", true, 25},
    {"4T", true, INT64_C(1) << 42},
    {"1TiB", true, INT64_C(1) << 40},
    {"1TB", true, INT64_C(1000000000000)},
    {"25MB/s", false, 0},
    {"1.5M", true, 1572864},
    {"1MB", true, 1000000},
    {"2G", true, INT64_C(2147483648)},
    {"2GiB", true, INT64_C(2147483648)},
    {"1GB", true, 1000000000},
    {"0.4", true, 0},
    {"", false, 0},
    {"K", false, 0},
    {"4 K", false, 0},
    {" 4K", false, 0},
    {"4KK", false, 0},
    {"-1K", false, 0},
    {"nan", false, 0},
    {"inf", false, 0},
    {"9e30", false, 0},
    {"4K ", false, 0},
    {"1048576G", true, INT64_C(1) << 50},
    {"1048577G", false, 0}, /* The sum of several such sizes would overflow. */
};

static const parsed durations[] = {
    {"10ns", true, 10},
    {"50us", true, 50000},
    {"2ms", true, 2000000},
    {"1s", true, 1000000000},
    {"0.25s", true, 250000000},
    {"2min", true, INT64_C(120000000000)},
    {"0s", true, 0},
    {"5", false, 0},
    {"5h", false, 0},
    {"s", false, 0},
    {"-5s", false, 0},
    {"5 s", false, 0},
    {"1e20s", false, 0},
    {"86400000s", true, INT64_C(86400000000000000)},
    {"86400001s", false, 0}, /* The sum of a clock's time and this duration would overflow. */
};

static const parsed rates[] = {
    {"10Gb/s", true, 1250000000},
    {"10Gbit/s", true, 1250000000},
    {"10Gbps", true, 1250000000},
    {"1.25GB/s", true, 1250000000},
    {"1GiB/s", true, 1073741824},
    {"25MiB/s", true, 26214400},
    {"1Gib/s", true, 134217728},
    {"100Mbps", true, 12500000},
    {"8kbit/s", true, 1000},
    {"1KB/s", true, 1000},
    {"8bit/s", true, 1},
    {"2B/s", true, 2},
    {"0.1TB/s", true, 100000000000},
    {"10gb/s", false, 0}, /* The b could mean bits or bytes. */
    {"10GBps", false, 0},
    {"10G/s", false, 0},
    {"10mbit/s", false, 0},
    {"10GB", false, 0},
    {"10Gb", false, 0},
    {"10", false, 0},
    {"0GB/s", false, 0},
    {"1bit/s", false, 0}, /* less than a byte per second */
    {"-1GB/s", false, 0},
    {"nanGB/s", false, 0},
    {"1e30GB/s", false, 0},
    {" 1GB/s", false, 0},
    {"1 GB/s", false, 0},
    {"1GB/s ", false, 0},
    {"", false, 0},
};

static const parsed integers[] = {
    /* Values from -5 to 300. */
    {"0", true, 0},
    {"-5", true, -5},
    {"300", true, 300},
    {"007", true, 7},
    {"301", false, 0},
    {"-6", false, 0},
    {"", false, 0},
    {" 1", false, 0},
    {"1 ", false, 0},
    {"1.0", false, 0},
    {"0x10", false, 0},
    {"1e2", false, 0},
    {"99999999999999999999", false, 0},
};

static status parse_small(const char *what, const char *text, int64_t *out)
{
    return text_parse_int(what, text, -5, 300, out);
}

static void check_table(integer_parser parse, const parsed *table, size_t count, const char *wanted)
{
    for (size_t i = 0; i < count; i++) {
        int64_t value = -77;
        error_clear();
        status rc = parse("--thing", table[i].text, &value);
        if (table[i].good && (rc != STATUS_OK || value != table[i].value))
            fail_msg("'%s' gives %lld (%s), should be %lld", table[i].text, (long long)value, error_message(),
                     (long long)table[i].value);
        if (table[i].good) continue;
        if (rc != STATUS_USAGE) fail_msg("'%s' passes as %lld", table[i].text, (long long)value);
        char expected[300];
        snprintf(expected, sizeof expected, "--thing: expected %s, got '%s'", wanted, table[i].text);
        assert_string_equal(error_message(), expected);
        assert_int_equal(value, -77);
    }
    error_clear();
}

static void sizes_are_parsed_strictly(void **context)
{
    (void)context;
    check_table(text_parse_bytes, bytes, sizeof bytes / sizeof bytes[0],
                "a size of at most 1 PiB such as 4096, 4K, 25MiB or 1GB");
}

static void durations_need_their_unit(void **context)
{
    (void)context;
    check_table(text_parse_duration_ns, durations, sizeof durations / sizeof durations[0],
                "a duration of at most 1000 days with its unit such as 50us, 2ms or 60s");
}

static void a_rate_is_in_bits_or_in_bytes_as_it_is_written(void **context)
{
    (void)context;
    static const struct {
        double bytes_per_second;
        const char *text;
    } shown[] = {{1.25e9, "10 Gbit/s (1.25 GB/s)"},
                 {12.5e6, "100 Mbit/s (12.5 MB/s)"},
                 {1, "8 bit/s (1 B/s)"},
                 {125e12, "1000 Tbit/s (125 TB/s)"}};
    char buffer[48];
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        int64_t value = -77;
        error_clear();
        status rc = text_parse_rate("--link", rates[i].text, &value);
        if ((rc == STATUS_OK) != rates[i].good || value != (rates[i].good ? rates[i].value : -77))
            fail_msg("'%s' gives %lld (%s), expected %lld", rates[i].text, (long long)value, error_message(),
                     (long long)rates[i].value);
        if (rates[i].good) continue;
        assert_int_equal(rc, STATUS_USAGE);
        assert_non_null(strstr(error_message(),
                               "--link: expected a rate such as 10Gbit/s or 1.25GB/s (b: bits, B: bytes)"));
    }
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        assert_string_equal(text_format_rate(buffer, sizeof buffer, shown[i].bytes_per_second),
                            shown[i].text);
    error_clear();
}

static void figures_have_three_digits(void **context)
{
    (void)context;
    static const struct {
        double value;
        const char *text;
    } figures[] = {{0, "0"},       {1, "1.00"},    {9.996, "10.0"}, {0.01234, "0.0123"},
                   {99.95, "100"}, {1734, "1730"}, {999.6, "1000"}, {-4.1, "-4.10"}};
    char buffer[32];
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        assert_string_equal(text_three_digits(buffer, sizeof buffer, figures[i].value), figures[i].text);
}

static void integers_are_whole_and_in_range(void **context)
{
    (void)context;
    int64_t value;
    check_table(parse_small, integers, sizeof integers / sizeof integers[0], "an integer from -5 to 300");
    assert_int_equal(text_parse_int("n", "-1", 0, INT64_MAX, &value), STATUS_USAGE);
    assert_string_equal(error_message(), "n: expected an integer of at least 0, got '-1'");
    error_clear();
    assert_int_equal(text_parse_int("n", "9223372036854775807", 0, INT64_MAX, &value), STATUS_OK);
    assert_true(value == INT64_MAX);
}

static void doubles_are_finite_and_in_range(void **context)
{
    (void)context;
    static const char *const wrong[] = {"", "x", "1x", " 1", "nan", "inf", "1e999", "1.5", "-0.1"};
    double value = -1;
    assert_int_equal(text_parse_double("p", "0.25", 0, 1, &value), STATUS_OK);
    assert_true(value == 0.25);
    assert_int_equal(text_parse_double("p", "1e-3", 0, 1, &value), STATUS_OK);
    assert_true(value == 1e-3);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        error_clear();
        if (text_parse_double("p", wrong[i], 0, 1, &value) != STATUS_USAGE) fail_msg("'%s' passes", wrong[i]);
        assert_true(value == 1e-3);
        assert_non_null(strstr(error_message(), "expected a number from 0 to 1, got '"));
    }
    error_clear();
    assert_int_equal(text_parse_double("p", "-2", -1, INFINITY, &value), STATUS_USAGE);
    assert_string_equal(error_message(), "p: expected a number of at least -1, got '-2'");
    error_clear();
}

typedef struct formatted {
    double value;
    const char *text;
} formatted;

static void figures_are_formatted_with_their_unit(void **context)
{
    (void)context;
    static const formatted sizes[] = {
        {0, "0 B"},          {512, "512 B"},           {1023, "1023 B"},
        {1024, "1.0 KiB"},   {46871347.2, "44.7 MiB"}, {1.5 * 1073741824, "1.5 GiB"},
        {1e15, "909.5 TiB"}, {-2048, "-2.0 KiB"}};
    static const formatted times[] = {{0, "0 ns"},          {1.25e6, "1.25 ms"}, {37e3, "37.0 us"},
                                      {37.25e3, "37.2 us"}, {999, "999 ns"},     {2.5e9, "2.50 s"},
                                      {360e9, "360 s"}};
    char buffer[32];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_string_equal(text_format_bytes(buffer, sizeof buffer, sizes[i].value), sizes[i].text);
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        assert_string_equal(text_format_duration(buffer, sizeof buffer, times[i].value), times[i].text);
}

static void nearest_word_is_found_or_none(void **context)
{
    (void)context;
    static const char *const words[] = {"policy", "bucket-cap-mb", "batch", "epochs"};
    assert_string_equal(text_nearest("polcy", words, 4), "policy");
    assert_string_equal(text_nearest("bucket-cap", words, 4), "bucket-cap-mb");
    assert_string_equal(text_nearest("batches", words, 4), "batch");
    assert_null(text_nearest("learning-rate", words, 4));
    assert_null(text_nearest("x", words, 4));
    assert_null(text_nearest("policy", words, 0));
    char longer[200];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_null(text_nearest(longer, words, 4));
}

static void a_word_is_found_in_a_table_or_the_nearest_one_is_named(void **context)
{
    (void)context;
    static const struct {
        int number;
        const char *name;
    } table[] = {{7, "none"}, {8, "ps"}, {9, "ring"}};
    int index = -77;
    const char *const *first = &table[0].name;
    assert_int_equal(text_parse_choice("--mode", "ring", first, sizeof table[0], 3, &index), STATUS_OK);
    assert_int_equal(index, 2);
    assert_int_equal(text_parse_choice("--mode", "rings", first, sizeof table[0], 3, &index), STATUS_USAGE);
    assert_string_equal(error_message(),
                        "--mode: expected one of none, ps, ring, got 'rings'; did you mean 'ring'?");
    error_clear();
    assert_int_equal(text_parse_choice("--mode", "", first, sizeof table[0], 1, &index), STATUS_USAGE);
    assert_string_equal(error_message(), "--mode: expected none, got ''");
    assert_int_equal(index, 2);
    error_clear();
}

static void words_are_joined_and_cut_to_size(void **context)
{
    (void)context;
    static const char *const words[] = {"ab", "cd", "ef"};
    char buffer[16], small[5];
    assert_string_equal(text_join(buffer, sizeof buffer, words, 3), "ab, cd, ef");
    assert_string_equal(text_join(buffer, sizeof buffer, words, 1), "ab");
    assert_string_equal(text_join(buffer, sizeof buffer, words, 0), "");
    assert_string_equal(text_join(small, sizeof small, words, 3), "ab, ");
}

static void buffers_grow_as_they_are_appended_to(void **context)
{
    (void)context;
    text_buffer buffer = {0};
    for (int i = 0; i < 1000; i++) text_append(&buffer, "%03d,", i);
    assert_false(buffer.out_of_memory);
    assert_int_equal(buffer.length, 4000);
    assert_int_equal(strlen(buffer.data), 4000);
    assert_memory_equal(buffer.data, "000,001,", 8);
    assert_string_equal(buffer.data + 3992, "998,999,");
    text_free(&buffer);
    assert_null(buffer.data);
    text_append(&buffer, "again");
    assert_string_equal(buffer.data, "again");
    text_free(&buffer);
}

static void lines_are_wrapped_between_words_below_their_second_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wrapped;
    } rows[] = {{"short\n", "short\n"},
                {"one two three four five\n", "one two three four\n  five\n"},
                {"name  what it means to us\nnext\n", "name  what it means\n      to us\nnext\n"},
                {"  - an item of a longer list\n", "  - an item of a\n    longer list\n"},
                {"a  wordthatdoesnotfitbelowit x\n", "a\n  wordthatdoesnotfitbelowit\n  x\n"},
                {"no end of the line at all", "no end of the line\n  at all\n"},
                {"\n\n", "\n\n"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        text_buffer buffer = {0};
        text_append(&buffer, "%s", rows[i].text);
        text_wrap(&buffer, 20);
        assert_string_equal(buffer.data, rows[i].wrapped);
        text_free(&buffer);
    }
    text_buffer empty = {0};
    text_wrap(&empty, 20);
    assert_null(empty.data);
}

static void words_of_a_command_are_quoted_where_a_shell_would_change_them(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"--gpus=4", "--gpus=4"},
                                           {"a/b_c.d:e@f%", "a/b_c.d:e@f%"},
                                           {"", "''"},
                                           {"10Gbit/s;1Gbit/s", "'10Gbit/s;1Gbit/s'"},
                                           {"two words", "'two words'"},
                                           {"$(x) `y` *", "'$(x) `y` *'"},
                                           {"it's", "'it'\\''s'"},
                                           {"~", "'~'"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        text_buffer text = {0};
        text_append_shell_word(&text, cases[i][0]);
        assert_string_equal(text.data, cases[i][1]);
        text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_a_command_are_quoted_where_a_shell_would_change_them),
        cmocka_unit_test(sizes_are_parsed_strictly),
        cmocka_unit_test(durations_need_their_unit),
        cmocka_unit_test(a_rate_is_in_bits_or_in_bytes_as_it_is_written),
        cmocka_unit_test(figures_have_three_digits),
        cmocka_unit_test(integers_are_whole_and_in_range),
        cmocka_unit_test(doubles_are_finite_and_in_range),
        cmocka_unit_test(figures_are_formatted_with_their_unit),
        cmocka_unit_test(nearest_word_is_found_or_none),
        cmocka_unit_test(a_word_is_found_in_a_table_or_the_nearest_one_is_named),
        cmocka_unit_test(words_are_joined_and_cut_to_size),
        cmocka_unit_test(buffers_grow_as_they_are_appended_to),
        cmocka_unit_test(lines_are_wrapped_between_words_below_their_second_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
