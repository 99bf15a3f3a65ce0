#include "common/data/form.h"

#include "common/nn/model.h"

#include <inttypes.h>
#include <stdio.h>

int64_t data_form_input_elements(const data_form *form)
{
    const int64_t elements[] = {[DATA_IMAGE] = form->h * form->w * form->c,
                                [DATA_FEATURES] = form->features,
                                [DATA_TOKENS] = form->sequence};
    return elements[form->kind];
}

int64_t data_form_target_elements(const data_form *form)
{
    if (form->target == DATA_TARGET_CLASS) return 1;
    return form->target == DATA_TARGET_VALUES ? form->classes : form->sequence;
}

char *data_form_format(char *buffer, size_t size, const data_form *form)
{
    char input[80], target[40];
    if (form->kind == DATA_IMAGE)
        snprintf(input, sizeof input, "images of %" PRId64 "x%" PRId64 "x%" PRId64, form->c, form->h,
                 form->w);
    else if (form->kind == DATA_FEATURES)
        snprintf(input, sizeof input, "%" PRId64 " features", form->features);
    else
        snprintf(input, sizeof input, "sequences of %" PRId64 " tokens out of %" PRId64, form->sequence,
                 form->vocabulary);
    if (form->target == DATA_TARGET_CLASS || form->target == DATA_TARGET_VALUES)
        snprintf(target, sizeof target, "%" PRId64 " %s", form->classes,
                 form->target == DATA_TARGET_CLASS ? "classes" : "values");
    else
        snprintf(target, sizeof target, "%s targets",
                 form->target == DATA_TARGET_MASKED ? "masked" : "next-token");
    snprintf(buffer, size, "%s with %s", input, target);
    return buffer;
}

static data_target target_of_model(const nn_model *model, const data_form *form)
{
    if (model->loss == NN_LOSS_MSE) return DATA_TARGET_VALUES;
    if (form->kind != DATA_TOKENS || model->rows_per_sample != form->sequence) return DATA_TARGET_CLASS;
    if (model->recording) return DATA_TARGET_NEXT;
    for (int i = 0; i < model->layer_count; i++)
        if (model->layers[i].kind == NN_ATTENTION && model->layers[i].attributes.attention.causal)
            return DATA_TARGET_NEXT;
    return DATA_TARGET_MASKED;
}

_Static_assert((int)DATA_IMAGE == (int)NN_INPUT_IMAGE && (int)DATA_FEATURES == (int)NN_INPUT_FEATURES &&
                   (int)DATA_TOKENS == (int)NN_INPUT_TOKENS,
               "samples are of the kind that the model reads");

data_form data_form_of_model(const nn_model *model)
{
    const nn_layer *input = &model->layers[0];
    const int64_t *dims = input->sample.dims;
    data_form form = {
        .kind = (data_kind)model->input_kind, .classes = model->classes, .vocabulary = input->vocabulary};
    if (form.kind == DATA_IMAGE) {
        form.h = dims[0];
        form.w = dims[1];
        form.c = dims[2];
    }
    if (form.kind == DATA_FEATURES) form.features = dims[0];
    if (form.kind == DATA_TOKENS) form.sequence = dims[0];
    form.target = target_of_model(model, &form);
    return form;
}
