/* Chooses the ranks of each job of a run, their threads and their batch, and checks them against this
 * host. */
#include "harness/options/run_options.h"

#include "common/base/least.h"
#include "common/base/text.h"
#include "common/collectives/collective.h"
#include "common/device/cuda/cuda_module.h"
#include "harness/launch/cgroup.h"
#include "harness/launch/environment.h"
#include "harness/launch/processors.h"
#include "ring/ring.h"

#include <string.h>
#include <unistd.h>

static bool is_cuda(const run_config *c)
{
    return strcmp(c->run.device, "cuda") == 0;
}

status run_config_choose_ranks(run_config *c, int gpus)
{
    enum { VIRTUAL_RANKS = 2 };
    int started = 0, local = 0;
    bool virtual = run_config_is_virtual(c);
    if (c->run.rendezvous && c->run.nnodes == 1) launch_environment_count(&started, &local);
    if (!virtual && !launch_environment_is_rank()) {
        processors p;
        TRY(processors_open("", NULL, &p));
        /* A process that a job manager has bound to cores does not see all cores that the ranks share. */
        c->cores = started > 0 && p.restricted ? 0 : processors_cores(&p);
        processors_close(&p);
    }
    int cores = c->cores > 0 ? c->cores : 1, most = COLLECTIVE_MOST_SHARED_RANKS;
    if (c->run.mode == ENGINE_NONE) c->run.gpus = 1;
    if (!c->run.gpus)
        c->run.gpus = started > 0    ? started
                      : gpus > 0     ? gpus
                      : virtual      ? VIRTUAL_RANKS
                      : cores < most ? cores
                                     : most;
    c->local_ranks = local > 0 ? local : (int)c->run.gpus;
    c->run.gpus *= c->run.nnodes;
    return STATUS_OK;
}

bool run_config_is_oversubscribed(const run_config *c)
{
    if (is_cuda(c)) return c->local_ranks > cuda_count_gpus();
    return c->cores > 0 && c->local_ranks > c->cores;
}

bool run_config_uses(const run_config *c, int job)
{
    if (job == JOB_ALL_CORES) {
        /* On GPUs the job all-cores does not exist, because a rank cannot use several GPUs. If the only rank
         * of `none` uses all processors, all-cores would be the same job. */
        bool same = c->run.gpus == 1 && run_config_threads(c, ENGINE_NONE) == c->processors;
        return c->run.mode == ENGINE_BOTH && strcmp(c->run.device, "cpu") == 0 && !same;
    }
    if (job == JOB_ISOLATED) return c->run.isolated && c->run.gpus > 1;
    return c->run.mode == ENGINE_BOTH ? engine_in_both(job) : c->run.mode == job;
}

bool run_config_takes_turns(const run_config *c)
{
    return (c->run.mode == ENGINE_BOTH || run_config_uses(c, JOB_ISOLATED)) && !run_config_is_virtual(c);
}

int run_config_world(const run_config *c, int job)
{
    return job == ENGINE_NONE || job == JOB_ALL_CORES ? 1 : (int)c->run.gpus;
}

int run_config_replicas(const run_config *c, int job)
{
    return run_config_world(c, job) * run_config_devices(c) / (int)c->run.stages;
}

int run_config_devices(const run_config *c)
{
    return c->run.stages_on == STAGES_ON_DEVICES ? (int)c->run.stages : 1;
}

int run_config_loader_workers(const run_config *c, int processes)
{
    const char *workers = c->run.loader_workers, *of_host = strchr(workers, ':');
    return of_host ? (atoi(of_host + 1) + processes - 1) / processes : atoi(workers);
}

bool run_config_starts_stage(const run_config *c)
{
    return c->run.remote_stage && strcmp(c->run.remote_stage, "local") == 0;
}

int run_config_threads(const run_config *c, int job)
{
    if (job == JOB_ALL_CORES) return c->processors;
    if (c->run.threads) return (int)c->run.threads;
    /* The ranks of all other jobs have the same number of threads, so that the comparison is fair. */
    int threads = c->processors / c->local_ranks;
    return threads > 0 ? threads : 1;
}

int64_t run_config_batch(const run_config *c, int job)
{
    return job == JOB_ALL_CORES ? c->data.batch * c->run.gpus : c->data.batch;
}

const char *run_config_slow(const run_config *c, int job)
{
    return job != JOB_ALL_CORES ? c->shared.slow : NULL;
}

step_plan run_config_steps(const run_config *c, int job, int64_t batches, int64_t first, bool takes_turns)
{
    const run_options *r = &c->run;
    step_plan s = {.first = first, .end = batches / r->accumulate};
    int64_t measured = r->epochs ? s.end - first - r->warmup : r->steps, turns = takes_turns ? RUN_TURNS : 1;
    s.warmup = r->epochs ? least(r->warmup, s.end - first) : r->warmup;
    bool few = job == JOB_ISOLATED && measured > RUN_ISOLATED_STEPS;
    if (few) measured = RUN_ISOLATED_STEPS;
    s.turn = measured > 0 ? (measured + turns - 1) / turns : 1;
    if (r->epochs && !few) return s;
    s.end = first + s.warmup + measured;
    if (!takes_turns) return s;
    s.end += (measured + s.turn - 1) / s.turn;
    s.turn++;
    return s;
}

bool run_config_evaluates(const run_config *c, int job)
{
    return c->run.eval_every.count >= 0 && job != JOB_ISOLATED;
}

option_period run_config_eval_every(const run_config *c, int64_t steps)
{
    enum { TIMES = 20 };
    bool target = c->run.target_loss > 0 || c->run.target_accuracy > 0;
    option_period every = c->run.eval_every;
    if (every.count == 0 && target) every.count = (steps + TIMES - 1) / TIMES;
    return every;
}

/* ---- what this host can serve ------------------------------------------------------------------ */

status run_config_check_gpus(const run_config *c)
{
    if (!is_cuda(c)) return STATUS_OK;
    int gpus = cuda_count_gpus(), ranks = c->local_ranks;
    if (gpus == 0) {
        device *d = NULL; /* fails with the reason */
        TRY(device_open(&(device_config){.name = "cuda", .world = 1, .threads = 1}, &d));
        device_close(&d);
    }
    if (ranks <= gpus || c->run.share_gpu) return STATUS_OK;
    return fail(
        STATUS_CONFIG,
        "--gpus: expected at most one rank per GPU, got %d ranks on %d GPU%s: take --gpus %d, or --share-gpu",
        ranks, gpus, gpus == 1 ? "" : "s", gpus);
}

/* Refuses a job that needs more memory than the host has. The kernel would kill processes, even of other
 * programs. */
static status check_memory(int64_t bytes)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE),
           limit = cgroup_memory("");
    bool limited = limit > 0 && limit < memory;
    char needed[32], most[32];
    if (limited) memory = limit;
    if ((double)bytes <= memory) return STATUS_OK;
    return fail(
        STATUS_CONFIG,
        "memory: expected a job of at most this %s's %s, got one of %s: take fewer --gpus or a smaller "
        "--batch",
        limited ? "container" : "machine", text_format_bytes(most, sizeof most, memory),
        text_format_bytes(needed, sizeof needed, (double)bytes));
}

status run_config_check_host(const run_config *c, int64_t largest_job_bytes)
{
    if (is_cuda(c)) return STATUS_OK;
    if (run_config_uses(c, ENGINE_RING))
        TRY(ring_check_ranks(c->engine_options[ENGINE_RING], c->policies[ENGINE_RING],
                             run_config_world(c, ENGINE_RING)));
    return check_memory(largest_job_bytes);
}
