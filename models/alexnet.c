/* AlexNet (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014) with
 * torchvision's layers and names, without dropout. The last features of an image of 224x224 are 6x6.
 * torchvision pools the features of every image to 6x6, but this model keeps the smaller features of smaller
 * images. */
#include "models/models.h"

#include <stdio.h>

static nn_ref convolution(nn_model *m, nn_ref x, int index, int64_t out, int64_t kernel, int64_t stride,
                          int64_t pad)
{
    char name[NN_NAME_MAX];
    snprintf(name, sizeof name, "features.%d",
             index); /* torchvision counts convolutions, activations and poolings */
    return nn_activation(m, nn_conv2d(m, x, name, out, kernel, stride, pad, true, nn_init_default()),
                         ACTIVATION_RELU);
}

status build_alexnet(const model_options *options, nn_model *m)
{
    nn_ref x = nn_input_image(m, options->image, options->image, 3);
    x = nn_maxpool(m, convolution(m, x, 0, 64, 11, 4, 2), 3, 2, 0);
    x = nn_maxpool(m, convolution(m, x, 3, 192, 5, 1, 2), 3, 2, 0);
    x = convolution(m, x, 6, 384, 3, 1, 1);
    x = convolution(m, x, 8, 256, 3, 1, 1);
    x = nn_maxpool(m, convolution(m, x, 10, 256, 3, 1, 1), 3, 2, 0);
    x = nn_flatten(m, x);
    x = nn_activation(m, nn_linear(m, x, "classifier.1", 4096, true, nn_init_default()), ACTIVATION_RELU);
    x = nn_activation(m, nn_linear(m, x, "classifier.4", 4096, true, nn_init_default()), ACTIVATION_RELU);
    x = nn_linear(m, x, "classifier.6", options->classes, true, nn_init_default());
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
