/* GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019): a pre-LayerNorm
 * decoder with causal attention, tanh GELU and learned positions, without dropout. The output weights are the
 * token table. Parameters have Hugging Face's names. Linear weights have the shape [out, in]. */
#include "models/models.h"

#include <math.h>
#include <stdio.h>

static const double deviation = 0.02;

static nn_ref dense(nn_model *m, nn_ref x, const char *block, const char *name, int64_t out, double scale)
{
    char full[NN_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", block, name);
    return nn_linear(m, x, full, out, true, nn_init_normal(deviation * scale));
}

static nn_ref norm(nn_model *m, nn_ref x, const char *block, const char *name)
{
    char full[NN_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", block, name);
    return nn_layernorm(m, x, full, 1e-5);
}

static nn_ref decoder_block(nn_model *m, nn_ref x, int index, const model_options *o)
{
    char block[64], name[NN_NAME_MAX];
    snprintf(block, sizeof block, "transformer.h.%d.", index);
    nn_unit(m, block);
    double residual_scale = 1.0 / sqrt(2.0 * (double)o->layers); /* for layers before a residual addition */
    nn_ref qkv = dense(m, norm(m, x, block, "ln_1"), block, "attn.c_attn", 3 * o->hidden, 1);
    snprintf(name, sizeof name, "%sattn", block);
    nn_ref a = nn_attention(m, qkv, qkv, qkv, name, o->heads, true);
    x = nn_add(m, x, dense(m, a, block, "attn.c_proj", o->hidden, residual_scale));
    nn_ref f = dense(m, norm(m, x, block, "ln_2"), block, "mlp.c_fc", 4 * o->hidden, 1);
    f = nn_activation(m, f, ACTIVATION_GELU_TANH);
    return nn_add(m, x, dense(m, f, block, "mlp.c_proj", o->hidden, residual_scale));
}

status build_gpt2(const model_options *o, nn_model *m)
{
    nn_ref x = nn_input_tokens(m, o->sequence, o->vocabulary);
    x = nn_embedding(m, x, "transformer.wte.weight", "transformer.wpe.weight", o->positions, NULL, o->hidden,
                     nn_init_normal(deviation));
    for (int i = 0; i < o->layers; i++) x = decoder_block(m, x, i, o);
    x = nn_layernorm(m, x, "transformer.ln_f", 1e-5);
    x = nn_linear_tied(m, x, "lm_head", nn_find_param(m, "transformer.wte.weight"), NN_NONE);
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
