#include "harness/compare/why.h"

#include "common/base/input.h"
#include "harness/report/report.h"
#include "harness/result/result_check.h"
#include "harness/sim/virtual_measure.h"
#include "harness/workload/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- reading ------------------------------------------------------------------------------------------ */

/* Reads a workload, and leaves out what no replay reads. */
static status read_workload(const char *spec, why_job *job)
{
    workload w;
    status rc = workload_open(spec, &w);
    if (rc == STATUS_OK) {
        job->source = json_incref(w.source);
        job->traced = strcmp(report_text_at(w.source, "kind"), "trace") == 0;
        job->file[WHY_STEP_NS] = workload_step_ns(&w);
        job->file[WHY_BYTES] = w.peak_bytes;
        w.peak_bytes = 0;
        snprintf(w.model->name, sizeof w.model->name, "recorded");
        json_t *file = workload_to_json(&w);
        json_t *source = json_pack("{s:I}", "ranks", (json_int_t)w.model->recording->ranks);
        if (json_object_set_new(file, "source", source) != 0 ||
            json_object_set_new(job->job, "workload", file) != 0)
            rc = fail(STATUS_SYSTEM, "no memory for %s", spec);
    }
    workload_free(&w);
    return rc;
}

/* Copies options, which must be texts. */
static status add_options(why_job *job, const json_t *options)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)options, name, value)
    {
        if (!json_is_string(value) || strcmp(name, "config") == 0)
            return fail(STATUS_DATA, "%s: options.%s: expected an option of run as text", job->name, name);
        json_object_set(json_object_get(job->job, "options"), name, value);
    }
    return STATUS_OK;
}

/* Reads the options of a result, which must have run in virtual time. */
static status read_result(const json_t *given, why_job *job)
{
    TRY(add_options(job, given));
    json_t *options = json_object_get(job->job, "options");
    const char *device = report_text_at(options, "device"), *mode = report_text_at(options, "mode"),
               *path = json_string_value(json_object_get(given, "workload"));
    if (strncmp(device, "sim", 3) != 0 || !*mode || strcmp(mode, "both") == 0)
        return fail(STATUS_CONFIG,
                    "%s: expected --device sim:PROFILE and --mode none, ps or ring, or a workload of harness "
                    "import, got --device %s --mode %s",
                    job->name, device, *mode ? mode : "both");
    if (path) TRY(read_workload(path, job));
    json_object_del(options, "workload");
    job->traced = false;
    return STATUS_OK;
}

/* Reads a workload. The options of its source replace the defaults. */
static status read_recording(const char *spec, why_job *job)
{
    char gpus[24];
    TRY(read_workload(spec, job));
    json_int_t ranks = json_integer_value(json_object_get(job->source, "ranks"));
    snprintf(gpus, sizeof gpus, "%lld", ranks > 0 ? (long long)ranks : 2LL);
    json_object_set_new(job->job, "options",
                        json_pack("{s:s, s:s, s:s, s:s, s:s}", "mode", "ring", "policy", "ddp", "gpus", gpus,
                                  "warmup", "2", "steps", "3"));
    return add_options(job, json_object_get(job->source, "options"));
}

status why_job_open(const char *spec, why_job *job)
{
    json_t *file = NULL;
    *job = (why_job){.name = spec, .job = json_pack("{s:{}, s:n}", "options", "workload")};
    status rc = strchr(spec, '=') ? STATUS_OK : input_json(spec, RESULT_MOST_BYTES, &file);
    bool result = json_object_get(file, "jobs");
    if (rc == STATUS_OK && result) rc = result_check(spec, file);
    if (rc == STATUS_OK && file && !result && !json_object_get(file, "parts_ns"))
        rc = fail(STATUS_DATA, "%s: expected the JSON of a run with --device sim:PROFILE, or a workload",
                  spec);
    if (rc == STATUS_OK)
        rc = result ? read_result(json_object_get(file, "options"), job) : read_recording(spec, job);
    json_decref(file);
    return rc;
}

/* ---- replaying ---------------------------------------------------------------------------------------- */

static status measure(char **words, int count, why_job *job)
{
    const virtual_workload run = {.words = words, .word_count = count, .variant = {.unlimited_memory = true}};
    virtual_figures figures = {0};
    status rc = virtual_measure(&run, &figures);
    if (rc == STATUS_OK && isnan(figures.step_ms))
        rc = fail(STATUS_CONFIG, "--steps: expected measured steps, got none");
    if (rc == STATUS_OK) job->replay[WHY_STEP_NS] = llround(1e6 * figures.step_ms);
    job->replay[WHY_BYTES] = figures.most_bytes;
    virtual_figures_free(&figures);
    return rc;
}

status why_job_replay(why_job *job, char *const *words, int count)
{
    int own = 0, fd = -1;
    json_t *options = json_object_get(job->job, "options"), *recorded = json_object_get(job->job, "workload"),
           *value;
    char file[64], **all = calloc(json_object_size(options) + (size_t)count + 1, sizeof *all);
    text_buffer text = {0};
    const char *name;
    /* The options one after another, each with its zero byte. */
    json_object_foreach(options, name, value)
        text_append(&text, "--%s=%s%c", name, json_string_value(value), 0);
    status rc = all && !text.out_of_memory ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for a command line");
    for (size_t at = 0; rc == STATUS_OK && at < text.length; at += strlen(text.data + at) + 1)
        all[own++] = text.data + at;
    for (int i = 0; rc == STATUS_OK && i < count; i++) all[own++] = words[i];
    if (rc == STATUS_OK && json_is_object(recorded)) {
        fd = memfd_create("harness-workload", MFD_CLOEXEC);
        snprintf(file, sizeof file, "--workload=/proc/self/fd/%d", fd);
        all[own++] = file;
        if (fd < 0 || json_dumpfd(recorded, fd, 0) != 0)
            rc = fail(STATUS_SYSTEM, "no memory for a workload (memfd_create)");
    }
    if (rc == STATUS_OK) rc = measure(all, own, job);
    if (fd >= 0) close(fd);
    text_free(&text);
    free(all);
    return rc;
}
