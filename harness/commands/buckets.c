/* harness buckets: how a policy, or any limits, put a model's gradients together. */
#include "harness/commands/commands.h"

#include "harness/commands/output.h"
#include "models/models.h"
#include "ring/policies/policy.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct buckets_options {
    const char *policy, *limits, *json;
    bool first_step;
} buckets_options;

#define FIELD(name) offsetof(buckets_options, name)
static const option buckets_option_list[] = {
    {.name = "policy", .argument = "NAME", .type = OPTION_TEXT, .offset = FIELD(policy), .initial = "ddp",
     .help = "see `harness policies`"},
    {.name = "limits", .argument = "BYTES[,BYTES]", .type = OPTION_TEXT, .offset = FIELD(limits),
     .help = "instead of a policy: the first bucket's limit, and the others'; a bucket closes when it reaches it"},
    {.name = "first-step", .type = OPTION_FLAG, .offset = FIELD(first_step),
     .help = "the buckets of the first step, where the policy builds others behind it"},
    {.name = "json", .argument = "FILE", .type = OPTION_TEXT, .offset = FIELD(json),
     .help = "{\"bytes\": [...], \"tensors\": [...]} instead; -: to stdout"},
};
static const option_table buckets_option_table = {"Buckets", buckets_option_list,
                                                  sizeof buckets_option_list / sizeof buckets_option_list[0]};

typedef struct buckets_setup {
    buckets_options options;
    model_options model;
    ring_options ring;
    shared_options shared;
    option_binding bindings[4];
} buckets_setup;

static void bind_all(buckets_setup *s)
{
    s->bindings[0] = (option_binding){.table = &buckets_option_table, .storage = &s->options};
    s->bindings[1] = (option_binding){.table = &model_option_table, .storage = &s->model};
    s->bindings[2] = (option_binding){.table = &ring_option_table, .storage = &s->ring};
    s->bindings[3] = (option_binding){.table = &shared_option_table, .storage = &s->shared};
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

static status assign_by_limits(const buckets_setup *s, const nn_program *p, bucket_schedule *out)
{
    const nn_model *m = p->model;
    bucket_plan plan = {.rule = BUCKET_REACH_BYTES,
                        .order = s->ring.order > 0 ? (bucket_order)(s->ring.order - 1) : BUCKET_ORDER_READY};
    TRY(parse_limits(s->options.limits, &plan));
    TRY(bucket_schedule_open(m->param_count, out));
    bucket_tensor *tensors = calloc((size_t)m->param_count, sizeof *tensors);
    int *ready = calloc((size_t)m->param_count, sizeof *ready);
    if (!tensors || !ready) {
        free(tensors);
        free(ready);
        return fail(STATUS_SYSTEM, "no memory for the buckets");
    }
    for (int i = 0; i < m->param_count; i++) tensors[i] = (bucket_tensor){m->params[i].elements, DTYPE_F32};
    ring_complete_order(p->ready_order, p->ready_count, m->param_count, ready);
    bucket_assign(&plan, tensors, m->param_count, ready, out);
    free(tensors);
    free(ready);
    return STATUS_OK;
}

static status assign(const buckets_setup *s, const nn_program *p, bucket_schedule *out)
{
    if (s->options.limits) return assign_by_limits(s, p, out);
    ring_settings settings;
    TRY(ring_settings_resolve(&s->ring, s->shared.divide, s->options.policy, &settings));
    return ring_program_buckets(&settings, p, !s->options.first_step, out);
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

/* When each parameter's gradient is announced, from 1; 0: never. */
static int readiness_of(const nn_program *p, int param)
{
    for (int i = 0; i < p->ready_count; i++)
        if (p->ready_order[i] == param) return i + 1;
    return 0;
}

static void to_text(const nn_program *p, const bucket_schedule *list, text_buffer *out)
{
    const nn_model *m = p->model;
    int64_t total = 0;
    text_append(out, "%6s %12s %8s   ready (1: first)\n", "bucket", "bytes", "tensors");
    for (int b = 0; b < list->count; b++) {
        const bucket *k = &list->buckets[b];
        const int *tensors = list->tensors + k->first;
        total += k->bytes;
        text_append(out, "%6d %12lld %8d   ", b, (long long)k->bytes, k->count);
        text_append(out, "%d %s ... %d %s\n", readiness_of(p, tensors[0]), m->params[tensors[0]].name,
                    readiness_of(p, tensors[k->count - 1]), m->params[tensors[k->count - 1]].name);
    }
    bool reversed = true;
    for (int i = 0; i < p->ready_count; i++) reversed = reversed && p->ready_order[i] == m->param_count - 1 - i;
    text_append(out, "%6s %12lld %8d   gradients become ready in %s order of registration\n", "all", (long long)total,
                m->param_count, reversed ? "exact reverse" : "another than reverse");
}

static status print_buckets(buckets_setup *s)
{
    nn_model *m = NULL;
    nn_program *p = NULL;
    bucket_schedule list = {0};
    nn_program_config config = {.batch = 2, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    status rc;
    text_buffer out = {0};
    TRY_GOTO(rc, model_build(&s->model, &m), out);
    TRY_GOTO(rc, nn_program_compile(m, &config, &p), out);
    TRY_GOTO(rc, assign(s, p, &list), out);
    if (s->options.json) {
        rc = output_json(to_json(&list), s->options.json);
    } else {
        to_text(p, &list, &out);
        rc = output_text(&out);
    }
out:
    bucket_schedule_close(&list);
    nn_program_free(&p);
    nn_model_free(&m);
    return rc;
}

static status run_buckets(int argc, char *argv[], int *exit_code)
{
    buckets_setup *s = calloc(1, sizeof *s);
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int count = 0;
    status rc = s && words ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the command line");
    if (rc == STATUS_OK) {
        bind_all(s);
        rc = options_defaults(s->bindings, 4);
    }
    if (rc == STATUS_OK) rc = options_parse(s->bindings, 4, argc, argv, words, &count);
    if (rc == STATUS_OK && count > 0) rc = fail(STATUS_USAGE, "buckets: unexpected argument '%s'; see --help", words[0]);
    if (rc == STATUS_OK) rc = print_buckets(s);
    free(words);
    free(s);
    *exit_code = 0;
    return rc;
}

static void help_buckets(bool all, text_buffer *out)
{
    buckets_setup *s = calloc(1, sizeof *s);
    if (!s) return;
    bind_all(s);
    options_help(s->bindings, 4, all, out);
    free(s);
}

const command command_buckets = {"buckets", "[options]", "show how a policy puts a model's gradients into buckets", run_buckets,
                                 help_buckets};
