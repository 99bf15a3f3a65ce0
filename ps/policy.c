#include "ps/policy.h"

#include "common/base/text.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

static const ps_policy rows[] = {
#define POLICY(name, source, summary, ...) {__VA_ARGS__},
#include "ps/policies.h"
#undef POLICY
};

const sync_policy_info ps_policy_infos[PS_POLICY_COUNT] = {
#define POLICY(name, source, summary, ...) {name, source, summary},
#include "ps/policies.h"
#undef POLICY
};

/* ---- options ---------------------------------------------------------------------------------- */

static const char *const consistency_names[] = {"policy", "sync", "ssp", "async", NULL};
static const char *const priority_names[] = {"policy", "reverse", "fifo", NULL};
static const char *const placement_names[] = {"policy", "rank", "own", NULL};
static const char *const switch_names[] = {"policy", "on", "off", NULL};
static const char *const payload_names[] = {"auto", "shm", "zmq", "nccl", NULL};
static const char *const loss_names[] = {"policy", "device0", "replica", NULL};
static const char *const lifetime_names[] = {"policy", "torch", "lean", NULL};
static const char *const transport_names[] = {"auto", "inproc", "ipc", "tcp", NULL};

#define FIELD(name) offsetof(ps_options, name)
static const option option_list[] = {
    {"consistency", OPTION_CHOICE, FIELD(consistency), .initial = "policy", .choices = consistency_names,
     .level = OPTION_RARE, .help = "when servers update, and which ranks a rank waits for"},
    {"staleness", OPTION_INT, FIELD(staleness), .argument = "STEPS", .initial = "-1", .low = -1, .high = 1000,
     .help = "ssp: steps that a rank may be ahead of the last update (-1 for the policy's value, 3)"},
    {"partition-bytes", OPTION_BYTES, FIELD(partition_bytes), .argument = "BYTES", .initial = "0",
     .level = OPTION_KEY,
     .help = "largest part of a gradient that is pushed at once (0 for the policy's value, 4096000)"},
    {"credit-bytes", OPTION_BYTES, FIELD(credit_bytes), .argument = "BYTES", .initial = "0",
     .level = OPTION_KEY,
     .help = "bytes in transit to a server at which further pushes wait, in order of priority (0 for the "
             "policy's value, 16384000)"},
    {"priority", OPTION_CHOICE, FIELD(priority), .initial = "policy", .choices = priority_names,
     .level = OPTION_KEY,
     .help = "gradients to send first: the ones that the next forward pass needs first (reverse), or the "
             "ones that are ready first (fifo)"},
    {"servers", OPTION_INT, FIELD(servers), .argument = "K", .initial = "0", .high = 1024,
     .help = "cut the parameters into K equal shards, one per server (0 for the policy's value, 1)"},
    {"server-placement", OPTION_CHOICE, FIELD(placement), .initial = "policy", .choices = placement_names,
     .level = OPTION_RARE,
     .help = "servers run as threads of ranks 0..K-1 (rank) or as separate processes (own)"},
    {"server-optimizer", OPTION_CHOICE, FIELD(server_optimizer), .initial = "policy", .choices = switch_names,
     .level = OPTION_RARE,
     .help = "on: servers update the parameters; off: servers only sum, and every rank updates"},
    {"server-threads", OPTION_INT, FIELD(server_threads), .argument = "N", .initial = "1", .low = 1,
     .high = 256, .level = OPTION_RARE, .help = "threads of a server that sum and update"},
    {"dp-loss", OPTION_CHOICE, FIELD(dp_loss), .initial = "policy", .choices = loss_names,
     .level = OPTION_RARE,
     .help = "dp: device 0 computes one loss over all outputs, or each replica computes a loss in its "
             "forward pass"},
    {"dp-lifetimes", OPTION_CHOICE, FIELD(dp_lifetimes), .initial = "policy", .choices = lifetime_names,
     .level = OPTION_KEY,
     .help = "dp: tensor lifetimes that the memory ledger counts: as in PyTorch, or as short as this program "
             "needs"},
    {"keep-grads", OPTION_FLAG, FIELD(keep_grads), .level = OPTION_RARE,
     .help = "dp: keep gradients between steps, as zero_grad() did before torch 2.0"},
    {"payload", OPTION_CHOICE, FIELD(payload), .initial = "auto", .choices = payload_names,
     .level = OPTION_RARE,
     .help = "shm, nccl (dp): tensors go through shared memory or NCCL, and ZeroMQ carries only notices; "
             "zmq: ZeroMQ carries the tensors, too"},
    {"transport", OPTION_CHOICE, FIELD(transport), .initial = "auto", .choices = transport_names,
     .level = OPTION_RARE,
     .help = "transport of ZeroMQ; auto: inproc if ranks are threads, tcp between "
             "hosts, else ipc"},
    {"interface", OPTION_TEXT, FIELD(interface), .argument = "NAME", .initial = "lo", .level = OPTION_RARE,
     .help = "network interface on which servers listen with tcp; between hosts the one that "
             "reaches rank 0, unless a name is given"},
};
const option_table ps_option_table = {"Parameter server", option_list,
                                      sizeof option_list / sizeof option_list[0]};

/* ---- policy and options ---------------------------------------------------------------------------- */

static status find_row(const char *name, ps_policy *out)
{
    const char *names[PS_POLICY_COUNT];
    for (int i = 0; i < PS_POLICY_COUNT; i++) {
        names[i] = ps_policy_infos[i].name;
        if (strcmp(names[i], name) != 0) continue;
        *out = rows[i];
        return STATUS_OK;
    }
    char expected[256];
    return fail(STATUS_USAGE, "parameter server: expected a policy of %s, got '%s'",
                text_join(expected, sizeof expected, names, PS_POLICY_COUNT), name);
}

static void override(ps_policy *p, const ps_options *o)
{
    if (o->consistency) p->consistency = (ps_consistency)(o->consistency - 1);
    if (o->staleness >= 0) p->staleness = o->staleness;
    if (o->partition_bytes) p->partition_bytes = o->partition_bytes;
    if (o->credit_bytes) p->credit_bytes = o->credit_bytes;
    if (o->priority) p->priority = (ps_priority)(o->priority - 1);
    if (o->servers) p->servers = o->servers;
    if (o->placement) p->placement = (ps_placement)(o->placement - 1);
    if (o->server_optimizer) p->server_optimizer = o->server_optimizer == 1;
}

/* An option that has no effect with the policy. `given` is true if the command line sets the option. */
typedef struct unfit_option {
    bool given;
    const char *name, *found;
} unfit_option;

static status refuse(const unfit_option *list, int count, const char *policy, const char *instead)
{
    for (int i = 0; i < count; i++)
        if (list[i].given)
            return fail(STATUS_USAGE, "--%s: expected %s, got %s with ps=%s", list[i].name, instead,
                        list[i].found, policy);
    return STATUS_OK;
}

static status resolve_data_parallel(const char *name, const ps_options *o, ps_policy *out)
{
    const unfit_option list[] = {
        {o->consistency > 0, "consistency", consistency_names[o->consistency]},
        {o->staleness > 0, "staleness", "a bound"},
        {o->partition_bytes > 0, "partition-bytes", "a size"},
        {o->credit_bytes > 0, "credit-bytes", "a size"},
        {o->priority > 0, "priority", priority_names[o->priority]},
        {o->servers > 1, "servers", "several"},
        {o->placement == 1 + PS_PLACEMENT_OWN, "server-placement", "own"},
        {o->server_optimizer == 2, "server-optimizer", "off"},
    };
    TRY(refuse(list, sizeof list / sizeof list[0], name, "ps=sync, ssp or async"));
    if (o->dp_loss) out->loss = (ps_dp_loss)(o->dp_loss - 1);
    if (o->dp_lifetimes) out->lifetimes = (ps_dp_lifetimes)(o->dp_lifetimes - 1);
    out->keep_grads = o->keep_grads;
    return STATUS_OK;
}

status ps_policy_resolve(const char *name, const ps_options *options, int world, ps_policy *out)
{
    TRY(find_row(name, out));
    if (options->interface && strcmp(options->interface, "lo") != 0 && options->transport != PS_TRANSPORT_TCP)
        return fail(STATUS_USAGE, "--interface: expected --transport tcp, got %s",
                    transport_names[options->transport]);
    if (out->consistency == PS_DATA_PARALLEL) return resolve_data_parallel(name, options, out);
    const unfit_option list[] = {
        {options->dp_loss > 0, "dp-loss", loss_names[options->dp_loss]},
        {options->dp_lifetimes > 0, "dp-lifetimes", lifetime_names[options->dp_lifetimes]},
        {options->keep_grads, "keep-grads", "it"},
    };
    TRY(refuse(list, sizeof list / sizeof list[0], name, "ps=dp"));
    if (options->payload == PS_PAYLOAD_NCCL)
        return fail(
            STATUS_CONFIG,
            "--payload: expected shm or zmq, or ps=dp, got nccl with ps=%s: ranks push and pull in no common "
            "order, which NCCL's calls need",
            name);
    override(out, options);
    if (options->staleness > 0 && out->consistency != PS_SSP)
        return fail(STATUS_USAGE,
                    "--staleness: expected 0, or consistency ssp, got %" PRId64 " with consistency %s",
                    options->staleness, consistency_names[1 + out->consistency]);
    if (out->consistency != PS_SSP) out->staleness = 0;
    if (out->placement == PS_PLACEMENT_RANK && out->servers > world)
        return fail(STATUS_CONFIG,
                    "--servers: expected at most %d, one per rank, or --server-placement own, got %" PRId64,
                    world, out->servers);
    if (!out->server_optimizer && out->consistency != PS_SYNC)
        return fail(STATUS_CONFIG,
                    "--server-optimizer: expected on, or consistency sync, got off with consistency %s",
                    consistency_names[1 + out->consistency]);
    return STATUS_OK;
}

void ps_policy_write(const ps_policy *p, const ps_options *o, text_buffer *out)
{
    bool dp = p->consistency == PS_DATA_PARALLEL;
    text_append(out, "divide=%s\nserver_threads=%" PRId64 "\npayload=%s\ntransport=%s\ninterface=%s\n",
                p->divide_before ? "before" : "after", o->server_threads, payload_names[o->payload],
                transport_names[o->transport], o->interface);
    if (dp) {
        text_append(out, "dp_loss=%s\ndp_lifetimes=%s\nkeep_grads=%d\n", loss_names[1 + p->loss],
                    lifetime_names[1 + p->lifetimes], p->keep_grads);
        return;
    }
    text_append(
        out, "consistency=%s\nstaleness=%" PRId64 "\npartition_bytes=%" PRId64 "\ncredit_bytes=%" PRId64 "\n",
        consistency_names[1 + p->consistency], p->staleness, p->partition_bytes, p->credit_bytes);
    text_append(out, "priority=%s\nservers=%" PRId64 "\nserver_placement=%s\nserver_optimizer=%s\n",
                priority_names[1 + p->priority], p->servers, placement_names[1 + p->placement],
                p->server_optimizer ? "on" : "off");
}
