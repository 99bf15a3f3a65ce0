/* Draws the constants of a profile from their ranges. Predictions from several draws show how much the
 * uncertainty of the constants matters. */
#include "common/base/random.h"
#include "common/sim/profile.h"

#include <stdint.h>

/* Returns the position of a draw in the range of constant `name`, from 0 to 1. The positions of the SIM_DRAWS
 * draws are evenly spaced, in a random order that depends on `name` (Fisher-Yates shuffle). */
static double position(const char *name, int draw)
{
    enum { SEED = 1 };
    uint64_t start = random_start(SEED, random_fnv1a64(name));
    int order[SIM_DRAWS];
    for (int i = 0; i < SIM_DRAWS; i++) {
        int j = (int)random_below(start, (uint64_t)i, (uint64_t)i + 1);
        if (j < i) order[i] = order[j];
        order[j] = i;
    }
    return (double)order[draw - 1] / (SIM_DRAWS - 1);
}

double sim_draw_between(const char *name, int draw, double low, double best, double high)
{
    if (draw == 0) return best;
    double at = position(name, draw);
    return at < 0.5 ? low + (best - low) * 2 * at : best + (high - best) * (2 * at - 1);
}

void sim_profile_draw(sim_profile *p, int draw)
{
    for (int c = 0; draw > 0 && c < SIM_CONSTANT_COUNT; c++) {
        int group = c - SIM_CONVOLUTION_FORWARD < SIM_EFFICIENCIES && c >= SIM_CONVOLUTION_FORWARD
                        ? SIM_CONVOLUTION_FORWARD
                        : c;
        for (int i = 0; i < sim_constant_table[c].count; i++)
            p->values[c][i] = sim_draw_between(sim_constant_table[group].name, draw, p->low[c][i],
                                               p->values[c][i], p->high[c][i]);
    }
}
