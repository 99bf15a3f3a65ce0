/* Reads a trace of torch.profiler, and finds its steps and the parts of one. */
#include "harness/workload/torch/trace.h"
#include "harness/workload/workload_impl.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    torch_trace t;
    torch_step *steps = NULL, *step;
    torch_names names;
    workload w = {0};
    int count = 0, fd = memfd_create("trace", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET) != 0) abort();
    if (workload_begin(&w, "fuzz", 1, 0) != STATUS_OK) abort();
    error_clear();
    if (torch_read_fd(fd, "f", &t) == STATUS_OK && torch_find_steps(&t, &steps, &count) == STATUS_OK) {
        int64_t sum = 0;
        if (torch_typical_step(&t, steps, count, &step) != STATUS_OK) abort();
        if (torch_split_time(&t, step) != STATUS_OK) abort();
        for (int i = 0; i < step->slice_count; i++)
            sum += step->slices[i].kernel_ns + step->slices[i].idle_ns;
        if (sum != step->end_ns - step->begin_ns) __builtin_trap();
        torch_add_parameters(&t, step, &w, &names);
    }
    torch_steps_free(&steps, count);
    torch_free(&t);
    workload_free(&w);
    return 0;
}
