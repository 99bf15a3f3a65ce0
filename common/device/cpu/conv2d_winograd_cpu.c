/* Convolutions with 3x3 kernels and stride 1 by Winograd's minimal filtering (isa/isa.h): 36 multiplications
 * instead of 144 for each tile of 4x4 outputs and each pair of an input channel and an output channel. The
 * gradient with respect to x is the same convolution of dy, with weights flipped (rotated by 180 degrees and
 * transposed).
 *
 * A block of tiles is transformed as a whole and stays in the L2 cache. The block is then multiplied with
 * all weights, for a panel of output channels and WINOGRAD_DEPTH input channels at a time. Each block
 * transforms the weights again, which takes less time than reading transformed weights from the L3 cache. */
#include "common/device/cpu/conv2d.h"

#include "common/base/least.h"

typedef struct winograd_tiles {
    /* Number of tiles per image in each direction, and number of tiles of all images. */
    int64_t down, across, count;
} winograd_tiles;

static int64_t winograd_ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static winograd_tiles winograd_tiles_of(int64_t images, int64_t p, int64_t q)
{
    int64_t down = winograd_ceiling(p, WINOGRAD_TILE), across = winograd_ceiling(q, WINOGRAD_TILE);
    return (winograd_tiles){down, across, images * down * across};
}

/* Returns the square of size * size pixels of images [n, height, width, channels] that starts `pad` pixels
 * above and left of a tile's first output. */
static cpu_patch winograd_patch(const winograd_tiles *t, int64_t tile, int64_t height, int64_t width,
                                int64_t channels, int64_t pad, int size)
{
    int64_t image = tile / (t->down * t->across);
    int64_t top = tile / t->across % t->down * WINOGRAD_TILE - pad,
            left = tile % t->across * WINOGRAD_TILE - pad;
    return (cpu_patch){.origin = ((image * height + top) * width + left) * channels,
                       .row_stride = width * channels,
                       .pixel_stride = channels,
                       .top = top < 0 ? (int)-top : 0,
                       .bottom = (int)least(size, height - top),
                       .left = left < 0 ? (int)-left : 0,
                       .right = (int)least(size, width - left)};
}

/* Returns the offset of the weights between block `c` of input channels and block `k` of output channels. The
 * arena stores these weights as [3][3][block][block]. */
static int64_t winograd_block(const conv2d_attributes *a, int64_t block, int64_t c, int64_t k)
{
    return (k * (a->c / block) + c) * 9 * block * block;
}

enum {
    BLOCK_BYTES = 1340 << 10, /* bytes of the transforms and products of a block of tiles */
    FEWEST_TILES = 14         /* smallest number of tiles in a block, unless the batch has fewer tiles */
};

/* Winograd is used only if panels of channels are full, the image has at least one whole tile of outputs,
 * and at least half of the outputs of all tiles are inside the image. */
enum { WINOGRAD_CHANNELS = 32, WINOGRAD_OUTPUTS = WINOGRAD_TILE * WINOGRAD_TILE / 2 };

bool conv2d_winograd_pays(const conv2d_attributes *a)
{
    if (a->r != 3 || a->s != 3 || a->stride != 1 || a->pad_h != a->pad_w || a->pad_h >= a->r) return false;
    if (a->c % WINOGRAD_CHANNELS != 0 || a->k % WINOGRAD_CHANNELS != 0) return false;
    if (a->p < WINOGRAD_TILE || a->q < WINOGRAD_TILE) return false;
    return a->p * a->q >= WINOGRAD_OUTPUTS * winograd_tiles_of(1, a->p, a->q).count;
}

/* A convolution with a 3x3 kernel: x [n, h, w, depth] to y [n, p, q, columns]. */
typedef struct winograd_conv {
    const cpu_winograd *kernels;
    const conv2d_attributes *attributes;
    int64_t h, w, depth, p, q, columns, pad;
    winograd_tiles tiles;
    int64_t chunks, panels, block_tiles;
    int64_t weights_block; /* block size of the channels in the arena's layout */
    bool flip;
    const float *x, *weights, *bias;
    float *y, *scratch; /* scratch has scratch_floats() floats for each part */
    bool by_panels;     /* true if a part is a range of panels instead of a range of tiles */
} winograd_conv;

static winograd_conv winograd_conv_of(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const cpu_winograd *kernels = cpu_isa_of(kernel)->winograd;
    winograd_conv f = {.kernels = kernels, .attributes = a, .weights_block = conv2d_state_of(kernel)->block};
    f.flip = conv2d_state_of(kernel)->pass == CONV2D_BACKWARD_DATA;
    if (f.flip) {
        f.h = a->p, f.w = a->q, f.depth = a->k;
        f.p = a->h, f.q = a->w, f.columns = a->c;
        f.pad = a->r - 1 - a->pad_h;
    } else {
        f.h = a->h, f.w = a->w, f.depth = a->c;
        f.p = a->p, f.q = a->q, f.columns = a->k;
        f.pad = a->pad_h;
    }
    f.tiles = winograd_tiles_of(a->n, f.p, f.q);
    f.chunks = winograd_ceiling(f.depth, WINOGRAD_DEPTH);
    f.panels = f.columns / kernels->columns;
    int64_t tile_floats = f.chunks * WINOGRAD_V_TILE + winograd_m_row(kernels->columns);
    int64_t most = BLOCK_BYTES / (tile_floats * (int64_t)sizeof(float));
    f.block_tiles = least(f.tiles.count, most > FEWEST_TILES ? most : FEWEST_TILES);
    f.by_panels = kernel->threads > 1 && f.tiles.count < kernel->threads * f.block_tiles;
    return f;
}

static int64_t scratch_floats(const winograd_conv *f)
{
    return f->block_tiles * (f->chunks * WINOGRAD_V_TILE + winograd_m_row(f->kernels->columns)) +
           winograd_u_floats(f->kernels->columns);
}

static void transform_tile(const winograd_conv *f, int64_t tile, float *v)
{
    cpu_patch patch = winograd_patch(&f->tiles, tile, f->h, f->w, f->depth, f->pad, WINOGRAD_PATCH);
    for (int64_t c = 0; c < f->depth; c += WINOGRAD_DEPTH, v += f->block_tiles * WINOGRAD_V_TILE)
        f->kernels->input_transform(f->x + c, &patch, least(WINOGRAD_DEPTH, f->depth - c), v);
}

static const float *weights_at(const winograd_conv *f, int64_t row, int64_t column)
{
    return f->weights +
           winograd_block(f->attributes, f->weights_block, f->flip ? column : row, f->flip ? row : column);
}

/* Transforms the weights between input channels [first, first + depth) and the output channels of a panel. */
static void transform_weights(const winograd_conv *f, int64_t first, int64_t depth, int64_t panel, float *u)
{
    int64_t b = f->weights_block, width = f->kernels->columns, across = width / b, down = depth / b;
    for (int64_t j = 0; j < across; j++)
        for (int64_t i = 0; i < down; i++) {
            int64_t row = first / b + i, column = panel * across + j;
            const float *next = i + 1 < down     ? weights_at(f, row + 1, column)
                                : j + 1 < across ? weights_at(f, first / b, column + 1)
                                                 : weights_at(f, row, column);
            f->kernels->weights_transform(weights_at(f, row, column), next, b, f->flip,
                                          u + i * b * width + j * b);
        }
}

static void store_tile(const winograd_conv *f, int64_t tile, int64_t panel, const float *m)
{
    int64_t column = panel * f->kernels->columns;
    cpu_patch patch = winograd_patch(&f->tiles, tile, f->p, f->q, f->columns, 0, WINOGRAD_TILE);
    f->kernels->output_transform(m, f->bias ? f->bias + column : NULL, f->y + column, &patch);
}

static void filter_block(const winograd_conv *f, int64_t tile, int64_t count, int64_t panel,
                         int64_t panel_end, float *v)
{
    int64_t columns = f->kernels->columns, chunk_floats = f->block_tiles * WINOGRAD_V_TILE;
    float *u = v + f->chunks * chunk_floats, *m = u + winograd_u_floats(columns);
    for (int64_t i = 0; i < count; i++) transform_tile(f, tile + i, v + i * WINOGRAD_V_TILE);
    for (; panel < panel_end; panel++) {
        for (int64_t chunk = 0; chunk < f->chunks; chunk++) {
            int64_t first = chunk * WINOGRAD_DEPTH, depth = least(WINOGRAD_DEPTH, f->depth - first);
            transform_weights(f, first, depth, panel, u);
            f->kernels->gemm(WINOGRAD_ROWS_TILES, count, depth, v + chunk * chunk_floats, u, chunk > 0, m);
        }
        for (int64_t i = 0; i < count; i++) store_tile(f, tile + i, panel, m + i * winograd_m_row(columns));
    }
}

static void filter_part(const void *context, int part, int64_t first, int64_t end)
{
    const winograd_conv *f = context;
    int64_t tile = f->by_panels ? 0 : first, tile_end = f->by_panels ? f->tiles.count : end;
    int64_t panel = f->by_panels ? first : 0, panel_end = f->by_panels ? end : f->panels;
    int64_t count = tile_end - tile, blocks = winograd_ceiling(count, f->block_tiles);
    float *scratch = f->scratch + part * scratch_floats(f);
    for (int64_t i = 0; i < blocks; i++) {
        int64_t from = tile + count * i / blocks, to = tile + count * (i + 1) / blocks;
        filter_block(f, from, to - from, panel, panel_end, scratch);
    }
}

static void conv_run(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    winograd_conv f = winograd_conv_of(kernel);
    f.weights = o->w;
    f.bias = o->b;
    f.x = f.flip ? o->y : o->x;
    f.y = f.flip ? o->x : o->y;
    f.scratch = workspace;
    cpu_parallel(kernel->threads, f.by_panels ? f.panels : f.tiles.count, 1, filter_part, &f);
}

/* ---- the gradient with respect to weights ------------------------------------------------------
 *
 * The transform of each patch of x is multiplied with the transform of the tile of dy. The products are
 * summed over all tiles, and the sums are transformed back once. Tiles are processed in batches of at most
 * WINOGRAD_DEPTH. For a batch, all transforms are computed first. Then every chunk of x's channels is
 * multiplied with every panel of dy's channels. If there are several batches, all sums are kept in memory.
 * Every sum adds the tiles in ascending order, for any number of threads. */

typedef struct weights_gradient {
    const cpu_winograd *kernels;
    const conv2d_attributes *attributes;
    winograd_tiles tiles;
    int64_t chunks, panels, batches, batch_tiles;
    int64_t weights_block;
    bool add;
    const float *x, *dy;
    float *dw;
    float *v, *u; /* transforms: v [chunks][batch_tiles] of x, u [panels] of dy */
    float *m;     /* sums: [chunks][panels] if there are several batches, else [threads] */
    int64_t first, count;
} weights_gradient;

static weights_gradient weights_gradient_of(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const cpu_winograd *kernels = cpu_isa_of(kernel)->winograd;
    weights_gradient w = {.kernels = kernels, .attributes = a, .tiles = winograd_tiles_of(a->n, a->p, a->q)};
    w.chunks = winograd_ceiling(a->c, WINOGRAD_DEPTH);
    w.panels = a->k / kernels->columns;
    w.batches = winograd_ceiling(w.tiles.count, WINOGRAD_DEPTH);
    w.batch_tiles = winograd_ceiling(w.tiles.count, w.batches);
    return w;
}

static int64_t v_floats(const weights_gradient *w)
{
    return w->chunks * w->batch_tiles * WINOGRAD_V_TILE;
}

static int64_t u_floats(const weights_gradient *w)
{
    return w->panels * winograd_u_floats(w->kernels->columns);
}

static int64_t m_floats(const weights_gradient *w)
{
    return WINOGRAD_DEPTH * winograd_m_row(w->kernels->columns);
}

static void transform_part(const void *context, int part, int64_t first, int64_t end)
{
    const weights_gradient *w = context;
    const conv2d_attributes *a = w->attributes;
    int64_t columns = w->kernels->columns, panel_floats = winograd_u_floats(columns);
    for (int64_t i = first; i < end; i++) {
        cpu_patch patch = winograd_patch(&w->tiles, w->first + i, a->h, a->w, a->c, a->pad_h, WINOGRAD_PATCH);
        for (int64_t chunk = 0; chunk < w->chunks; chunk++)
            w->kernels->input_transform(w->x + chunk * WINOGRAD_DEPTH, &patch,
                                        least(WINOGRAD_DEPTH, a->c - chunk * WINOGRAD_DEPTH),
                                        w->v + (chunk * w->batch_tiles + i) * WINOGRAD_V_TILE);
        patch = winograd_patch(&w->tiles, w->first + i, a->p, a->q, a->k, 0, WINOGRAD_TILE);
        float *u = w->u + i * columns;
        for (int64_t panel = 0; panel < w->panels; panel++)
            w->kernels->output_gradient_transform(w->dy + panel * columns, &patch, u + panel * panel_floats);
    }
}

static void store_weights_gradient(const weights_gradient *w, int64_t chunk, int64_t panel, int64_t channels,
                                   const float *m)
{
    int64_t b = w->weights_block, columns = w->kernels->columns;
    for (int64_t j = 0; j < columns / b; j++)
        for (int64_t i = 0; i < channels / b; i++) {
            int64_t c = chunk * (WINOGRAD_DEPTH / b) + i, k = panel * (columns / b) + j;
            w->kernels->weights_gradient_transform(m + i * b * winograd_m_row(columns) + j * b, b, w->add,
                                                   w->dw + winograd_block(w->attributes, b, c, k));
        }
}

static void multiply_part(const void *context, int part, int64_t first, int64_t end)
{
    const weights_gradient *w = context;
    for (int64_t pair = first; pair < end; pair++) {
        int64_t chunk = pair / w->panels, panel = pair % w->panels;
        int64_t channels = least(WINOGRAD_DEPTH, w->attributes->c - chunk * WINOGRAD_DEPTH);
        float *m = w->m + (w->batches > 1 ? pair : part) * m_floats(w);
        w->kernels->gemm(WINOGRAD_ROWS_CHANNELS, channels, w->count,
                         w->v + chunk * w->batch_tiles * WINOGRAD_V_TILE,
                         w->u + panel * winograd_u_floats(w->kernels->columns), w->first > 0, m);
        if (w->first + w->count == w->tiles.count) store_weights_gradient(w, chunk, panel, channels, m);
    }
}

static void weights_gradient_run(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    weights_gradient w = weights_gradient_of(kernel);
    w.weights_block = conv2d_state_of(kernel)->block;
    w.add = o->add;
    w.x = o->x;
    w.dy = o->y;
    w.dw = o->w;
    w.v = workspace;
    w.u = w.v + v_floats(&w);
    w.m = w.u + u_floats(&w);
    for (int64_t batch = 0; batch < w.batches; batch++) {
        w.first = w.tiles.count * batch / w.batches;
        w.count = w.tiles.count * (batch + 1) / w.batches - w.first;
        cpu_parallel(kernel->threads, w.count, 1, transform_part, &w);
        cpu_parallel(kernel->threads, w.chunks * w.panels, 1, multiply_part, &w);
    }
}

/* ----------------------------------------------------------------------------------------------- */

static size_t workspace_bytes(const host_kernel *kernel)
{
    if (conv2d_state_of(kernel)->pass != CONV2D_BACKWARD_WEIGHTS) {
        winograd_conv f = winograd_conv_of(kernel);
        return (size_t)(kernel->threads * scratch_floats(&f)) * sizeof(float);
    }
    weights_gradient w = weights_gradient_of(kernel);
    int64_t sums = w.batches > 1 ? w.chunks * w.panels : kernel->threads;
    return (size_t)(v_floats(&w) + u_floats(&w) + sums * m_floats(&w)) * sizeof(float);
}

static void run(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    bool weights = conv2d_state_of(kernel)->pass == CONV2D_BACKWARD_WEIGHTS;
    (weights ? weights_gradient_run : conv_run)(kernel, o, workspace);
}

const conv2d_algorithm conv2d_winograd = {workspace_bytes, run};
