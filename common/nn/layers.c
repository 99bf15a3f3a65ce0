/* The functions that add layers to a model. */
#include "common/nn/model_build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Adds a layer that reads the outputs of `count` layers. Each output must have `rank` dimensions, or any
 * number if `rank` is -1. The new layer gets the output shape of its first input. The caller may change the
 * shape. Returns NULL after a failure. */
static nn_layer *add_layer(nn_model *m, nn_layer_kind kind, const char *name, int rank, int count,
                           const nn_ref *inputs)
{
    if (m->failed) return NULL;
    for (int i = 0; i < count; i++) {
        char text[64];
        bool exists = inputs[i] >= 0 && inputs[i] < m->layer_count;
        if (!exists)
            model_broken(m, STATUS_INTERNAL, "layer %s has no input", name);
        else if (rank >= 0 && m->layers[inputs[i]].sample.rank != rank)
            model_broken(m, STATUS_CONFIG, "layer %s: expected an input of %d dimensions, got shape %s", name,
                         rank, shape_format(text, sizeof text, m->layers[inputs[i]].sample));
    }
    if (m->failed ||
        !model_grow(m, (void **)&m->layers, m->layer_count, &m->layer_capacity, sizeof *m->layers))
        return NULL;
    nn_layer *l = &m->layers[m->layer_count++];
    /* memset() also clears the padding, because operation descriptions are compared byte by byte. */
    memset(l, 0, sizeof *l);
    l->kind = kind;
    snprintf(l->name, sizeof l->name, "%s", name);
    for (int i = 0; i < NN_MAX_INPUTS; i++) l->input[i] = i < count ? inputs[i] : NN_NONE;
    for (int i = 0; i < NN_MAX_LAYER_PARAMS; i++) l->param[i] = NN_NONE;
    l->buffer[0] = l->buffer[1] = NN_NONE;
    if (count) l->sample = m->layers[inputs[0]].sample;
    return l;
}

static nn_ref ref_of(const nn_model *m, const nn_layer *l)
{
    return (nn_ref)(l - m->layers);
}

static int add_param(nn_model *m, nn_layer *l, int slot, const char *name, shape s, nn_init init)
{
    if (m->failed) return NN_NONE;
    if (!model_grow(m, (void **)&m->params, m->param_count, &m->param_capacity, sizeof *m->params))
        return NN_NONE;
    nn_param *p = &m->params[m->param_count];
    *p = (nn_param){.shape = s, .elements = shape_elements(s), .init = init, .layer = NN_NONE};
    snprintf(p->name, sizeof p->name, "%s", name);
    m->parameter_elements += p->elements;
    if (m->parameter_elements > SHAPE_MOST_ELEMENTS) {
        char text[96];
        return model_broken(m, STATUS_CONFIG, "expected at most %lld parameters in total, got %s of shape %s",
                            (long long)SHAPE_MOST_ELEMENTS, name, shape_format(text, sizeof text, s));
    }
    if (l) {
        p->layer = ref_of(m, l);
        l->param[slot] = m->param_count;
    }
    return m->param_count++;
}

static int add_named_param(nn_model *m, nn_layer *l, int slot, const char *suffix, shape s, nn_init init)
{
    char name[NN_NAME_MAX + 16];
    snprintf(name, sizeof name, "%s.%s", l->name, suffix);
    return add_param(m, l, slot, name, s, init);
}

static int add_buffer(nn_model *m, const nn_layer *l, const char *suffix, int64_t elements, double initial)
{
    if (m->failed) return NN_NONE;
    if (!model_grow(m, (void **)&m->buffers, m->buffer_count, &m->buffer_capacity, sizeof *m->buffers))
        return NN_NONE;
    nn_buffer *b = &m->buffers[m->buffer_count];
    *b = (nn_buffer){.elements = elements, .initial = initial};
    snprintf(b->name, sizeof b->name, "%s.%s", l->name, suffix);
    return m->buffer_count++;
}

void nn_declare_buffer(nn_model *m, const char *name, int64_t elements)
{
    const nn_layer none = {0};
    int index = add_buffer(m, &none, "", elements, 0);
    if (index != NN_NONE) snprintf(m->buffers[index].name, NN_NAME_MAX, "%s", name);
}

/* ---- initial values --------------------------------------------------------------------------- */

/* Negative values of nn_init.a stand for rules that need the layer's shape. resolve_init() replaces a
 * negative value when the shape is known. */
enum { INIT_DEFAULT = -1, INIT_KAIMING_FAN_OUT = -2 };

nn_init nn_init_default(void)
{
    return (nn_init){NN_INIT_UNIFORM, INIT_DEFAULT};
}

nn_init nn_init_normal(double deviation)
{
    return (nn_init){NN_INIT_NORMAL, deviation};
}

nn_init nn_init_kaiming_fan_out(void)
{
    return (nn_init){NN_INIT_NORMAL, INIT_KAIMING_FAN_OUT};
}

static nn_init resolve_init(nn_init init, double fan_in, double fan_out)
{
    if (init.a == INIT_DEFAULT)
        init.a = 1.0 / sqrt(fan_in);
    else if (init.a == INIT_KAIMING_FAN_OUT)
        init.a = sqrt(2.0 / fan_out);
    return init;
}

/* Returns the distribution of a bias's initial values. It is PyTorch's default if the weight has PyTorch's
 * default, else zero. */
static nn_init bias_init(nn_init weight, double fan_in)
{
    if (weight.a == INIT_DEFAULT) return (nn_init){NN_INIT_UNIFORM, 1.0 / sqrt(fan_in)};
    return (nn_init){NN_INIT_CONSTANT, 0};
}

/* ---- layers ----------------------------------------------------------------------------------- */

static nn_ref add_input(nn_model *m, nn_input_kind kind, shape sample, int64_t vocabulary)
{
    nn_layer *l = add_layer(m, NN_INPUT, "input", -1, 0, NULL);
    if (!l) return NN_NONE;
    if (ref_of(m, l) != 0) return model_broken(m, STATUS_INTERNAL, "the input must be the first layer");
    m->input_kind = kind;
    l->sample = sample;
    l->vocabulary = vocabulary;
    return 0;
}

nn_ref nn_input_image(nn_model *m, int64_t h, int64_t w, int64_t c)
{
    return add_input(m, NN_INPUT_IMAGE, (shape){3, {h, w, c}}, 0);
}

nn_ref nn_input_features(nn_model *m, int64_t features)
{
    return add_input(m, NN_INPUT_FEATURES, shape_1d(features), 0);
}

nn_ref nn_input_tokens(nn_model *m, int64_t sequence, int64_t vocabulary)
{
    return add_input(m, NN_INPUT_TOKENS, shape_1d(sequence), vocabulary);
}

/* Returns the number of positions of a window. The window has `r` elements and moves by `stride` over
 * `extent` elements, which have `pad` elements of padding on both sides. Returns 0 if the window does not
 * fit. */
static int64_t windows(int64_t extent, int64_t r, int64_t stride, int64_t pad)
{
    return extent + 2 * pad < r ? 0 : (extent + 2 * pad - r) / stride + 1;
}

nn_ref nn_conv2d(nn_model *m, nn_ref x, const char *name, int64_t out, int64_t kernel, int64_t stride,
                 int64_t pad, bool bias, nn_init init)
{
    return nn_conv2d_window(m, x, name, out, (nn_window){kernel, kernel, stride, pad, pad}, bias, init);
}

nn_ref nn_conv2d_window(nn_model *m, nn_ref x, const char *name, int64_t out, nn_window window, bool bias,
                        nn_init init)
{
    nn_layer *l = add_layer(m, NN_CONV2D, name, 3, 1, &x);
    if (!l) return NN_NONE;
    int64_t h = l->sample.dims[0], w = l->sample.dims[1], c = l->sample.dims[2], r = window.r, s = window.s;
    int64_t p = windows(h, r, window.stride, window.pad_h), q = windows(w, s, window.stride, window.pad_w);
    if (p <= 0 || q <= 0)
        return model_broken(m, STATUS_CONFIG, "layer %s: its input is smaller than its kernel", name);
    l->sample = (shape){3, {p, q, out}};
    l->attributes.conv2d =
        (conv2d_attributes){1, h, w, c, out, r, s, window.stride, window.pad_h, window.pad_w, p, q, bias};
    double fan_in = (double)(c * r * s), fan_out = (double)(out * r * s);
    add_named_param(m, l, 0, "weight", shape_4d(out, c, r, s), resolve_init(init, fan_in, fan_out));
    if (bias) add_named_param(m, l, 1, "bias", shape_1d(out), bias_init(init, fan_in));
    return ref_of(m, l);
}

static nn_layer *linear_layer(nn_model *m, nn_ref x, const char *name, int64_t out, bool bias)
{
    nn_layer *l = add_layer(m, NN_LINEAR, name, -1, 1, &x);
    if (l && l->sample.rank == 3) model_broken(m, STATUS_INTERNAL, "layer %s: flatten its input first", name);
    if (m->failed) return NULL;
    linear_attributes *a = &l->attributes.linear;
    *a = (linear_attributes){.m = shape_elements(l->sample) / model_columns(l->sample),
                             .in = model_columns(l->sample),
                             .out = out,
                             .bias = bias};
    if (m->layers[x].kind == NN_FLATTEN) {
        shape image = m->layers[m->layers[x].input[0]].sample;
        if (image.rank == 3) {
            a->flat_h = image.dims[0];
            a->flat_w = image.dims[1];
            a->flat_c = image.dims[2];
        }
    }
    l->sample.dims[l->sample.rank - 1] = out;
    return l;
}

nn_ref nn_linear(nn_model *m, nn_ref x, const char *name, int64_t out, bool bias, nn_init init)
{
    nn_layer *l = linear_layer(m, x, name, out, bias);
    if (!l) return NN_NONE;
    int64_t in = l->attributes.linear.in;
    add_named_param(m, l, 0, "weight", shape_2d(out, in), resolve_init(init, (double)in, (double)out));
    if (bias) add_named_param(m, l, 1, "bias", shape_1d(out), bias_init(init, (double)in));
    return ref_of(m, l);
}

int nn_declare_param(nn_model *m, const char *name, shape s, nn_init init)
{
    return add_param(m, NULL, 0, name, s, init);
}

nn_ref nn_linear_tied(nn_model *m, nn_ref x, const char *name, int weight, int bias)
{
    if (m->failed) return NN_NONE;
    if (weight < 0 || weight >= m->param_count || m->params[weight].shape.rank != 2)
        return model_broken(m, STATUS_INTERNAL, "layer %s: there is no matrix to tie it to", name);
    nn_layer *l = linear_layer(m, x, name, m->params[weight].shape.dims[0], bias != NN_NONE);
    if (!l) return NN_NONE;
    if (m->params[weight].shape.dims[1] != l->attributes.linear.in)
        return model_broken(m, STATUS_CONFIG, "layer %s: tied to a table of another width", name);
    l->param[0] = weight;
    l->param[1] = bias;
    if (bias != NN_NONE) m->params[bias].layer = ref_of(m, l);
    return ref_of(m, l);
}

static void add_norm_params(nn_model *m, nn_layer *l, int64_t c)
{
    add_named_param(m, l, 0, "weight", shape_1d(c), (nn_init){NN_INIT_CONSTANT, 1});
    add_named_param(m, l, 1, "bias", shape_1d(c), (nn_init){NN_INIT_CONSTANT, 0});
}

nn_ref nn_batchnorm(nn_model *m, nn_ref x, const char *name, double eps, bool sync)
{
    nn_layer *l = add_layer(m, NN_BATCHNORM, name, 3, 1, &x);
    if (!l) return NN_NONE;
    const int64_t *d = l->sample.dims;
    l->attributes.batchnorm = (batchnorm_attributes){
        .n = 1, .h = d[0], .w = d[1], .c = d[2], .eps = eps, .momentum = 0.1, .world = 1};
    l->sync = sync;
    add_norm_params(m, l, d[2]);
    l->buffer[0] = add_buffer(m, l, "running_mean", d[2], 0);
    l->buffer[1] = add_buffer(m, l, "running_var", d[2], 1);
    return ref_of(m, l);
}

nn_ref nn_layernorm(nn_model *m, nn_ref x, const char *name, double eps)
{
    nn_layer *l = add_layer(m, NN_LAYERNORM, name, -1, 1, &x);
    if (!l) return NN_NONE;
    int64_t c = model_columns(l->sample);
    l->attributes.layernorm = (layernorm_attributes){.m = shape_elements(l->sample) / c, .c = c, .eps = eps};
    add_norm_params(m, l, c);
    return ref_of(m, l);
}

nn_ref nn_activation(nn_model *m, nn_ref x, activation act)
{
    nn_layer *l = add_layer(m, NN_ACTIVATION, activation_name(act), -1, 1, &x);
    if (!l) return NN_NONE;
    l->attributes.elementwise = (elementwise_attributes){shape_elements(l->sample), act};
    return ref_of(m, l);
}

nn_ref nn_add(nn_model *m, nn_ref a, nn_ref b)
{
    nn_layer *l = add_layer(m, NN_ADD, "add", -1, 2, (const nn_ref[]){a, b});
    if (!l) return NN_NONE;
    if (!shape_equal(l->sample, m->layers[b].sample))
        return model_broken(m, STATUS_CONFIG, "an addition of two shapes");
    l->attributes.elementwise.count = shape_elements(l->sample);
    return ref_of(m, l);
}

nn_ref nn_concat(nn_model *m, const nn_ref *images, int count)
{
    if (count < 1 || count > NN_MAX_INPUTS)
        return model_broken(m, STATUS_INTERNAL, "a concatenation of %d images", count);
    nn_layer *l = add_layer(m, NN_CONCAT, "concat", 3, count, images);
    if (!l) return NN_NONE;
    int64_t h = l->sample.dims[0], w = l->sample.dims[1], channels = 0;
    concat_attributes *a = &l->attributes.concat;
    a->rows = h * w;
    for (int i = 0; i < count; i++) {
        const int64_t *d = m->layers[images[i]].sample.dims;
        if (d[0] != h || d[1] != w)
            return model_broken(m, STATUS_CONFIG, "a concatenation of images of two sizes");
        a->c[i] = d[2];
        channels += d[2];
    }
    l->sample.dims[2] = channels;
    return ref_of(m, l);
}

/* Adds a pooling layer. If `kernel` is 0, the window is the whole image. */
static nn_ref add_pool(nn_model *m, nn_layer_kind kind, const char *name, nn_ref x, int64_t kernel,
                       int64_t stride, int64_t pad)
{
    nn_layer *l = add_layer(m, kind, name, 3, 1, &x);
    if (!l) return NN_NONE;
    int64_t h = l->sample.dims[0], w = l->sample.dims[1], c = l->sample.dims[2];
    if (!kernel && h != w) return model_broken(m, STATUS_CONFIG, "global pooling needs square images");
    if (!kernel) kernel = h;
    int64_t p = windows(h, kernel, stride, pad), q = windows(w, kernel, stride, pad);
    if (p <= 0 || q <= 0)
        return model_broken(m, STATUS_CONFIG, "%s: its input is smaller than its window", name);
    l->sample = (shape){3, {p, q, c}};
    l->attributes.pool = (pool_attributes){1, h, w, c, kernel, kernel, stride, pad, p, q};
    return ref_of(m, l);
}

nn_ref nn_maxpool(nn_model *m, nn_ref x, int64_t kernel, int64_t stride, int64_t pad)
{
    return add_pool(m, NN_MAXPOOL, "maxpool", x, kernel, stride, pad);
}

nn_ref nn_avgpool(nn_model *m, nn_ref x, int64_t kernel, int64_t stride, int64_t pad)
{
    return add_pool(m, NN_AVGPOOL, "avgpool", x, kernel, stride, pad);
}

nn_ref nn_global_avgpool(nn_model *m, nn_ref x)
{
    return nn_flatten(m, add_pool(m, NN_AVGPOOL, "avgpool", x, 0, 1, 0));
}

nn_ref nn_flatten(nn_model *m, nn_ref x)
{
    nn_layer *l = add_layer(m, NN_FLATTEN, "flatten", -1, 1, &x);
    if (!l) return NN_NONE;
    l->sample = shape_1d(shape_elements(l->sample));
    return ref_of(m, l);
}

nn_ref nn_embedding(nn_model *m, nn_ref tokens, const char *table, const char *position, int64_t positions,
                    const char *type, int64_t hidden, nn_init init)
{
    nn_layer *l = add_layer(m, NN_EMBEDDING, table, 1, 1, &tokens);
    if (!l) return NN_NONE;
    int64_t sequence = l->sample.dims[0], vocabulary = m->layers[tokens].vocabulary;
    if (position && sequence > positions)
        return model_broken(m, STATUS_CONFIG,
                            "expected a sequence of at most %lld tokens (positions), got %lld",
                            (long long)positions, (long long)sequence);
    l->sample = shape_2d(sequence, hidden);
    l->attributes.embedding = (embedding_attributes){
        1, sequence, hidden, vocabulary, position ? positions : 0, position != NULL, type != NULL};
    add_param(m, l, 0, table, shape_2d(vocabulary, hidden), init);
    if (position) add_param(m, l, 1, position, shape_2d(positions, hidden), init);
    if (type) add_param(m, l, 2, type, shape_2d(2, hidden), init);
    return ref_of(m, l);
}

nn_ref nn_attention(nn_model *m, nn_ref q, nn_ref k, nn_ref v, const char *name, int64_t heads, bool causal)
{
    nn_layer *l = add_layer(m, NN_ATTENTION, name, 2, 3, (const nn_ref[]){q, k, v});
    if (!l) return NN_NONE;
    bool packed = q == k && k == v;
    int64_t sequence = l->sample.dims[0], hidden = packed ? l->sample.dims[1] / 3 : l->sample.dims[1];
    if (hidden % heads != 0)
        return model_broken(m, STATUS_CONFIG,
                            "expected a number of heads that divides the hidden size %lld, got %lld",
                            (long long)hidden, (long long)heads);
    l->sample = shape_2d(sequence, hidden);
    l->attributes.attention =
        (attention_attributes){1, sequence, heads, hidden / heads, causal, packed ? 3 * hidden : hidden};
    return ref_of(m, l);
}

nn_ref nn_take_first(nn_model *m, nn_ref x)
{
    nn_layer *l = add_layer(m, NN_TAKE_FIRST, "take_first", 2, 1, &x);
    if (!l) return NN_NONE;
    int64_t sequence = l->sample.dims[0], hidden = l->sample.dims[1];
    l->sample = shape_1d(hidden);
    l->attributes.rows = (rows_attributes){sequence, hidden, 1, sequence};
    return ref_of(m, l);
}
