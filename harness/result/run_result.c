#include "harness/result/run_result.h"

#include "common/base/text.h"
#include "common/net/link.h"
#include "harness/report/report.h"
#include "harness/result/output.h"

#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <protobuf-c/protobuf-c.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

char *proc_value(const char *path, const char *key, char *buffer, size_t size)
{
    char line[512];
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    buffer[0] = '\0';
    while (file && !buffer[0] && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) != 0) continue;
        const char *at = line + length + strspn(line + length, ": \t");
        snprintf(buffer, size, "%.*s", (int)strcspn(at, "\n"), at);
    }
    if (file) fclose(file);
    return buffer;
}

static json_t *host_to_json(int processors)
{
    struct utsname u;
    char processor[160];
    uname(&u);
    if (!proc_value("/proc/cpuinfo", "model name", processor, sizeof processor)[0])
        snprintf(processor, sizeof processor, "unknown processor");
    json_int_t memory = (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE);
    return json_pack("{s:s, s:o, s:s, s:i, s:I}", "name", u.nodename, "system",
                     json_sprintf("%s %s %s", u.sysname, u.release, u.machine), "processor", processor,
                     "processors", processors, "memory_bytes", memory);
}

static json_t *libraries_to_json(void)
{
    const dnnl_version_t *v = dnnl_version();
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    return json_pack("{s:o, s:o, s:s, s:s}", "oneDNN", json_sprintf("%d.%d.%d", v->major, v->minor, v->patch),
                     "libzmq", json_sprintf("%d.%d.%d", major, minor, patch), "protobuf-c",
                     protobuf_c_version(), "jansson", jansson_version_str());
}

static json_t *configuration_to_json(const run_config *c)
{
    json_t *object = json_object();
    for (int b = 0; b < BINDING_COUNT; b++) {
        for (size_t i = 0; i < c->bindings[b].table->count; i++) {
            char value[512];
            options_format(&c->bindings[b], i, value, sizeof value);
            json_object_set_new(object, c->bindings[b].table->options[i].name, json_string(value));
        }
    }
    return object;
}

json_t *run_workload_to_json(const run_config *c, const run_plan *plan)
{
    const data_description *d = dataset_describe(plan->set);
    data_form form = data_form_of_model(plan->model);
    char optimizer[32], input[128];
    const nn_model *m = plan->model;
    int64_t parameters = 0;
    for (int i = 0; i < m->param_count; i++) parameters += shape_elements(m->params[i].shape);
    data_form_format(input, sizeof input, &form);
    if (m->recording)
        snprintf(input, sizeof input, "a recorded step, %d gradients in %d units",
                 nn_recording_gradients(m->recording), m->unit_count);
    options_format(&c->bindings[3], 0, optimizer, sizeof optimizer);
    const char *precision = c->run.bf16                               ? "bfloat16"
                            : c->run.fp16                             ? "float16"
                            : c->run.tf32                             ? "TF32"
                            : strcmp(c->run.device, "reference") == 0 ? "float64"
                                                                      : "float32";
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:I, s:I, s:s, s:s, s:I}", "model", m->name, "input",
                     input, "classes", (json_int_t)form.classes, "parameters", (json_int_t)parameters, "data",
                     m->recording ? "no data" : d->name, "training_samples",
                     (json_int_t)d->samples[DATA_TRAIN], "test_samples", (json_int_t)d->samples[DATA_TEST],
                     "batch_per_rank", (json_int_t)c->data.batch, "optimizer", optimizer, "precision",
                     precision, "seed", (json_int_t)c->run.seed);
}

/* ---- agreement of the engines ------------------------------------------------------------------ */

static const char *param_of_element(const nn_model *m, int64_t element)
{
    for (int i = 0; i < m->param_count; i++) {
        if (element < m->params[i].elements) return m->params[i].name;
        element -= m->params[i].elements;
    }
    return "";
}

/* Compares the parameters of ps and ring, and their gradients of the first step. Under `dp` the loss of each
 * rank is divided by the number of ranks before the backward pass. The division is exact if this number is a
 * power of two. */
static json_t *agreement_to_json(const run_job *jobs, const nn_model *model)
{
    const run_job *ps = &jobs[ENGINE_PS], *ring = &jobs[ENGINE_RING];
    if (!ps->params || !ring->params || ps->param_count != ring->param_count) return NULL;
    double largest = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < ps->param_count; i++) {
        double difference = fabs((double)ps->params[i] - (double)ring->params[i]);
        if (!(difference > largest)) continue;
        largest = difference;
        at = i;
    }
    int ranks = (int)json_integer_value(json_object_get(ring->result, "world_size"));
    bool scaled = json_is_true(json_object_get(ps->result, "one_loss")) && (ranks & (ranks - 1));
    json_t *gradient = agreement_compare(
        ps->gradients, ring->gradients, model, ranks,
        scaled ? "dp divides the loss by the ranks before the backward pass, which rounds" : NULL);
    bool equal = memcmp(ps->params, ring->params, (size_t)ps->param_count * sizeof(float)) == 0;
    return json_pack("{s:o, s:b, s:O, s:O, s:f, s:s}", "first_gradient", gradient, "parameters_equal",
                     (int)equal, "hash_ps", json_object_get(ps->result, "parameter_hash"), "hash_ring",
                     json_object_get(ring->result, "parameter_hash"), "largest_difference", largest,
                     "largest_difference_in", equal ? "" : param_of_element(model, at));
}

status run_result_build(const run_config *c, const run_plan *plan, const run_job *jobs, char *const *words,
                        int64_t started_at_s, json_t **out)
{
    char started[32];
    struct tm tm;
    gmtime_r(&(time_t){started_at_s}, &tm);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_t *command = json_array(), *results = json_array();
    for (; *words; words++) json_array_append_new(command, json_string(*words));
    static const int order[JOB_COUNT] = {ENGINE_NONE, JOB_ALL_CORES, JOB_ISOLATED, ENGINE_PS, ENGINE_RING};
    for (int i = 0; i < JOB_COUNT; i++)
        if (jobs[order[i]].result) json_array_append(results, jobs[order[i]].result);
    /* In virtual time, the option --link describes the simulated machine. */
    bool emulated = c->shared.link && !run_config_is_virtual(c);
    const char *commit = PROGRAM_COMMIT;
    json_t *program = json_pack("{s:s, s:s, s:o}", "name", "harness", "version", PROGRAM_VERSION, "commit",
                                commit[0] ? json_string(commit) : json_null());
    json_t *result =
        json_pack("{s:i, s:o, s:s, s:o, s:o, s:o, s:o, s:s, s:b, s:b, s:b, s:o, s:o, s:b, s:o, s:n}",
                  "schema_version", RESULT_SCHEMA_VERSION, "program", program, "started_at", started,
                  "command", command, "host", host_to_json(c->processors), "libraries", libraries_to_json(),
                  "workload", run_workload_to_json(c, plan), "hardware_note", plan->hardware_note,
                  "oversubscribed", (int)run_config_is_oversubscribed(c), "emulated", emulated, "simulated",
                  report_count_true(results, "simulated") > 0, "configuration", configuration_to_json(c),
                  "options", run_config_given(c, true), "stopped_early",
                  report_count_true(results, "stopped_early") > 0, "jobs", results, "repetitions");
    job_result_compare(result, c->processors, plan->alternate);
    status rc = run_result_judge(result, plan->alternate);
    json_t *agreement = agreement_to_json(jobs, plan->model);
    if (agreement) json_object_set_new(result, "agreement", agreement);
    if (rc != STATUS_OK)
        json_decref(result);
    else
        *out = result;
    return rc;
}

/* ---- the file of --trace ---------------------------------------------------------------------- */

status trace_file_write(const run_config *config, const run_job *jobs)
{
    text_buffer out = {0};
    net_link link;
    char shown[80] = "none";
    TRY(run_config_link(config, &link));
    if (net_link_is_emulated(&link)) net_link_format(&link, shown, sizeof shown);
    text_append(
        &out,
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"harness %s\",\"emulated_link\":\"%s\"",
        PROGRAM_VERSION, shown);
    const json_t *ring = jobs[ENGINE_RING].result, *collective = json_object_get(ring, "collective");
    if (json_is_string(collective))
        text_append(&out, ",\"collective\":\"%s\",\"algorithm\":\"%s\"", json_string_value(collective),
                    json_string_value(json_object_get(ring, "algorithm")));
    text_append(&out, "},\n\"traceEvents\":[\n");
    for (int e = 0; e < JOB_COUNT; e++)
        if (jobs[e].trace) text_append(&out, "%s", jobs[e].trace);
    /* The last event must not end with a comma. */
    char *last = out.out_of_memory ? NULL : strrchr(out.data, ',');
    if (last && last[1] == '\n' && last[2] == '\0') *last = ' ';
    text_append(&out, "]}\n");
    return output_file(&out, config->run.trace);
}
