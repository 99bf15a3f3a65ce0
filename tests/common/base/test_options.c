/* Options as tables: two components, parsed together. */
#include "common/base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct train_options {
    int64_t batch, epochs;
    double lr;
    bool shuffle, verbose;
    const char *data;
    int device;
} train_options;

typedef struct link_options {
    int64_t cap, delay;
    double drop;
} link_options;

static const char *const device_names[] = {"reference", "cpu", NULL};

static const option train_table_options[] = {
    {"batch", "N", OPTION_INT, offsetof(train_options, batch), "32", 1, 4096, NULL, "samples a rank"},
    {"epochs", "N", OPTION_INT, offsetof(train_options, epochs), NULL, 0, 0, NULL, "passes over the data"},
    {"lr", "X", OPTION_DOUBLE, offsetof(train_options, lr), "0.1", 0, 0, NULL, "learning rate"},
    {"shuffle", NULL, OPTION_FLAG, offsetof(train_options, shuffle), "yes", 0, 0, NULL, "shuffle samples"},
    {"verbose", NULL, OPTION_FLAG, offsetof(train_options, verbose), NULL, 0, 0, NULL, "say more"},
    {"data", "DIR", OPTION_TEXT, offsetof(train_options, data), "data", 0, 0, NULL, "where the data lies"},
    {"device", NULL, OPTION_CHOICE, offsetof(train_options, device), "cpu", 0, 0, device_names,
     "what computes"},
};
static const option link_table_options[] = {
    {"bucket-cap", "SIZE", OPTION_BYTES, offsetof(link_options, cap), "25MiB", 0, 0, NULL, "bytes a bucket"},
    {"delay", "TIME", OPTION_DURATION, offsetof(link_options, delay), "50us", 0, 0, NULL, "delay of a link"},
    {"drop", "P", OPTION_DOUBLE, offsetof(link_options, drop), "0", 0, 1, NULL, "probability of loss"},
};
static const option_table train_table = {"Training", train_table_options, 7};
static const option_table link_table = {"Links", link_table_options, 3};

typedef struct fixture {
    train_options train;
    link_options link;
    option_binding bindings[2];
    const char *positional[16];
    int positional_count;
} fixture;

static void start(fixture *f)
{
    memset(f, 0xa5, sizeof *f);
    f->bindings[0] = (option_binding){&train_table, &f->train, 0};
    f->bindings[1] = (option_binding){&link_table, &f->link, 0};
    error_clear();
    assert_int_equal(options_defaults(f->bindings, 2), STATUS_OK);
}

static status parse(fixture *f, int argc, const char *const *argv)
{
    return options_parse(f->bindings, 2, argc, (char *const *)argv, f->positional, &f->positional_count);
}

static void defaults_come_from_the_table(void **context)
{
    (void)context;
    fixture f;
    start(&f);
    assert_int_equal(f.train.batch, 32);
    assert_int_equal(f.train.epochs, 0);
    assert_true(f.train.lr == 0.1);
    assert_true(f.train.shuffle);
    assert_false(f.train.verbose);
    assert_string_equal(f.train.data, "data");
    assert_int_equal(f.train.device, 1);
    assert_int_equal(f.link.cap, 26214400);
    assert_int_equal(f.link.delay, 50000);
    assert_true(f.link.drop == 0);
    assert_false(options_given(&f.bindings[0], "batch"));
}

static void every_form_is_understood(void **context)
{
    (void)context;
    static const char *const argv[] = {"first",        "--batch",   "64",           "--lr=0.5",
                                       "--no-shuffle", "--verbose", "--data=",      "--device",
                                       "reference",    "second",    "--bucket-cap", "1KB",
                                       "--delay=2ms",  "--",        "--batch",      "-"};
    fixture f;
    start(&f);
    assert_int_equal(parse(&f, 16, argv), STATUS_OK);
    assert_int_equal(f.train.batch, 64);
    assert_true(f.train.lr == 0.5);
    assert_false(f.train.shuffle);
    assert_true(f.train.verbose);
    assert_string_equal(f.train.data, "");
    assert_int_equal(f.train.device, 0);
    assert_int_equal(f.link.cap, 1000);
    assert_int_equal(f.link.delay, 2000000);
    static const char *const expected[] = {"first", "second", "--batch", "-"};
    assert_int_equal(f.positional_count, 4);
    for (int i = 0; i < 4; i++) assert_string_equal(f.positional[i], expected[i]);
    assert_true(options_given(&f.bindings[0], "shuffle"));
    assert_true(options_given(&f.bindings[1], "delay"));
    assert_false(options_given(&f.bindings[0], "epochs"));
    assert_false(options_given(&f.bindings[1], "batch"));
}

static void last_of_repeated_options_holds(void **context)
{
    (void)context;
    static const char *const argv[] = {"--batch=1", "--batch=2", "--verbose", "--no-verbose", "--batch", "3"};
    fixture f;
    start(&f);
    assert_int_equal(parse(&f, 6, argv), STATUS_OK);
    assert_int_equal(f.train.batch, 3);
    assert_false(f.train.verbose);
}

typedef struct refusal {
    const char *word, *next, *message;
} refusal;

static const refusal refusals[] = {
    {"--bach", "1", "unknown option '--bach'; did you mean --batch?"},
    {"--bach=1", NULL, "unknown option '--bach'; did you mean --batch?"},
    {"--batc", "1", "unknown option '--batc'; did you mean --batch?"}, /* no abbreviations */
    {"--frobnicate", NULL, "unknown option '--frobnicate'; see --help"},
    {"--no-batch", NULL, "unknown option '--no-batch'; did you mean --batch?"}, /* not a flag */
    {"-v", NULL, "unknown option '-v'; options start with two dashes"},
    {"--batch", NULL, "--batch: expected N, got nothing"},
    {"--batch", "0", "--batch: expected an integer from 1 to 4096, got '0'"},
    {"--batch", "4097", "--batch: expected an integer from 1 to 4096, got '4097'"},
    {"--batch=", NULL, "--batch: expected an integer from 1 to 4096, got ''"},
    {"--batch", "many", "--batch: expected an integer from 1 to 4096, got 'many'"},
    {"--epochs", "-1", "--epochs: expected an integer of at least 0, got '-1'"},
    {"--lr", "fast", "--lr: expected a number of at least 0, got 'fast'"},
    {"--drop", "1.5", "--drop: expected a number from 0 to 1, got '1.5'"},
    {"--shuffle=yes", NULL, "--shuffle: expected no value, got 'yes'"},
    {"--device", "cuda", "--device: expected one of reference, cpu, got 'cuda'"},
    {"--bucket-cap", "25Q",
     "--bucket-cap: expected a size of at most 1 PiB such as 4096, 4K, 25MiB or 1GB, got '25Q'"},
    {"--delay", "50",
     "--delay: expected a duration of at most 1000 days with its unit such as 50us, 2ms or 60s, got '50'"},
};

static void bad_input_gets_one_clear_line(void **context)
{
    (void)context;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const char *argv[] = {refusals[i].word, refusals[i].next};
        fixture f;
        start(&f);
        if (parse(&f, refusals[i].next ? 2 : 1, argv) != STATUS_USAGE)
            fail_msg("'%s %s' passes", refusals[i].word, refusals[i].next ? refusals[i].next : "");
        assert_string_equal(error_message(), refusals[i].message);
    }
    error_clear();
}

static void options_are_set_from_text(void **context)
{
    (void)context;
    fixture f;
    start(&f);
    assert_int_equal(options_set(f.bindings, 2, "delay", "1s"), STATUS_OK);
    assert_int_equal(f.link.delay, 1000000000);
    assert_true(options_given(&f.bindings[1], "delay"));
    assert_int_equal(options_set(f.bindings, 2, "shuffle", "no"), STATUS_OK);
    assert_false(f.train.shuffle);
    assert_int_equal(options_set(f.bindings, 2, "shuffle", "yes"), STATUS_OK);
    assert_true(f.train.shuffle);
    assert_int_equal(options_set(f.bindings, 2, "shuffle", "true"), STATUS_USAGE);
    assert_string_equal(error_message(), "--shuffle: expected one of no, yes, got 'true'");
    assert_true(f.train.shuffle);
    error_clear();
    assert_int_equal(options_set(f.bindings, 2, "dely", "1s"), STATUS_USAGE);
    assert_string_equal(error_message(), "unknown option '--dely'; did you mean --delay?");
    error_clear();
}

static void values_are_written_in_the_words_of_the_command_line(void **context)
{
    (void)context;
    static const char *const train_text[] = {"32", "0", "0.10000000000000001", "yes", "no", "data", "cpu"};
    static const char *const link_text[] = {"26214400", "50000ns", "0"};
    fixture f, again;
    char buffer[64];
    start(&f);
    start(&again);
    for (size_t i = 0; i < 7; i++) {
        assert_string_equal(options_format(&f.bindings[0], i, buffer, sizeof buffer), train_text[i]);
        if (train_table_options[i].type == OPTION_TEXT) continue; /* borrows its text */
        assert_int_equal(options_set(again.bindings, 2, train_table_options[i].name, buffer), STATUS_OK);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(options_format(&f.bindings[1], i, buffer, sizeof buffer), link_text[i]);
        assert_int_equal(options_set(again.bindings, 2, link_table_options[i].name, buffer), STATUS_OK);
    }
    assert_true(again.train.lr == f.train.lr && again.train.batch == f.train.batch);
    assert_true(again.link.cap == f.link.cap && again.link.delay == f.link.delay);
    f.train.data = NULL;
    assert_string_equal(options_format(&f.bindings[0], 5, buffer, sizeof buffer), "");
}

static void help_shows_every_option_with_its_default(void **context)
{
    (void)context;
    fixture f;
    text_buffer help = {0};
    start(&f);
    options_help(f.bindings, 2, &help);
    static const char *const lines[] = {
        "\nTraining:\n",
        "  --batch N                       samples a rank [32]\n",
        "  --epochs N                      passes over the data\n",
        "  --shuffle                       shuffle samples\n",
        "  --device reference|cpu          what computes [cpu]\n",
        "\nLinks:\n",
        "  --bucket-cap SIZE               bytes a bucket [25MiB]\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!strstr(help.data, lines[i])) fail_msg("help lacks '%s':\n%s", lines[i], help.data);
    text_free(&help);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_come_from_the_table),
        cmocka_unit_test(every_form_is_understood),
        cmocka_unit_test(last_of_repeated_options_holds),
        cmocka_unit_test(bad_input_gets_one_clear_line),
        cmocka_unit_test(options_are_set_from_text),
        cmocka_unit_test(values_are_written_in_the_words_of_the_command_line),
        cmocka_unit_test(help_shows_every_option_with_its_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
