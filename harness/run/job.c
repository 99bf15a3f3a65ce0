#include "harness/run/job.h"

#include "harness/launch/processors.h"
#include "harness/launch/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files in memory for every job, inherited by its ranks: rank 0 writes the result as JSON into one, the
 * parameters as float32 into another, and the trace into the third. Servers of their own add a line of JSON each
 * to the fourth. */
enum { FILES = 4 };
typedef struct delivery {
    int result, params, trace, servers;
    char result_variable[48], params_variable[48], trace_variable[48], servers_variable[48];
    const char *environment[6];
} delivery;

/* GNU OpenMP's threads spin for 15 ms after a parallel region: in a rank of several threads they take the
 * processors from loader, communication and other ranks, and steps take many times as long. */
static const char short_spin[] = "GOMP_SPINCOUNT=1000";

static const char result_name[] = "HARNESS_RESULT_FD", params_name[] = "HARNESS_PARAMS_FD",
                  trace_name[] = "HARNESS_TRACE_FD", servers_name[] = "HARNESS_SERVERS_FD";

static status open_delivery(delivery *d)
{
    d->result = memfd_create("harness-result", 0);
    d->params = memfd_create("harness-params", 0);
    d->trace = memfd_create("harness-trace", 0);
    d->servers = memfd_create("harness-servers", 0);
    if (d->result < 0 || d->params < 0 || d->trace < 0 || d->servers < 0)
        return fail_errno(STATUS_SYSTEM, "no memory for the results (memfd_create)");
    snprintf(d->result_variable, sizeof d->result_variable, "%s=%d", result_name, d->result);
    snprintf(d->params_variable, sizeof d->params_variable, "%s=%d", params_name, d->params);
    snprintf(d->trace_variable, sizeof d->trace_variable, "%s=%d", trace_name, d->trace);
    snprintf(d->servers_variable, sizeof d->servers_variable, "%s=%d", servers_name, d->servers);
    d->environment[0] = d->result_variable;
    d->environment[1] = d->params_variable;
    d->environment[2] = d->trace_variable;
    d->environment[3] = d->servers_variable;
    if (!getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY")) d->environment[4] = short_spin;
    return STATUS_OK;
}

static void close_delivery(delivery *d)
{
    if (d->result >= 0) close(d->result);
    if (d->params >= 0) close(d->params);
    if (d->trace >= 0) close(d->trace);
    if (d->servers >= 0) close(d->servers);
}

static int64_t size_of(int fd)
{
    struct stat s;
    return fstat(fd, &s) == 0 ? (int64_t)s.st_size : 0;
}

/* With a terminating zero. */
static status read_trace(const delivery *d, run_job *job)
{
    int64_t bytes = size_of(d->trace);
    if (bytes == 0) return STATUS_OK;
    if (ftruncate(d->trace, bytes + 1) != 0) return fail_errno(STATUS_SYSTEM, "no memory for the trace of a job");
    void *data = mmap(NULL, (size_t)bytes + 1, PROT_READ, MAP_PRIVATE, d->trace, 0);
    if (data == MAP_FAILED) return fail_errno(STATUS_SYSTEM, "no memory for the trace of a job");
    job->trace = data;
    job->trace_bytes = (size_t)bytes + 1;
    return STATUS_OK;
}

/* One object after the other. */
static status read_servers(const delivery *d, json_t *result)
{
    int64_t bytes = size_of(d->servers);
    char *text = bytes > 0 ? malloc((size_t)bytes) : NULL;
    json_t *servers = json_array();
    if (text && pread(d->servers, text, (size_t)bytes, 0) == bytes) {
        for (size_t at = 0; at < (size_t)bytes;) {
            json_error_t error;
            json_t *server = json_loadb(text + at, (size_t)bytes - at, JSON_DISABLE_EOF_CHECK, &error);
            if (!server) break;
            json_array_append_new(servers, server);
            at += (size_t)error.position;
        }
    }
    free(text);
    if (json_object_set_new(result, "servers", servers) != 0) return fail(STATUS_SYSTEM, "no memory for the results");
    return STATUS_OK;
}

static status read_outcome(delivery *d, run_job *job)
{
    json_error_t error;
    if (size_of(d->result) > 0) {
        lseek(d->result, 0, SEEK_SET);
        job->result = json_loadfd(d->result, 0, &error);
        if (!job->result) return fail(STATUS_INTERNAL, "the results of a job cannot be read: %s", error.text);
        TRY(read_servers(d, job->result));
    }
    TRY(read_trace(d, job));
    int64_t bytes = size_of(d->params);
    if (bytes == 0) return STATUS_OK;
    void *data = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, d->params, 0);
    if (data == MAP_FAILED) return fail_errno(STATUS_SYSTEM, "no memory for the parameters of a job");
    job->params = data;
    job->param_count = bytes / (int64_t)sizeof(float);
    return STATUS_OK;
}

void run_jobs_free(run_jobs *jobs)
{
    for (int e = 0; e < ENGINE_COUNT; e++) {
        run_job *job = &jobs->jobs[e];
        json_decref(job->result);
        if (job->trace) munmap((void *)job->trace, job->trace_bytes);
        if (job->params) munmap((void *)job->params, (size_t)job->param_count * sizeof(float));
        *job = (run_job){0};
    }
}

/* The jobs' descriptions; the caller frees `processors`. */
static status describe_jobs(const run_config *c, const int *engines, int count, const delivery *deliveries,
                            launch_job *jobs, cpu_set_t **processors)
{
    for (int i = 0; i < count; i++) {
        int e = engines[i], servers = 0;
        TRY(engine_servers(e, c->engine_options[e], c->policies[e], run_config_world(c, e), &servers));
        bind_group group = {run_config_world(c, e) + servers, run_config_threads(c, e)};
        TRY(bind_plan((bind_mode)c->run.bind, group, &processors[i]));
        jobs[i] = (launch_job){.name = engine_table[e]->name,
                               .world = group.members,
                               .servers = servers,
                               .processors = processors[i],
                               .environment = deliveries[e].environment};
    }
    return STATUS_OK;
}

static status launch(const run_config *c, const run_plan *plan, char *const *argv, const int *engines, int count,
                     const delivery *deliveries, run_jobs *out)
{
    launch_job jobs[ENGINE_COUNT];
    cpu_set_t *processors[ENGINE_COUNT] = {NULL};
    int fds[FILES * ENGINE_COUNT];
    run_progress progress = {.config = c, .plan = plan, .engines = engines};
    launch_options options = launch_defaults();
    launch_outcome outcome;
    status rc;
    TRY_GOTO(rc, describe_jobs(c, engines, count, deliveries, jobs, processors), out);
    for (int i = 0; i < count; i++) {
        const delivery *d = &deliveries[engines[i]];
        memcpy(fds + FILES * i, (const int[]){d->result, d->params, d->trace, d->servers}, FILES * sizeof *fds);
    }
    options.jobs = jobs;
    options.job_count = count;
    options.argv = argv;
    options.inherited_fds = fds;
    options.inherited_count = FILES * count;
    options.take_turns = count > 1;
    options.stall_timeout_ns = c->shared.stall_timeout_ns;
    if (run_progress_begin(&progress)) {
        options.progress = run_progress_show;
        options.context = &progress;
    }
    rc = launch_run(&options, &outcome);
    run_progress_end(&progress);
    if (rc != STATUS_OK) goto out;
    out->exit_code = outcome.exit_code;
    snprintf(out->cause, sizeof out->cause, "%s", outcome.cause);
out:
    for (int i = 0; i < count; i++) free(processors[i]);
    return rc;
}

static status launch_all(const run_config *c, const run_plan *plan, char *const *argv, delivery *deliveries,
                         run_jobs *out)
{
    int engines[ENGINE_COUNT], count = 0;
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (run_config_uses(c, e)) engines[count++] = e;
    if (plan->alternate) return launch(c, plan, argv, engines, count, deliveries, out);
    for (int i = 0; i < count && out->exit_code == 0; i++)
        TRY(launch(c, plan, argv, &engines[i], 1, deliveries, out));
    return STATUS_OK;
}

status run_jobs_run(const run_config *config, const run_plan *plan, char *const *argv, run_jobs *out)
{
    *out = (run_jobs){0};
    delivery deliveries[ENGINE_COUNT];
    status rc = STATUS_OK;
    for (int e = 0; e < ENGINE_COUNT; e++)
        deliveries[e] = (delivery){.result = -1, .params = -1, .trace = -1, .servers = -1};
    for (int e = 0; e < ENGINE_COUNT && rc == STATUS_OK; e++)
        if (run_config_uses(config, e)) rc = open_delivery(&deliveries[e]);
    if (rc == STATUS_OK) rc = launch_all(config, plan, argv, deliveries, out);
    for (int e = 0; e < ENGINE_COUNT && rc == STATUS_OK; e++) rc = read_outcome(&deliveries[e], &out->jobs[e]);
    for (int e = 0; e < ENGINE_COUNT; e++) close_delivery(&deliveries[e]);
    if (rc != STATUS_OK) run_jobs_free(out);
    return rc;
}

/* ---- the rank side ----------------------------------------------------------------------------- */

static status write_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = write(fd, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail_errno(STATUS_SYSTEM, "the results cannot be handed over");
        at += written;
        bytes -= (size_t)written;
    }
    return STATUS_OK;
}

static int inherited(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

status run_jobs_deliver(const rank_outcome *outcome)
{
    int result = inherited(result_name), params = inherited(params_name), trace = inherited(trace_name);
    if (!outcome->job || result < 0 || params < 0) return STATUS_OK;
    char *text = json_dumps(outcome->job, JSON_COMPACT);
    if (!text) return fail(STATUS_SYSTEM, "no memory for the results");
    status rc = write_all(result, text, strlen(text));
    if (rc == STATUS_OK) rc = write_all(params, outcome->params, (size_t)outcome->param_count * sizeof(float));
    if (rc == STATUS_OK && outcome->trace && trace >= 0) rc = write_all(trace, outcome->trace, strlen(outcome->trace));
    free(text);
    return rc;
}

status run_jobs_deliver_server(const json_t *server)
{
    int servers = inherited(servers_name);
    char *text = json_dumps(server, JSON_COMPACT);
    if (!text) return fail(STATUS_SYSTEM, "no memory for the results");
    status rc = servers >= 0 ? write_all(servers, text, strlen(text)) : STATUS_OK;
    free(text);
    return rc;
}
