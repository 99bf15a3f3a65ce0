/* A model is a list of layers. A model does not change after it has been built, so all ranks of a process can
 * share it. A model does not depend on the batch size, the device or the engine.
 *
 * The functions in models/ call the builders, which are the nn_... functions below. After the first error
 * every builder returns NN_NONE, and nn_model_finish() reports the error, so a model's code needs no checks.
 *
 * From layers to a training step:
 *
 *     model.h      layers and parameters
 *     params.h     a rank's arenas of parameters and gradients
 *     program.h    operations, compiled for a batch size
 *     instance.h   runs a program on a device, and calls need(i) and ready(i) of the observer */
#ifndef COMMON_NN_MODEL_H
#define COMMON_NN_MODEL_H

#include "common/base/status.h"
#include "common/nn/recording.h"
#include "common/ops/op.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- parameters and buffers ------------------------------------------------------------------- */

/* Distribution of a parameter's initial values. The value at index i in PyTorch's order depends only on the
 * seed, the parameter's name and i. */
typedef enum nn_init_kind {
    NN_INIT_CONSTANT, /* every value is a */
    NN_INIT_UNIFORM,  /* uniform in [-a, a) */
    NN_INIT_NORMAL    /* normal with mean 0 and standard deviation a */
} nn_init_kind;

typedef struct nn_init {
    nn_init_kind kind;
    double a;
} nn_init;

enum { NN_NAME_MAX = 96 };

typedef struct nn_param {
    char name[NN_NAME_MAX]; /* PyTorch's name: "layer1.0.conv1.weight" */
    shape shape;            /* PyTorch's shape: [k,c,r,s], [out,in], [c], [rows,hidden] */
    int64_t elements;
    nn_init init;
    int layer; /* first layer that uses the parameter */
    int unit;  /* index into the model's units, or NN_NONE for the root */
    /* In the model of a pipeline stage (stages.h), bit i is set if stage i uses the parameter. In a whole
     * model, 0. */
    uint64_t stages;
    /* True in the model of a pipeline stage if an earlier stage also has the parameter. */
    bool repeated;
} nn_param;

/* A tensor that is saved with the model but not trained, e.g. BatchNorm's running statistics. */
typedef struct nn_buffer {
    char name[NN_NAME_MAX];
    int64_t elements;
    double initial;
} nn_buffer;

/* ---- layers ----------------------------------------------------------------------------------- */

typedef int nn_ref; /* index of a layer, which stands for the output of the layer */
enum { NN_NONE = -1 };

typedef enum nn_layer_kind {
    NN_INPUT,
    NN_CONV2D,
    NN_LINEAR,
    NN_BATCHNORM,
    NN_LAYERNORM,
    NN_ACTIVATION,
    NN_ADD,
    NN_CONCAT, /* concatenates along channels */
    NN_MAXPOOL,
    NN_AVGPOOL,
    NN_FLATTEN,
    NN_EMBEDDING,
    NN_ATTENTION,
    NN_TAKE_FIRST /* takes the first token of every sequence */
} nn_layer_kind;

enum { NN_MAX_INPUTS = CONCAT_MOST, NN_MAX_LAYER_PARAMS = 3 };

typedef struct nn_layer {
    nn_layer_kind kind;
    char name[NN_NAME_MAX];
    nn_ref input[NN_MAX_INPUTS];
    /* Indices of the parameters, which are weight and bias, or gamma and beta of a normalization, or the
     * token, position and type tables of an embedding. NN_NONE for a parameter that the layer does not
     * have. */
    int param[NN_MAX_LAYER_PARAMS];
    int buffer[2]; /* indices of the buffers for running mean and running variance, or NN_NONE */
    /* Output shape without the batch: [h,w,c], [features] or [sequence,hidden]. */
    shape sample;
    op_attributes attributes; /* attributes of the layer's operation for a batch of one sample */
    int64_t vocabulary;       /* vocabulary size of a token input */
    /* true if the layer is a BatchNorm that computes its statistics over all ranks */
    bool sync;
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
    /* Prefix of each unit. The parameters whose names begin with the prefix, e.g. "layer1.0.", form the unit.
     * Engines may gather and free the parameters of a unit together (shards.h). */
    char (*units)[NN_NAME_MAX];
    int unit_count, unit_capacity;
    nn_input_kind input_kind;
    nn_loss_kind loss;
    nn_ref output;
    int64_t classes;         /* number of columns of the output */
    int64_t rows_per_sample; /* number of rows of the output per sample, which is 1 or the sequence length */
    int64_t parameter_elements;
    /* True if the model is a pipeline stage (stages.h) that receives its input from the previous stage. The
     * gradient of the input is then computed too. */
    bool received;
    /* True if the model is a pipeline stage that sends its output to the next stage. The model then has no
     * loss. */
    bool sent;
    /* Recorded times and memory of a step, or NULL. A recorded model has one layer, its input. The model owns
     * the recording. */
    nn_recording *recording;
    bool failed;
} nn_model;

status nn_model_create(const char *name, nn_model **out);
void nn_model_free(nn_model **model);

/* Declares a unit. It consists of the parameters whose names begin with `prefix`, except parameters that
 * several layers use. `prefix` must end with a dot. */
void nn_unit(nn_model *m, const char *prefix);

/* Adds the input. A model has exactly one input, which is its first layer. */
nn_ref nn_input_image(nn_model *m, int64_t h, int64_t w, int64_t c);
nn_ref nn_input_features(nn_model *m, int64_t features);
nn_ref nn_input_tokens(nn_model *m, int64_t sequence, int64_t vocabulary);

/* Adds a convolution with weight [out, c, kernel, kernel]. The output height is (h + 2 pad - kernel) /
 * stride + 1. */
nn_ref nn_conv2d(nn_model *m, nn_ref x, const char *name, int64_t out, int64_t kernel, int64_t stride,
                 int64_t pad, bool bias, nn_init init);
/* The window of a convolution whose weight has the shape [out, c, r, s]. */
typedef struct nn_window {
    /* The image is padded with pad_h zeros above and below, and with pad_w zeros left and right. */
    int64_t r, s, stride, pad_h, pad_w;
} nn_window;
nn_ref nn_conv2d_window(nn_model *m, nn_ref x, const char *name, int64_t out, nn_window window, bool bias,
                        nn_init init);
/* Adds a linear layer with weight [out, in] and bias [out]. The layer replaces the last dimension of `x` by
 * `out`. */
nn_ref nn_linear(nn_model *m, nn_ref x, const char *name, int64_t out, bool bias, nn_init init);
/* Adds a linear layer that shares the parameter `weight` [out, in] with another layer. `bias` is the index of
 * a declared parameter, or NN_NONE. */
nn_ref nn_linear_tied(nn_model *m, nn_ref x, const char *name, int weight, int bias);
/* Adds a buffer that no layer uses, for a recorded model. */
void nn_declare_buffer(nn_model *m, const char *name, int64_t elements);
/* Registers a parameter before the layer that uses the parameter is added. Some models need this to have
 * PyTorch's order of registration. */
int nn_declare_param(nn_model *m, const char *name, shape s, nn_init init);
nn_ref nn_batchnorm(nn_model *m, nn_ref x, const char *name, double eps, bool sync);
nn_ref nn_layernorm(nn_model *m, nn_ref x, const char *name, double eps);
nn_ref nn_activation(nn_model *m, nn_ref x, activation act);
nn_ref nn_add(nn_model *m, nn_ref a, nn_ref b);
/* Concatenates 1 to NN_MAX_INPUTS images of the same height and width along channels. */
nn_ref nn_concat(nn_model *m, const nn_ref *images, int count);
nn_ref nn_maxpool(nn_model *m, nn_ref x, int64_t kernel, int64_t stride, int64_t pad);
/* Adds an average pooling layer. Padding counts as zeros in the average. */
nn_ref nn_avgpool(nn_model *m, nn_ref x, int64_t kernel, int64_t stride, int64_t pad);
nn_ref nn_global_avgpool(nn_model *m, nn_ref x); /* output [c] */
nn_ref nn_flatten(nn_model *m, nn_ref x);
/* `table`, `position` and `type` are full parameter names. `position` and `type` may be NULL. */
nn_ref nn_embedding(nn_model *m, nn_ref tokens, const char *table, const char *position, int64_t positions,
                    const char *type, int64_t hidden, nn_init init);
/* Adds an attention layer. q, k and v are three layers of [sequence, hidden]. If all three are the same
 * layer, this layer contains packed q, k and v as [sequence, 3 hidden]. */
nn_ref nn_attention(nn_model *m, nn_ref q, nn_ref k, nn_ref v, const char *name, int64_t heads, bool causal);
nn_ref nn_take_first(nn_model *m, nn_ref x);

/* Returns PyTorch's default for weights and biases of linear layers and convolutions: uniform in [-a, a) with
 * a = 1 / sqrt(fan in). */
nn_init nn_init_default(void);
nn_init nn_init_normal(double deviation);
/* Returns the distribution that torchvision's ResNets use. It is normal with standard deviation sqrt(2 / (out
 * r s)) (He et al., 2015, with fan out). */
nn_init nn_init_kaiming_fan_out(void);

/* Return the index of the parameter or buffer with this name, or NN_NONE if there is none. */
int nn_find_param(const nn_model *m, const char *name);
int nn_find_buffer(const nn_model *m, const char *name);

/* Sets output and loss and checks the model. If a builder has failed, returns the first error. */
status nn_model_finish(nn_model *m, nn_ref output, nn_loss_kind loss);

#endif
