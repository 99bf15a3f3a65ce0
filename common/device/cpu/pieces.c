#include "common/device/cpu/pieces.h"

#include "common/device/cpu/parallel.h"

typedef struct pieces_job {
    piece_list list;
    cpu_piece_function run;
    const void *job;
} pieces_job;

/* Elements [first, end) of those that the list names. */
static void run_part(const void *context, int part, int64_t first, int64_t end)
{
    const pieces_job *all = context;
    int64_t position = 0;
    for (int i = 0; i < all->list.count && position < end; i++) {
        piece p = all->list.pieces[i];
        int64_t begin = first > position ? first - position : 0;
        int64_t until = end - position < p.count ? end - position : p.count;
        if (begin < until) all->run(all->job, part, p.offset + begin, until - begin);
        position += p.count;
    }
}

int cpu_parallel_pieces(int threads, const op_scalars *scalars, cpu_piece_function run, const void *job)
{
    pieces_job all = {{scalars->pieces, scalars->piece_count}, run, job};
    return cpu_parallel(threads, piece_list_elements(all.list), CPU_GRAIN, run_part, &all);
}
