#include "harness/run/output.h"

#include "common/checkpoint/atomic_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status output_probe(const char *path)
{
    atomic_file file;
    if (strcmp(path, "-") == 0) return STATUS_OK;
    TRY(atomic_file_open(path, &file));
    atomic_file_abandon(&file);
    return STATUS_OK;
}

static status write_file(const text_buffer *text, const char *path)
{
    atomic_file file;
    TRY(atomic_file_open(path, &file));
    status rc = atomic_file_append(&file, text->data, text->length);
    if (rc == STATUS_OK) return atomic_file_commit(&file);
    atomic_file_abandon(&file);
    return rc;
}

status output_file(text_buffer *text, const char *path)
{
    status rc = STATUS_OK;
    if (text->out_of_memory) rc = fail(STATUS_SYSTEM, "no memory for the output");
    else if (strcmp(path, "-") != 0) rc = write_file(text, path);
    else if (text->data && (fputs(text->data, stdout) < 0 || fflush(stdout) != 0))
        rc = fail_errno(STATUS_CANNOT_CREATE, "stdout");
    text_free(text);
    return rc;
}

status output_text(text_buffer *text)
{
    return output_file(text, "-");
}

status output_json(json_t *value, const char *path)
{
    text_buffer text = {0};
    char *lines = json_dumps(value, JSON_INDENT(1) | JSON_REAL_PRECISION(17)); /* NULL of NULL, too */
    if (lines) text_append(&text, "%s\n", lines);
    else text.out_of_memory = true;
    free(lines);
    json_decref(value);
    return output_file(&text, path);
}
