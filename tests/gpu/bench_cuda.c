/* bench_cuda [ELEMENTS]: measures how much of the GPU's memory bandwidth the passes over an arena reach.
 * Prints a JSON object: GB/s of a copy, of SGD with momentum and of Adam, and the rates of both optimizers
 * divided by the rate of the copy. A rate is the median of several launches, timed by the GPU's clock. */
#include "common/device/device.h"
#include "common/memory/piece.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAUNCHES = 21, WARM_UP = 3, ARENAS = 4 };

typedef struct bench {
    device *device;
    device_stream *stream;
    device_memory arenas[ARENAS];
    int64_t count;
} bench;

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Launches `kernel`, or a copy if `kernel` is NULL. Sets *gb_s to the rate of the median launch. */
static status measure(bench *b, device_kernel *kernel, double bytes, double *gb_s)
{
    int64_t times[LAUNCHES];
    piece all = {0, b->count};
    op_scalars scalars = {.learning_rate = 1e-3,
                          .gradient_scale = 1,
                          .bias_correction1 = 0.1,
                          .bias_correction2 = 0.001,
                          .pieces = &all,
                          .piece_count = 1};
    void *operands[OP_MAX_OPERANDS] = {b->arenas[0].data, b->arenas[1].data, b->arenas[2].data,
                                       b->arenas[3].data};
    for (int i = 0; i < LAUNCHES + WARM_UP; i++) {
        TRY(device_mark(b->stream, 1));
        if (kernel)
            TRY(device_launch(b->stream, kernel, operands, &scalars, NULL));
        else
            TRY(device_convert(b->stream, operands[0], DTYPE_F32, operands[1], DTYPE_F32, b->count, 1));
        TRY(device_mark(b->stream, 2));
        TRY(device_stream_synchronize(b->stream));
        if (i >= WARM_UP) times[i - WARM_UP] = device_mark_ns(b->stream, 2) - device_mark_ns(b->stream, 1);
    }
    qsort(times, LAUNCHES, sizeof times[0], by_value);
    *gb_s = bytes / (double)times[LAUNCHES / 2];
    return STATUS_OK;
}

static status run(bench *b)
{
    device_config config = {.name = "cuda", .world = 1, .threads = 1};
    op_desc sgd = {.kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = b->count, .momentum = 0.9}};
    op_desc adam = {.kind = OP_adam,
                    .type = DTYPE_F32,
                    .u.optimizer = {.count = b->count, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}};
    device_kernel *kernels[2];
    double element = (double)(b->count * (int64_t)sizeof(float)), copy, with_sgd, with_adam;
    TRY(device_open(&config, &b->device));
    TRY(device_stream_open(b->device, DEVICE_STREAM_COMPUTE, &b->stream));
    for (int i = 0; i < ARENAS; i++)
        TRY(device_allocate(b->device, DEVICE_MEMORY_PRIVATE, (size_t)element, &b->arenas[i]));
    TRY(device_prepare(b->device, &sgd, NULL, &kernels[0]));
    TRY(device_prepare(b->device, &adam, NULL, &kernels[1]));
    TRY(measure(b, NULL, 2 * element, &copy));
    TRY(measure(b, kernels[0], 5 * element, &with_sgd));  /* reads 3, writes 2 */
    TRY(measure(b, kernels[1], 7 * element, &with_adam)); /* reads 4, writes 3 */
    printf("{\"device\": \"%s\", \"elements\": %lld, \"copy_gb_s\": %.1f, \"sgd_gb_s\": %.1f, \"adam_gb_s\": "
           "%.1f, "
           "\"sgd_of_copy\": %.3f, \"adam_of_copy\": %.3f}\n",
           device_get_info(b->device)->description, (long long)b->count, copy, with_sgd, with_adam,
           with_sgd / copy, with_adam / copy);
    for (int i = 0; i < 2; i++) device_release(&kernels[i]);
    for (int i = 0; i < ARENAS; i++) device_free(b->device, &b->arenas[i]);
    device_stream_close(&b->stream);
    device_close(&b->device);
    return STATUS_OK;
}

int main(int argc, char *argv[])
{
    bench b = {.count = argc > 1 ? atoll(argv[1]) : 64 << 20};
    status rc = run(&b);
    if (rc != STATUS_OK) fprintf(stderr, "bench_cuda: %s\n", error_message());
    return status_exit_code(rc);
}
