#include "harness/commands/jobs.h"

#include "harness/launch/processors.h"
#include "harness/sim/virtual_run.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* OpenMP's run-time binds the first thread as it is loaded, and ranks inherit that: all of them share its
 * place. */
static void warn_of_openmp(void)
{
    const char *bind = getenv("OMP_PROC_BIND");
    char own[64];
    processors p;
    if (!bind || strcasecmp(bind, "false") == 0) return;
    if (processors_open("", NULL, &p) == STATUS_OK && p.restricted)
        log_warn("OMP_PROC_BIND=%s has bound this program to processors %s, and so its ranks: unset it, and "
                 "take --bind core",
                 bind, processors_format(&p.allowed, own, sizeof own));
    error_clear();
    processors_close(&p);
}

static status run_here(const run_config *c, run_plan *plan, char *const *words, run_jobs *jobs)
{
    bool cuda = strcmp(c->run.device, "cuda") == 0;
    TRY(run_config_check_gpus(c));
    TRY(run_plan_make(c, plan));
    TRY(run_config_check_host(c, plan->largest_job_bytes));
    if (!c->run.quiet) log_info("%s%s", cuda ? "" : "no CUDA device found: ", plan->hardware_note);
    warn_of_openmp();
    TRY(run_jobs_run(c, plan, words, jobs));
    if (jobs->cause[0]) log_error("%s", jobs->cause);
    return run_jobs_any_result(jobs) ? virtual_predict_jobs(c, plan, jobs->jobs) : STATUS_OK;
}

static status run_in_virtual_time(const run_config *c, run_plan *plan, run_jobs *jobs)
{
    TRY(run_plan_make(c, plan));
    jobs->on_heap = true;
    return virtual_run(c, plan, jobs->jobs, plan->hardware_note, sizeof plan->hardware_note);
}

status command_run_jobs(const run_config *config, run_plan *plan, char *const *words, run_jobs *jobs)
{
    *jobs = (run_jobs){0};
    status rc = run_config_is_virtual(config) ? run_in_virtual_time(config, plan, jobs)
                                              : run_here(config, plan, words, jobs);
    if (rc != STATUS_OK) run_jobs_free(jobs);
    return rc;
}
