#include "ring/collectives/tuning.h"

#include "common/base/options.h"
#include "ring/collectives/collective.h"

#include <stdio.h>
#include <string.h>

static const char *const algorithm_names[] = {
    [COLLECTIVE_ALGORITHM_TWO_SHOT] = "two-shot", [COLLECTIVE_ALGORITHM_RING] = "ring"};

const collective_tuning collective_tuning_default = {
    .rows = {{.most_ranks = COLLECTIVE_TUNING_MOST_RANKS,
              .most_bytes = INT64_MAX,
              .algorithm = COLLECTIVE_ALGORITHM_TWO_SHOT}},
    .count = 1,
};

collective_algorithm collective_tuning_choose(const collective_tuning *t, int ranks, int64_t bytes)
{
    for (int i = 0; i < t->count; i++)
        if (ranks <= t->rows[i].most_ranks && bytes <= t->rows[i].most_bytes) return t->rows[i].algorithm;
    return COLLECTIVE_ALGORITHM_TWO_SHOT;
}

void collective_tuning_write(const collective_tuning *t, text_buffer *out)
{
    for (int i = 0; i < t->count; i++)
        text_append(out, "ranks<=%d bytes<=%lld %s\n", t->rows[i].most_ranks, (long long)t->rows[i].most_bytes,
                    algorithm_names[t->rows[i].algorithm]);
}

/* The present error, in a file and not on the command line. */
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
    if (sscanf(line, " ranks<=%d bytes<=%lld %15s %n", &ranks, &bytes, name, &used) != 3 || line[used] != '\0' ||
        ranks < 1 || bytes < 0)
        return fail(STATUS_DATA, "collective table, line %d: expected 'ranks<=N bytes<=N NAME', got '%s'", number,
                    line);
    if (out->count == COLLECTIVE_TUNING_ROWS)
        return fail(STATUS_DATA, "collective table, line %d: expected at most %d rows", number, COLLECTIVE_TUNING_ROWS);
    char what[48];
    int algorithm;
    snprintf(what, sizeof what, "collective table, line %d", number);
    if (text_parse_choice(what, options_present_value(what, name, COLLECTIVE_RENAMED), algorithm_names,
                          sizeof *algorithm_names, 2, &algorithm) != STATUS_OK)
        return data_error();
    out->rows[out->count++] = (collective_tuning_row){ranks, bytes, (collective_algorithm)algorithm};
    return STATUS_OK;
}

status collective_tuning_read(const char *text, collective_tuning *out)
{
    *out = (collective_tuning){0};
    for (int number = 1; *text; number++) {
        char line[160];
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        line[strcspn(line, "#")] = '\0';
        if (line[strspn(line, " \t\r")]) TRY(read_row(line, number, out));
        text += length + (text[length] == '\n');
    }
    return STATUS_OK;
}
