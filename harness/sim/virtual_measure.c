#include "harness/sim/virtual_measure.h"

#include "common/base/clock.h"

#include <string.h>

typedef struct measuring {
    virtual_figures *figures;
    sync_counters before[VIRTUAL_LEDGERS];
} measuring;

static double ms(int64_t ns)
{
    return (double)ns / (double)NS_PER_MS;
}

static void raise(double *most, double value)
{
    if (value > *most) *most = value;
}

static status on_opened(void *context, simulation *s)
{
    ((measuring *)context)->figures->ranks = simulation_present(s);
    return STATUS_OK;
}

static void on_measures(void *context, int rank, trainer *t)
{
    measuring *m = context;
    ledger_reset_peaks(trainer_ledger(t));
    if (rank >= VIRTUAL_LEDGERS) return;
    sync_engine *e = trainer_engine(t);
    sync_read_counters(e, &m->before[rank]);
}

static void on_step(void *context, int rank, trainer *t, const step_result *r)
{
    virtual_figures *f = ((measuring *)context)->figures;
    (void)rank, (void)t;
    int64_t reduced = r->reduced_ns > r->backward_end_ns ? r->reduced_ns : r->backward_end_ns;
    raise(&f->step_ms, ms(r->times.total));
    raise(&f->forward_ms, ms(r->forward_end_ns - r->forward_begin_ns));
    raise(&f->backward_ms, ms(reduced - r->backward_begin_ns));
    raise(&f->exposed_ms, ms(r->times.exposed + r->times.waiting));
}

static status on_finished(void *context, int rank, trainer *t)
{
    measuring *m = context;
    virtual_figures *f = m->figures;
    const ledger *l = trainer_ledger(t);
    if (l->total.peak > f->most_bytes) f->most_bytes = l->total.peak;
    if (l->total.peak < f->least_bytes || rank == 0) f->least_bytes = l->total.peak;
    if (rank >= VIRTUAL_LEDGERS) return STATUS_OK;
    sync_engine *e = trainer_engine(t);
    if (rank == 0) f->has_dp = ps_dp_read_sizes(e, &f->dp);
    sync_counters now;
    sync_read_counters(e, &now);
    if (rank == 0) f->all_bytes_sent = now.bytes_sent;
    int64_t sent = now.bytes_sent - m->before[rank].bytes_sent;
    if (sent > f->bytes_sent) f->bytes_sent = sent;
    f->ledgers[rank] = *l;
    return STATUS_OK;
}

/* ---- engines ---------------------------------------------------------------------------------- */

static int engine_of(const char *policy)
{
    for (int e = 0; policy && e < ENGINE_COUNT; e++)
        for (int p = 0; p < engine_table[e]->policy_count; p++)
            if (strcmp(engine_table[e]->policies[p].name, policy) == 0) return e;
    return ENGINE_NONE;
}

static status set_options(const virtual_workload *w, option_binding *binding)
{
    char name[64];
    TRY(options_defaults(binding, 1));
    for (const char *const *at = w->engine_settings; at && *at; at++) {
        size_t length = strcspn(*at, "=");
        if (length >= sizeof name)
            return fail(STATUS_INTERNAL, "an engine's setting: expected a shorter word, got %s", *at);
        memcpy(name, *at, length);
        name[length] = '\0';
        TRY(options_set(binding, 1, name, *at + length + ((*at)[length] == '=')));
    }
    return STATUS_OK;
}

/* ---- measuring -------------------------------------------------------------------------------- */

static status run(const virtual_workload *w, const nn_model *model, virtual_figures *out)
{
    enum { STEPS = 3 };
    _Alignas(16) char options[ENGINE_OPTIONS_SIZE];
    int engine = engine_of(w->policy);
    option_binding binding = {.table = engine_table[engine]->options, .storage = options};
    data_form form = data_form_of_model(model);
    dataset_config data = {.spec = "synthetic", .seed = 1, .model = &form};
    data.synthetic_samples[DATA_TRAIN] = w->batch * w->machine.world * STEPS;
    if (binding.table) TRY(set_options(w, &binding));
    dataset *set = NULL;
    TRY(dataset_open(&data, &set));
    int64_t steps = w->steps ? w->steps : STEPS;
    data_options batches = {.batch = w->batch};
    measuring m = {.figures = out};
    virtual_job_config config = {
        .machine = w->machine,
        .trainer = {.model = model,
                    .engine = engine_table[engine],
                    .engine_options = options,
                    .policy = w->policy ? w->policy : engine_table[engine]->policies[0].name,
                    .optimizer = &w->optimizer,
                    .separate_phases = w->separate_phases,
                    .stall_timeout_ns = 60 * NS_PER_S,
                    .total_steps = steps},
        .set = set,
        .data = &batches,
        .by_symmetry = w->by_symmetry,
        .warmup = steps - 1};
    virtual_job_observer observer = {.context = &m,
                                     .opened = on_opened,
                                     .measures = on_measures,
                                     .step = on_step,
                                     .finished = on_finished};
    status rc = virtual_job_run(&config, &observer);
    dataset_close(&set);
    return rc;
}

status virtual_measure(const virtual_workload *w, virtual_figures *out)
{
    nn_model *model = NULL;
    memset(out, 0, sizeof *out);
    TRY(model_build(&w->model, &model));
    status rc = run(w, model, out);
    nn_model_free(&model);
    return rc;
}
