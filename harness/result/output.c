#include "harness/result/output.h"

#include "common/checkpoint/atomic_file.h"
#include "harness/launch/launch.h"
#include "harness/result/result_check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

status output_check(const output_name *outputs, int count, const char *const *inputs, int input_count)
{
    for (int i = 0; i < count; i++) {
        const char *path = outputs[i].path;
        for (int j = 0; path && j < i; j++)
            if (outputs[j].path &&
                (strcmp(path, outputs[j].path) == 0 || atomic_file_replaces(path, outputs[j].path) ||
                 atomic_file_replaces(outputs[j].path, path)))
                return fail(STATUS_USAGE, "--%s and --%s: expected different files, got '%s' and '%s'",
                            outputs[j].option, outputs[i].option, outputs[j].path, path);
        for (int j = 0; path && strcmp(path, "-") != 0 && j < input_count; j++)
            if (inputs[j] && atomic_file_replaces(path, inputs[j]))
                return fail(STATUS_USAGE, "--%s: expected another file than the input %s, got '%s'",
                            outputs[i].option, inputs[j], path);
    }
    return STATUS_OK;
}

status output_probe(const char *path)
{
    atomic_file file;
    sigset_t before;
    if (strcmp(path, "-") == 0) return STATUS_OK;
    stop_signals_block(NULL, &before); /* a signal must not leave the partial file behind */
    status rc = atomic_file_open(path, &file);
    atomic_file_abandon(&file);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* Writes the text unchanged, and frees it. */
static status deliver(text_buffer *text, const char *path)
{
    status rc = STATUS_OK;
    sigset_t before;
    if (text->out_of_memory)
        rc = fail(STATUS_SYSTEM, "no memory for the output");
    else if (strcmp(path, "-") != 0) {
        stop_signals_block(NULL, &before);
        rc = atomic_file_write(path, text->data, text->length);
        sigprocmask(SIG_SETMASK, &before, NULL);
    } else if (text->data && (fputs(text->data, stdout) < 0 || fflush(stdout) != 0))
        rc = fail_errno(STATUS_CANNOT_CREATE, "stdout");
    text_free(text);
    return rc;
}

status output_file(text_buffer *text, const char *path)
{
    text_printable(text->data, true);
    return deliver(text, path);
}

/* ---- a terminal -------------------------------------------------------------------------------- */

/* Colors lines that mark simulated or emulated results, differences, verdicts and next steps. */
static void color(text_buffer *text)
{
    static const struct {
        const char *begin, *code;
    } kinds[] = {{"SIMULATED", "33"},
                 {"EMULATED", "33"},
                 {"DIFFERENT", "31"},
                 {"No difference is shown:", "1"},
                 {"Next:", "32"}};
    text_buffer out = {0};
    for (const char *line = text->data; line && *line;) {
        int length = (int)strcspn(line, "\n");
        const char *faster = strstr(line, " times as fast as ");
        const char *code = faster && faster < line + length ? "1" : NULL;
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
            if (strncmp(line, kinds[i].begin, strlen(kinds[i].begin)) == 0) code = kinds[i].code;
        if (code)
            text_append(&out, "\033[%sm%.*s\033[0m\n", code, length, line);
        else
            text_append(&out, "%.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
    out.out_of_memory = out.out_of_memory || text->out_of_memory;
    text_free(text);
    *text = out;
}

/* Returns true if the text does not fit on the terminal. */
static bool is_long(const text_buffer *text)
{
    struct winsize window;
    int lines = 0;
    for (const char *at = text->data; at && (at = strchr(at, '\n')); at++) lines++;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row > 0 && lines >= window.ws_row;
}

/* Shows the text in $PAGER. Returns false if there is no pager. */
static bool page(const text_buffer *text)
{
    const char *pager = getenv("PAGER");
    if (!pager) pager = "less";
    if (!pager[0] || strcmp(pager, "cat") == 0) return false;
    setenv("LESS", "FRX", 0);
    fflush(stdout);
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* the user may quit the pager early */
    FILE *pipe = popen(pager, "w");
    if (pipe) fputs(text->data, pipe);
    bool shown = pipe && pclose(pipe) != 127 << 8; /* 127: the shell did not find the program */
    signal(SIGPIPE, before);
    return shown;
}

status output_text(text_buffer *text)
{
    enum { COLUMNS = 80 };
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    text_printable(text->data, true);
    text_wrap(text, COLUMNS);
    if (!isatty(STDOUT_FILENO) || text->out_of_memory || !text->data) return output_file(text, "-");
    if (!(no && no[0]) && term && strcmp(term, "dumb") != 0) color(text);
    if (!is_long(text) || !page(text)) return deliver(text, "-");
    text_free(text);
    return STATUS_OK;
}

status output_result(json_t *result, const char *path)
{
    if (path) result_seal(result);
    return output_json(result, path);
}

status output_json(json_t *value, const char *path)
{
    text_buffer text = {0};
    if (!path) {
        json_decref(value);
        return STATUS_OK;
    }
    char *lines = json_dumps(value, JSON_INDENT(1) | JSON_REAL_PRECISION(17)); /* NULL if `value` is NULL */
    if (lines)
        text_append(&text, "%s\n", lines);
    else
        text.out_of_memory = true;
    free(lines);
    json_decref(value);
    return output_file(&text, path);
}
