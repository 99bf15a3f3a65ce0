#include "models/models.h"

#include "common/base/text.h"

#include <stddef.h>
#include <stdio.h>

#define MODEL_ROW(name, builder, input, summary, ...)                                                        \
    {#name, summary, NN_INPUT_##input, {__VA_ARGS__}, build_##builder},
const model_entry model_table[] = {MODEL_LIST(MODEL_ROW)};
const int model_count = sizeof model_table / sizeof model_table[0];

static const char *const activation_names[] = {"default", "relu", "silu", NULL};
static const char *const head_names[] = {"mlm", "cls", NULL};

#define FIELD(name) offsetof(model_options, name)
static const option model_option_list[] = {
    {"model", OPTION_TEXT, FIELD(name), .argument = "NAME", .initial = "resnet18",
     .help = "see `harness models`"},
    {"classes", OPTION_INT, FIELD(classes), .argument = "N", .high = 1e9,
     .help = "outputs of the classifier [from the data set, or from the model for synthetic data]"},
    {"image", OPTION_INT, FIELD(image), .argument = "N", .high = 4096,
     .help = "height and width of images [from the data set; for synthetic data on a CPU 32 or the model's "
             "smallest, elsewhere the model's]"},
    {"activation", OPTION_CHOICE, FIELD(activation), .level = OPTION_RARE, .initial = "default",
     .choices = activation_names, .help = "activation of the ResNets and Inception"},
    {"sync-batchnorm", OPTION_FLAG, FIELD(sync_batchnorm), .level = OPTION_RARE,
     .help = "synchronize BatchNorm statistics over all ranks"},
    {"layers", OPTION_INT, FIELD(layers), .level = OPTION_RARE, .argument = "N", .high = 10000,
     .help = "bert, gpt: transformer layers"},
    {"hidden", OPTION_INT, FIELD(hidden), .level = OPTION_RARE, .argument = "N", .high = 1e6,
     .help = "bert, gpt: hidden size"},
    {"heads", OPTION_INT, FIELD(heads), .level = OPTION_RARE, .argument = "N", .high = 10000,
     .help = "bert, gpt: attention heads"},
    {"vocabulary", OPTION_INT, FIELD(vocabulary), .level = OPTION_RARE, .argument = "N", .high = 1e9,
     .help = "bert, gpt: tokens in the vocabulary"},
    {"positions", OPTION_INT, FIELD(positions), .level = OPTION_RARE, .argument = "N", .high = 1e6,
     .help = "bert, gpt: longest sequence (position embeddings)"},
    {"sequence", OPTION_INT, FIELD(sequence), .alias = "seq-len", .argument = "N", .high = 1e6,
     .help = "bert, gpt: tokens per sample"},
    {"head", OPTION_CHOICE, FIELD(head), .level = OPTION_RARE, .initial = "mlm", .choices = head_names,
     .help = "bert: masked language model or classifier"},
};
const option_table model_option_table = {"Model", model_option_list,
                                         sizeof model_option_list / sizeof model_option_list[0]};

status model_find(const char *name, const model_entry **out)
{
    int index;
    char known[64];
    snprintf(known, sizeof known, "%s", name);
    for (char *at = known; *at; at++)
        if (*at == '-') *at = '_';
    TRY(text_parse_choice("--model", known, &model_table[0].name, sizeof model_table[0], (size_t)model_count,
                          &index));
    *out = &model_table[index];
    return STATUS_OK;
}

status model_resolve(const model_options *options, model_options *out)
{
    const model_entry *entry = NULL;
    TRY(model_find(options->name, &entry));
    *out = *options;
    if (!out->channels) out->channels = entry->defaults.channels;
    if (out->activation == ACTIVATION_NONE) out->activation = ACTIVATION_RELU;
    for (size_t i = 0; i < model_option_table.count; i++) {
        const option *o = &model_option_list[i];
        int64_t *value = (int64_t *)((char *)out + o->offset);
        if (o->type == OPTION_INT && !*value)
            *value = *(const int64_t *)((const char *)&entry->defaults + o->offset);
    }
    return STATUS_OK;
}

/* Returns true if the model uses the option. A size option is used if the model's default is above 0.
 * Perceptrons have fixed sizes. */
static bool is_taken(const model_entry *m, const option *o)
{
    if (o->type == OPTION_TEXT) return true;
    if (o->offset == FIELD(head)) return m->build == build_bert;
    if (o->type != OPTION_INT) return m->build == build_resnet || m->build == build_inception_v3;
    return m->input != NN_INPUT_FEATURES && *(const int64_t *)((const char *)&m->defaults + o->offset) > 0;
}

status model_check_options(const option_binding *given)
{
    const model_entry *entry = NULL;
    const model_options *options = given->storage;
    TRY(model_find(options->name, &entry));
    for (size_t i = 0; i < model_option_table.count; i++) {
        const option *o = &model_option_list[i];
        if (options_given(given, o->name) && !is_taken(entry, o))
            return fail(STATUS_USAGE, "--%s: not used by the model %s", o->name, entry->name);
    }
    return STATUS_OK;
}

status model_build(const model_options *options, nn_model **out)
{
    *out = NULL;
    const model_entry *entry = NULL;
    model_options resolved;
    TRY(model_find(options->name, &entry));
    TRY(model_resolve(options, &resolved));
    nn_model *m = NULL;
    TRY(nn_model_create(entry->name, &m));
    status rc = entry->build(&resolved, m);
    if (rc != STATUS_OK) nn_model_free(&m);
    *out = m;
    return rc;
}
