#include "harness/run/trace_file.h"

#include "common/base/text.h"
#include "common/net/link.h"
#include "harness/run/version.h"

#include <string.h>

static status append_header(const run_config *c, text_buffer *out)
{
    net_link link;
    char shown[80] = "none";
    TRY(net_link_parse(c->shared.link, &link));
    if (net_link_is_emulated(&link)) net_link_format(&link, shown, sizeof shown);
    text_append(
        out,
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"harness %s\",\"emulated_link\":\"%s\"},\n",
        PROGRAM_VERSION, shown);
    text_append(out, "\"traceEvents\":[\n");
    return STATUS_OK;
}

status trace_file_write(const char *path, const run_config *config, const run_job *jobs)
{
    text_buffer out = {0};
    TRY(append_header(config, &out));
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (jobs[e].trace) text_append(&out, "%s", jobs[e].trace);
    /* Every event has a comma behind it; JSON allows none behind the last. */
    char *last = out.out_of_memory ? NULL : strrchr(out.data, ',');
    if (last && last[1] == '\n' && last[2] == '\0') *last = ' ';
    text_append(&out, "]}");
    status rc = out.out_of_memory ? fail(STATUS_SYSTEM, "no memory for a trace")
                                  : run_result_write_text(out.data, path);
    text_free(&out);
    return rc;
}
