#include "harness/launch/job.h"

#include "common/checkpoint/checkpoint.h"
#include "common/net/key.h"
#include "harness/launch/processors.h"
#include "harness/launch/progress.h"
#include "harness/result/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files in memory that the ranks of a job inherit. Rank 0 writes the result as JSON, the parameters as
 * float32 and the trace. Each server in a separate process adds an object of JSON to the fourth file. The
 * fifth file holds gradients of the first step (agreement.h). */
enum { RESULT_FILE, PARAMS_FILE, TRACE_FILE, SERVERS_FILE, GRADIENTS_FILE, FILES };
static const char *const variables[FILES] = {"HARNESS_RESULT_FD", "HARNESS_PARAMS_FD", "HARNESS_TRACE_FD",
                                             "HARNESS_SERVERS_FD", "HARNESS_GRADIENTS_FD"};
typedef struct delivery {
    int fds[FILES];
    char settings[FILES][48];
    char stage_key[NET_KEY_TEXT + 24]; /* the user's key, for --remote-stage HOST:PORT */
    const char *environment[FILES + 3];
} delivery;

/* Returns how long GNU OpenMP's threads spin after a parallel region. By default the threads spin for 15 ms.
 * In a rank of several threads the spinning threads take the processors from the loader, from communication
 * and from other ranks, and steps take many times as long. The threads of a rank therefore sleep soon. If
 * each thread has a processor and nobody communicates, the threads spin for longer, because a sleeping thread
 * may wake up on the processor of another thread, and both then share this processor. */
static const char *spin_of(const run_config *c, int job)
{
    bool alone = job_engine(job) == ENGINE_NONE &&
                 run_config_world(c, job) * run_config_threads(c, job) <= processors_usable();
    return alone ? "GOMP_SPINCOUNT=20000" : "GOMP_SPINCOUNT=1000";
}

static status open_delivery(const run_config *c, int job, delivery *d)
{
    const char *key = c->run.remote_stage ? getenv("HARNESS_KEY") : NULL;
    int further = FILES;
    for (int i = 0; i < FILES; i++) {
        d->fds[i] = memfd_create("harness-result", 0); /* stays open in the ranks */
        if (d->fds[i] < 0) return fail_errno(STATUS_SYSTEM, "no memory for the results (memfd_create)");
        /* Servers write at the same time and share a file position. O_APPEND keeps their writes apart. */
        if (i == SERVERS_FILE && fcntl(d->fds[i], F_SETFL, O_APPEND) != 0)
            return fail_errno(STATUS_SYSTEM, "no file for the results of servers (fcntl)");
        snprintf(d->settings[i], sizeof d->settings[i], "%s=%d", variables[i], d->fds[i]);
        d->environment[i] = d->settings[i];
    }
    if (!getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY")) d->environment[further++] = spin_of(c, job);
    if (!key) return STATUS_OK;
    snprintf(d->stage_key, sizeof d->stage_key, "HARNESS_STAGE_KEY=%s", key);
    d->environment[further] = d->stage_key;
    return STATUS_OK;
}

/* Maps the file and a zero byte after its end. *data is NULL if the file is empty. If not, unmap() releases
 * data. */
static status map_file(int fd, char **data, size_t *bytes)
{
    struct stat s;
    *data = NULL;
    *bytes = 0;
    if (fstat(fd, &s) != 0 || s.st_size == 0) return STATUS_OK;
    *bytes = (size_t)s.st_size;
    if (ftruncate(fd, s.st_size + 1) == 0) *data = mmap(NULL, *bytes + 1, PROT_READ, MAP_PRIVATE, fd, 0);
    if (*data && *data != MAP_FAILED) return STATUS_OK;
    *data = NULL;
    return fail_errno(STATUS_SYSTEM, "no memory for the results of a job");
}

static void unmap(char *data, size_t bytes)
{
    if (data) munmap(data, bytes + 1);
}

/* Reads JSON objects that follow each other without a separator. */
static void read_servers(const char *text, size_t bytes, json_t *result)
{
    json_t *servers = json_array();
    for (size_t at = 0; at < bytes;) {
        json_error_t error;
        json_t *server = json_loadb(text + at, bytes - at, JSON_DISABLE_EOF_CHECK, &error);
        if (!server) break;
        json_array_append_new(servers, server);
        at += (size_t)error.position;
    }
    json_object_set_new(result, "servers", servers);
}

static status read_outcome(const delivery *d, run_job *job)
{
    char *text[FILES] = {NULL};
    size_t bytes[FILES] = {0};
    json_error_t error;
    status rc = STATUS_OK;
    for (int i = 0; i < FILES && rc == STATUS_OK; i++) rc = map_file(d->fds[i], &text[i], &bytes[i]);
    if (text[RESULT_FILE]) {
        job->result = json_loadb(text[RESULT_FILE], bytes[RESULT_FILE], 0, &error);
        if (job->result)
            read_servers(text[SERVERS_FILE], bytes[SERVERS_FILE], job->result);
        else
            rc = fail(STATUS_INTERNAL, "the results of a job cannot be read: %s", error.text);
    }
    unmap(text[RESULT_FILE], bytes[RESULT_FILE]);
    unmap(text[SERVERS_FILE], bytes[SERVERS_FILE]);
    job->trace = text[TRACE_FILE];
    job->params = (float *)text[PARAMS_FILE];
    job->param_count = (int64_t)(bytes[PARAMS_FILE] / sizeof(float));
    job->gradients = (sync_blob){text[GRADIENTS_FILE], bytes[GRADIENTS_FILE]};
    return rc;
}

void run_jobs_free(run_jobs *jobs)
{
    for (int e = 0; e < JOB_COUNT; e++) {
        run_job *job = &jobs->jobs[e];
        json_decref(job->result);
        if (jobs->on_heap)
            free(job->trace);
        else if (job->trace)
            unmap(job->trace, strlen(job->trace));
        unmap((char *)job->params, (size_t)job->param_count * sizeof(float));
        unmap(job->gradients.data, job->gradients.bytes);
        *job = (run_job){0};
    }
}

bool run_jobs_any_result(const run_jobs *jobs)
{
    for (int e = 0; e < JOB_COUNT; e++)
        if (jobs->jobs[e].result) return true;
    return false;
}

/* ---- the launcher ------------------------------------------------------------------------------ */

static status launch(const run_config *c, const run_plan *plan, char *const *argv, const int *numbers,
                     int count, const delivery *deliveries, run_jobs *out)
{
    launch_job jobs[JOB_COUNT];
    cpu_set_t *processors[JOB_COUNT] = {NULL};
    run_progress progress = run_progress_begin(c, plan, numbers);
    launch_options options = {.jobs = jobs,
                              .job_count = count,
                              .argv = argv,
                              .take_turns = count > 1,
                              .stall_timeout_ns = c->shared.stall_timeout_ns,
                              .connect_timeout_ns = c->run.connect_timeout_ns,
                              .progress = c->run.quiet ? NULL : run_progress_show,
                              .context = &progress};
    status rc;
    for (int i = 0; i < count; i++) {
        int j = numbers[i], e = job_engine(j), world = run_config_world(c, j), servers = 0;
        TRY_GOTO(rc, engine_servers(e, c->engine_options[e], c->policies[e], world, &servers), out);
        servers += run_config_starts_stage(c);
        bind_group group = {world + servers, run_config_threads(c, j)};
        TRY_GOTO(rc, bind_plan((bind_mode)c->run.bind, group, &processors[i]), out);
        jobs[i] = (launch_job){.name = job_name(j),
                               .world = group.members,
                               .servers = servers,
                               .processors = processors[i],
                               .environment = deliveries[j].environment};
    }
    rc = launch_run(&options, &out->outcome);
    run_progress_end(&progress);
    bool failed = rc == STATUS_OK && out->outcome.exit_code != 0;
    if (failed && c->checkpoint.save) checkpoint_clean(&c->checkpoint);
out:
    for (int i = 0; i < count; i++) free(processors[i]);
    return rc;
}

static status launch_all(const run_config *c, const run_plan *plan, char *const *argv, delivery *deliveries,
                         run_jobs *out)
{
    int numbers[JOB_COUNT], count = 0;
    for (int j = 0; j < JOB_COUNT; j++)
        if (run_config_uses(c, j)) numbers[count++] = j;
    if (plan->alternate) return launch(c, plan, argv, numbers, count, deliveries, out);
    for (int i = 0; i < count && out->outcome.exit_code == 0; i++)
        TRY(launch(c, plan, argv, &numbers[i], 1, deliveries, out));
    return STATUS_OK;
}

char **run_jobs_command(const run_config *c, char *const *argv, char gpus[32])
{
    int count = 0;
    while (argv[count]) count++;
    char **words = calloc((size_t)count + 2, sizeof *words);
    if (!words) return NULL;
    bool chosen = c->run.gpus > 0 && !options_given(&c->bindings[0], "gpus");
    snprintf(gpus, 32, "--gpus=%lld", (long long)(c->run.gpus / c->run.nnodes));
    memcpy(words, argv, 2 * sizeof *words);
    if (chosen) words[2] = gpus;
    memcpy(words + 2 + chosen, argv + 2, (size_t)(count - 2) * sizeof *words);
    return words;
}

status run_jobs_run(const run_config *config, const run_plan *plan, char *const *argv, run_jobs *out)
{
    *out = (run_jobs){0};
    delivery deliveries[JOB_COUNT];
    status rc = STATUS_OK;
    for (int e = 0; e < JOB_COUNT; e++) deliveries[e] = (delivery){.fds = {-1, -1, -1, -1, -1}};
    for (int e = 0; e < JOB_COUNT && rc == STATUS_OK; e++)
        if (run_config_uses(config, e)) rc = open_delivery(config, e, &deliveries[e]);
    char gpus[32], **words = run_jobs_command(config, argv, gpus);
    if (rc == STATUS_OK && !words) rc = fail(STATUS_SYSTEM, "no memory for the command line of the ranks");
    if (rc == STATUS_OK) rc = launch_all(config, plan, words, deliveries, out);
    free(words);
    for (int e = 0; e < JOB_COUNT && rc == STATUS_OK; e++) rc = read_outcome(&deliveries[e], &out->jobs[e]);
    for (int e = 0; e < JOB_COUNT; e++)
        for (int i = 0; i < FILES; i++)
            if (deliveries[e].fds[i] >= 0) close(deliveries[e].fds[i]);
    if (rc != STATUS_OK) run_jobs_free(out);
    return rc;
}

/* ---- the rank side ----------------------------------------------------------------------------- */

static status write_file(int file, const void *data, size_t bytes)
{
    const char *at = data, *fd = getenv(variables[file]);
    while (fd && bytes > 0) {
        ssize_t written = write(atoi(fd), at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail_errno(STATUS_SYSTEM, "the results cannot be handed over");
        at += written;
        bytes -= (size_t)written;
    }
    return STATUS_OK;
}

static status write_json(int file, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    status rc = write_file(file, text, strlen(text));
    free(text);
    return rc;
}

status run_jobs_deliver(const run_job *job)
{
    if (!job->result) return STATUS_OK;
    TRY(write_json(RESULT_FILE, job->result));
    TRY(write_file(PARAMS_FILE, job->params, (size_t)job->param_count * sizeof(float)));
    return job->trace ? write_file(TRACE_FILE, job->trace, strlen(job->trace)) : STATUS_OK;
}

int run_jobs_gradients_fd(void)
{
    const char *fd = getenv(variables[GRADIENTS_FILE]);
    return fd ? atoi(fd) : 0;
}

status run_jobs_deliver_server(int server, const ledger *memory)
{
    json_t *row = json_pack("{s:i, s:i, s:o}", "server", server, "pid", (int)getpid(), "memory",
                            ledger_to_json(memory));
    status rc = write_json(SERVERS_FILE, row);
    json_decref(row);
    return rc;
}
