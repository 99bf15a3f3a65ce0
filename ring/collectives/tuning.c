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
        text_append(out, "ranks<=%d bytes<=%lld %s\n", t->rows[i].most_ranks,
                    (long long)t->rows[i].most_bytes, algorithm_names[t->rows[i].algorithm]);
}

static status read_row(const char *line, int number, collective_tuning *out)
{
    int ranks, used = 0;
    long long bytes;
    char name[16];
    if (sscanf(line, " ranks<=%d bytes<=%lld %15s %n", &ranks, &bytes, name, &used) != 3 ||
        line[used] != '\0' || ranks < 1 || bytes < 0)
        return fail(STATUS_DATA, "collective table, line %d: found '%s', expected 'ranks<=N bytes<=N NAME'",
                    number, line);
    if (out->count == COLLECTIVE_TUNING_ROWS)
        return fail(STATUS_DATA, "collective table, line %d: more than %d rows", number,
                    COLLECTIVE_TUNING_ROWS);
    const char *present = options_present_value("collective table", name, COLLECTIVE_RENAMED);
    for (int i = 0; i < 2; i++) {
        if (strcmp(present, algorithm_names[i]) != 0) continue;
        out->rows[out->count++] = (collective_tuning_row){ranks, bytes, (collective_algorithm)i};
        return STATUS_OK;
    }
    return fail(STATUS_DATA, "collective table, line %d: found '%s', allowed are two-shot and ring", number,
                name);
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
