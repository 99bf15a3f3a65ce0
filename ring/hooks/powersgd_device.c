#include "ring/hooks/powersgd_module.h"

#include "common/device/cuda/cuda_module.h"

status powersgd_module_open(const powersgd_module **out)
{
    TRY(cuda_module_find(POWERSGD_MODULE_SYMBOL, (const void **)out));
    if (*out && (*out)->version == POWERSGD_MODULE_VERSION) return STATUS_OK;
    return fail(STATUS_UNAVAILABLE, "--comm-hook: powersgd is not in the module of the device cuda");
}

status powersgd_start_on_device(device *d, device_stream *s, const powersgd_matrix *x, int rank,
                                const char *name, const device_layout *layout, float *scratch)
{
    int64_t elements = x->rows * x->cols;
    float *q = scratch, *column = scratch + elements, *placed = scratch + 2 * elements;
    powersgd_matrix host = {.rows = 0, .cols = x->cols, .q = q};
    powersgd_start(&host, rank, name);
    if (!layout->plain) {
        for (int64_t i = 0; i < elements; i++) placed[i] = (float)(i % x->cols); /* exact: cols < 2^24 */
        /* For each position in the layout, row 0 of `column` becomes the number of the column in PyTorch's
         * order. */
        TRY(device_layout_pack(d, layout, placed, column));
        for (int k = 0; k < rank; k++)
            for (int64_t j = 0; j < x->cols; j++)
                placed[k * x->cols + j] = q[k * x->cols + (int64_t)column[j]];
        q = placed;
    }
    TRY(device_upload(s, x->q, q, DTYPE_F32, DTYPE_F32, rank * x->cols));
    TRY(device_clear(s, x->error, (size_t)elements * sizeof(float)));
    return device_stream_synchronize(s);
}
