/* Multi-layer perceptrons: linear layers with ReLU between them. */
#include "models/models.h"

status build_linear(const model_options *options, nn_model *m)
{
    (void)options;
    nn_unit(m, "fc.");
    nn_ref x = nn_linear(m, nn_input_features(m, 5), "fc", 2, true, nn_init_default());
    return nn_model_finish(m, x, NN_LOSS_MSE);
}

/* 10-10-5 with a mean squared error: small enough to check by hand. */
status build_toy(const model_options *options, nn_model *m)
{
    (void)options;
    nn_unit(m, "net1.");
    nn_unit(m, "net2.");
    nn_ref x = nn_input_features(m, 10);
    x = nn_linear(m, x, "net1", 10, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "net2", 5, true, nn_init_default());
    return nn_model_finish(m, x, NN_LOSS_MSE);
}

/* 13-64-3 for the UCI Wine data. */
status build_wine_mlp(const model_options *options, nn_model *m)
{
    (void)options;
    nn_unit(m, "fc1.");
    nn_unit(m, "fc2.");
    nn_ref x = nn_input_features(m, 13);
    x = nn_linear(m, x, "fc1", 64, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "fc2", 3, true, nn_init_default());
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
