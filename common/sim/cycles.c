#include "common/sim/rings.h"

#include <assert.h>
#include <string.h>

enum { STEPS_MOST = 400000 };

typedef struct search {
    /* `most` is the number of cycles that the links of the GPU with the fewest links allow */
    int n, most;
    int steps;
    int8_t left[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS]; /* number of links between two GPUs that no cycle uses yet */
    sim_cycles now, best;
} search;

/* Returns the GPU to try next after `at`. The next GPU is the one with the most unused links to `at`. If
 * several GPUs have equally many, the next GPU is the one with the lowest number. Returns -1 if all GPUs have
 * been tried. `used` and `tried` are bit sets of GPUs. */
static int next_choice(const search *s, int at, unsigned used, unsigned tried)
{
    int best = -1;
    for (int g = 0; g < s->n; g++) {
        if ((used | tried) >> g & 1 || s->left[at][g] == 0) continue;
        if (best < 0 || s->left[at][g] > s->left[at][best]) best = g;
    }
    return best;
}

static void extend(search *s, int length, unsigned used);

static void close_cycle(search *s, int last)
{
    if (s->left[last][0] == 0) return;
    s->left[last][0]--;
    s->now.count++;
    if (s->now.count > s->best.count) s->best = s->now;
    if (s->now.count < s->most) {
        s->now.order[s->now.count][0] = 0;
        extend(s, 1, 1);
    }
    s->now.count--;
    s->left[last][0]++;
}

static void extend(search *s, int length, unsigned used)
{
    int8_t *order = s->now.order[s->now.count];
    int at = order[length - 1];
    s->steps++;
    if (length == s->n) {
        close_cycle(s, at);
        return;
    }
    unsigned tried = 0;
    while (s->best.count < s->most && s->steps < STEPS_MOST) {
        int g = next_choice(s, at, used, tried);
        if (g < 0) return;
        tried |= 1u << g;
        order[length] = (int8_t)g;
        s->left[at][g]--;
        extend(s, length + 1, used | 1u << g);
        s->left[at][g]++;
    }
}

static int fewest_links(int n, const int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS])
{
    int fewest = SIM_CYCLES_MOST;
    for (int a = 0; a < n; a++) {
        int out = 0;
        for (int b = 0; b < n; b++) out += links[a][b];
        if (out < fewest) fewest = out;
    }
    return fewest;
}

void sim_find_cycles(int n, const int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS], sim_cycles *out)
{
    assert(n >= 2 && n <= SIM_CYCLE_GPUS);
    search s = {.n = n, .most = fewest_links(n, links)};
    memcpy(s.left, links, sizeof s.left);
    if (s.most > 0) extend(&s, 1, 1);
    *out = s.best;
}
