/* The gradient with respect to weights by Winograd's filtering (isa.h): the transforms of x's patches and of
 * dy's tiles are multiplied over all tiles and transformed back once.
 *
 * The tiles are taken in batches of at most WINOGRAD_DEPTH, in turn: first all transforms, then all products,
 * chunk by chunk of x's channels and panel by panel of y's. More batches than one keep all their sums. A
 * sum's order is that of the tiles, whatever the number of threads. */
#include "common/device/cpu/parallel.h"
#include "common/device/cpu/winograd.h"

typedef struct weighing {
    const cpu_winograd *kernels;
    const conv2d_attributes *attributes;
    winograd_tiles tiles;
    int64_t chunks, panels, batches, batch_tiles;
    int64_t weights_block;
    bool add;
    const float *x, *dy;
    float *dw;
    float *v, *u;         /* [chunks][batch_tiles], [panels] */
    float *m;             /* [chunks][panels] with several batches, else [threads] */
    int64_t first, count; /* this batch's tiles */
} weighing;

static weighing weighing_of(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const cpu_winograd *kernels = cpu_isa_of(kernel)->winograd;
    weighing w = {.kernels = kernels, .attributes = a, .tiles = winograd_tiles_of(a->n, a->p, a->q)};
    w.chunks = winograd_ceiling(a->c, WINOGRAD_DEPTH);
    w.panels = a->k / kernels->columns;
    w.batches = winograd_ceiling(w.tiles.count, WINOGRAD_DEPTH);
    w.batch_tiles = winograd_ceiling(w.tiles.count, w.batches);
    return w;
}

static int64_t v_floats(const weighing *w)
{
    return w->chunks * w->batch_tiles * WINOGRAD_V_TILE;
}

static int64_t u_floats(const weighing *w)
{
    return w->panels * winograd_u_floats(w->kernels->columns);
}

/* Sums of one chunk and panel. */
static int64_t m_floats(const weighing *w)
{
    return WINOGRAD_DEPTH * winograd_m_row(w->kernels->columns);
}

/* Tiles [first, end) of the batch. */
static void transform_part(const void *context, int part, int64_t first, int64_t end)
{
    (void)part;
    const weighing *w = context;
    const conv2d_attributes *a = w->attributes;
    int64_t columns = w->kernels->columns, panel_floats = winograd_u_floats(columns);
    for (int64_t i = first; i < end; i++) {
        cpu_patch patch = winograd_patch(&w->tiles, w->first + i, a->h, a->w, a->c, a->pad, WINOGRAD_PATCH);
        for (int64_t chunk = 0; chunk < w->chunks; chunk++)
            w->kernels->image(w->x + chunk * WINOGRAD_DEPTH, &patch,
                              winograd_least(WINOGRAD_DEPTH, a->c - chunk * WINOGRAD_DEPTH),
                              w->v + (chunk * w->batch_tiles + i) * WINOGRAD_V_TILE);
        patch = winograd_patch(&w->tiles, w->first + i, a->p, a->q, a->k, 0, WINOGRAD_TILE);
        float *u = w->u + i * columns;
        for (int64_t panel = 0; panel < w->panels; panel++)
            w->kernels->gradient(w->dy + panel * columns, &patch, u + panel * panel_floats);
    }
}

static void store_weights(const weighing *w, int64_t chunk, int64_t panel, int64_t channels, const float *m)
{
    int64_t b = w->weights_block, columns = w->kernels->columns;
    for (int64_t j = 0; j < columns / b; j++)
        for (int64_t i = 0; i < channels / b; i++) {
            int64_t c = chunk * (WINOGRAD_DEPTH / b) + i, k = panel * (columns / b) + j;
            w->kernels->weights_output(m + i * b * winograd_m_row(columns) + j * b, b, w->add,
                                       w->dw + winograd_block(w->attributes, b, c, k));
        }
}

/* Pairs [first, end) of a chunk and a panel. */
static void multiply_part(const void *context, int part, int64_t first, int64_t end)
{
    const weighing *w = context;
    for (int64_t pair = first; pair < end; pair++) {
        int64_t chunk = pair / w->panels, panel = pair % w->panels;
        int64_t channels = winograd_least(WINOGRAD_DEPTH, w->attributes->c - chunk * WINOGRAD_DEPTH);
        float *m = w->m + (w->batches > 1 ? pair : part) * m_floats(w);
        w->kernels->product(WINOGRAD_ROWS_CHANNELS, channels, w->count,
                            w->v + chunk * w->batch_tiles * WINOGRAD_V_TILE,
                            w->u + panel * winograd_u_floats(w->kernels->columns), w->first > 0, m);
        if (w->first + w->count == w->tiles.count) store_weights(w, chunk, panel, channels, m);
    }
}

size_t conv2d_winograd_weights_workspace(const host_kernel *kernel)
{
    weighing w = weighing_of(kernel);
    int64_t sums = w.batches > 1 ? w.chunks * w.panels : kernel->threads;
    return (size_t)(v_floats(&w) + u_floats(&w) + sums * m_floats(&w)) * sizeof(float);
}

void conv2d_winograd_weights_run(const host_kernel *kernel, const cpu_layout *layout,
                                 const conv2d_operands *o, void *workspace)
{
    weighing w = weighing_of(kernel);
    w.weights_block = layout->block;
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
