/* The models are lists of layers. */
#ifndef MODELS_MODELS_H
#define MODELS_MODELS_H

#include "common/base/options.h"
#include "common/nn/model.h"

/* Options of a model. 0 or NONE stands for the model's default. */
typedef struct model_options {
    const char *name;
    /* `classes` is the number of outputs. `image` is the height and width of the input image in pixels. */
    int64_t classes, image;
    /* Only in the defaults of a model: the smallest even size of its images, which replaces `image` on a CPU
     * unless --image or --data is given. */
    int64_t small_image;
    int64_t channels;
    int activation; /* activation of the ResNets and Inception, RELU or SILU */
    bool sync_batchnorm;
    int64_t layers, hidden, heads, vocabulary, positions, sequence; /* bert, gpt */
    int head;                                                       /* model_head */
} model_options;

typedef enum model_head { MODEL_HEAD_MLM, MODEL_HEAD_CLS } model_head;

extern const option_table model_option_table;

/* X(NAME, BUILDER, INPUT, SUMMARY, defaults). Each row defines a model, and `harness models` lists the models
 * in this order. The function build_BUILDER(), in a file of this folder, builds the model. */
#define MODEL_LIST(X)                                                                                        \
    X(linear, linear, FEATURES, "one linear layer, 5-2, mean squared error", .classes = 2)                   \
    X(toy, toy, FEATURES, "10-10-5 perceptron, mean squared error", .classes = 5)                            \
    X(wine_mlp, wine_mlp, FEATURES, "13-64-3 perceptron", .classes = 3)                                      \
    X(lenet, lenet, IMAGE, "LeNet-5 with ReLU and max-pooling", .image = 28, .small_image = 28,              \
      .channels = 1, .classes = 10)                                                                          \
    X(resnet18, resnet, IMAGE, "ResNet-18 v1.5 as in torchvision", MODEL_IMAGENET)                           \
    X(resnet34, resnet, IMAGE, "ResNet-34 v1.5 as in torchvision", MODEL_IMAGENET)                           \
    X(resnet50, resnet, IMAGE, "ResNet-50 v1.5 as in torchvision", MODEL_IMAGENET)                           \
    X(resnet101, resnet, IMAGE, "ResNet-101 v1.5 as in torchvision", MODEL_IMAGENET)                         \
    X(resnet152, resnet, IMAGE, "ResNet-152 v1.5 as in torchvision", MODEL_IMAGENET)                         \
    X(alexnet, alexnet, IMAGE, "AlexNet of 2014 as in torchvision, without dropout", .image = 224,           \
      .small_image = 64, .channels = 3, .classes = 1000)                                                     \
    X(inception_v3, inception_v3, IMAGE,                                                                     \
      "Inception v3 as in torchvision, without aux classifier and dropout", .image = 299, .small_image = 76, \
      .channels = 3, .classes = 1000)                                                                        \
    X(vgg16, vgg16, IMAGE, "VGG-16 as in torchvision, without dropout", MODEL_IMAGENET)                      \
    X(bert_base, bert, TOKENS, "BERT, 12 layers of 768", MODEL_BERT(12, 768, 12, 30522))                     \
    X(bert_large, bert, TOKENS, "BERT, 24 layers of 1024", MODEL_BERT(24, 1024, 16, 30522))                  \
    X(bert, bert, TOKENS, "BERT of a given size", MODEL_BERT(4, 256, 4, 8192))                               \
    X(gpt2, gpt2, TOKENS, "GPT-2, 12 layers of 768", MODEL_GPT(12, 768, 12, 50257))                          \
    X(gpt2_medium, gpt2, TOKENS, "GPT-2, 24 layers of 1024", MODEL_GPT(24, 1024, 16, 50257))                 \
    X(gpt2_large, gpt2, TOKENS, "GPT-2, 36 layers of 1280", MODEL_GPT(36, 1280, 20, 50257))                  \
    X(gpt2_xl, gpt2, TOKENS, "GPT-2, 48 layers of 1600", MODEL_GPT(48, 1600, 25, 50257))                     \
    X(gpt, gpt2, TOKENS, "GPT-2 of a given size", MODEL_GPT(4, 256, 4, 8192))
#define MODEL_IMAGENET .image = 224, .small_image = 32, .channels = 3, .classes = 1000
#define MODEL_BERT(layers_, hidden_, heads_, vocabulary_)                                                    \
    .layers = layers_, .hidden = hidden_, .heads = heads_, .vocabulary = vocabulary_, .positions = 512,      \
    .sequence = 128, .classes = 2

#define MODEL_GPT(layers_, hidden_, heads_, vocabulary_)                                                     \
    .layers = layers_, .hidden = hidden_, .heads = heads_, .vocabulary = vocabulary_, .positions = 1024,     \
    .sequence = 128

#define MODEL_BUILDER(name, builder, ...) status build_##builder(const model_options *options, nn_model *m);
MODEL_LIST(MODEL_BUILDER)
#undef MODEL_BUILDER

typedef struct model_entry {
    const char *name;
    const char *summary; /* one line for `harness models` */
    nn_input_kind input;
    model_options defaults;
    status (*build)(const model_options *options, nn_model *m);
} model_entry;

extern const model_entry model_table[];
extern const int model_count;

/* Finds a model. "gpt2-xl" also names gpt2_xl. If the name is unknown, fails with STATUS_USAGE and a message
 * that lists the models. */
status model_find(const char *name, const model_entry **out);

/* Fails with STATUS_USAGE if an option was given that the model does not use. `given` is a binding of
 * model_option_table. */
status model_check_options(const option_binding *given);

/* Builds a model. Options that are 0 get the model's defaults. Fails with STATUS_CONFIG if the options do not
 * fit together. */
status model_build(const model_options *options, nn_model **out);

/* Copies `options` to `out`. Options that are 0 get the model's defaults. */
status model_resolve(const model_options *options, model_options *out);

#endif
