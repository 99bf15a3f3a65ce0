/* Rings over point-to-point links: as many cycles through all GPUs as the links carry side by side, each link
 * of a direction used by one cycle (the search of NCCL's channels, in the small). */
#ifndef COMMON_SIM_CYCLES_H
#define COMMON_SIM_CYCLES_H

#include "common/sim/profile.h"

#include <stdint.h>

enum { SIM_CYCLE_GPUS = SIM_GPUS_MOST, SIM_CYCLES_MOST = SIM_NICS_MOST };

typedef struct sim_cycles {
    int count;
    int8_t order[SIM_CYCLES_MOST][SIM_CYCLE_GPUS]; /* each begins with GPU 0 */
} sim_cycles;

/* links[a][b]: parallel links from a to b, among n >= 2 GPUs. The search is bounded: it finds the most that
 * there can be on the machines that are built, and else the most that it saw. */
void sim_find_cycles(int n, const int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS], sim_cycles *out);

#endif
