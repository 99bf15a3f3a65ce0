/* VGG-16 (Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
 * 2014), configuration D, with torchvision's names, without dropout. The last features of an image of 224x224
 * are 7x7. torchvision pools the features of every image to 7x7, but this model keeps the smaller features of
 * smaller images. */
#include "models/models.h"

#include <stdio.h>

status build_vgg16(const model_options *options, nn_model *m)
{
    enum { POOL = 0 };
    static const int layers[] = {64,   64,  POOL, 128, 128,  POOL, 256, 256, 256,
                                 POOL, 512, 512,  512, POOL, 512,  512, 512, POOL};
    static const char *const classifier[] = {"classifier.0.", "classifier.3.", "classifier.6."};
    nn_ref x = nn_input_image(m, options->image, options->image, 3);
    int index = 0; /* torchvision counts convolutions, activations and poolings */
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        if (layers[i] == POOL) {
            x = nn_maxpool(m, x, 2, 2, 0);
            index++;
            continue;
        }
        char name[NN_NAME_MAX];
        snprintf(name, sizeof name, "features.%d.", index);
        nn_unit(m, name);
        snprintf(name, sizeof name, "features.%d", index);
        x = nn_conv2d(m, x, name, layers[i], 3, 1, 1, true, nn_init_kaiming_fan_out());
        x = nn_activation(m, x, ACTIVATION_RELU);
        index += 2;
    }
    x = nn_flatten(m, x);
    for (int i = 0; i < 3; i++) nn_unit(m, classifier[i]);
    x = nn_linear(m, x, "classifier.0", 4096, true, nn_init_normal(0.01));
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "classifier.3", 4096, true, nn_init_normal(0.01));
    x = nn_activation(m, x, ACTIVATION_RELU);
    x = nn_linear(m, x, "classifier.6", options->classes, true, nn_init_normal(0.01));
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
