#include "harness/commands/output.h"

#include "harness/run/run_result.h"

#include <stdio.h>

status output_text(text_buffer *text)
{
    status rc = STATUS_OK;
    if (text->out_of_memory) rc = fail(STATUS_SYSTEM, "no memory for the output");
    else if (text->data && (fputs(text->data, stdout) < 0 || fflush(stdout) != 0))
        rc = fail_errno(STATUS_CANNOT_CREATE, "stdout");
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
