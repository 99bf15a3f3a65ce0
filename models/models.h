/* The models: lists of layers, nothing else. */
#ifndef MODELS_MODELS_H
#define MODELS_MODELS_H

#include "common/base/options.h"
#include "common/nn/model.h"

/* Options of a model; 0 or NONE: the default of the model. */
typedef struct model_options {
    const char *name;
    int64_t classes, image; /* outputs; height and width of its input */
    int64_t channels;
    int activation; /* activation of the ResNets: RELU or SILU */
    bool sync_batchnorm;
    int64_t layers, hidden, heads, vocabulary, positions, sequence; /* bert, gpt2 */
    int head; /* model_head */
} model_options;

typedef enum model_head { MODEL_HEAD_MLM, MODEL_HEAD_CLS } model_head;

extern const option_table model_option_table;

typedef struct model_entry {
    const char *name;
    const char *summary; /* one line, with the source */
    nn_input_kind input;
    model_options defaults;
    status (*build)(const model_options *options, nn_model *m);
} model_entry;

/* All models, in the order in which `harness models` lists them. */
extern const model_entry model_table[];
extern const int model_count;

/* STATUS_USAGE for an unknown name, naming those allowed. */
status model_find(const char *name, const model_entry **out);

/* Fills options that are 0 from the model's defaults and builds it. STATUS_CONFIG where they do not fit. */
status model_build(const model_options *options, nn_model **out);

/* model_options with the model's defaults in place of what is 0. */
status model_resolve(const model_options *options, model_options *out);

#endif
