#include "common/device/host/host.h"

#include <stdlib.h>
#include <string.h>

status host_prepare(device *d, const op_desc *op, const device_layout *layout, const host_kernel_entry *entry,
                    device_kernel **out)
{
    host_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return fail(STATUS_SYSTEM, "no memory for a kernel");
    *kernel = (host_kernel){.base = {.device = d, .op = *op}, .entry = entry, .threads = d->config.threads};
    *out = &kernel->base;
    if (entry->open) TRY(entry->open(kernel, layout));
    if (entry->workspace) kernel->base.workspace = entry->workspace(kernel);
    return STATUS_OK;
}

void host_release(device_kernel *base)
{
    host_kernel *kernel = (host_kernel *)base;
    if (kernel->entry->close) kernel->entry->close(kernel);
    free(kernel);
}

status host_launch(device_stream *s, device_kernel *base, void *const *operands, const op_scalars *scalars,
                   void *workspace)
{
    const host_kernel *kernel = (const host_kernel *)base;
    kernel->entry->run(&(host_call){kernel, &base->op, operands, scalars, workspace});
    return STATUS_OK;
}

void host_keep_layout(device *d, const conv2d_attributes *a, device_layout *out)
{
}

/* ---- rows ------------------------------------------------------------------------------------- */

static int64_t selected_row(const rows_attributes *a, const int32_t *index, int64_t i)
{
    return a->every > 0 ? i * a->every : index[i];
}

void host_gather_rows(const host_call *call)
{
    const rows_attributes *a = &call->op->u.rows;
    const char *x = call->operands[ROWS_GATHER_X];
    char *y = call->operands[ROWS_GATHER_Y];
    int64_t bytes = a->hidden * dtype_size(call->op->type);
    for (int64_t i = 0; i < host_rows(call, a->selected); i++)
        memcpy(y + i * bytes, x + selected_row(a, call->operands[ROWS_GATHER_INDEX], i) * bytes,
               (size_t)bytes);
}

void host_scatter_rows(const host_call *call)
{
    const rows_attributes *a = &call->op->u.rows;
    const char *dy = call->operands[ROWS_SCATTER_DY];
    char *dx = call->operands[ROWS_SCATTER_DX];
    int64_t bytes = a->hidden * dtype_size(call->op->type);
    memset(dx, 0, (size_t)(a->rows * bytes));
    for (int64_t i = 0; i < host_rows(call, a->selected); i++)
        memcpy(dx + selected_row(a, call->operands[ROWS_SCATTER_INDEX], i) * bytes, dy + i * bytes,
               (size_t)bytes);
}

/* ---- concatenation ------------------------------------------------------------------------------ */

void host_concat_rows(const host_call *call, int64_t first, int64_t end)
{
    const concat_attributes *a = &call->op->u.concat;
    bool forward = call->op->kind == OP_concat_forward;
    int64_t size = dtype_size(call->op->type), whole = 0, before = 0;
    for (int i = 0; i < CONCAT_MOST; i++) whole += a->c[i] * size;
    for (int i = 0; i < CONCAT_MOST; before += a->c[i] * size, i++) {
        int64_t bytes = a->c[i] * size;
        /* The whole tensor: y, or dy. */
        char *all = (char *)call->operands[CONCAT_FWD_Y] + first * whole + before;
        char *part = call->operands[CONCAT_FWD_X + i];
        if (!part || !bytes) continue;
        part += first * bytes;
        for (int64_t row = first; row < end; row++, all += whole, part += bytes)
            memcpy(forward ? all : part, forward ? part : all, (size_t)bytes);
    }
}

void host_concat(const host_call *call)
{
    host_concat_rows(call, 0, call->op->u.concat.rows);
}
