/* The machines of a virtual job, from the options of its run. */
#include "common/net/link.h"
#include "common/sim/cluster.h"
#include "harness/sim/virtual_job_impl.h"

#include <math.h>
#include <stdio.h>

/* Returns true if only the ranks of one machine are simulated, and stand for the ranks of all machines, which
 * do the same. */
static bool one_stands_for_all(const virtual_job_config *c, const simulation *s)
{
    bool wanted = c->variant->by_symmetry || s->config.world > VIRTUAL_JOB_ALL_RANKS;
    bool alike = c->engine == ENGINE_RING && c->run->run.stages == 1 && c->run->run.jitter == 0 &&
                 !run_config_slow(c->run, c->engine) && s->config.world % s->ranks_per_machine == 0;
    return wanted && alike;
}

/* Checks that the machines support the options. Without --loader-rate, --loader-workers needs a model of
 * images, because a loader decodes images, and a profile with the constants of a loader. --stages-on devices
 * needs GPUs, and --link needs several machines. DataParallel needs a single machine. */
static status check_machines(const virtual_job_config *job, const sync_requirements *needs,
                             const simulation *s)
{
    const sim_profile *p = s->profile;
    bool loads = run_config_loader_workers(job->run, 1) > 0, known = job->run->run.loader_rate > 0;
    bool decodes = sim_profile_has(p, SIM_LOADER_DECODE) && sim_profile_has(p, SIM_LOADER_COLLATE) &&
                   sim_profile_has(p, SIM_LOADER_PIN);
    if (loads && !known && dataset_describe(job->plan->set)->form.kind != DATA_IMAGE)
        return fail(STATUS_CONFIG,
                    "--loader-workers: expected a model of images or --loader-rate, got other inputs");
    if (loads && !decodes)
        return fail(STATUS_CONFIG,
                    "--loader-workers: expected a profile with loader_decode, loader_collate and "
                    "loader_pin, got %s",
                    p->name);
    if (run_config_devices(job->run) > 1 && sim_profile_get(p, SIM_SYNCHRONOUS) > 0)
        return fail(
            STATUS_CONFIG,
            "--stages-on: expected ranks for profile %s, whose ranks compute on processors, got devices",
            p->name);
    if (needs->whole_batch && s->topology->machines > 1)
        return fail(
            STATUS_CONFIG,
            "DataParallel is one process on one machine: expected at most %d GPU%s of profile %s, got %d%s",
            s->profile->wiring.gpus, s->profile->wiring.gpus == 1 ? "" : "s", p->name, s->config.world,
            job->run->run.nodes > 1 ? " and --nodes" : "");
    if (s->config.link_rate > 0 && s->topology->machines == 1 && !job->variant->may_be_one_machine)
        return fail(STATUS_CONFIG,
                    "--link: expected ranks on several machines, got %d on one of profile %s: take --nodes",
                    s->config.world, p->name);
    return STATUS_OK;
}

/* Makes the update of all parameters take the recorded time. */
static void fit_update(const run_config *c, const nn_model *m, simulation *s)
{
    op_desc op = {.kind = c->optimizer.kind == OPTIMIZER_SGD ? OP_sgd : OP_adam, .type = DTYPE_F32};
    op.u.optimizer.count = m->parameter_elements;
    op.u.optimizer.momentum = c->optimizer.momentum;
    if (!m->recording || m->recording->update_ns == 0) return;
    double price = sim_price_op(s->profile, s->config.precision, &op);
    if (m->recording->ranks > 1 && simulation_processes(s) > 1)
        price *= sim_price_contention(s->profile, &op);
    s->update_factor = (double)SIM_NS * (double)m->recording->update_ns / price;
    for (int i = 0; i < 2; i++) s->profile->values[SIM_OPTIMIZER][i] /= s->update_factor;
}

status virtual_machines_open(const virtual_job_config *job, int devices, const sync_requirements *needs,
                             simulation **out)
{
    const run_config *c = job->run;
    net_link link = {0};
    if (devices > 1 && run_config_is_virtual(c)) TRY(run_config_link(c, &link));
    simulation_config machine = {.profile = job->profile,
                                 .world = devices,
                                 .machines = devices == 1 ? 1 : (int)c->run.nodes,
                                 .adapters = (int)c->run.adapters,
                                 .oversubscription = c->run.oversubscription,
                                 /* DataParallel's replicas are threads of one process. */
                                 .processes = needs->whole_batch,
                                 .per_process = run_config_devices(c),
                                 .precision = c->run.tf32   ? SIM_TF32
                                              : c->run.bf16 ? SIM_BF16
                                              : c->run.fp16 ? SIM_FP16
                                                            : SIM_FP32,
                                 /* Hosts of the parameter server read data that devices write, so launches
                                  * must be synchronous. */
                                 .launches_are_calls = job->engine == ENGINE_PS,
                                 .unlimited_memory = job->variant->unlimited_memory,
                                 .jitter_seed = c->run.jitter,
                                 .python = c->run.dp_host == 1 && !job->variant->without_python,
                                 .gathered = (sim_gathered)c->run.dp_gather,
                                 .link_rate = (double)link.bytes_per_second / 1e9,
                                 .link_latency = (double)link.latency_ns / 1e3,
                                 .draw = (int)c->run.draw,
                                 .efficiency = c->run.efficiency,
                                 .overrides = job->variant->overrides,
                                 .override_count = job->variant->override_count};
    TRY(simulation_open(&machine, out));
    fit_update(c, job->plan->model, *out);
    if (one_stands_for_all(job, *out)) (*out)->config.present = (*out)->ranks_per_machine;
    return check_machines(job, needs, *out);
}

void virtual_machines_describe(const simulation *s, char *note, size_t size)
{
    int all = s->config.world, present = simulation_present(s);
    char alike[64] = "", network[128] = "", shown[80];
    text_buffer cluster = {0};
    int machines = s->topology->machines;
    net_link link = {.latency_ns = llround(1e3 * sim_profile_get(s->profile, SIM_NETWORK_LATENCY))};
    if (present < all && present == 1)
        snprintf(alike, sizeof alike, "; identical ranks: rank 0 stands for all");
    else if (present < all)
        snprintf(alike, sizeof alike, "; identical ranks: ranks 0 to %d stand for all", present - 1);
    if (machines > 1) {
        int adapters = s->profile->wiring.nics;
        link.bytes_per_second = llround(1e9 * sim_profile_get(s->profile, SIM_NIC));
        snprintf(network, sizeof network, ", with %d network adapter%s of %s each", adapters,
                 adapters == 1 ? "" : "s", net_link_format(&link, shown, sizeof shown));
    }
    sim_cluster_describe(s->profile, &cluster);
    snprintf(note, size, "virtual time, profile %s: %d GPU%s on %d machine%s of %d%s%s%s", s->profile->name,
             all, all == 1 ? "" : "s", machines, machines == 1 ? "" : "s", s->profile->wiring.gpus, network,
             alike, cluster.data ? cluster.data : "");
    text_free(&cluster);
}
