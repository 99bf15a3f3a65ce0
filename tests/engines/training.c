#include "tests/engines/training.h"

#include "common/base/random.h"
#include "common/net/status_table.h"
#include "ps/ps.h"
#include "ring/ring.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_SIZE = 1024, WORDS = 32, LARGEST_INTEGER = 2 };

struct training {
    training_config config;
    void *context;
    training_function function;
    nn_model *model;
    nn_model *stages[NN_MOST_STAGES];
    status_table *table;
    transport_hub *hub;
    uint64_t token;
    _Alignas(16) char options[OPTIONS_SIZE];
};

/* ---- values ----------------------------------------------------------------------------------- */

static double value_at(const training *t, const char *name, int64_t index)
{
    uint64_t start = random_start(17, random_fnv1a64(name));
    if (!t->config.integers) return random_signed(start, (uint64_t)index);
    return (double)random_below(start, (uint64_t)index, 2 * LARGEST_INTEGER + 1) - LARGEST_INTEGER;
}

static status set_params(const training *t, trainer *r)
{
    param_set *set = trainer_params(r);
    if (!t->config.integers) return param_set_initialize(set, trainer_stream(r), 5);
    for (int p = 0; p < t->model->param_count; p++) {
        const nn_param *param = &t->model->params[p];
        float *values = malloc((size_t)param->elements * sizeof *values);
        if (!values) return fail(STATUS_SYSTEM, "no memory for %s", param->name);
        for (int64_t i = 0; i < param->elements; i++) values[i] = (float)value_at(t, param->name, i);
        status rc = param_set_import(set, trainer_stream(r), set->params.data, p, DTYPE_F32, values);
        free(values);
        TRY(rc);
    }
    return STATUS_OK;
}

/* ---- batches ---------------------------------------------------------------------------------- */

typedef struct value_source {
    batch_source base;
    const training *training;
    int64_t first, count; /* Samples of a step, either of one rank or of all ranks. */
    float *inputs;        /* If the samples are tokens, the elements are int32. */
    void *targets;        /* The elements are float, or int32 if the targets are classes. */
} value_source;

static status source_next(batch_source *base, int64_t step, batch_view *out)
{
    value_source *s = (value_source *)base;
    int64_t batch = s->count, input = data_form_input_elements(&base->form),
            target = data_form_target_elements(&base->form);
    int64_t drawn = s->training->config.repeats ? 0 : step;
    char name[48];
    snprintf(name, sizeof name, "input of step %lld", (long long)drawn);
    uint64_t tokens = random_start(17, random_fnv1a64(name)),
             vocabulary = (uint64_t)s->training->model->layers[0].vocabulary;
    for (int64_t i = 0; i < batch * input; i++) {
        int64_t at = s->first * input + i;
        if (vocabulary)
            ((int32_t *)s->inputs)[i] = (int32_t)random_below(tokens, (uint64_t)at, vocabulary);
        else
            s->inputs[i] = (float)value_at(s->training, name, at);
    }
    snprintf(name, sizeof name, "target of step %lld", (long long)drawn);
    uint64_t start = random_start(17, random_fnv1a64(name));
    for (int64_t i = 0; i < batch * target; i++) {
        int64_t at = s->first * target + i;
        if (base->form.target == DATA_TARGET_VALUES)
            ((float *)s->targets)[i] = (float)value_at(s->training, name, at);
        else
            ((int32_t *)s->targets)[i] =
                (int32_t)random_below(start, (uint64_t)at, (uint64_t)base->form.classes);
    }
    *out = (batch_view){.inputs = s->inputs,
                        .targets = s->targets,
                        .count = batch,
                        .targets_counted = batch * target,
                        .step = step,
                        .epoch_step = step};
    return STATUS_OK;
}

static void source_give_back(batch_source *base, const batch_view *b)
{
    (void)base;
    (void)b;
}

static void source_close(batch_source *base)
{
    value_source *s = (value_source *)base;
    free(s->inputs);
    free(s->targets);
    free(s);
}

static const batch_source_type value_source_type = {source_next, batch_source_always_ready, source_give_back,
                                                    source_close};

static status source_open(const training *t, int rank, bool whole, batch_source **out)
{
    int64_t count = t->config.batch * (whole ? t->config.world : 1);
    *out = NULL;
    value_source *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for batches");
    s->base = (batch_source){
        .type = &value_source_type, .form = data_form_of_model(t->model), .largest_batch = count};
    s->training = t;
    s->count = count;
    s->first = t->config.first + rank * t->config.batch;
    s->inputs = malloc((size_t)(count * data_form_input_elements(&s->base.form)) * sizeof *s->inputs);
    s->targets = malloc((size_t)(count * data_form_target_elements(&s->base.form)) * sizeof(float));
    *out = &s->base;
    if (!s->inputs || !s->targets) return fail(STATUS_SYSTEM, "no memory for batches");
    return STATUS_OK;
}

/* ---- ranks ------------------------------------------------------------------------------------ */

static status open_device(training *t, training_rank *r, const trainer_config *all, int stage)
{
    trainer_config config = *all;
    r->places[stage] =
        (pipeline_place){.shape = {PIPELINE_SEQUENTIAL, t->config.stages, (int)t->config.accumulate},
                         .stage = stage,
                         .replica = r->rank,
                         .replicas = t->config.world,
                         .devices = true};
    config.place = &r->places[stage];
    config.model = t->stages[stage];
    TRY(trainer_open(&config, &r->stages[stage]));
    r->stage_count++;
    return set_params(t, r->stages[stage]);
}

static status run_on_devices(training *t, training_rank *r, const trainer_config *config)
{
    batch_source *sources[NN_MOST_STAGES];
    for (int s = 0; s < t->config.stages; s++) TRY(open_device(t, r, config, s));
    r->trainer = r->stages[0];
    r->place = r->places[0];
    TRY(source_open(t, r->rank, false, &r->source));
    for (int s = 0; s < t->config.stages; s++) sources[s] = r->source;
    for (int s = 0; s < t->config.stages; s++) TRY(local_ranks_connect(r->group, r->rank, r->stages[s]));
    trainer_join_devices(r->stages, sources, t->config.stages);
    TRY(t->function(r));
    for (int s = 0; s < t->config.stages; s++) TRY(sync_flush(trainer_engine(r->stages[s])));
    return local_ranks_barrier(r->group); /* No rank may leave while another rank needs it. */
}

static status run_rank(local_ranks *group, int rank, void *context)
{
    training *t = context;
    const training_config *c = &t->config;
    trainer_config config = {.sync.rank = rank,
                             .sync.world = c->world,
                             .local_rank = rank,
                             .sync.job_token = t->token,
                             .device = c->device ? c->device : "cpu",
                             .threads = 1,
                             .model = t->model,
                             .engine = c->engine,
                             .sync.options = t->options,
                             .sync.policy = c->policy,
                             .optimizer = &c->optimizer,
                             .batch = c->batch,
                             .sum_loss = c->sum_loss,
                             .sync.slot = status_table_slot(t->table, rank),
                             .sync.stall_timeout_ns = 60 * NS_PER_S,
                             .sync.inline_progress = c->inline_progress,
                             .sync.divide = c->divide,
                             .sync.hub = t->hub};
    training_rank r = {.training = t, .group = group, .rank = rank};
    status rc;
    config.accumulate = c->accumulate;
    if (c->on_devices) {
        rc = run_on_devices(t, &r, &config);
        goto out;
    }
    if (c->stages > 1) {
        int replicas = c->world / c->stages;
        r.place = (pipeline_place){.shape = {(pipeline_schedule)c->schedule, c->stages, (int)c->accumulate},
                                   .stage = rank / replicas,
                                   .replica = rank % replicas,
                                   .replicas = replicas};
        config.place = &r.place;
        config.sync.rank = r.place.replica;
        config.sync.world = replicas;
        config.model = t->stages[r.place.stage];
    }
    TRY_GOTO(rc, trainer_open(&config, &r.trainer), out);
    TRY_GOTO(rc, set_params(t, r.trainer), out);
    TRY_GOTO(rc, source_open(t, config.sync.rank, trainer_loads(r.trainer) == TRAINER_LOADS_ALL, &r.source),
             out);
    TRY_GOTO(rc, local_ranks_connect(group, rank, r.trainer), out);
    TRY_GOTO(rc, t->function(&r), out);
    TRY_GOTO(rc, sync_flush(trainer_engine(r.trainer)), out);
    rc = local_ranks_barrier(group); /* No rank may leave while another rank needs it. */
out:
    if (r.source) batch_source_close(&r.source);
    for (int s = 0; s < r.stage_count; s++) trainer_close(&r.stages[s]);
    if (!c->on_devices) trainer_close(&r.trainer);
    return rc;
}

static status parse_options(training *t)
{
    option_binding binding = {.table = t->config.engine->options, .storage = t->options};
    char text[256], *words[WORDS];
    const char *positional[WORDS];
    int count = 0, positional_count = 0;
    if (t->config.engine->options_size > OPTIONS_SIZE)
        return fail(STATUS_INTERNAL, "options of %zu bytes", t->config.engine->options_size);
    snprintf(text, sizeof text, "%s", t->config.options ? t->config.options : "");
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    TRY(options_defaults(&binding, 1));
    return options_parse(&binding, 1, count, words, positional, &positional_count);
}

static status run(training *t)
{
    model_options model = {.name = t->config.model, .image = t->config.image, .classes = t->config.classes};
    nn_cut cut = {0};
    TRY(parse_options(t));
    TRY(model_build(t->config.sizes ? t->config.sizes : &model, &t->model));
    if (t->config.stages > 1) TRY(nn_cut_model(t->model, t->config.stages, &cut));
    for (int s = 0; s < cut.count; s++) TRY(nn_stage_model(t->model, &cut, s, &t->stages[s]));
    TRY(status_table_create(t->token, t->config.world, &t->table));
    if (!t->config.processes) TRY(transport_hub_open(&t->hub));
    return local_ranks_run(t->config.world, run_rank, t);
}

status training_run(const training_config *config, void *context, training_function function)
{
    training t = {.config = *config, .context = context, .function = function, .token = random_token()};
    if (!t.config.policy)
        t.config.policy = config->engine == &sync_ps ? "sync" : config->engine == &sync_ring ? "ddp" : "none";
    if (!t.config.world) t.config.world = 1;
    if (t.config.optimizer.lr == 0) t.config.optimizer = optimizer_defaults(OPTIMIZER_SGD);
    status rc = run(&t);
    if (rc != STATUS_OK)
        error_context("%s through %s (%s %s), %d ranks", config->model, config->engine->name, t.config.policy,
                      config->options ? config->options : "", t.config.world);
    transport_hub_close(&t.hub);
    status_table_close(&t.table);
    for (int s = 0; s < NN_MOST_STAGES; s++) nn_model_free(&t.stages[s]);
    nn_model_free(&t.model);
    return rc;
}

void *training_context(const training_rank *r)
{
    return r->training->context;
}

status training_step(training_rank *r)
{
    int64_t batches = r->training->config.accumulate > 1 ? r->training->config.accumulate : 1;
    TRY(trainer_step(r->trainer, r->source, r->next, r->next * batches, &r->last));
    for (int s = 1; s < r->stage_count; s++) TRY(trainer_end_step(r->stages[s], &r->last));
    r->next++;
    return STATUS_OK;
}

status training_barrier(training_rank *r)
{
    return local_ranks_barrier(r->group);
}

/* ---- gradients -------------------------------------------------------------------------------- */

typedef struct gradient {
    float *arena; /* Gradients in the layout of the parameters. */
    float *plain; /* Gradients in PyTorch's layout. */
    int64_t elements;
} gradient;

/* Adds the part of each rank to the average of gradients. Rank 0 converts the average into PyTorch's
 * order. */
static status take_gradient(training_rank *r)
{
    gradient *g = training_context(r);
    param_set *set = trainer_params(r->trainer);
    const nn_model *m = r->training->model;
    piece_list owned = {0};
    TRY(training_step(r));
    TRY(sync_flush(trainer_engine(r->trainer)));
    if (r->rank == 0) {
        g->elements = m->parameter_elements;
        g->arena = calloc((size_t)set->arena_elements, sizeof *g->arena);
        g->plain = calloc((size_t)m->parameter_elements, sizeof *g->plain);
        if (!g->arena || !g->plain) return fail(STATUS_SYSTEM, "no memory for the gradient");
    }
    TRY(training_barrier(r));
    const float *arena = sync_reduced_gradients(trainer_engine(r->trainer), &owned);
    for (int i = 0; arena && i < owned.count; i++)
        memcpy(g->arena + owned.pieces[i].offset, arena + owned.pieces[i].offset,
               (size_t)owned.pieces[i].count * sizeof *arena);
    TRY(training_barrier(r));
    if (r->rank != 0) return STATUS_OK;
    int64_t at = 0;
    for (int p = 0; p < m->param_count; at += m->params[p++].elements)
        TRY(param_set_export(set, NULL, g->arena, p, DTYPE_F32, g->plain + at));
    return STATUS_OK;
}

status training_gradient(const training_config *config, training_average *out)
{
    gradient g = {0};
    status rc = training_run(config, &g, take_gradient);
    free(g.arena);
    *out = (training_average){g.plain, g.elements};
    return rc;
}
