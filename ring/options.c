#include "ring/policy.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char *const order_choices[] = {"policy", "registration", "reverse", "ready", "last_first", NULL};
static const char *const launch_choices[] = {"policy", "after-backward", "when-ready", NULL};
static const char *const yes_no_choices[] = {"policy", "yes", "no", NULL};
#define NAME(id, name) name,
static const char *const collective_choices[] = {"auto", COLLECTIVE_LIST(NAME) COLLECTIVE_RENAMED, NULL};
#undef NAME
static const char *const hook_choices[] = {
#define HOOK(NAME, name, wire, compress) name,
#include "ring/hooks/hooks.h"
#undef HOOK
    NULL};
static const char *const join_choices[] = {"none", "world", "active", NULL};

#define AT(field) offsetof(ring_options, field)

static const option options[] = {
    {"bucket-cap-mb", OPTION_MIB, AT(bucket_cap_mb), .argument = "MIB",
     .help = "close a bucket when it reaches this size, in MiB or with a unit as in 25MB (0 for the policy's "
             "value)"},
    {"first-bucket-mb", OPTION_MIB, AT(first_bucket_mb), .argument = "MIB", .level = OPTION_KEY,
     .help = "limit of the first bucket (0 for the policy's value)"},
    {"message-size", OPTION_INT, AT(message_size), .argument = "ELEMENTS", .level = OPTION_KEY,
     .help = "close a bucket when it reaches this size, for policies that count elements (0 for the policy's "
             "value)"},
    {"order", OPTION_CHOICE, AT(order), .initial = "policy", .choices = order_choices, .level = OPTION_KEY,
     .help = "order in which gradients are put into buckets"},
    {"launch", OPTION_CHOICE, AT(launch), .initial = "policy", .choices = launch_choices, .level = OPTION_KEY,
     .help = "when buckets are launched"},
    {"broadcast-buffers", OPTION_CHOICE, AT(broadcast_buffers), .initial = "policy",
     .choices = yes_no_choices, .level = OPTION_RARE,
     .help = "start every step from the buffers of rank 0 (with --join, of the lowest rank that has data)"},
    {"bucket-view", OPTION_FLAG, AT(bucket_view), .level = OPTION_RARE,
     .help = "reduce gradients in place, without copies and bucket memory"},
    {"allreduce-fp32", OPTION_FLAG, AT(allreduce_fp32), .level = OPTION_RARE,
     .help = "compute sums in float32, whatever the type of the gradients"},
    {"predivide", OPTION_DOUBLE, AT(predivide), .argument = "FACTOR", .level = OPTION_KEY,
     .help = "divide gradients by FACTOR before the sum and by ranks/FACTOR after it; needs division after "
             "the sum (0 for 1)"},
    {"collective", OPTION_CHOICE, AT(collective), .initial = "auto", .choices = collective_choices,
     .help = "the library that carries the tensors: this program's collectives in shared memory, NCCL or "
             "Open MPI; auto: NCCL between GPUs if it is installed, else shm"},
    {"algorithm", OPTION_CHOICE, AT(algorithm), .initial = "auto", .choices = collective_algorithm_names,
     .help = "all-reduce algorithm of the buckets; shm: ring (auto), two-shot, tuned; nccl, mpi: library "
             "(auto, the library chooses), ring; in virtual time: library (auto, the faster of ring and tree "
             "per call), ring, tree, two-shot, hierarchical"},
    {"collective-table", OPTION_TEXT, AT(collective_table), .argument = "FILE", .level = OPTION_RARE,
     .help = "table for --algorithm tuned, from bench --tune; implies --algorithm tuned"},
    {"find-unused-parameters", OPTION_FLAG, AT(find_unused), .level = OPTION_RARE,
     .help = "allow parameters without a gradient: find them at the end of every backward pass"},
    {"static-graph", OPTION_FLAG, AT(static_graph), .level = OPTION_RARE,
     .help = "assume that parameters without a gradient in the first step never have one"},
    {"reduce-micro-batches", OPTION_FLAG, AT(each_micro_batch), .level = OPTION_RARE,
     .help = "with --accumulate: reduce gradients in every micro-batch, as PyTorch without no_sync()"},
    {"comm-hook", OPTION_CHOICE, AT(hook), .initial = "none", .choices = hook_choices,
     .help = "how gradients are compressed before they are sent"},
    {"powersgd-rank", OPTION_INT, AT(powersgd_rank), .argument = "RANK", .initial = "1", .low = 1, .high = 64,
     .level = OPTION_RARE, .help = "columns of PowerSGD's factors"},
    {"powersgd-start", OPTION_INT, AT(powersgd_start), .argument = "STEP", .initial = "10",
     .level = OPTION_RARE, .help = "first step that PowerSGD compresses (1000 in PyTorch)"},
    {"join", OPTION_CHOICE, AT(join), .initial = "none", .choices = join_choices, .level = OPTION_RARE,
     .help = "a rank without data contributes zeros; the mean is over all ranks (world) or over the ranks "
             "that have data (active)"},
    {"reshard", OPTION_CHOICE, AT(reshard), .initial = "policy", .choices = yes_no_choices,
     .level = OPTION_KEY,
     .help = "zero3, fsdp: free the parameters of a unit after the forward pass and gather them again for "
             "the backward pass (the policy's value is yes)"},
    {"mixed-precision", OPTION_FLAG, AT(mixed_precision),
     .help = "ddp, zero1, zero2, zero3, fsdp: keep and send parameters and gradients as bfloat16, as FSDP's "
             "MixedPrecision; updates change a float32 copy; with --bf16 also activations"},
    {"group", OPTION_INT, AT(group), .argument = "RANKS", .high = 1024, .level = OPTION_KEY,
     .help = "zero1, zero2, zero3, fsdp: shard the state in groups of RANKS neighbors, such as the ranks of "
             "a host, and replicate it between groups, as HYBRID_SHARD (0 for one group of all ranks)"},
};

const option_table ring_option_table = {"Ring engine", options, sizeof options / sizeof options[0]};

/* ---- resolving -------------------------------------------------------------------------------- */

static status refuse(const char *name, const char *why)
{
    return fail(STATUS_USAGE, "--%s: %s", name, why);
}

static int64_t mib(double value)
{
    return (int64_t)(value * 1048576.0);
}

/* Applies the options for limits to a plan. Sets *bytes if the plan has limits in bytes, and *elements if the
 * plan has a limit in elements. */
static void limit(const ring_options *o, bucket_plan *p, bool *bytes, bool *elements)
{
    if (p->rule == BUCKET_REACH_ELEMENTS) {
        *elements = true;
        if (o->message_size > 0) p->first_limit = p->limit = o->message_size;
    }
    if (p->rule != BUCKET_REACH_BYTES && p->rule != BUCKET_WITHIN_BYTES) return;
    *bytes = true;
    if (o->bucket_cap_mb > 0) {
        bool one_limit = p->first_limit == p->limit;
        p->limit = mib(o->bucket_cap_mb);
        if (one_limit || p->first_limit > p->limit) p->first_limit = p->limit;
    }
    if (o->first_bucket_mb > 0) p->first_limit = mib(o->first_bucket_mb);
}

static status resolve_buckets(const ring_options *o, ring_policy *p)
{
    if (o->find_unused && !o->static_graph && p->unused.buckets.limit > 0) {
        p->first = p->unused;
        p->rebuilds = false;
    }
    if (!p->rebuilds) p->later = p->first;
    bool bytes = false, elements = false;
    limit(o, &p->first.buckets, &bytes, &elements);
    limit(o, &p->later.buckets, &bytes, &elements);
    if ((o->bucket_cap_mb > 0 || o->first_bucket_mb > 0) && !bytes)
        return refuse(o->bucket_cap_mb > 0 ? "bucket-cap-mb" : "first-bucket-mb",
                      "the policy's buckets are not cut by bytes");
    if (o->message_size > 0 && !elements)
        return refuse("message-size", "the policy's buckets are not cut by elements");
    if (o->order > 0) {
        p->later.buckets.order = (bucket_order)(o->order - 1);
        p->rebuilds = p->later.buckets.order == BUCKET_ORDER_READY;
        if (!p->rebuilds) p->first = p->later;
    }
    if (o->launch > 0) p->first.launch = p->later.launch = (ring_launch)(o->launch - 1);
    if (p->first.launch == RING_WHEN_READY) p->serial = false;
    return STATUS_OK;
}

typedef struct refusal {
    const char *name;
    bool given;
    const char *why;
} refusal;

static status refuse_first(const refusal *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].given) return refuse(list[i].name, list[i].why);
    return STATUS_OK;
}

static status check(const ring_options *o, const ring_settings *s)
{
    bool hook = o->hook != RING_HOOK_NONE, powersgd = o->hook == RING_HOOK_POWERSGD;
    const refusal list[] = {
        {"powersgd-rank", o->powersgd_rank > 1 && !powersgd, "expected --comm-hook powersgd"},
        {"powersgd-start", o->powersgd_start > 0 && o->powersgd_start != 10 && !powersgd,
         "expected --comm-hook powersgd"},
        {"bucket-view", o->bucket_view && hook, "unexpected with --comm-hook, which needs separate buckets"},
        {"allreduce-fp32", o->allreduce_fp32 && hook,
         "unexpected with --comm-hook, which determines the type that is sent"},
        {"bucket-view", o->bucket_view && o->allreduce_fp32,
         "unexpected with --allreduce-fp32, which converts gradients in separate buckets"},
        {"reduce-micro-batches",
         o->each_micro_batch && (o->find_unused || o->static_graph || o->join != RING_JOIN_NONE),
         "unexpected with --find-unused-parameters, --static-graph and --join"},
        {"predivide", o->predivide > 0 && s->policy.divide_before,
         "expected division after the sum; add --divide after"},
        {"predivide", o->predivide > 0 && o->join == RING_JOIN_ACTIVE,
         "--join active determines the divisor only during the step"}};
    return refuse_first(list, sizeof list / sizeof list[0]);
}

/* Fails if an option needs unsharded gradients. If state is sharded, each bucket is a unit, and every rank
 * has only a shard of the unit's gradients. */
static status check_sharded(const ring_options *o)
{
    static const char why[] = "expected a policy whose ranks have all gradients, as ddp";
    const refusal list[] = {{"bucket-view", o->bucket_view, why},
                            {"allreduce-fp32", o->allreduce_fp32, why},
                            {"find-unused-parameters", o->find_unused, why},
                            {"static-graph", o->static_graph, why},
                            {"reduce-micro-batches", o->each_micro_batch, why},
                            {"comm-hook", o->hook != RING_HOOK_NONE, why},
                            {"join", o->join != RING_JOIN_NONE, why},
                            {"order", o->order > 0, why},
                            {"predivide", o->predivide > 0, why}};
    return refuse_first(list, sizeof list / sizeof list[0]);
}

/* Turns on mixed precision. The policy ddp becomes zero1 with groups of one rank, so that every rank has all
 * shards. */
static status mix(ring_settings *s)
{
    const char *name = s->policy.name;
    const ring_policy *zero1;
    if (s->policy.sharding == PARAM_SHARD_NONE && strcmp(name, "ddp") != 0)
        return refuse("mixed-precision", "expected --policy ddp, zero1, zero2, zero3 or fsdp");
    s->mixed = true;
    if (s->policy.sharding != PARAM_SHARD_NONE) return STATUS_OK;
    if (s->group > 0) return refuse("group", "expected a policy that cuts state among ranks, as zero3");
    s->group = 1;
    TRY(ring_policy_find("zero1", &zero1));
    s->policy = *zero1;
    s->policy.name = name;
    return STATUS_OK;
}

/* Determines the algorithm. If --collective is auto, the library and its default algorithm are chosen later,
 * when the device is known. */
static status resolve_algorithm(const ring_options *o, ring_settings *s)
{
    s->collective = collective_choices[o->collective];
    s->algorithm = (collective_algorithm)o->algorithm;
    if (o->collective_table && s->algorithm == COLLECTIVE_ALGORITHM_AUTO)
        s->algorithm = COLLECTIVE_ALGORITHM_TUNED;
    bool tuned = s->algorithm == COLLECTIVE_ALGORITHM_TUNED;
    if (tuned && !o->collective_table)
        return refuse("algorithm",
                      "tuned needs --collective-table FILE; harness bench --tune writes the file");
    if (o->collective_table && !tuned) return refuse("collective-table", "expected --algorithm tuned");
    if (strcmp(s->collective, "auto") == 0) return STATUS_OK;
    return collective_choose_algorithm(s->collective, s->algorithm, &s->algorithm);
}

status ring_settings_resolve(const ring_options *o, int divide, const char *policy, ring_settings *s)
{
    const ring_policy *row = NULL;
    TRY(ring_policy_find(policy, &row));
    *s = (ring_settings){.policy = *row,
                         .options = *o,
                         .predivide = o->predivide > 0 ? o->predivide : 1,
                         .group = (int)o->group,
                         .keeps = o->reshard == RING_CHOICE_NO};
    ring_policy *p = &s->policy;
    if (o->mixed_precision) TRY(mix(s));
    bool sharded = p->sharding != PARAM_SHARD_NONE;
    if (sharded) TRY(check_sharded(o));
    if (p->sharding != PARAM_SHARD_ALL && o->reshard != RING_CHOICE_POLICY)
        return refuse("reshard", "expected --policy zero3 or fsdp, whose parameters are cut");
    if (!sharded && o->group > 0)
        return refuse("group", "expected a policy that cuts state among ranks, as zero3");
    if (sharded) s->options.bucket_view = true;
    if (divide != SHARED_DIVIDE_POLICY) p->divide_before = divide == SHARED_DIVIDE_BEFORE;
    if (o->broadcast_buffers != RING_CHOICE_POLICY)
        p->broadcast_buffers = o->broadcast_buffers == RING_CHOICE_YES;
    TRY(resolve_algorithm(o, s));
    TRY(resolve_buckets(o, p));
    return check(o, s);
}

dtype ring_wire_type(const ring_settings *s, dtype type)
{
    dtype wire = ring_hooks[s->options.hook].wire;
    if (wire != DTYPE_COUNT) return wire;
    if (s->mixed) return DTYPE_BF16;
    return s->options.allreduce_fp32 ? DTYPE_F32 : type;
}

/* ---- buckets ---------------------------------------------------------------------------------- */

void ring_complete_order(const int *ready, int count, int params, int *out)
{
    int used = 0;
    for (int i = 0; i < count; i++) out[used++] = ready[i];
    for (int p = params - 1; p >= 0; p--) {
        bool known = false;
        for (int i = 0; i < count && !known; i++) known = ready[i] == p;
        if (!known) out[used++] = p;
    }
}

status ring_program_buckets(const ring_settings *s, const nn_program *program, bool later,
                            bucket_schedule *out)
{
    const nn_model *m = program->model;
    int count = m->param_count;
    dtype type = s->mixed ? DTYPE_BF16 : program->config.type;
    *out = (bucket_schedule){0};
    bucket_tensor *tensors = calloc((size_t)count + 1, sizeof *tensors);
    int *order = calloc((size_t)count + 1, sizeof *order);
    status rc = tensors && order ? bucket_schedule_open(count, out)
                                 : fail(STATUS_SYSTEM, "no memory for the buckets of model %s", m->name);
    if (rc == STATUS_OK) {
        for (int i = 0; i < count; i++)
            tensors[i] = (bucket_tensor){m->params[i].elements, type, m->params[i].unit};
        ring_complete_order(program->ready_order, program->ready_count, count, order);
        bucket_assign(later ? &s->policy.later.buckets : &s->policy.first.buckets, tensors, count, order,
                      out);
    }
    free(tensors);
    free(order);
    return rc;
}

static void write_plan(const char *name, const ring_step_plan *p, text_buffer *out)
{
    text_append(out, "%s.rule=%s\n%s.order=%s\n%s.first_limit=%lld\n%s.limit=%lld\n%s.launch=%s\n", name,
                bucket_rule_names[p->buckets.rule], name, bucket_order_names[p->buckets.order], name,
                (long long)p->buckets.first_limit, name, (long long)p->buckets.limit, name,
                launch_choices[1 + p->launch]);
}

void ring_settings_write(const ring_settings *s, text_buffer *out)
{
    const ring_policy *p = &s->policy;
    const ring_options *o = &s->options;
    text_append(out, "policy=%s\n", p->name);
    write_plan("first", &p->first, out);
    write_plan("later", &p->later, out);
    text_append(out,
                "rebuilds=%d\nserial=%d\ndivide=%s\npredivide=%.17g\nbroadcast_buffers=%d\nbucket_view=%d\n",
                p->rebuilds, p->serial, p->divide_before ? "before" : "after", s->predivide,
                p->broadcast_buffers, o->bucket_view);
    text_append(out,
                "find_unused=%d\nstatic_graph=%d\nreduce_micro_batches=%d\ncomm_hook=%s\nallreduce_fp32=%"
                "d\npowersgd_rank=%d\n",
                o->find_unused, o->static_graph, o->each_micro_batch, ring_hooks[o->hook].name,
                o->allreduce_fp32, (int)o->powersgd_rank);
    text_append(out, "powersgd_start=%lld\njoin=%s\ncollective=%s\nalgorithm=%s\n",
                (long long)o->powersgd_start, join_choices[o->join], s->collective,
                collective_algorithm_names[s->algorithm]);
    if (p->sharding == PARAM_SHARD_ALL) text_append(out, "reshard=%d\n", !s->keeps);
    if (p->sharding != PARAM_SHARD_NONE)
        text_append(out, "group=%d\nmixed_precision=%d\n", s->group, s->mixed);
}
