/* harness policies: lists the policies of the engines, and the systems that they reproduce. */
#include "harness/commands/commands.h"

#include "harness/options/engines.h"
#include "ps/policy.h"
#include "ring/policy.h"

static void describe_buckets(const ring_step_plan *p, text_buffer *out)
{
    const bucket_plan *b = &p->buckets;
    text_append(out, "%s, %s", bucket_order_names[b->order], bucket_rule_names[b->rule]);
    if (b->rule == BUCKET_REACH_ELEMENTS)
        text_append(out, " %lld", (long long)b->limit);
    else if (b->limit > 0 && b->first_limit != b->limit)
        text_append(out, " %lld and %lld", (long long)b->first_limit, (long long)b->limit);
    else if (b->limit > 0)
        text_append(out, " %lld", (long long)b->limit);
    text_append(out, ", %s", p->launch == RING_WHEN_READY ? "when ready" : "after backward");
}

static void describe_ring(const ring_policy *p, text_buffer *out)
{
    text_append(out, "    buckets %s", p->rebuilds ? "in step 1: " : "");
    describe_buckets(&p->first, out);
    if (p->rebuilds) {
        text_append(out, "; from step 2: ");
        describe_buckets(&p->later, out);
    }
    text_append(out, "\n    divide %s; buffers %s%s%s\n", p->divide_before ? "before" : "after",
                p->broadcast_buffers ? "broadcast from rank 0 before every forward pass"
                                     : "never synchronized",
                p->serial ? "; one bucket after another" : "",
                p->lifetime == RING_BUCKETS_PASS ? "; bucket memory only while in flight" : "");
}

static status describe_ps(const char *name, text_buffer *out)
{
    static const char *const consistency[] = {
        [PS_SYNC] = "sync", [PS_SSP] = "ssp", [PS_ASYNC] = "async", [PS_DATA_PARALLEL] = "dp"};
    option_binding binding = {.table = &ps_option_table, .storage = &(ps_options){0}};
    ps_policy p;
    TRY(options_defaults(&binding, 1));
    TRY(ps_policy_resolve(name, binding.storage, 2, &p));
    if (p.consistency == PS_DATA_PARALLEL) {
        text_append(out,
                    "    parameters in chunks that reach %lld bytes, gradients in chunks within %lld; loss "
                    "and optimizer on rank 0;\n    all traffic through rank 0, over ZeroMQ\n",
                    (long long)p.replicate_bytes, (long long)p.reduce_bytes);
        return STATUS_OK;
    }
    text_append(out, "    consistency %s", consistency[p.consistency]);
    if (p.consistency == PS_SSP) text_append(out, " of %lld steps", (long long)p.staleness);
    text_append(out,
                "; keys of at most %lld bytes, %s first; servers %lld, on the ranks; optimizer on the %s; "
                "divide %s\n",
                (long long)p.partition_bytes,
                p.priority == PS_PRIORITY_REVERSE ? "what is needed first" : "what is ready",
                (long long)p.servers, p.server_optimizer ? "server" : "workers",
                p.divide_before ? "before" : "after");
    return STATUS_OK;
}

static status describe_policy(int engine, int index, text_buffer *out)
{
    const sync_policy_info *info = &engine_table[engine]->policies[index];
    text_append(out, "%-5s %-17s %s%s\n    source: %s\n", engine_table[engine]->name, info->name,
                info->summary, index == 0 ? " (default)" : "", info->source);
    if (engine == ENGINE_RING) {
        const ring_policy *p = NULL;
        TRY(ring_policy_find(info->name, &p));
        describe_ring(p, out);
    }
    return engine == ENGINE_PS ? describe_ps(info->name, out) : STATUS_OK;
}

static status run_policies(command_line *line)
{
    for (int e = 0; e < ENGINE_COUNT; e++)
        for (int i = 0; i < engine_table[e]->policy_count; i++) TRY(describe_policy(e, i, line->out));
    text_append(line->out, "\nOptions, and keys as in --policy ring=ddp:order=ready, change most fields: see "
                           "harness run --help=all.\nA bucket closes when it reaches its limit (reach_...), "
                           "or before it would exceed it (within_...).\n");
    return STATUS_OK;
}

const command command_policies = {.name = "policies",
                                  .usage = "",
                                  .summary = "list the policies of the engines, with the source of each",
                                  .run = run_policies};
