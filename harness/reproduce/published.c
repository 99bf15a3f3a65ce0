#include "harness/reproduce/reproduce.h"

#include "common/base/input.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Folders of the tables in the source tree and in the installation. The build defines both names. */
static const char *const folders[] = {PSRING_SOURCE_PUBLISHED, PSRING_INSTALLED_PUBLISHED};

enum { MOST_BYTES = 65536 };

static int cut(char *line, const char **cells)
{
    int count = 0;
    for (char *at = line; at && count < PUBLISHED_COLUMNS; count++) {
        cells[count] = at;
        at = strchr(at, ',');
        if (at) *at++ = '\0';
    }
    return count;
}

status published_open(const char *name, published_table *out)
{
    char path[PATH_MAX], *rest = NULL;
    text_buffer text = {0};
    *out = (published_table){0};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s.csv", folders[i], name);
        if (access(path, F_OK) == 0) break;
    }
    TRY(input_read(path, MOST_BYTES, &text));
    out->text = text.data;
    for (char *line = strtok_r(out->text, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest)) {
        if (line[0] == '#') continue;
        if (out->columns == 0) {
            out->columns = cut(line, out->header);
            continue;
        }
        if (out->rows == PUBLISHED_ROWS)
            return fail(STATUS_DATA, "published table %s: expected at most %d rows", name, PUBLISHED_ROWS);
        const char **cells = out->cells[out->rows++];
        for (int c = cut(line, cells); c < PUBLISHED_COLUMNS; c++) cells[c] = "";
    }
    return STATUS_OK;
}

void published_close(published_table *t)
{
    free(t->text);
    *t = (published_table){0};
}

const char *published_text(const published_table *t, int row, const char *column)
{
    for (int c = 0; c < t->columns; c++)
        if (strcmp(t->header[c], column) == 0) return t->cells[row][c];
    return "";
}

double published_number(const published_table *t, int row, const char *column)
{
    return strtod(published_text(t, row, column), NULL);
}
