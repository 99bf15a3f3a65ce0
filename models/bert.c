/* BERT (Devlin et al., 2018): a post-LayerNorm encoder with exact GELU, without dropout and attention mask.
 * The layers have the names and order of Hugging Face's BertForMaskedLM without its pooler. The head predicts
 * masked tokens or classifies the first token. The output weights of the masked language model are the token
 * table. */
#include "models/models.h"

#include <stdio.h>

static const double deviation = 0.02;

static nn_ref dense(nn_model *m, nn_ref x, const char *layer, const char *name, int64_t out)
{
    char full[NN_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", layer, name);
    return nn_linear(m, x, full, out, true, nn_init_normal(deviation));
}

static nn_ref add_norm(nn_model *m, nn_ref x, nn_ref residual, const char *layer, const char *name)
{
    char full[NN_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", layer, name);
    return nn_layernorm(m, nn_add(m, x, residual), full, 1e-12);
}

static nn_ref encoder_layer(nn_model *m, nn_ref x, int index, const model_options *o)
{
    char layer[64], name[NN_NAME_MAX];
    snprintf(layer, sizeof layer, "bert.encoder.layer.%d.", index);
    nn_unit(m, layer);
    nn_ref q = dense(m, x, layer, "attention.self.query", o->hidden);
    nn_ref k = dense(m, x, layer, "attention.self.key", o->hidden);
    nn_ref v = dense(m, x, layer, "attention.self.value", o->hidden);
    snprintf(name, sizeof name, "%sattention.self", layer);
    nn_ref a = nn_attention(m, q, k, v, name, o->heads, false);
    a = dense(m, a, layer, "attention.output.dense", o->hidden);
    x = add_norm(m, a, x, layer, "attention.output.LayerNorm");
    nn_ref f = nn_activation(m, dense(m, x, layer, "intermediate.dense", 4 * o->hidden), ACTIVATION_GELU);
    f = dense(m, f, layer, "output.dense", o->hidden);
    return add_norm(m, f, x, layer, "output.LayerNorm");
}

status build_bert(const model_options *o, nn_model *m)
{
    nn_ref x = nn_input_tokens(m, o->sequence, o->vocabulary);
    x = nn_embedding(m, x, "bert.embeddings.word_embeddings.weight",
                     "bert.embeddings.position_embeddings.weight", o->positions,
                     "bert.embeddings.token_type_embeddings.weight", o->hidden, nn_init_normal(deviation));
    x = nn_layernorm(m, x, "bert.embeddings.LayerNorm", 1e-12);
    for (int i = 0; i < o->layers; i++) x = encoder_layer(m, x, i, o);
    if (o->head == MODEL_HEAD_CLS) {
        x = nn_linear(m, nn_take_first(m, x), "classifier", o->classes, true, nn_init_normal(deviation));
        return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
    }
    int bias =
        nn_declare_param(m, "cls.predictions.bias", shape_1d(o->vocabulary), (nn_init){NN_INIT_CONSTANT, 0});
    x = nn_linear(m, x, "cls.predictions.transform.dense", o->hidden, true, nn_init_normal(deviation));
    x = nn_activation(m, x, ACTIVATION_GELU);
    x = nn_layernorm(m, x, "cls.predictions.transform.LayerNorm", 1e-12);
    int table = nn_find_param(m, "bert.embeddings.word_embeddings.weight");
    x = nn_linear_tied(m, x, "cls.predictions.decoder", table, bias);
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
