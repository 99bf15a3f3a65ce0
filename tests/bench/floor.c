#include "tests/bench/floor.h"

#include <string.h>

enum { REPEATS = 7, MOST = 3, MARK_BEGIN = 1, MARK_END = 2 };

/* Sizes that fill a device: the side of the square matrices, and the number of elements of the tensors. */
typedef struct floor_size {
    int64_t side, elements;
} floor_size;

static floor_size size_for(const device_info *info)
{
    if (strstr(info->description, "EMULATED")) return (floor_size){32, 4096};
    return info->host_addressable ? (floor_size){1024, 16 << 20} : (floor_size){8192, 64 << 20};
}

/* Returns the shortest time of an operation on fresh memory. Operand slots[i] has sizes[i] elements. */
static status best_time(device *d, device_stream *s, const op_desc *op, const int64_t sizes[MOST],
                        const int slots[MOST], double *best)
{
    device_kernel *kernel = NULL;
    device_memory memory[MOST] = {{.fd = -1}, {.fd = -1}, {.fd = -1}}, workspace = {.fd = -1};
    void *operands[OP_MAX_OPERANDS] = {0};
    op_scalars scalars = {0};
    status rc;
    TRY_GOTO(rc, device_prepare(d, op, NULL, &kernel), out);
    TRY_GOTO(rc, device_allocate(d, DEVICE_MEMORY_PRIVATE, device_kernel_workspace(kernel), &workspace), out);
    for (int i = 0; i < MOST; i++) {
        size_t bytes = (size_t)(sizes[i] * dtype_size(op->type));
        TRY_GOTO(rc, device_allocate(d, DEVICE_MEMORY_PRIVATE, bytes, &memory[i]), out);
        operands[slots[i]] = memory[i].data;
    }
    for (int i = 0; i < REPEATS; i++) {
        TRY_GOTO(rc, device_mark(s, MARK_BEGIN), out);
        TRY_GOTO(rc, device_launch(s, kernel, operands, &scalars, workspace.data), out);
        TRY_GOTO(rc, device_mark(s, MARK_END), out);
        TRY_GOTO(rc, device_stream_synchronize(s), out);
        double ns = (double)(device_mark_ns(s, MARK_END) - device_mark_ns(s, MARK_BEGIN));
        if (i == 0 || ns < *best) *best = ns;
    }
out:
    for (int i = 0; i < MOST; i++) device_free(d, &memory[i]);
    device_free(d, &workspace);
    device_release(&kernel);
    return rc;
}

status bench_floor_measure(device *d, device_stream *s, bench_floor *out)
{
    static const int product_slots[MOST] = {LINEAR_FWD_X, LINEAR_FWD_W, LINEAR_FWD_Y},
                     sum_slots[MOST] = {ADD_A, ADD_B, ADD_Y};
    floor_size size = size_for(device_get_info(d));
    int64_t square = size.side * size.side, product_sizes[MOST] = {square, square, square};
    int64_t sum_sizes[MOST] = {size.elements, size.elements, size.elements};
    dtype type = device_get_info(d)->compute_type;
    op_desc product, sum;
    memset(&product, 0, sizeof product);
    memset(&sum, 0, sizeof sum);
    product.kind = OP_linear_forward;
    product.u.linear = (linear_attributes){.m = size.side, .in = size.side, .out = size.side};
    sum.kind = OP_add;
    sum.u.elementwise.count = size.elements;
    product.type = sum.type = type;
    double product_ns = 1, sum_ns = 1;
    TRY(best_time(d, s, &product, product_sizes, product_slots, &product_ns));
    TRY(best_time(d, s, &sum, sum_sizes, sum_slots, &sum_ns));
    op_cost cost = op_cost_of(&sum);
    double flops = op_cost_of(&product).flops / product_ns,
           bytes = (cost.bytes_read + cost.bytes_written) / sum_ns;
    if (flops > out->flops_per_ns) out->flops_per_ns = flops;
    if (bytes > out->bytes_per_ns) out->bytes_per_ns = bytes;
    return STATUS_OK;
}

double bench_floor_ns(const bench_floor *f, const op_desc *op)
{
    op_cost cost = op_cost_of(op);
    double arithmetic = cost.flops / f->flops_per_ns,
           traffic = (cost.bytes_read + cost.bytes_written) / f->bytes_per_ns;
    return arithmetic > traffic ? arithmetic : traffic;
}
