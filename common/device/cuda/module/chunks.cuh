/* Kernels that process a list of spans of elements. The list is a kernel argument (at most 4 KiB). Spans are
 * split into chunks. Each block processes one chunk, and finds the chunk's span by bisection. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CHUNKS_CUH
#define COMMON_DEVICE_CUDA_MODULE_CHUNKS_CUH

#include "common/device/cuda/module/kernel.cuh"

constexpr int CHUNK_THREADS = 256, CHUNK_EACH = 8, CHUNK = CHUNK_THREADS * CHUNK_EACH;

/* Span has a member `count`, its number of elements. */
template <typename Span> struct chunk_table {
    static constexpr int MOST = 3840 / (sizeof(Span) + sizeof(int64_t));
    int32_t count, chunks;
    struct {
        Span span;
        int64_t first_chunk;
    } at[MOST];

    /* Fills the table with spans from *next on, and advances *next. Returns false if no elements are left. */
    bool fill(const Span *spans, int span_count, int *next)
    {
        count = chunks = 0;
        for (; *next < span_count && count < MOST; ++*next) {
            if (spans[*next].count == 0) continue;
            at[count].span = spans[*next];
            at[count++].first_chunk = chunks;
            chunks += (int32_t)ceil_div(spans[*next].count, CHUNK);
        }
        return count > 0;
    }

    /* Returns the span of a chunk. Sets *first to the index of the chunk's first element in the span. */
    __device__ const Span &find(int64_t chunk, int64_t *first) const
    {
        int low = 0, high = count - 1;
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (at[middle].first_chunk <= chunk)
                low = middle;
            else
                high = middle - 1;
        }
        *first = (chunk - at[low].first_chunk) * CHUNK;
        return at[low].span;
    }
};

#endif
