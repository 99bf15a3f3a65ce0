/* Work over the pieces that a launch names. */
#ifndef COMMON_DEVICE_CPU_PIECES_H
#define COMMON_DEVICE_CPU_PIECES_H

#include "common/device/cpu/kernel.h"
#include "common/memory/piece.h"

/* `count` elements from `offset` of the arena; a thread's calls all have its part's number. */
typedef void (*cpu_piece_function)(const void *job, int part, int64_t offset, int64_t count);

/* Cuts the pieces' elements, in order, into one part a thread. Returns the number of parts. */
int cpu_parallel_pieces(int threads, const op_scalars *scalars, cpu_piece_function run, const void *job);

#endif
