#include "harness/sim/virtual_job_impl.h"

typedef struct host_parts {
    json_t *rows;
    const char *slowest;
    double slowest_s;
} host_parts;

/* Adds a row. A row whose name is indented is a portion of a part. Only parts can be the slowest. */
static void add(host_parts *p, const char *name, double s)
{
    json_array_append_new(p->rows, json_pack("{s:s, s:f}", "name", name, "time_s", s));
    if (name[0] == ' ' || s <= p->slowest_s) return;
    p->slowest = name;
    p->slowest_s = s;
}

/* Adds the time of rank 0's thread, without its wait for the loader. */
static void add_main_thread(host_parts *p, const virtual_host *h)
{
    const sim_profile *profile = h->simulation->profile;
    double total = 0, costs[STEP_PHASE_COUNT];
    for (int i = 0; i < STEP_PHASE_COUNT; i++) {
        costs[i] = (double)(trainer_log(h->trainer)->spent_ns[i] - h->before_ns[i]) / 1e9 / (double)h->steps;
        if (step_phase_cost((step_phase)i)) total += costs[i];
    }
    add(p, "main thread", total);
    for (int i = 0; i < STEP_PHASE_COUNT; i++) {
        char name[48];
        if (!step_phase_cost((step_phase)i)) continue;
        snprintf(name, sizeof name, "  %s", step_phase_cost((step_phase)i));
        add(p, name, costs[i]);
    }
    /* The share of "replicate" that a Python process spends on wiring replicas. */
    if (h->simulation->config.python && sim_profile_has(profile, SIM_PYTHON_WIRE))
        add(p, "  of replicate: wiring",
            sim_profile_get(profile, SIM_PYTHON_WIRE) * 1e-6 * h->replicas * h->parameters);
}

json_t *virtual_host_to_json(const virtual_host *h)
{
    const sim_loader_price *loader = &h->loader;
    if (!h->trainer || h->steps < 1 || (loader->workers_time == 0 && h->replicas == 0)) return NULL;
    host_parts p = {.rows = json_array()};
    if (loader->workers_time > 0) {
        add(&p, "loader workers", sim_to_ms(loader->workers_time) / 1e3);
        add(&p, "  decode and transform", sim_to_ms(loader->decode) / 1e3);
        add(&p, "  collate", sim_to_ms(loader->collate) / 1e3);
        add(&p, "pinning thread", sim_to_ms(loader->pin) / 1e3);
    }
    if (h->replicas) add_main_thread(&p, h);
    return json_pack("{s:o, s:s}", "parts", p.rows, "slowest", p.slowest);
}
