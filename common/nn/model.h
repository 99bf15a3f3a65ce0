/* A model is a list of layers, built once and then immutable: it can be shared by all ranks of a
 * process. It has no batch size, device or engine.
 *
 * models/ calls the nn_... builders below. After the first error every builder returns NN_NONE, and
 * nn_model_finish() reports that error, so that a model reads as a list of layers.
 *
 * From layers to a step:   model.h    layers and parameters    params.h    a rank's arenas of parameters and
 * gradients program.h  operations, compiled     instance.h  a program on a device: runs it and calls for a
 * batch size                     the observer, need(i) and ready(i) */
#ifndef COMMON_NN_MODEL_H
#define COMMON_NN_MODEL_H

#include "common/base/status.h"
#include "common/ops/op.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- parameters and buffers ------------------------------------------------------------------- */

/* How a parameter starts; the value at PyTorch's index i is a function of (seed, name, i). */
typedef enum nn_init_kind {
    NN_INIT_CONSTANT, /* a */
    NN_INIT_UNIFORM,  /* uniform in [-a, a) */
    NN_INIT_NORMAL    /* normal, mean 0, deviation a */
} nn_init_kind;

typedef struct nn_init {
    nn_init_kind kind;
    double a;
} nn_init;

enum { NN_NAME_MAX = 96 };

typedef struct nn_param {
    char name[NN_NAME_MAX]; /* PyTorch's: "layer1.0.conv1.weight" */
    shape shape;            /* PyTorch's: [k,c,r,s], [out,in], [c], [rows,hidden] */
    int64_t elements;
    nn_init init;
    int layer;       /* that uses it first */
    int unit;        /* of the model's units; NN_NONE: of the root */
    uint64_t stages; /* of a stage's model (stages.h): bit i: stage i uses it too; else 0 */
    bool repeated;   /* likewise: an earlier stage has it */
} nn_param;

/* A tensor of state that is not trained: BatchNorm's running statistics. */
typedef struct nn_buffer {
    char name[NN_NAME_MAX];
    int64_t elements;
    double initial;
} nn_buffer;

/* ---- layers ----------------------------------------------------------------------------------- */

typedef int nn_ref; /* the output of a layer: its index */
enum { NN_NONE = -1 };

typedef enum nn_layer_kind {
    NN_INPUT,
    NN_CONV2D,
    NN_LINEAR,
    NN_BATCHNORM,
    NN_LAYERNORM,
    NN_ACTIVATION,
    NN_ADD,
    NN_CONCAT, /* along channels */
    NN_MAXPOOL,
    NN_AVGPOOL,
    NN_FLATTEN,
    NN_EMBEDDING,
    NN_ATTENTION,
    NN_TAKE_FIRST /* the first token of every sequence */
} nn_layer_kind;

enum { NN_MAX_INPUTS = CONCAT_MOST, NN_MAX_LAYER_PARAMS = 3 };

typedef struct nn_layer {
    nn_layer_kind kind;
    char name[NN_NAME_MAX];
    nn_ref input[NN_MAX_INPUTS];
    int param[NN_MAX_LAYER_PARAMS]; /* weight, bias (gamma, beta; token, position, type table) or NN_NONE */
    int buffer[2];                  /* running mean, running variance or NN_NONE */
    shape sample;             /* of its output without the batch: [h,w,c], [features], [sequence,hidden] */
    op_attributes attributes; /* of its operation, for a batch of one sample */
    int64_t vocabulary;       /* of an input of tokens */
    bool sync;                /* BatchNorm over all ranks */
} nn_layer;

typedef enum nn_input_kind { NN_INPUT_IMAGE, NN_INPUT_FEATURES, NN_INPUT_TOKENS } nn_input_kind;
typedef enum nn_loss_kind { NN_LOSS_CROSS_ENTROPY, NN_LOSS_MSE } nn_loss_kind;

typedef struct nn_model {
    char name[64];
    nn_layer *layers;
    int layer_count, layer_capacity;
    nn_param *params; /* in registration order */
    int param_count, param_capacity;
    nn_buffer *buffers;
    int buffer_count, buffer_capacity;
    char (*units)[NN_NAME_MAX]; /* prefixes of names, "layer1.0.": parameters that engines may move as one
                                   (shards.h) */
    int unit_count, unit_capacity;
    nn_input_kind input_kind;
    nn_loss_kind loss;
    nn_ref output;
    int64_t classes;         /* columns of the output */
    int64_t rows_per_sample; /* rows of the output per sample: 1, or the sequence */
    int64_t parameter_elements;
    bool received; /* a stage (stages.h): its input is the output of the stage before, and gets a gradient */
    bool sent;     /* a stage: its output is the input of the next one, and there is no loss */
    bool failed;
} nn_model;

status nn_model_create(const char *name, nn_model **out);
void nn_model_free(nn_model **model);

/* The parameters whose names begin with `prefix`, which ends with a dot, are a unit, less those that several
 * layers use. */
void nn_unit(nn_model *m, const char *prefix);

/* Inputs: exactly one. */
nn_ref nn_input_image(nn_model *m, int64_t h, int64_t w, int64_t c);
nn_ref nn_input_features(nn_model *m, int64_t features);
nn_ref nn_input_tokens(nn_model *m, int64_t sequence, int64_t vocabulary);

/* Weight [out, c, kernel, kernel]; output height (h + 2 pad - kernel) / stride + 1. */
nn_ref nn_conv2d(nn_model *m, nn_ref x, const char *name, int64_t out, int64_t kernel, int64_t stride,
                 int64_t pad, bool bias, nn_init init);
/* Of any sides: weight [out, c, r, s]. */
typedef struct nn_window {
    int64_t r, s, stride, pad_h, pad_w; /* pad_h zeros above and below, pad_w left and right */
} nn_window;
nn_ref nn_conv2d_window(nn_model *m, nn_ref x, const char *name, int64_t out, nn_window window, bool bias,
                        nn_init init);
/* Weight [out, in], bias [out]; keeps leading dimensions. */
nn_ref nn_linear(nn_model *m, nn_ref x, const char *name, int64_t out, bool bias, nn_init init);
/* With the parameter `weight` [out, in] of another layer, and the declared parameter `bias` or NN_NONE. */
nn_ref nn_linear_tied(nn_model *m, nn_ref x, const char *name, int weight, int bias);
/* Registers a parameter ahead of the layer that uses it, where PyTorch's order wants it so. */
int nn_declare_param(nn_model *m, const char *name, shape s, nn_init init);
nn_ref nn_batchnorm(nn_model *m, nn_ref x, const char *name, double eps, bool sync);
nn_ref nn_layernorm(nn_model *m, nn_ref x, const char *name, double eps);
nn_ref nn_activation(nn_model *m, nn_ref x, activation act);
nn_ref nn_add(nn_model *m, nn_ref a, nn_ref b);
/* Images of one height and width, one after the other along channels; 1 to NN_MAX_INPUTS. */
nn_ref nn_concat(nn_model *m, const nn_ref *images, int count);
nn_ref nn_maxpool(nn_model *m, nn_ref x, int64_t kernel, int64_t stride, int64_t pad);
/* Padding counts as zeros. */
nn_ref nn_avgpool(nn_model *m, nn_ref x, int64_t kernel, int64_t stride, int64_t pad);
nn_ref nn_global_avgpool(nn_model *m, nn_ref x); /* output [c] */
nn_ref nn_flatten(nn_model *m, nn_ref x);
/* Tables "NAME..." given by full parameter names; position and type may be NULL. */
nn_ref nn_embedding(nn_model *m, nn_ref tokens, const char *table, const char *position, int64_t positions,
                    const char *type, int64_t hidden, nn_init init);
/* q, k, v each [sequence, hidden]; or all three the same ref [sequence, 3 hidden], packed. */
nn_ref nn_attention(nn_model *m, nn_ref q, nn_ref k, nn_ref v, const char *name, int64_t heads, bool causal);
nn_ref nn_take_first(nn_model *m, nn_ref x);

/* PyTorch's default for linear and convolution: uniform within 1/sqrt(fan in), for the bias too. */
nn_init nn_init_default(void);
nn_init nn_init_normal(double deviation);
/* He et al. 2015 with fan out, as torchvision's ResNets use: normal, sqrt(2 / (out r s)). */
nn_init nn_init_kaiming_fan_out(void);

/* The index by name, NN_NONE if there is none. */
int nn_find_param(const nn_model *m, const char *name);
int nn_find_buffer(const nn_model *m, const char *name);

/* Declares output and loss, checks the whole. STATUS_CONFIG if a builder failed. */
status nn_model_finish(nn_model *m, nn_ref output, nn_loss_kind loss);

#endif
