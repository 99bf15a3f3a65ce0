/* The launcher of one host in a run with --nnodes. */
#include "harness/launch/job.h"

#include "common/base/log.h"

#include <stdio.h>
#include <stdlib.h>

status run_node_check(const run_config *c)
{
    static const char *const details[] = {"node-rank", "master-addr", "master-port"};
    const run_options *r = &c->run;
    int nodes = (int)r->nnodes;
    char got[24];
    for (int i = 0; i < 3 && !options_given(&c->bindings[0], "nnodes"); i++)
        if (options_given(&c->bindings[0], details[i]))
            return fail(STATUS_USAGE, "--%s: expected --nnodes too", details[i]);
    bool missing = nodes > 1 && !options_given(&c->bindings[0], "node-rank");
    snprintf(got, sizeof got, "%lld", (long long)r->node_rank);
    if (r->node_rank >= nodes || missing)
        return fail(STATUS_USAGE, "--node-rank: expected an integer from 0 to %d with --nnodes %d, got %s",
                    nodes - 1, nodes, missing ? "none" : got);
    if (nodes == 1) return STATUS_OK;
    if (getenv("TORCHELASTIC_RUN_ID"))
        return fail(STATUS_USAGE,
                    "--nnodes: expected a process that torchrun has not started: torchrun "
                    "--nnodes %d ... harness, without --nnodes after harness",
                    nodes);
    if (r->mode == ENGINE_BOTH)
        return fail(STATUS_USAGE, "--mode: expected ps or ring with --nnodes, got both");
    if (!r->master_addr || !r->master_addr[0])
        return fail(STATUS_USAGE, "--master-addr: expected the address of node 0 with --nnodes %d, got %s",
                    nodes, r->master_addr ? "''" : "none");
    if (!getenv("HARNESS_KEY"))
        return fail(STATUS_PERMISSION,
                    "--nnodes: the nodes need a secret that they share: export HARNESS_KEY=$(openssl rand "
                    "-hex 32) on one node, and the same HARNESS_KEY on the others");
    return run_config_check_gpus(c);
}

status run_node(const run_config *c, char *const *argv, int *exit_code)
{
    const launch_node node = {.first_rank = (int)c->run.node_rank * c->local_ranks,
                              .world = (int)c->run.gpus,
                              .address = c->run.master_addr,
                              .port = (int)c->run.master_port};
    const launch_job job = {.name = job_name(c->run.mode), .world = c->local_ranks};
    if (!c->run.quiet)
        log_info("node %lld of %lld: ranks %d to %d; waiting for the other nodes at %s:%d",
                 (long long)c->run.node_rank, (long long)c->run.nnodes, node.first_rank,
                 node.first_rank + c->local_ranks - 1, node.address, node.port);
    char gpus[32], **words = run_jobs_command(c, argv, gpus);
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line of the ranks");
    if (!getenv("OMP_WAIT_POLICY")) setenv("GOMP_SPINCOUNT", "1000", 0); /* as in job.c */
    const launch_options options = {.jobs = &job,
                                    .job_count = 1,
                                    .argv = words,
                                    .node = &node,
                                    .stall_timeout_ns = c->shared.stall_timeout_ns};
    status rc = launch_run_and_log(&options, exit_code);
    free(words);
    return rc;
}
