/* harness buckets: shows into which buckets a policy, or given limits, divide a model's gradients. */
#include "harness/commands/commands.h"

#include "harness/result/output.h"
#include "harness/workload/workload.h"
#include "models/models.h"
#include "ring/policy.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct buckets_setup {
    const char *policy, *limits, *workload, *json;
    bool first_step;

    model_options model;
    ring_options ring;
    shared_options shared;
} buckets_setup;

#define FIELD(name) offsetof(buckets_setup, name)
static const option buckets_option_list[] = {
    {"policy", OPTION_TEXT, FIELD(policy), .argument = "NAME", .initial = "ddp",
     .help = "policy of the ring, see `harness policies`"},
    {"limits", OPTION_TEXT, FIELD(limits), .argument = "BYTES[,BYTES]",
     .help = "limits of the first bucket and of the others, instead of a policy; a bucket closes when it "
             "reaches its limit"},
    {"first-step", OPTION_FLAG, FIELD(first_step),
     .help = "show the buckets of the first step, if the policy rebuilds the buckets after that step"},
    {"workload", OPTION_TEXT, FIELD(workload), .argument = "FILE|NUMBERS",
     .help = "show the buckets of a recorded job instead of a model, see harness run --help=all"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write {\"bytes\": [...], \"tensors\": [...]} instead (- for stdout)"},
};

static size_t bind_buckets(void *options, option_binding *bindings)
{
    buckets_setup *s = options;
    bindings[0] = (option_binding){.table = &model_option_table, .storage = &s->model};
    bindings[1] = (option_binding){.table = &ring_option_table, .storage = &s->ring};
    bindings[2] = (option_binding){.table = &shared_option_table, .storage = &s->shared};
    return 3;
}

static status parse_limits(const char *text, bucket_plan *plan)
{
    char first[32];
    const char *comma = strchr(text, ',');
    snprintf(first, sizeof first, "%.*s", comma ? (int)(comma - text) : (int)strlen(text), text);
    TRY(text_parse_bytes("--limits", first, &plan->first_limit));
    plan->limit = plan->first_limit;
    return comma ? text_parse_bytes("--limits", comma + 1, &plan->limit) : STATUS_OK;
}

static status assign(const buckets_setup *s, const nn_program *p, ring_settings *settings,
                     bucket_schedule *out)
{
    bucket_plan *plan = &settings->policy.later.buckets;
    if (!s->limits) {
        TRY(ring_settings_resolve(&s->ring, s->shared.divide, s->policy, settings));
        return ring_program_buckets(settings, p, !s->first_step, out);
    }
    settings->options.hook = s->ring.hook;
    plan->rule = BUCKET_REACH_BYTES;
    plan->order = s->ring.order > 0 ? (bucket_order)(s->ring.order - 1) : BUCKET_ORDER_READY;
    TRY(parse_limits(s->limits, plan));
    return ring_program_buckets(settings, p, true, out);
}

static json_t *to_json(const bucket_schedule *list)
{
    json_t *bytes = json_array(), *tensors = json_array();
    for (int i = 0; i < list->count; i++) {
        json_array_append_new(bytes, json_integer(list->buckets[i].bytes));
        json_array_append_new(tensors, json_integer(list->buckets[i].count));
    }
    return json_pack("{s:o, s:o}", "bytes", bytes, "tensors", tensors);
}

/* Returns the position, from 1, of a parameter in the order in which gradients become ready, or 0 if the
 * parameter has no gradient. */
static int readiness_of(const nn_program *p, int param)
{
    for (int i = 0; i < p->ready_count; i++)
        if (p->ready_order[i] == param) return i + 1;
    return 0;
}

static void to_text(const nn_program *p, const ring_settings *settings, const bucket_schedule *list,
                    text_buffer *out)
{
    const nn_model *m = p->model;
    dtype sent_type = ring_wire_type(settings, p->config.type);
    int64_t total = 0, sent = 0;
    text_append(out, "%6s %12s %8s   ready (1: first)\n", "bucket", "bytes", "tensors");
    for (int b = 0; b < list->count; b++) {
        const bucket *k = &list->buckets[b];
        const int *tensors = list->tensors + k->first;
        total += k->bytes;
        sent += k->elements * dtype_size(sent_type);
        text_append(out, "%6d %12lld %8d   ", b, (long long)k->bytes, k->count);
        text_append(out, "%d %s ... %d %s\n", readiness_of(p, tensors[0]), m->params[tensors[0]].name,
                    readiness_of(p, tensors[k->count - 1]), m->params[tensors[k->count - 1]].name);
    }
    bool reversed = true;
    for (int i = 0; i < p->ready_count; i++)
        reversed = reversed && p->ready_order[i] == m->param_count - 1 - i;
    text_append(out, "%6s %12lld %8d\n", "all", (long long)total, m->param_count);
    if (sent != total) text_append(out, "Sent as %s: %lld bytes.\n", dtype_name(sent_type), (long long)sent);
    text_append(out, "Gradients become ready in %s order of registration.\n",
                reversed ? "exact reverse" : "another than reverse");
}

static status run_buckets(command_line *line)
{
    const buckets_setup *s = line->options;
    nn_model *m = NULL;
    nn_program *p = NULL;
    ring_settings settings = {0};
    bucket_schedule list = {0};
    nn_program_config config = {.batch = 2, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    status rc;
    TRY(output_check(&(output_name){"json", s->json}, 1, &s->workload, 1));
    TRY_GOTO(rc, s->workload ? workload_replay(s->workload, 1, &m) : model_build(&s->model, &m), out);
    config.batch = m->recording ? m->recording->batch : config.batch;
    TRY_GOTO(rc, nn_program_compile(m, &config, &p), out);
    TRY_GOTO(rc, assign(s, p, &settings, &list), out);
    if (s->json)
        rc = output_json(to_json(&list), s->json);
    else
        to_text(p, &settings, &list, line->out);
out:
    bucket_schedule_close(&list);
    nn_program_free(&p);
    nn_model_free(&m);
    return rc;
}

const command command_buckets = {
    .name = "buckets",
    .usage = "[options]",
    .summary = "show how a policy puts a model's gradients into buckets",
    .options_size = sizeof(buckets_setup),
    .table = {"Buckets", buckets_option_list, sizeof buckets_option_list / sizeof buckets_option_list[0]},
    .bind = bind_buckets,
    .run = run_buckets};
