/* Inception v3 (Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015) with the
 * layers, order and names of torchvision's inception_v3(aux_logits=False, transform_input=False), without
 * dropout. In torchvision's training an auxiliary classifier after Mixed_6e adds a second loss. It is not
 * built here, because a model has one output and the published benchmarks ran without this classifier. */
#include "models/models.h"

#include <stdio.h>

typedef struct inception_builder {
    nn_model *m;
    activation act;
    bool sync;
    const char *block; /* "Mixed_5b.", or "" */
} inception_builder;

/* Adds torchvision's BasicConv2d. */
static nn_ref conv_bn(const inception_builder *b, nn_ref x, const char *layer, int64_t out, nn_window window)
{
    char name[NN_NAME_MAX];
    snprintf(name, sizeof name, "%s%s.conv", b->block, layer);
    x = nn_conv2d_window(b->m, x, name, out, window, false, nn_init_normal(0.1));
    snprintf(name, sizeof name, "%s%s.bn", b->block, layer);
    return nn_activation(b->m, nn_batchnorm(b->m, x, name, 0.001, b->sync), b->act);
}

/* Adds a convolution that keeps height and width. */
static nn_ref same(const inception_builder *b, nn_ref x, const char *layer, int64_t out, int64_t r, int64_t s)
{
    return conv_bn(b, x, layer, out, (nn_window){r, s, 1, r / 2, s / 2});
}

/* Adds a 3x3 convolution without padding. */
static nn_ref valid(const inception_builder *b, nn_ref x, const char *layer, int64_t out, int64_t stride)
{
    return conv_bn(b, x, layer, out, (nn_window){3, 3, stride, 0, 0});
}

/* Adds a 3x3 average pooling, then a 1x1 convolution. */
static nn_ref pooled(const inception_builder *b, nn_ref x, int64_t out)
{
    return same(b, nn_avgpool(b->m, x, 3, 1, 1), "branch_pool", out, 1, 1);
}

/* Adds torchvision's InceptionA. The branches are 1x1; 1x1 -> 5x5; 1x1 -> 3x3 -> 3x3; pooled(). */
static nn_ref block_a(const inception_builder *b, nn_ref x, int64_t pool_features)
{
    nn_ref one = same(b, x, "branch1x1", 64, 1, 1);
    nn_ref five = same(b, x, "branch5x5_1", 48, 1, 1);
    five = same(b, five, "branch5x5_2", 64, 5, 5);
    nn_ref three = same(b, x, "branch3x3dbl_1", 64, 1, 1);
    three = same(b, three, "branch3x3dbl_2", 96, 3, 3);
    three = same(b, three, "branch3x3dbl_3", 96, 3, 3);
    return nn_concat(b->m, (const nn_ref[]){one, five, three, pooled(b, x, pool_features)}, 4);
}

/* Adds torchvision's InceptionB, which halves height and width. The branches are 3x3; 1x1 -> 3x3 -> 3x3;
 * maximum pooling. */
static nn_ref block_b(const inception_builder *b, nn_ref x, int64_t unused)
{
    (void)unused;
    nn_ref three = valid(b, x, "branch3x3", 384, 2);
    nn_ref twice = same(b, x, "branch3x3dbl_1", 64, 1, 1);
    twice = same(b, twice, "branch3x3dbl_2", 96, 3, 3);
    twice = valid(b, twice, "branch3x3dbl_3", 96, 2);
    return nn_concat(b->m, (const nn_ref[]){three, twice, nn_maxpool(b->m, x, 3, 2, 0)}, 3);
}

/* Adds torchvision's InceptionC. The branches are 1x1; 1x1 -> 1x7 -> 7x1; 1x1 -> 7x1 -> 1x7 -> 7x1 -> 1x7;
 * pooled(). */
static nn_ref block_c(const inception_builder *b, nn_ref x, int64_t width)
{
    nn_ref one = same(b, x, "branch1x1", 192, 1, 1);
    nn_ref seven = same(b, x, "branch7x7_1", width, 1, 1);
    seven = same(b, seven, "branch7x7_2", width, 1, 7);
    seven = same(b, seven, "branch7x7_3", 192, 7, 1);
    nn_ref twice = same(b, x, "branch7x7dbl_1", width, 1, 1);
    twice = same(b, twice, "branch7x7dbl_2", width, 7, 1);
    twice = same(b, twice, "branch7x7dbl_3", width, 1, 7);
    twice = same(b, twice, "branch7x7dbl_4", width, 7, 1);
    twice = same(b, twice, "branch7x7dbl_5", 192, 1, 7);
    return nn_concat(b->m, (const nn_ref[]){one, seven, twice, pooled(b, x, 192)}, 4);
}

/* Adds torchvision's InceptionD, which halves height and width. The branches are 1x1 -> 3x3;
 * 1x1 -> 1x7 -> 7x1 -> 3x3; maximum pooling. */
static nn_ref block_d(const inception_builder *b, nn_ref x, int64_t unused)
{
    (void)unused;
    nn_ref three = same(b, x, "branch3x3_1", 192, 1, 1);
    three = valid(b, three, "branch3x3_2", 320, 2);
    nn_ref seven = same(b, x, "branch7x7x3_1", 192, 1, 1);
    seven = same(b, seven, "branch7x7x3_2", 192, 1, 7);
    seven = same(b, seven, "branch7x7x3_3", 192, 7, 1);
    seven = valid(b, seven, "branch7x7x3_4", 192, 2);
    return nn_concat(b->m, (const nn_ref[]){three, seven, nn_maxpool(b->m, x, 3, 2, 0)}, 3);
}

/* Adds torchvision's InceptionE. The branches are 1x1; 1x1 -> 1x3 | 3x1; 1x1 -> 3x3 -> 1x3 | 3x1;
 * pooled(). 1x3 | 3x1 are two convolutions of the same input. */
static nn_ref block_e(const inception_builder *b, nn_ref x, int64_t unused)
{
    (void)unused;
    nn_ref part[6] = {same(b, x, "branch1x1", 320, 1, 1)};
    nn_ref three = same(b, x, "branch3x3_1", 384, 1, 1);
    part[1] = same(b, three, "branch3x3_2a", 384, 1, 3);
    part[2] = same(b, three, "branch3x3_2b", 384, 3, 1);
    nn_ref twice = same(b, x, "branch3x3dbl_1", 448, 1, 1);
    twice = same(b, twice, "branch3x3dbl_2", 384, 3, 3);
    part[3] = same(b, twice, "branch3x3dbl_3a", 384, 1, 3);
    part[4] = same(b, twice, "branch3x3dbl_3b", 384, 3, 1);
    part[5] = pooled(b, x, 192);
    return nn_concat(b->m, part, 6);
}

static const struct inception_block {
    const char *name;
    nn_ref (*build)(const inception_builder *b, nn_ref x, int64_t width);
    int64_t width; /* channels of the pooled branch in block_a(), or of the 7x7 branches in block_c() */
} blocks[] = {{"Mixed_5b.", block_a, 32},  {"Mixed_5c.", block_a, 64},  {"Mixed_5d.", block_a, 64},
              {"Mixed_6a.", block_b, 0},   {"Mixed_6b.", block_c, 128}, {"Mixed_6c.", block_c, 160},
              {"Mixed_6d.", block_c, 160}, {"Mixed_6e.", block_c, 192}, {"Mixed_7a.", block_d, 0},
              {"Mixed_7b.", block_e, 0},   {"Mixed_7c.", block_e, 0}};

status build_inception_v3(const model_options *options, nn_model *m)
{
    inception_builder b = {m, (activation)options->activation, options->sync_batchnorm, ""};
    nn_ref x = nn_input_image(m, options->image, options->image, 3);
    x = valid(&b, x, "Conv2d_1a_3x3", 32, 2);
    x = valid(&b, x, "Conv2d_2a_3x3", 32, 1);
    x = same(&b, x, "Conv2d_2b_3x3", 64, 3, 3);
    x = nn_maxpool(m, x, 3, 2, 0);
    x = same(&b, x, "Conv2d_3b_1x1", 80, 1, 1);
    x = valid(&b, x, "Conv2d_4a_3x3", 192, 1);
    x = nn_maxpool(m, x, 3, 2, 0);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        nn_unit(m, blocks[i].name);
        b.block = blocks[i].name;
        x = blocks[i].build(&b, x, blocks[i].width);
    }
    x = nn_linear(m, nn_global_avgpool(m, x), "fc", options->classes, true, nn_init_normal(0.1));
    return nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY);
}
