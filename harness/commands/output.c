#include "harness/commands/output.h"

#include "common/checkpoint/atomic_file.h"
#include "harness/run/run_result.h"

#include <stdio.h>
#include <string.h>

status output_text(text_buffer *text)
{
    status rc = STATUS_OK;
    if (text->out_of_memory) rc = fail(STATUS_SYSTEM, "no memory for the output");
    else if (text->data && (fputs(text->data, stdout) < 0 || fflush(stdout) != 0))
        rc = fail_errno(STATUS_CANNOT_CREATE, "stdout");
    text_free(text);
    return rc;
}

status output_file(text_buffer *text, const char *path)
{
    if (text->out_of_memory || strcmp(path, "-") == 0) return output_text(text);
    atomic_file file;
    status rc = atomic_file_open(path, &file);
    if (rc == STATUS_OK) {
        rc = atomic_file_append(&file, text->data, text->length);
        if (rc == STATUS_OK) rc = atomic_file_commit(&file);
        else atomic_file_abandon(&file);
    }
    text_free(text);
    return rc;
}

status output_json(json_t *value, const char *path)
{
    if (!value) return fail(STATUS_SYSTEM, "no memory for the output");
    status rc = run_result_write(value, path);
    json_decref(value);
    return rc;
}
