/* harness models [NAME]: lists the models, or one model's layers or stages. */
#include "harness/commands/commands.h"

#include "common/nn/program.h"
#include "common/nn/stages.h"
#include "models/models.h"

#include <stddef.h>

typedef struct models_options {
    model_options model;
    int64_t stages;
} models_options;

static const option option_list[] = {
    {"stages", OPTION_INT, offsetof(models_options, stages), .argument = "P", .low = 1,
     .high = NN_MOST_STAGES,
     .help = "cut the model NAME into P stages of about equal cost, and list the stages"},
};

static size_t bind_models(void *options, option_binding *bindings)
{
    bindings[0] = (option_binding){.table = &model_option_table, .storage = options};
    return 1;
}

static status compile_one(const model_options *options, nn_model **model, nn_program **program)
{
    nn_program_config config = {.batch = 1, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    TRY(model_build(options, model));
    status rc = nn_program_compile(*model, &config, program);
    if (rc != STATUS_OK) nn_model_free(model);
    return rc;
}

static double forward_flops(const nn_program *p)
{
    double flops = 0;
    for (int i = 0; i < p->forward_end; i++) flops += op_cost_of(&p->ops[i].desc).flops;
    return flops;
}

/* Counts the multiply-adds of convolutions, linear layers and attention, without biases and normalization. */
static int64_t multiply_adds(const nn_program *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->forward_end; i++) {
        const op_desc *op = &p->ops[i].desc;
        const conv2d_attributes *c = &op->u.conv2d;
        const linear_attributes *l = &op->u.linear;
        const attention_attributes *a = &op->u.attention;
        if (op->kind == OP_conv2d_forward)
            sum += c->n * c->p * c->q * c->k * c->c * c->r * c->s;
        else if (op->kind == OP_linear_forward)
            sum += l->m * l->in * l->out;
        else if (op->kind == OP_attention_forward)
            sum += 2 * a->batch * a->heads * a->sequence * a->sequence * a->width;
    }
    return sum;
}

static status list_models(const model_options *given, text_buffer *out)
{
    text_append(out, "%-14s %11s %14s %8s %12s\n", "model", "parameters", "multiply-adds", "GFLOP",
                "activations");
    for (int i = 0; i < model_count; i++) {
        model_options options = *given;
        options.name = model_table[i].name;
        nn_model *m = NULL;
        nn_program *p = NULL;
        char bytes[32];
        TRY(compile_one(&options, &m, &p));
        text_append(out, "%-14s %11lld %14lld %8.3f %12s\n    %s\n", options.name,
                    (long long)m->parameter_elements, (long long)multiply_adds(p), forward_flops(p) / 1e9,
                    text_format_bytes(bytes, sizeof bytes, (double)nn_program_peak_bytes(p)),
                    model_table[i].summary);
        nn_program_free(&p);
        nn_model_free(&m);
    }
    text_append(out, "Columns: multiply-adds of convolutions, linear layers and attention in the forward\n"
                     "pass of one sample; GFLOP of all operations of the pass, with 2 per multiply-add;\n"
                     "activations, the most bytes alive in a training step of one sample, with the\n"
                     "gradients of activations.\n");
    return STATUS_OK;
}

/* Names of the kinds of layers, in the order of nn_layer_kind. */
static const char *const layer_kinds[] = {"input",      "conv2d",    "linear",    "batchnorm", "layernorm",
                                          "activation", "add",       "concat",    "maxpool",   "avgpool",
                                          "flatten",    "embedding", "attention", "take_first"};
_Static_assert(sizeof layer_kinds / sizeof layer_kinds[0] == NN_TAKE_FIRST + 1, "a name for each kind");

static status print_layers(const model_options *options, text_buffer *out)
{
    nn_model *m = NULL;
    nn_program *program = NULL;
    TRY(compile_one(options, &m, &program));
    text_append(out, "%3s %-34s %-10s %-13s %s\n", "", "layer", "kind", "output", "parameters");
    for (int i = 0; i < m->layer_count; i++) {
        const nn_layer *l = &m->layers[i];
        char sample[64];
        text_append(out, "%3d %-34s %-10s %-13s", i, l->name, layer_kinds[l->kind],
                    shape_format(sample, sizeof sample, l->sample));
        for (int p = 0; p < NN_MAX_LAYER_PARAMS; p++) {
            char text[64];
            if (l->param[p] == NN_NONE) continue;
            const nn_param *param = &m->params[l->param[p]];
            text_append(out, " %s%s", shape_format(text, sizeof text, param->shape),
                        param->layer == i ? "" : " (tied)");
        }
        while (out->length > 0 && out->data[out->length - 1] == ' ') out->data[--out->length] = '\0';
        text_append(out, "\n");
    }
    text_append(out,
                "%lld parameters in %d tensors, %lld multiply-adds per sample; outputs are height x width x "
                "channels, or tokens x width, of one sample\n",
                (long long)m->parameter_elements, m->param_count, (long long)multiply_adds(program));
    nn_program_free(&program);
    nn_model_free(&m);
    return STATUS_OK;
}

static void print_cut(const nn_model *m, const nn_cut *cut, text_buffer *out)
{
    char bytes[32];
    double flops = 0;
    for (int i = 0; i < cut->count; i++) flops += cut->stages[i].flops;
    text_append(out, "%5s %-34s %12s %8s %6s %10s\n", "stage", "begins at", "parameters", "GFLOP", "share",
                "sends");
    for (int i = 0; i < cut->count; i++) {
        const nn_stage *s = &cut->stages[i];
        text_append(out, "%5d %-34s %12lld %8.3f %5.1f%% %10s\n", i, m->layers[s->begin].name,
                    (long long)s->parameters, s->flops / 1e9, flops > 0 ? 100 * s->flops / flops : 0,
                    s->crosses
                        ? text_format_bytes(bytes, sizeof bytes, (double)(s->crosses * dtype_size(DTYPE_F32)))
                        : "-");
    }
    text_append(out, "GFLOP of both passes over one sample. A stage sends the listed bytes per\nsample to "
                     "the next stage in float32, and receives as many back.\n");
    for (int p = 0; p < m->param_count; p++) {
        int users = 0;
        for (int i = 0; i < cut->count; i++) users += nn_stage_uses(m, cut, i, p);
        if (users > 1) text_append(out, "%s is a parameter of %d stages.\n", m->params[p].name, users);
    }
}

static status print_stages(const models_options *options, text_buffer *out)
{
    nn_model *m = NULL;
    nn_cut cut;
    TRY(model_build(&options->model, &m));
    status rc = nn_cut_model(m, (int)options->stages, &cut);
    if (rc == STATUS_OK) print_cut(m, &cut, out);
    nn_model_free(&m);
    return rc;
}

static status run_models(command_line *line)
{
    models_options *o = line->options;
    bool given = options_given(&line->bindings[1], "model");
    if (line->word_count && given)
        return fail(STATUS_USAGE, "--model: unexpected with the NAME %s", line->words[0]);
    if (!line->word_count && !given && o->stages)
        return fail(STATUS_USAGE, "--stages: expected the NAME of a model too");
    if (!line->word_count && !given) return list_models(&o->model, line->out);
    if (line->word_count) o->model.name = line->words[0];
    return o->stages ? print_stages(o, line->out) : print_layers(&o->model, line->out);
}

const command command_models = {.name = "models",
                                .usage = "[NAME] [options]",
                                .summary = "list the models, or the layers or stages of one",
                                .options_size = sizeof(models_options),
                                .table = {"Models", option_list, sizeof option_list / sizeof option_list[0]},
                                .bind = bind_models,
                                .most_words = 1,
                                .run = run_models};
