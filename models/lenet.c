/* LeNet-5 (LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998) with the usual
 * layers of today: ReLU instead of the sigmoid, max-pooling instead of the trainable subsampling, and a
 * linear layer instead of the radial basis functions. */
#include "models/models.h"

status build_lenet(const model_options *options, nn_model *m)
{
    static const char *const units[] = {"conv1.", "conv2.", "fc1.", "fc2.", "fc3."};
    for (int i = 0; i < 5; i++) nn_unit(m, units[i]);
    nn_ref x = nn_input_image(m, options->image, options->image, options->channels);
    x = nn_conv2d(m, x, "conv1", 6, 5, 1, 2, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_maxpool(m, x, 2, 2, 0);
    x = nn_conv2d(m, x, "conv2", 16, 5, 1, 0, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_maxpool(m, x, 2, 2, 0);
    x = nn_flatten(m, x);
    x = nn_linear(m, x, "fc1", 120, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "fc2", 84, true, nn_init_default());
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "fc3", options->classes, true, nn_init_default());
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
