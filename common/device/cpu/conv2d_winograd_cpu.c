/* Convolutions with 3x3 kernels and a stride of 1 by Winograd's minimal filtering (isa.h): 36 multiplications
 * in place of 144 for a tile of 4x4 outputs and each pair of channels. The gradient with respect to x is such
 * a convolution of dy, with the weights turned round and transposed.
 *
 * A block of tiles is transformed as a whole, so that it stays in the L2 cache while all the weights pass by,
 * a panel of output channels and WINOGRAD_DEPTH input channels at a time. Transforming weights takes less
 * time than reading transformed ones from the L3 cache: they are transformed anew for every block. */
#include "common/device/cpu/parallel.h"
#include "common/device/cpu/winograd.h"

enum {
    BLOCK_BYTES = 1340 << 10, /* of a block's transforms and products */
    FEWEST_TILES = 14         /* of a block, unless there are no more */
};

/* A convolution with a 3x3 kernel: x [n, h, w, depth] to y [n, p, q, columns]. */
typedef struct filtering {
    const cpu_winograd *kernels;
    const conv2d_attributes *attributes;
    int64_t h, w, depth, p, q, columns, pad;
    winograd_tiles tiles;
    int64_t chunks, panels, block_tiles;
    int64_t weights_block; /* of channels, in the arena's layout */
    bool turn;
    const float *x, *weights, *bias;
    float *y, *scratch; /* [parts] of scratch_floats() */
    bool by_panels;     /* parts are ranges of panels, not of tiles */
} filtering;

static filtering filtering_of(const host_kernel *kernel, conv2d_pass pass)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const cpu_winograd *kernels = cpu_isa_of(kernel)->winograd;
    filtering f = {.kernels = kernels, .attributes = a, .turn = pass == CONV2D_BACKWARD_DATA};
    if (f.turn) {
        f.h = a->p, f.w = a->q, f.depth = a->k;
        f.p = a->h, f.q = a->w, f.columns = a->c;
        f.pad = a->r - 1 - a->pad;
    } else {
        f.h = a->h, f.w = a->w, f.depth = a->c;
        f.p = a->p, f.q = a->q, f.columns = a->k;
        f.pad = a->pad;
    }
    f.tiles = winograd_tiles_of(a->n, f.p, f.q);
    f.chunks = winograd_ceiling(f.depth, WINOGRAD_DEPTH);
    f.panels = f.columns / kernels->columns;
    int64_t tile_floats = f.chunks * WINOGRAD_V_TILE + winograd_m_row(kernels->columns);
    int64_t most = BLOCK_BYTES / (tile_floats * (int64_t)sizeof(float));
    f.block_tiles = winograd_least(f.tiles.count, most > FEWEST_TILES ? most : FEWEST_TILES);
    f.by_panels = kernel->threads > 1 && f.tiles.count < kernel->threads * f.block_tiles;
    return f;
}

static int64_t scratch_floats(const filtering *f)
{
    return f->block_tiles * (f->chunks * WINOGRAD_V_TILE + winograd_m_row(f->kernels->columns)) +
           winograd_u_floats(f->kernels->columns);
}

static void transform_tile(const filtering *f, int64_t tile, float *v)
{
    cpu_patch patch = winograd_patch(&f->tiles, tile, f->h, f->w, f->depth, f->pad, WINOGRAD_PATCH);
    for (int64_t c = 0; c < f->depth; c += WINOGRAD_DEPTH, v += f->block_tiles * WINOGRAD_V_TILE)
        f->kernels->image(f->x + c, &patch, winograd_least(WINOGRAD_DEPTH, f->depth - c), v);
}

/* The block of weights from input channels `row` to output channels `column`, both in blocks. */
static const float *weights_at(const filtering *f, int64_t row, int64_t column)
{
    return f->weights +
           winograd_block(f->attributes, f->weights_block, f->turn ? column : row, f->turn ? row : column);
}

/* Weights from input channels [first, first + depth) to a panel. */
static void transform_weights(const filtering *f, int64_t first, int64_t depth, int64_t panel, float *u)
{
    int64_t b = f->weights_block, width = f->kernels->columns, across = width / b, down = depth / b;
    for (int64_t j = 0; j < across; j++)
        for (int64_t i = 0; i < down; i++) {
            int64_t row = first / b + i, column = panel * across + j;
            const float *next = i + 1 < down     ? weights_at(f, row + 1, column)
                                : j + 1 < across ? weights_at(f, first / b, column + 1)
                                                 : weights_at(f, row, column);
            f->kernels->weights(weights_at(f, row, column), next, b, f->turn, u + i * b * width + j * b);
        }
}

static void store_tile(const filtering *f, int64_t tile, int64_t panel, const float *m)
{
    int64_t column = panel * f->kernels->columns;
    cpu_patch patch = winograd_patch(&f->tiles, tile, f->p, f->q, f->columns, 0, WINOGRAD_TILE);
    f->kernels->output(m, f->bias ? f->bias + column : NULL, f->y + column, &patch);
}

static void filter_block(const filtering *f, int64_t tile, int64_t count, int64_t panel, int64_t panel_end,
                         float *v)
{
    int64_t columns = f->kernels->columns, chunk_floats = f->block_tiles * WINOGRAD_V_TILE;
    float *u = v + f->chunks * chunk_floats, *m = u + winograd_u_floats(columns);
    for (int64_t i = 0; i < count; i++) transform_tile(f, tile + i, v + i * WINOGRAD_V_TILE);
    for (; panel < panel_end; panel++) {
        for (int64_t chunk = 0; chunk < f->chunks; chunk++) {
            int64_t first = chunk * WINOGRAD_DEPTH, depth = winograd_least(WINOGRAD_DEPTH, f->depth - first);
            transform_weights(f, first, depth, panel, u);
            f->kernels->product(WINOGRAD_ROWS_TILES, count, depth, v + chunk * chunk_floats, u, chunk > 0, m);
        }
        for (int64_t i = 0; i < count; i++) store_tile(f, tile + i, panel, m + i * winograd_m_row(columns));
    }
}

static void filter_part(const void *context, int part, int64_t first, int64_t end)
{
    const filtering *f = context;
    int64_t tile = f->by_panels ? 0 : first, tile_end = f->by_panels ? f->tiles.count : end;
    int64_t panel = f->by_panels ? first : 0, panel_end = f->by_panels ? end : f->panels;
    int64_t count = tile_end - tile, blocks = winograd_ceiling(count, f->block_tiles);
    float *scratch = f->scratch + part * scratch_floats(f);
    for (int64_t i = 0; i < blocks; i++) {
        int64_t from = tile + count * i / blocks, to = tile + count * (i + 1) / blocks;
        filter_block(f, from, to - from, panel, panel_end, scratch);
    }
}

size_t conv2d_winograd_workspace(const host_kernel *kernel, conv2d_pass pass)
{
    filtering f = filtering_of(kernel, pass);
    return (size_t)(kernel->threads * scratch_floats(&f)) * sizeof(float);
}

void conv2d_winograd_run(const host_kernel *kernel, conv2d_pass pass, const cpu_layout *layout,
                         const conv2d_operands *o, void *workspace)
{
    filtering f = filtering_of(kernel, pass);
    f.weights_block = layout->block;
    f.weights = o->w;
    f.bias = o->b;
    f.x = f.turn ? o->y : o->x;
    f.y = f.turn ? o->x : o->y;
    f.scratch = workspace;
    cpu_parallel(kernel->threads, f.by_panels ? f.panels : f.tiles.count, 1, filter_part, &f);
}
