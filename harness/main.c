/* harness [COMMAND] [options]. The first word names the command, which is `run` by default. */
#include "common/base/log.h"
#include "harness/commands/commands.h"
#include "harness/launch/environment.h"
#include "harness/launch/launch.h"
#include "harness/launch/out_of_memory.h"
#include "harness/result/output.h"
#include "harness/result/run_result.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const command *const commands[] = {
    &command_run,     &command_verify,      &command_models,  &command_policies, &command_sweep,
    &command_compare, &command_report,      &command_buckets, &command_bench,    &command_reproduce,
    &command_whatif,  &command_calibrate,   &command_memory,  &command_profiles, &command_lab,
    &command_doctor,  &command_collectives, &command_import,  &command_explain};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static status find_command(const char *name, const command **out)
{
    const char *names[COMMAND_COUNT];
    int index;
    for (int i = 0; i < COMMAND_COUNT; i++) names[i] = commands[i]->name;
    TRY(text_parse_choice("command", name, names, sizeof *names, COMMAND_COUNT, &index));
    *out = commands[index];
    return STATUS_OK;
}

static void print_help(text_buffer *out)
{
    text_append(out,
                "harness " PROGRAM_VERSION ": data-parallel training by parameter server or all-reduce\n\n"
                "usage: harness [run] [options]        harness COMMAND [options]\n\ncommands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        text_append(out, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    text_append(out, "\nharness help COMMAND lists the options of a command that people use,\n"
                     "harness COMMAND --help=all every option, harness help units the units of sizes,\n"
                     "times and rates; harness --version prints the version.\n"
                     "Exit codes: 0 done, 1 a comparison failed, 64 usage, 65 data, 69 unavailable,\n"
                     "70 defect, 71 system, 73 cannot create output, 74 input or output, 75 peer lost,\n"
                     "76 protocol, or ranks differ, 77 permission, 78 configuration, 79 a loss,\n"
                     "gradient or parameter is not finite, 128 + signal.\n");
}

static bool is_word(const char *argument, const char *word)
{
    return argument && strcmp(argument, word) == 0;
}

static size_t bind_options(const command *c, void *options, option_binding *bindings)
{
    size_t own = c->table.count > 0;
    bindings[0] = (option_binding){.table = &c->table, .storage = options};
    return c->bind ? own + c->bind(options, bindings + own) : own;
}

static status print_command_help(const command *c, const char *what, text_buffer *out)
{
    bool all = is_word(what, "--help=all"), effects = is_word(what, "--help=effects");
    option_binding bindings[COMMAND_MOST_BINDINGS] = {{0}};
    if (effects && !c->effects)
        return fail(STATUS_USAGE, "%s: expected --help or --help=all, got %s; harness run has that table",
                    c->name, what);
    void *options = calloc(1, c->options_size + 1);
    if (!options) return fail(STATUS_SYSTEM, "no memory for the options of %s", c->name);
    if (effects) {
        c->effects(options, out);
        free(options);
        return output_file(out, "-"); /* Markdown */
    }
    text_append(out, "usage: harness %s %s\n%s\n%s", c->name, c->usage, c->summary, c->about ? c->about : "");
    if (c->help)
        c->help(options, all, out);
    else
        options_help(bindings, bind_options(c, options, bindings), all, out);
    if (c->notes) text_append(out, "%s", c->notes);
    free(options);
    return STATUS_OK;
}

/* Refuses words that are not UTF-8, because JSON, and so the record of a run, cannot hold them. */
static status check_words(const command_line *l)
{
    for (int i = 0; i < l->argc; i++) {
        json_t *word = json_string(l->argv[2 + i]);
        if (!word)
            return fail(STATUS_USAGE, "argument %d of %s: expected UTF-8, got '%s'", i + 1, l->argv[1],
                        l->argv[2 + i]);
        json_decref(word);
    }
    return STATUS_OK;
}

static status read_and_run(const command *c, command_line *l)
{
    size_t count = bind_options(c, l->options, l->bindings);
    l->argv[0] = (char *)"harness";
    l->argv[1] = (char *)c->name;
    TRY(check_words(l));
    TRY(options_defaults(l->bindings, count));
    if (c->most_words != COMMAND_READS_ITSELF) {
        TRY(options_parse(l->bindings, count, l->argc, l->argv + 2, l->words, &l->word_count));
        if (l->word_count > c->most_words)
            return fail(STATUS_USAGE, "%s: unexpected argument '%s'; see harness %s --help", c->name,
                        l->words[c->most_words], c->name);
    }
    return c->run(l);
}

static status run_command(const command *c, int argc, char *argv[], text_buffer *out, int *exit_code)
{
    option_binding bindings[COMMAND_MOST_BINDINGS] = {{0}};
    command_line l = {.argc = argc,
                      .argv = calloc((size_t)argc + 3 + COMMAND_OWN_WORDS, sizeof *l.argv),
                      .options = calloc(1, c->options_size + 1),
                      .bindings = bindings,
                      .words = calloc((size_t)argc + 1, sizeof *l.words),
                      .out = out};
    status rc;
    if (!l.argv || !l.options || !l.words) {
        rc = fail(STATUS_SYSTEM, "no memory for the command line");
    } else {
        memcpy(l.argv + 2, argv, (size_t)argc * sizeof *argv);
        rc = read_and_run(c, &l);
    }
    *exit_code = l.exit_code;
    free(l.argv);
    free(l.options);
    free(l.words);
    return rc;
}

static bool is_help(const char *argument)
{
    return is_word(argument, "--help") || is_word(argument, "-h") || is_word(argument, "--help=all") ||
           is_word(argument, "--help=effects");
}

static status dispatch(int argc, char *argv[], text_buffer *out, int *exit_code)
{
    const char *first = argc > 1 ? argv[1] : NULL;
    bool asks = is_word(first, "help"), units = asks && argc > 2 && is_word(argv[2], "units");
    if (is_help(first) || (asks && argc == 2)) {
        print_help(out);
        return STATUS_OK;
    }
    if (is_word(first, "--version")) {
        text_append(out, "harness %s\n", PROGRAM_VERSION);
        return STATUS_OK;
    }
    for (int i = 1; i < argc; i++) units = units || is_word(argv[i], "--help=units");
    if (units) {
        text_units_help(out);
        return STATUS_OK;
    }
    const command *c = &command_run;
    int skip = asks ? 2 : 1;
    if (first && argv[skip][0] != '-') TRY(find_command(argv[skip++], &c));
    for (int i = skip; i < argc; i++)
        if (is_help(argv[i])) return print_command_help(c, argv[i], out);
    return asks ? print_command_help(c, "--help", out)
                : run_command(c, argc - skip, argv + skip, out, exit_code);
}

/* Opens /dev/null for each closed standard stream. Otherwise the next file that is opened would get the
 * descriptor of the stream, and receive the stream's output. Opens /dev/null in the wrong direction, so that
 * reads and writes of the stream fail. */
static void keep_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Calls out_of_memory_watch() before the libraries' constructors, because the constructors allocate memory.
 * Leaves the call out with a sanitizer, which does not work before the constructors. */
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = out_of_memory_watch;
#endif

int main(int argc, char *argv[])
{
    int exit_code = 0;
    text_buffer out = {0};
    if (launch_environment_is_rank()) log_set_level(LOG_warn); /* the launcher has reported old names */
    keep_standard_streams();
    signal(SIGXFSZ, SIG_IGN); /* makes a write beyond ulimit -f fail with an error */
    status rc = dispatch(argc, argv, &out, &exit_code);
    if (rc == STATUS_OK && out.length > 0) rc = output_text(&out);
    text_free(&out);
    bool launcher_says = rc == STATUS_SYSTEM && launch_environment_is_rank();
    if (rc != STATUS_OK && error_message()[0] && !launcher_says) log_error("%s", error_message());
    int signal = stop_signals_pending();
    if (signal && rc == STATUS_OK && exit_code == 0) {
        log_info("%s: after the end of the run, so its results are complete", strsignal(signal));
        exit_code = 128 + signal;
    }
    errno = 0; /* prevents out_of_memory.c from taking this for an exit by a library */
    return rc == STATUS_OK ? exit_code : status_exit_code(rc);
}
