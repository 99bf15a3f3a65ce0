#include "common/collectives/tuning.h"

#include "common/base/input.h"
#include "common/base/options.h"

#include <stdio.h>
#include <string.h>

#define ONE(upper, lower, name) +1
enum {
    MOST_BYTES = 65536,
    FIRST = COLLECTIVE_ALGORITHM_AUTO + 1, /* the first algorithm in shared memory */
    ALGORITHMS = COLLECTIVE_SHM_LIST(ONE)
};
#undef ONE

collective_algorithm collective_tuning_choose(const collective_tuning *t, int ranks, int64_t bytes)
{
    for (int i = 0; i < t->count; i++)
        if (ranks <= t->rows[i].most_ranks && bytes <= t->rows[i].most_bytes) return t->rows[i].algorithm;
    return COLLECTIVE_ALGORITHM_RING;
}

void collective_tuning_write(const collective_tuning *t, text_buffer *out)
{
    for (int i = 0; i < t->count; i++)
        text_append(out, "ranks<=%d bytes<=%lld %s\n", t->rows[i].most_ranks,
                    (long long)t->rows[i].most_bytes, collective_algorithm_names[t->rows[i].algorithm]);
}

/* Changes the code of the current error to STATUS_DATA. Returns this code. */
static status data_error(void)
{
    error_record record;
    error_copy(&record);
    record.code = STATUS_DATA;
    error_clear();
    return error_adopt(&record);
}

static status read_row(const char *line, int number, collective_tuning *out)
{
    int ranks, used = 0;
    long long bytes;
    char name[16];
    if (sscanf(line, " ranks<=%d bytes<=%lld %15s %n", &ranks, &bytes, name, &used) != 3 ||
        line[used] != '\0' || ranks < 1 || bytes < 0)
        return fail(STATUS_DATA, "collective table, line %d: expected 'ranks<=N bytes<=N NAME', got '%s'",
                    number, line);
    if (out->count == COLLECTIVE_TUNING_ROWS)
        return fail(STATUS_DATA, "collective table, line %d: expected at most %d rows", number,
                    COLLECTIVE_TUNING_ROWS);
    char what[48];
    int algorithm;
    snprintf(what, sizeof what, "collective table, line %d", number);
    if (text_parse_choice(what, options_present_value(what, name, "direct=two-shot"),
                          collective_algorithm_names + FIRST, sizeof *collective_algorithm_names, ALGORITHMS,
                          &algorithm) != STATUS_OK)
        return data_error();
    out->rows[out->count++] =
        (collective_tuning_row){ranks, bytes, (collective_algorithm)(FIRST + algorithm)};
    return STATUS_OK;
}

status collective_tuning_read(const char *text, collective_tuning *out)
{
    *out = (collective_tuning){0};
    for (int number = 1; *text; number++) {
        char line[160];
        text_next_word(&text, '\n', line, sizeof line);
        line[strcspn(line, "#")] = '\0';
        if (line[strspn(line, " \t\r")]) TRY(read_row(line, number, out));
    }
    return STATUS_OK;
}

status collective_tuning_load(const char *path, int ranks, collective_tuning *out)
{
    text_buffer text = {0};
    int most = 0;
    status rc = input_read(path, MOST_BYTES, &text);
    if (rc == STATUS_OK && (rc = collective_tuning_read(text.data, out)) != STATUS_OK)
        error_context("%s", path);
    for (int i = 0; rc == STATUS_OK && i < out->count; i++)
        if (most < out->rows[i].most_ranks) most = out->rows[i].most_ranks;
    if (rc == STATUS_OK && most < ranks)
        rc = fail(STATUS_DATA, "%s: expected a line for %d ranks, got none", path, ranks);
    if (rc != STATUS_OK) error_context("--collective-table");
    text_free(&text);
    return rc;
}
