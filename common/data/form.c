#include "common/data/form.h"

#include "common/nn/model.h"

#include <inttypes.h>
#include <stdio.h>

int64_t data_form_input_elements(const data_form *form)
{
    switch (form->kind) {
    case DATA_IMAGE:
        return form->h * form->w * form->c;
    case DATA_FEATURES:
        return form->features;
    case DATA_TOKENS:
        return form->sequence;
    }
    return 0;
}

int64_t data_form_target_elements(const data_form *form)
{
    switch (form->target) {
    case DATA_TARGET_CLASS:
        return 1;
    case DATA_TARGET_VALUES:
        return form->classes;
    case DATA_TARGET_MASKED:
    case DATA_TARGET_NEXT:
        return form->sequence;
    }
    return 0;
}

char *data_form_format(char *buffer, size_t size, const data_form *form)
{
    char input[80], target[40];
    switch (form->kind) {
    case DATA_IMAGE:
        snprintf(input, sizeof input, "images of %" PRId64 "x%" PRId64 "x%" PRId64, form->c, form->h,
                 form->w);
        break;
    case DATA_FEATURES:
        snprintf(input, sizeof input, "%" PRId64 " features", form->features);
        break;
    case DATA_TOKENS:
        snprintf(input, sizeof input, "sequences of %" PRId64 " tokens out of %" PRId64, form->sequence,
                 form->vocabulary);
        break;
    }
    switch (form->target) {
    case DATA_TARGET_CLASS:
        snprintf(target, sizeof target, "%" PRId64 " classes", form->classes);
        break;
    case DATA_TARGET_VALUES:
        snprintf(target, sizeof target, "%" PRId64 " values", form->classes);
        break;
    case DATA_TARGET_MASKED:
        snprintf(target, sizeof target, "masked targets");
        break;
    case DATA_TARGET_NEXT:
        snprintf(target, sizeof target, "next-token targets");
        break;
    }
    snprintf(buffer, size, "%s with %s", input, target);
    return buffer;
}

static data_target target_of_model(const nn_model *model, const data_form *form)
{
    if (model->loss == NN_LOSS_MSE) return DATA_TARGET_VALUES;
    if (form->kind != DATA_TOKENS || model->rows_per_sample != form->sequence) return DATA_TARGET_CLASS;
    for (int i = 0; i < model->layer_count; i++)
        if (model->layers[i].kind == NN_ATTENTION && model->layers[i].attributes.attention.causal) return DATA_TARGET_NEXT;
    return DATA_TARGET_MASKED;
}

data_form data_form_of_model(const nn_model *model)
{
    const nn_layer *input = &model->layers[0];
    data_form form = {.classes = model->classes};
    switch (model->input_kind) {
    case NN_INPUT_IMAGE:
        form.kind = DATA_IMAGE;
        form.h = input->sample.dims[0];
        form.w = input->sample.dims[1];
        form.c = input->sample.dims[2];
        break;
    case NN_INPUT_FEATURES:
        form.kind = DATA_FEATURES;
        form.features = input->sample.dims[0];
        break;
    case NN_INPUT_TOKENS:
        form.kind = DATA_TOKENS;
        form.sequence = input->sample.dims[0];
        form.vocabulary = input->vocabulary;
        break;
    }
    form.target = target_of_model(model, &form);
    return form;
}
