/* The builders behind model_table; for models/ alone. */
#ifndef MODELS_BUILD_H
#define MODELS_BUILD_H

#include "models/models.h"

status build_toy(const model_options *options, nn_model *m);
status build_wine_mlp(const model_options *options, nn_model *m);
status build_lenet(const model_options *options, nn_model *m);
status build_resnet18(const model_options *options, nn_model *m);
status build_resnet34(const model_options *options, nn_model *m);
status build_resnet50(const model_options *options, nn_model *m);
status build_resnet101(const model_options *options, nn_model *m);
status build_resnet152(const model_options *options, nn_model *m);
status build_vgg16(const model_options *options, nn_model *m);
status build_bert(const model_options *options, nn_model *m);
status build_gpt2(const model_options *options, nn_model *m);

#endif
