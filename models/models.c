#include "models/models.h"

#include "common/base/text.h"
#include "models/build.h"

#include <stddef.h>
#include <string.h>

#define IMAGE .image = 224, .channels = 3, .classes = 1000
#define TOKENS .sequence = 128, .positions = 512

const model_entry model_table[] = {
    {"toy", "10-10-5 perceptron, mean squared error", NN_INPUT_FEATURES, {.classes = 5}, build_toy},
    {"wine_mlp", "13-64-3 perceptron", NN_INPUT_FEATURES, {.classes = 3}, build_wine_mlp},
    {"lenet",
     "LeNet-5 with ReLU and max-pooling",
     NN_INPUT_IMAGE,
     {.image = 28, .channels = 1, .classes = 10},
     build_lenet},
    {"resnet18", "ResNet-18 v1.5 as in torchvision", NN_INPUT_IMAGE, {IMAGE}, build_resnet18},
    {"resnet34", "ResNet-34 v1.5 as in torchvision", NN_INPUT_IMAGE, {IMAGE}, build_resnet34},
    {"resnet50", "ResNet-50 v1.5 as in torchvision", NN_INPUT_IMAGE, {IMAGE}, build_resnet50},
    {"resnet101", "ResNet-101 v1.5 as in torchvision", NN_INPUT_IMAGE, {IMAGE}, build_resnet101},
    {"resnet152", "ResNet-152 v1.5 as in torchvision", NN_INPUT_IMAGE, {IMAGE}, build_resnet152},
    {"vgg16", "VGG-16 as in torchvision, without dropout", NN_INPUT_IMAGE, {IMAGE}, build_vgg16},
    {"bert_base",
     "BERT, 12 layers of 768",
     NN_INPUT_TOKENS,
     {TOKENS, .layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522, .classes = 2},
     build_bert},
    {"bert_large",
     "BERT, 24 layers of 1024",
     NN_INPUT_TOKENS,
     {TOKENS, .layers = 24, .hidden = 1024, .heads = 16, .vocabulary = 30522, .classes = 2},
     build_bert},
    {"bert",
     "BERT of a given size",
     NN_INPUT_TOKENS,
     {TOKENS, .layers = 4, .hidden = 256, .heads = 4, .vocabulary = 8192, .classes = 2},
     build_bert},
    {"gpt2",
     "GPT-2, by default 12 layers of 768",
     NN_INPUT_TOKENS,
     {.sequence = 128, .positions = 1024, .layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257},
     build_gpt2},
};
const int model_count = sizeof model_table / sizeof model_table[0];

static const char *const activation_names[] = {"default", "relu", "silu", NULL};
static const char *const head_names[] = {"mlm", "cls", NULL};

#define FIELD(name) offsetof(model_options, name)
static const option model_option_list[] = {
    {.name = "model", .argument = "NAME", .type = OPTION_TEXT, .offset = FIELD(name), .initial = "resnet18",
     .help = "see `harness models`"},
    {.name = "classes", .argument = "N", .type = OPTION_INT, .offset = FIELD(classes), .high = 1e9,
     .help = "outputs of the classifier [default: the data's]"},
    {.name = "image", .argument = "N", .type = OPTION_INT, .offset = FIELD(image), .high = 4096,
     .help = "height and width of images [default: the data's]"},
    {.name = "activation", .level = OPTION_RARE, .type = OPTION_CHOICE, .offset = FIELD(activation), .initial = "default",
     .choices = activation_names, .help = "activation of the ResNets"},
    {.name = "sync-batchnorm", .level = OPTION_RARE, .type = OPTION_FLAG, .offset = FIELD(sync_batchnorm),
     .help = "synchronize BatchNorm statistics over all ranks"},
    {.name = "layers", .level = OPTION_RARE, .argument = "N", .type = OPTION_INT, .offset = FIELD(layers), .high = 10000,
     .help = "bert, gpt2: transformer layers"},
    {.name = "hidden", .level = OPTION_RARE, .argument = "N", .type = OPTION_INT, .offset = FIELD(hidden), .high = 1e6,
     .help = "bert, gpt2: hidden size"},
    {.name = "heads", .level = OPTION_RARE, .argument = "N", .type = OPTION_INT, .offset = FIELD(heads), .high = 10000,
     .help = "bert, gpt2: attention heads"},
    {.name = "vocabulary", .level = OPTION_RARE, .argument = "N", .type = OPTION_INT, .offset = FIELD(vocabulary), .high = 1e9,
     .help = "bert, gpt2: tokens in the vocabulary"},
    {.name = "positions", .level = OPTION_RARE, .argument = "N", .type = OPTION_INT, .offset = FIELD(positions), .high = 1e6,
     .help = "bert, gpt2: longest sequence (position embeddings)"},
    {.name = "sequence", .argument = "N", .type = OPTION_INT, .offset = FIELD(sequence), .high = 1e6,
     .help = "bert, gpt2: tokens per sample"},
    {.name = "head", .level = OPTION_RARE, .type = OPTION_CHOICE, .offset = FIELD(head), .initial = "mlm", .choices = head_names,
     .help = "bert: masked language model or classifier"},
};
const option_table model_option_table = {"Model", model_option_list,
                                         sizeof model_option_list / sizeof model_option_list[0]};

status model_find(const char *name, const model_entry **out)
{
    int index;
    TRY(text_parse_choice("--model", name, &model_table[0].name, sizeof model_table[0], (size_t)model_count, &index));
    *out = &model_table[index];
    return STATUS_OK;
}

static int64_t pick(int64_t given, int64_t initial)
{
    return given ? given : initial;
}

status model_resolve(const model_options *options, model_options *out)
{
    const model_entry *entry = NULL;
    TRY(model_find(options->name, &entry));
    const model_options *d = &entry->defaults;
    *out = *options;
    out->classes = pick(options->classes, d->classes);
    out->image = pick(options->image, d->image);
    out->channels = pick(options->channels, d->channels);
    out->layers = pick(options->layers, d->layers);
    out->hidden = pick(options->hidden, d->hidden);
    out->heads = pick(options->heads, d->heads);
    out->vocabulary = pick(options->vocabulary, d->vocabulary);
    out->positions = pick(options->positions, d->positions);
    out->sequence = pick(options->sequence, d->sequence);
    if (out->activation == ACTIVATION_NONE) out->activation = ACTIVATION_RELU;
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
    TRY(nn_model_create(options->name, &m));
    status rc = entry->build(&resolved, m);
    if (rc != STATUS_OK) nn_model_free(&m);
    *out = m;
    return rc;
}
