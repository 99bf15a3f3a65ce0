#include "harness/sim/virtual_host.h"

#include "common/sim/price.h"

#include <string.h>

void virtual_host_begin(virtual_host *h, const trainer *t)
{
    h->trainer = t;
    memcpy(h->before_ns, trainer_log(t)->spent_ns, sizeof h->before_ns);
}

typedef struct longest {
    const char *name;
    double s;
} longest;

static void add(json_t *rows, const char *name, double s)
{
    json_array_append_new(rows, json_pack("{s:s, s:f}", "name", name, "time_s", s));
}

static void take(longest *l, const char *name, double s)
{
    if (s > l->s) *l = (longest){name, s};
}

static void add_loader(const virtual_host *h, json_t *rows, longest *slowest)
{
    sim_loader_price p = sim_price_loader(h->simulation->profile, h->samples, h->bytes, h->workers);
    double workers = sim_to_ms(p.workers_time) / 1e3, pin = sim_to_ms(p.pin) / 1e3;
    add(rows, "loader workers", workers);
    add(rows, "  decode and transform", sim_to_ms(p.decode) / 1e3);
    add(rows, "  collate", sim_to_ms(p.collate) / 1e3);
    add(rows, "pinning thread", pin);
    take(slowest, "loader workers", workers);
    take(slowest, "pinning thread", pin);
}

/* Adds the share of "replicate" that a Python process spends on wiring replicas. */
static void add_interpreter(const virtual_host *h, json_t *rows)
{
    const sim_profile *p = h->simulation->profile;
    if (!h->simulation->config.python || !sim_profile_has(p, SIM_PYTHON_WIRE)) return;
    add(rows, "  of replicate: wiring",
        sim_profile_get(p, SIM_PYTHON_WIRE) * 1e-6 * h->replicas * h->parameters);
}

/* Adds the time of rank 0's thread, without its wait for the loader. */
static void add_main_thread(const virtual_host *h, json_t *rows, longest *slowest)
{
    double total = 0, parts[STEP_PHASE_COUNT];
    for (int i = 0; i < STEP_PHASE_COUNT; i++) {
        parts[i] = (double)(trainer_log(h->trainer)->spent_ns[i] - h->before_ns[i]) / 1e9 / (double)h->steps;
        if (step_phase_cost((step_phase)i)) total += parts[i];
    }
    add(rows, "main thread", total);
    take(slowest, "main thread", total);
    for (int i = 0; i < STEP_PHASE_COUNT; i++) {
        char name[48];
        if (!step_phase_cost((step_phase)i)) continue;
        snprintf(name, sizeof name, "  %s", step_phase_cost((step_phase)i));
        add(rows, name, parts[i]);
    }
    add_interpreter(h, rows);
}

json_t *virtual_host_to_json(const virtual_host *h)
{
    longest slowest = {0};
    json_t *rows = json_array();
    if (!h->trainer || h->steps < 1 || (h->workers == 0 && h->replicas == 0)) {
        json_decref(rows);
        return NULL;
    }
    if (h->workers) add_loader(h, rows, &slowest);
    if (h->replicas) add_main_thread(h, rows, &slowest);
    return json_pack("{s:o, s:s}", "parts", rows, "slowest", slowest.name);
}
