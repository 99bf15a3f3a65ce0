/* ResNet v1.5 with torchvision's layers, order and names (He et al., "Deep Residual Learning for Image
 * Recognition", 2015). v1.5 puts the stride of a bottleneck on its 3x3 convolution. */
#include "models/models.h"

#include <stdio.h>
#include <string.h>

static const struct resnet_plan {
    const char *name;
    int blocks[4];
    bool bottleneck;
} plans[] = {
    {"resnet18", {2, 2, 2, 2}, false},  {"resnet34", {3, 4, 6, 3}, false},  {"resnet50", {3, 4, 6, 3}, true},
    {"resnet101", {3, 4, 23, 3}, true}, {"resnet152", {3, 8, 36, 3}, true},
};

typedef struct resnet_builder {
    nn_model *m;
    activation act;
    bool sync;
} resnet_builder;

static nn_ref conv_bn(const resnet_builder *r, nn_ref x, const char *block, const char *conv,
                      const char *norm, int64_t out, int64_t kernel, int64_t stride, bool act)
{
    char name[NN_NAME_MAX];
    snprintf(name, sizeof name, "%s%s", block, conv);
    x = nn_conv2d(r->m, x, name, out, kernel, stride, kernel / 2, false, nn_init_kaiming_fan_out());
    snprintf(name, sizeof name, "%s%s", block, norm);
    x = nn_batchnorm(r->m, x, name, 1e-5, r->sync);
    return act ? nn_activation(r->m, x, r->act) : x;
}

/* Adds a residual block. A basic block is 3x3, 3x3. A bottleneck is 1x1, 3x3 with the stride, and 1x1 to four
 * times the width. If the shape changes, the shortcut is a 1x1 convolution. */
static nn_ref residual_block(const resnet_builder *r, nn_ref x, const char *block, bool bottleneck,
                             int64_t width, int64_t stride, bool shortcut)
{
    int64_t out = bottleneck ? 4 * width : width;
    nn_ref y;
    if (bottleneck) {
        y = conv_bn(r, x, block, "conv1", "bn1", width, 1, 1, true);
        y = conv_bn(r, y, block, "conv2", "bn2", width, 3, stride, true);
        y = conv_bn(r, y, block, "conv3", "bn3", out, 1, 1, false);
    } else {
        y = conv_bn(r, x, block, "conv1", "bn1", width, 3, stride, true);
        y = conv_bn(r, y, block, "conv2", "bn2", out, 3, 1, false);
    }
    if (shortcut) x = conv_bn(r, x, block, "downsample.0", "downsample.1", out, 1, stride, false);
    return nn_activation(r->m, nn_add(r->m, y, x), r->act);
}

status build_resnet(const model_options *options, nn_model *m)
{
    const struct resnet_plan *plan = plans;
    while (strcmp(plan->name, options->name) != 0) plan++; /* `plans` has every ResNet of MODEL_LIST */
    resnet_builder r = {m, (activation)options->activation, options->sync_batchnorm};
    nn_ref x = nn_input_image(m, options->image, options->image, 3);
    x = conv_bn(&r, x, "", "conv1", "bn1", 64, 7, 2, true);
    x = nn_maxpool(m, x, 3, 2, 1);
    int64_t in = 64;
    for (int stage = 0; stage < 4; stage++) {
        int64_t width = 64 << stage, out = plan->bottleneck ? 4 * width : width;
        for (int block = 0; block < plan->blocks[stage]; block++) {
            char name[NN_NAME_MAX];
            snprintf(name, sizeof name, "layer%d.%d.", stage + 1, block);
            nn_unit(m, name);
            int64_t stride = stage > 0 && block == 0 ? 2 : 1;
            x = residual_block(&r, x, name, plan->bottleneck, width, stride, stride != 1 || in != out);
            in = out;
        }
    }
    x = nn_global_avgpool(m, x);
    x = nn_linear(m, x, "fc", options->classes, true, nn_init_default());
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
