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
    {.name = "batch",
     .alias = "batch-size",
     .letter = 'b',
     .argument = "N",
     .type = OPTION_INT,
     .offset = offsetof(train_options, batch),
     .initial = "32",
     .low = 1,
     .high = 4096,
     .help = "samples per rank"},
    {.name = "epochs",
     .argument = "N",
     .type = OPTION_INT,
     .offset = offsetof(train_options, epochs),
     .help = "passes over the data"},
    {.name = "lr",
     .argument = "X",
     .type = OPTION_DOUBLE,
     .offset = offsetof(train_options, lr),
     .initial = "0.1",
     .help = "learning rate"},
    {.name = "shuffle",
     .type = OPTION_FLAG,
     .offset = offsetof(train_options, shuffle),
     .initial = "yes",
     .help = "shuffle samples"},
    {.name = "verbose", .type = OPTION_FLAG, .offset = offsetof(train_options, verbose), .help = "say more"},
    {.name = "data",
     .argument = "NAME",
     .type = OPTION_TEXT,
     .offset = offsetof(train_options, data),
     .initial = "data",
     .help = "where the data lies"},
    {.name = "device",
     .type = OPTION_CHOICE,
     .offset = offsetof(train_options, device),
     .initial = "cpu",
     .choices = device_names,
     .help =
         "what computes, which may be a processor or the reference, that is slow and in double precision"},
};
static const option link_table_options[] = {
    {.name = "bucket-cap",
     .argument = "SIZE",
     .type = OPTION_BYTES,
     .offset = offsetof(link_options, cap),
     .initial = "25MiB",
     .help = "bytes per bucket"},
    {.name = "delay",
     .level = OPTION_RARE,
     .argument = "TIME",
     .type = OPTION_DURATION,
     .offset = offsetof(link_options, delay),
     .initial = "50us",
     .help = "delay of a link"},
    {.name = "drop",
     .level = OPTION_KEY,
     .argument = "P",
     .type = OPTION_DOUBLE,
     .offset = offsetof(link_options, drop),
     .initial = "0",
     .high = 1,
     .help = "probability of loss"},
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
    f->bindings[0] = (option_binding){.table = &train_table, .storage = &f->train};
    f->bindings[1] = (option_binding){.table = &link_table, .storage = &f->link};
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

static void a_period_is_compared_with_its_default(void **context)
{
    (void)context;
    static const option every = {.name = "every", .type = OPTION_PERIOD, .initial = "5ep", .high = 9};
    static const option_table table = {"Periods", &every, 1};
    option_period period;
    option_binding binding = {.table = &table, .storage = &period};
    assert_int_equal(options_defaults(&binding, 1), STATUS_OK);
    assert_true(options_is_default(&binding, "every")); /* the address sanitizer checks the memory */
    period.epochs = false;
    assert_false(options_is_default(&binding, "every"));
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

static void a_flag_takes_yes_and_no(void **context)
{
    (void)context;
    static const char *const argv[] = {"--verbose=yes", "--shuffle=yes", "--shuffle=no"};
    fixture f;
    start(&f);
    assert_int_equal(parse(&f, 3, argv), STATUS_OK);
    assert_true(f.train.verbose);
    assert_false(f.train.shuffle);
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
    {"--shuffle=true", NULL, "--shuffle: expected one of no, yes, got 'true'"},
    {"--no-shuffle=yes", NULL, "--no-shuffle: expected no value, got 'yes'"},
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
        if (train_table_options[i].type == OPTION_TEXT) continue; /* The value borrows its text. */
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

static void help_shows_what_people_use_in_80_columns_and_all_of_it_on_request(void **context)
{
    (void)context;
    fixture f;
    text_buffer help = {0}, all = {0};
    start(&f);
    options_help(f.bindings, 2, false, &help);
    options_help(f.bindings, 2, true, &all);
    static const char *const lines[] = {
        "\nTraining:\n",
        "  -b, --batch N           samples per rank [32]\n",
        "  --epochs N              passes over the data\n",
        "  --shuffle               shuffle samples\n",
        ("  --device reference|cpu  what computes, which may be a processor or the\n"
         "                          reference, that is slow and in double precision [cpu]\n"),
        "\nLinks:\n",
        "  --bucket-cap SIZE       bytes per bucket [25MiB]\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!strstr(help.data, lines[i]) || !strstr(all.data, lines[i]))
            fail_msg("help lacks '%s':\n%s", lines[i], help.data);
    for (const char *line = all.data; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strcspn(line, "\n") > 80) fail_msg("more than 80 columns: %.*s", (int)strcspn(line, "\n"), line);
        if (!*line) break;
    }
    assert_null(strstr(help.data, "--delay"));
    assert_null(strstr(help.data, "drop"));
    assert_non_null(strstr(all.data, "  --delay TIME            delay of a link [50us]\n"));
    assert_non_null(strstr(all.data, "  :drop=P                 probability of loss [0]\n"));
    text_free(&help);
    text_free(&all);
}

static void options_answer_to_their_letter_and_to_names_from_other_programs(void **context)
{
    (void)context;
    static const struct {
        const char *argv[2];
        int count;
        int64_t batch;
    } cases[] = {{{"-b", "8"}, 2, 8},
                 {{"--batch-size", "9"}, 2, 9},
                 {{"--batch_size=10"}, 1, 10},
                 {{"--batch", "11"}, 2, 11}};
    static const struct {
        const char *argv[2];
        int count;
        const char *message;
    } wrong[] = {{{"-b"}, 1, "--batch: expected N, got nothing"},
                 {{"-b8"}, 1, "unknown option '-b8'; options start with two dashes"},
                 {{"-q", "8"}, 2, "unknown option '-q'; options start with two dashes"}};
    fixture f;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        start(&f);
        assert_int_equal(parse(&f, cases[i].count, cases[i].argv), STATUS_OK);
        assert_int_equal(f.train.batch, cases[i].batch);
        assert_true(options_given(&f.bindings[0], "batch"));
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        start(&f);
        assert_int_equal(parse(&f, wrong[i].count, wrong[i].argv), STATUS_USAGE);
        assert_string_equal(error_message(), wrong[i].message);
    }
    error_clear();
}

static void keys_of_a_policy_set_its_options(void **context)
{
    (void)context;
    static const struct {
        const char *keys, *message;
    } wrong[] = {{"drap=1", "--policy fast: expected drop, got 'drap'; did you mean 'drop'?"},
                 /* An option, but not a key of a policy. */
                 {"delay=1us", "--policy fast: expected drop, got 'delay'"},
                 {"drop", "--policy fast: expected drop=VALUE, got 'drop'"},
                 {"drop=2", "--drop: expected a number from 0 to 1, got '2'"}};
    fixture f;
    start(&f);
    assert_int_equal(options_set_keys(&f.bindings[1], "fast", "drop=0.25"), STATUS_OK);
    assert_true(f.link.drop == 0.25);
    assert_true(options_given(&f.bindings[1], "drop"));
    assert_true(f.bindings[1].moved == 0);
    assert_int_equal(options_set_keys(&f.bindings[0], "fast", "batch=1"), STATUS_USAGE);
    assert_string_equal(error_message(), "--policy fast: expected no keys, got 'batch'");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        error_clear();
        assert_int_equal(options_set_keys(&f.bindings[1], "fast", wrong[i].keys), STATUS_USAGE);
        assert_string_equal(error_message(), wrong[i].message);
    }
    start(&f); /* The same setting works as an option, too, and the binding records it. */
    assert_int_equal(parse(&f, 2, (const char *[]){"--drop", "0.5"}), STATUS_OK);
    assert_true(f.link.drop == 0.5);
    assert_true(f.bindings[1].moved == 4);
}

/* A command takes the options of its own table, and leaves the other words, in order, to the next command. */
static void a_command_takes_its_own_options_and_leaves_the_rest(void **context)
{
    (void)context;
    static const char *const argv[] = {"--delay=2ms",  "--batch", "64", "--bucket-cap", "1KB",
                                       "--no-shuffle", "word",    "-e", "-1",           "--no"};
    static const char *const left[] = {"--batch", "64", "--no-shuffle", "word", "-e", "-1", "--no"};
    fixture f;
    char *rest[10];
    int count = 0;
    start(&f);
    assert_int_equal(options_take(&f.bindings[1], 1, 10, (char *const *)argv, rest, &count), STATUS_OK);
    assert_int_equal(f.link.delay, 2000000);
    assert_int_equal(f.link.cap, 1000);
    assert_int_equal(count, 7);
    for (int i = 0; i < count; i++) assert_string_equal(rest[i], left[i]);
    static const char *const mixed[] = {"-b", "8", "--no-shuffle", "--lr", "0.5", "--drop", "1"};
    assert_int_equal(options_take(&f.bindings[0], 1, 7, (char *const *)mixed, rest, &count), STATUS_OK);
    assert_int_equal(f.train.batch, 8);
    assert_false(f.train.shuffle);
    assert_true(f.train.lr == 0.5);
    assert_int_equal(count, 2);
    static const char *const bad[] = {"--other", "--delay"};
    assert_int_equal(options_take(&f.bindings[1], 1, 2, (char *const *)bad, rest, &count), STATUS_USAGE);
    assert_string_equal(error_message(), "--delay: expected TIME, got nothing");
    error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_come_from_the_table),
        cmocka_unit_test(a_period_is_compared_with_its_default),
        cmocka_unit_test(every_form_is_understood),
        cmocka_unit_test(last_of_repeated_options_holds),
        cmocka_unit_test(a_flag_takes_yes_and_no),
        cmocka_unit_test(bad_input_gets_one_clear_line),
        cmocka_unit_test(options_are_set_from_text),
        cmocka_unit_test(values_are_written_in_the_words_of_the_command_line),
        cmocka_unit_test(help_shows_what_people_use_in_80_columns_and_all_of_it_on_request),
        cmocka_unit_test(options_answer_to_their_letter_and_to_names_from_other_programs),
        cmocka_unit_test(keys_of_a_policy_set_its_options),
        cmocka_unit_test(a_command_takes_its_own_options_and_leaves_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
