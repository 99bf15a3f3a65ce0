#include "harness/options/option_effects.h"

#include "ring/policy.h"

#include <stdio.h>
#include <string.h>

/* ---- the table ---------------------------------------------------------------------------------- */

/* Columns of the table, as sets. Each policy of the parameter server counts as an engine, and --plan as a
 * device. */
enum {
    NO_ENGINE = 1,
    RING = 2,
    SYNC = 4,
    SSP = 8,
    ASYNC = 16,
    DP = 32,
    SERVERS = SYNC | SSP | ASYNC,
    PS = SERVERS | DP,
    SEVERAL = RING | PS, /* engines with several ranks */
    EVERY = NO_ENGINE | SEVERAL,

    CPU = 1,
    REFERENCE = 2,
    CUDA = 4,
    SIM = 8,
    PLAN = 16,
    HOSTS = CPU | REFERENCE,
    REAL = HOSTS | CUDA,
    RUNS = REAL | SIM,
    ALL = RUNS | PLAN
};

typedef enum effect_kind {
    EFFECT_REFUSED,     /* refused with STATUS_USAGE; `text` names the expected value */
    EFFECT_UNAVAILABLE, /* refused with STATUS_CONFIG; `text` names the expected value */
    EFFECT_REFUSED_BY_ENGINE,
    EFFECT_UNAVAILABLE_TO_ENGINE, /* like REFUSED and UNAVAILABLE, but the engine reads and refuses the value
                                   */
    EFFECT_NOTHING                /* `text` gives the reason */
} effect_kind;

typedef struct option_effect {
    const char *options;       /* names, separated by blanks */
    unsigned engines, devices; /* sets of columns */
    effect_kind kind;
    const char *text;
} option_effect;

#define NO_VALUES "virtual devices compute no values"
#define ONE_RANK "there is one rank"

/* Table of the effects. If several rows match an option, an engine and a device, the first row counts. */
static const option_effect table[] = {
    /* ---- run ---- */
    {"gpus", NO_ENGINE, ALL, EFFECT_REFUSED_BY_ENGINE, "1 with --mode none"},
    {"tf32", EVERY, HOSTS, EFFECT_REFUSED, "--device cuda or sim:PROFILE"},
    {"bf16", EVERY, REFERENCE, EFFECT_REFUSED, "--device cuda, cpu or sim:PROFILE"},
    {"fp16", EVERY, REAL, EFFECT_REFUSED, "--device sim:PROFILE"},
    {"benchmark cuda-graph share-gpu", EVERY, HOSTS | SIM | PLAN, EFFECT_REFUSED, "--device cuda"},
    {"cuda-graph", SERVERS, CUDA, EFFECT_UNAVAILABLE_TO_ENGINE, "none, ps=dp or ring with NCCL"},
    {"prefetch", EVERY, HOSTS, EFFECT_REFUSED, "--device cuda or sim:PROFILE"},
    {"accumulate", NO_ENGINE | RING | SERVERS, PLAN, EFFECT_NOTHING,
     "it changes no memory without --mixed-precision"},
    {"stages stages-on schedule remote-stage serve-stage", NO_ENGINE | PS, ALL, EFFECT_REFUSED,
     "--mode ring"},
    {"stages stages-on schedule", RING, CUDA, EFFECT_REFUSED, "--device cpu, reference or sim:PROFILE"},
    {"stages stages-on schedule remote-stage serve-stage", RING, PLAN, EFFECT_REFUSED,
     "a run without --plan"},
    {"remote-stage serve-stage", RING, CUDA | SIM, EFFECT_REFUSED, "--device cpu or reference"},
    {"policy", NO_ENGINE, ALL, EFFECT_REFUSED, "--mode ring, ps or both"},
    {"threads", EVERY, REFERENCE, EFFECT_NOTHING, "the reference device computes on one thread"},
    {"threads", NO_ENGINE | SSP | ASYNC | DP, CUDA, EFFECT_NOTHING, "the GPU computes"},
    {"repeat", EVERY, SIM, EFFECT_NOTHING, "all runs in virtual time are identical"},
    {"progress", DP, CUDA, EFFECT_NOTHING, "a separate thread copies between GPU and host"},
    {"jitter nodes adapters oversubscription gpu per-host nvlink topology efficiency draw loader-workers "
     "loader-rate dp-host dp-gather workload workload-out",
     EVERY, REAL, EFFECT_REFUSED, "--device sim:PROFILE"},
    {"dp-host dp-gather", NO_ENGINE | RING | SERVERS, SIM, EFFECT_NOTHING,
     "only dp has replicas in one process"},
    /* ---- synchronization ---- */
    {"divide", DP, ALL, EFFECT_UNAVAILABLE_TO_ENGINE, "policy, or --dp-loss replica"},
    {"divide", ASYNC, REAL, EFFECT_NOTHING, "an update reads the gradient of one rank"},
    {"divide", SEVERAL, SIM, EFFECT_NOTHING, NO_VALUES},
    {"stall-timeout", EVERY, SIM, EFFECT_NOTHING, "virtual ranks wait without a time limit"},
    {"link", NO_ENGINE, ALL, EFFECT_REFUSED, "--mode ring, ps or both"},
    /* ---- ring ---- */
    {"bucket-cap-mb first-bucket-mb message-size order launch broadcast-buffers bucket-view allreduce-fp32 "
     "predivide collective algorithm collective-table find-unused-parameters static-graph "
     "reduce-micro-batches comm-hook powersgd-rank powersgd-start join reshard mixed-precision group",
     NO_ENGINE | PS, ALL, EFFECT_REFUSED, "--mode ring or both"},
    {"allreduce-fp32", RING, CPU | CUDA | SIM, EFFECT_NOTHING, "gradients are float32"},
    /* ---- parameter server ---- */
    {"consistency staleness partition-bytes credit-bytes priority servers server-placement server-optimizer "
     "server-threads dp-loss dp-lifetimes keep-grads payload transport interface",
     NO_ENGINE | RING, ALL, EFFECT_REFUSED, "--mode ps or both"},
    {"consistency staleness partition-bytes credit-bytes priority servers server-placement server-optimizer",
     DP, ALL, EFFECT_REFUSED_BY_ENGINE, "ps=sync, ssp or async"},
    {"dp-loss dp-lifetimes keep-grads", SERVERS, ALL, EFFECT_REFUSED_BY_ENGINE, "ps=dp"},
    {"staleness", SYNC | ASYNC, ALL, EFFECT_REFUSED_BY_ENGINE, "0, or consistency ssp"},
    {"server-optimizer", SSP | ASYNC, ALL, EFFECT_UNAVAILABLE_TO_ENGINE, "on, or consistency sync"},
    {"server-threads", SERVERS, CUDA | SIM, EFFECT_NOTHING,
     "GPUs sum, unless --server-placement own, --server-optimizer off or a profile of a processor is given"},
    {"server-threads", DP, CUDA | SIM, EFFECT_NOTHING,
     "GPU 0 sums, unless a profile of a processor is given"},
    /* ---- one rank ---- */
    {"share-gpu", NO_ENGINE, CUDA, EFFECT_NOTHING, ONE_RANK},
    {"connect-timeout progress", NO_ENGINE, REAL, EFFECT_NOTHING, ONE_RANK},
    {"isolated", NO_ENGINE, REAL | PLAN, EFFECT_NOTHING, ONE_RANK},
    {"nodes adapters oversubscription per-host nvlink topology", NO_ENGINE, SIM, EFFECT_NOTHING, ONE_RANK},
    {"oversubscription", DP, SIM, EFFECT_NOTHING, "DataParallel is one process on one machine"},
    {"nvlink", SERVERS, SIM, EFFECT_NOTHING, "GPUs exchange data with servers over PCIe"},
    {"sync-batchnorm", NO_ENGINE, ALL, EFFECT_NOTHING, ONE_RANK},
    {"sampler divide", NO_ENGINE, RUNS, EFFECT_NOTHING, ONE_RANK},
    /* ---- virtual time ---- */
    {"seed loss-reduction predivide lr dampening nesterov weight-decay beta1 beta2 eps lr-schedule lr-warmup "
     "lr-steps lr-gamma",
     EVERY, SIM, EFFECT_NOTHING, NO_VALUES},
    {"nnodes node-rank master-addr master-port", NO_ENGINE, ALL, EFFECT_REFUSED, "--mode ring or ps"},
    {"threads bind eval-every target-loss target-accuracy rendezvous connect-timeout isolated progress "
     "nnodes node-rank master-addr master-port augment loader-threads on-nonfinite save save-every load "
     "collective collective-table transport interface",
     EVERY, SIM, EFFECT_UNAVAILABLE, "a real device"},
    /* ---- a plan ---- */
    {"steps epochs warmup eval-every target-loss target-accuracy", EVERY, PLAN, EFFECT_NOTHING,
     "a plan is made of two steps"},
    {"repeat", EVERY, PLAN, EFFECT_NOTHING, "a plan runs nothing"},
    {"workload-out", EVERY, PLAN, EFFECT_NOTHING, "a plan runs nothing"},
    {"report", EVERY, PLAN, EFFECT_NOTHING, "a plan has no steps to draw"},
    {"trace trace-steps", EVERY, PLAN, EFFECT_NOTHING, "a plan has no time"},
    {"verbose", EVERY, PLAN, EFFECT_NOTHING, "a plan is a table"},
    {"print-steps print-shapes", EVERY, PLAN, EFFECT_NOTHING, "a plan has no steps"},
    {"quiet log-level", EVERY, PLAN, EFFECT_NOTHING, "a plan writes no notes"},
    {"rendezvous connect-timeout", EVERY, PLAN, EFFECT_NOTHING, "a plan is made by one process"},
    {"node-rank master-addr master-port", SEVERAL, PLAN, EFFECT_NOTHING, "a plan is made by one process"},
    {"tf32 seed threads bind loss-reduction progress jitter nodes adapters oversubscription gpu per-host "
     "nvlink topology efficiency draw loader-workers loader-rate dp-host dp-gather sampler drop-last augment "
     "loader-threads lr dampening nesterov weight-decay beta1 beta2 eps lr-schedule lr-warmup lr-steps "
     "lr-gamma clip-norm on-nonfinite divide stall-timeout link slow save save-every load bucket-cap-mb "
     "first-bucket-mb message-size order launch broadcast-buffers allreduce-fp32 predivide collective "
     "algorithm collective-table find-unused-parameters static-graph reduce-micro-batches powersgd-start "
     "join partition-bytes credit-bytes priority server-threads payload transport interface",
     EVERY, PLAN, EFFECT_NOTHING, "it changes no memory"},
};

/* Returns the row of an option, or NULL if the option has an effect. */
static const option_effect *effect_of(const char *option, unsigned engine, unsigned device)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].engines & engine && table[i].devices & device &&
            run_option_is_among(option, table[i].options))
            return &table[i];
    return NULL;
}

/* ---- a run -------------------------------------------------------------------------------------- */

static unsigned column_of(const run_config *c, int engine)
{
    if (engine == ENGINE_NONE) return NO_ENGINE;
    if (engine != ENGINE_PS) return RING;
    const char *policy = c->policies[ENGINE_PS];
    return strcmp(policy, "ssp") == 0     ? SSP
           : strcmp(policy, "async") == 0 ? ASYNC
           : strcmp(policy, "dp") == 0    ? DP
                                          : SYNC;
}

static unsigned device_of(const run_config *c)
{
    if (run_config_is_virtual(c)) return SIM;
    return strcmp(c->run.device, "cuda") == 0        ? CUDA
           : strcmp(c->run.device, "reference") == 0 ? REFERENCE
                                                     : CPU;
}

static bool is_refused_here(const option_effect *e)
{
    return e && (e->kind == EFFECT_REFUSED || e->kind == EFFECT_UNAVAILABLE);
}

static status code_of(const option_effect *e)
{
    return e->kind == EFFECT_REFUSED || e->kind == EFFECT_REFUSED_BY_ENGINE ? STATUS_USAGE : STATUS_CONFIG;
}

/* Returns true if the user gave the option a value that differs from its default. A negative --eval-every
 * does not count on virtual devices, which evaluate nothing. */
static bool is_moved(const run_config *c, const option_binding *b, const option *o)
{
    bool never = strcmp(o->name, "eval-every") == 0 && c->run.eval_every.count < 0;
    return options_given(b, o->name) && !options_is_default(b, o->name) &&
           !(never && run_config_is_virtual(c));
}

/* Returns the row of an option that was given and that no engine of the run uses, or NULL if an engine uses
 * the option. If several engines have a row, the first one counts. */
static const option_effect *in_this_run(const run_config *c, const option_binding *b, const option *o)
{
    const option_effect *first = NULL;
    for (int e = 0; e < ENGINE_COUNT && is_moved(c, b, o); e++) {
        if (!run_config_uses(c, e)) continue;
        const option_effect *found = effect_of(o->name, column_of(c, e), device_of(c));
        if (!found) return NULL;
        if (!first) first = found;
    }
    return first;
}

status option_effects_check_device(const run_config *c)
{
    for (int b = 0; b < BINDING_COUNT; b++)
        for (size_t i = 0; i < c->bindings[b].table->count; i++) {
            const option *o = &c->bindings[b].table->options[i];
            const option_effect *e = NULL;
            bool refused = is_moved(c, &c->bindings[b], o);
            for (int engine = 0; engine < ENGINE_COUNT && refused; engine++) {
                if (!run_config_uses(c, engine)) continue;
                const option_effect *found = effect_of(o->name, column_of(c, engine), device_of(c));
                refused = is_refused_here(found);
                if (refused && found->devices != ALL) e = found;
            }
            if (refused && e)
                return fail(code_of(e), "--%s: expected %s, got %s%s", o->name, e->text,
                            strncmp(e->text, "--device", 8) == 0 ? "" : "--device ", c->run.device);
        }
    return STATUS_OK;
}

status option_effects_check_engines(const run_config *c)
{
    char mode[16];
    for (int b = 0; b < BINDING_COUNT; b++)
        for (size_t i = 0; i < c->bindings[b].table->count; i++) {
            const option *o = &c->bindings[b].table->options[i];
            const option_effect *e = in_this_run(c, &c->bindings[b], o);
            if (is_refused_here(e))
                return fail(code_of(e), "--%s: expected %s, got --mode %s", o->name, e->text,
                            options_format(&c->bindings[0], 0, mode, sizeof mode));
        }
    bool used = !c->run.policy;
    for (int e = 0; e < ENGINE_COUNT; e++)
        used =
            used || (run_config_uses(c, e) && engine_policies_of(c->run.policy, engine_table[e]->name, NULL));
    if (!used)
        return fail(STATUS_USAGE, "--policy: expected a policy of --mode %s, got '%s'",
                    options_format(&c->bindings[0], 0, mode, sizeof mode), c->run.policy);
    return STATUS_OK;
}

/* Notes policies of an engine that the run does not use. */
static void note_policies(const run_config *c)
{
    char mode[16];
    for (int e = 0; e < ENGINE_COUNT && c->run.policy; e++) {
        text_buffer unused = {0};
        if (!run_config_uses(c, e) && engine_policies_of(c->run.policy, engine_table[e]->name, &unused))
            log_info("--policy %s has no effect here: the mode is %s", unused.data,
                     options_format(&c->bindings[0], 0, mode, sizeof mode));
        text_free(&unused);
    }
}

/* Notes options that NCCL does not read. NCCL's calls run on the GPU, so no host thread adds gradients or
 * drives the calls. */
static void note_nccl(const run_config *c)
{
    ring_settings ring;
    if (device_of(c) != CUDA || c->run.mode != ENGINE_RING || c->run.plan) return;
    if (ring_settings_resolve((const void *)c->engine_options[ENGINE_RING], c->shared.divide,
                              c->policies[ENGINE_RING], &ring) != STATUS_OK ||
        (strcmp(ring.collective, "auto") != 0 && strcmp(ring.collective, "nccl") != 0))
        return;
    if (c->run.threads) log_info("--threads has no effect on a ring over NCCL: the GPU computes");
    if (c->run.inline_progress)
        log_info("--progress has no effect on a ring over NCCL: no host thread drives its calls");
}

void option_effects_note(const run_config *c)
{
    note_nccl(c);
    if (!c->run.plan) note_policies(c);
    for (int b = 0; b < BINDING_COUNT; b++)
        for (size_t i = 0; i < c->bindings[b].table->count && !c->run.plan; i++) {
            const option *o = &c->bindings[b].table->options[i];
            const option_effect *e = in_this_run(c, &c->bindings[b], o);
            if (e && e->kind == EFFECT_NOTHING)
                log_info("--%s %s no effect here: %s", o->name,
                         strstr(e->text, "unless") ? "may have" : "has", e->text);
        }
    if (c->run.remote_stage && c->run.eval_every.count >= 0)
        log_info("no evaluation: with --remote-stage no rank has the whole model");
}

void option_effects_note_plan(const run_config *c)
{
    for (int b = 0; b < BINDING_COUNT; b++)
        for (size_t i = 0; i < c->bindings[b].table->count; i++) {
            const option *o = &c->bindings[b].table->options[i];
            const option_effect *why = NULL;
            bool unused = is_moved(c, &c->bindings[b], o) && !run_option_is_among(o->name, "quiet log-level");
            for (unsigned engine = RING; engine <= DP && unused; engine <<= 1) {
                const option_effect *e = effect_of(o->name, engine, PLAN);
                unused = e != NULL;
                if (e && e->kind == EFFECT_NOTHING) why = e;
            }
            if (unused && why) log_info("--%s has no effect here: %s", o->name, why->text);
        }
}

/* ---- as text ------------------------------------------------------------------------------------ */

static void write_cell(const option_effect *e, text_buffer *out)
{
    if (!e)
        text_append(out, " yes |");
    else if (e->kind == EFFECT_NOTHING)
        text_append(out, " none: %s |", e->text);
    else
        text_append(out, " refused (%d): %s |", status_exit_code(code_of(e)), e->text);
}

static bool are_alike(const char *option, unsigned engine, unsigned other)
{
    for (unsigned device = CPU; device <= PLAN; device <<= 1) {
        const option_effect *a = effect_of(option, engine, device), *b = effect_of(option, other, device);
        if (a != b && !(a && b && a->kind == b->kind && strcmp(a->text, b->text) == 0)) return false;
    }
    return true;
}

/* Writes the rows of an option. Engines with equal cells share a row. */
static void write_option(const char *name, text_buffer *out)
{
    static const char *const engines[] = {"none", "ring", "ps=sync", "ps=ssp", "ps=async", "ps=dp"};
    unsigned written = 0;
    for (unsigned first = NO_ENGINE; first <= DP; first <<= 1) {
        unsigned row = 0;
        char list[80] = "";
        if (written & first) continue;
        for (size_t e = 0; e < sizeof engines / sizeof engines[0]; e++) {
            if (!are_alike(name, first, 1U << e)) continue;
            row |= 1U << e;
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", list[0] ? ", " : "",
                     engines[e]);
        }
        written |= row;
        text_append(out, "| `--%s` | %s |", name, row == EVERY ? "all" : list);
        for (unsigned device = CPU; device <= PLAN; device <<= 1)
            write_cell(effect_of(name, first, device), out);
        text_append(out, "\n");
    }
}

void option_effects_text(const option_binding *bindings, size_t count, text_buffer *out)
{
    text_append(out, "| option | engines | cpu | reference | cuda | sim | --plan |\n"
                     "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < bindings[b].table->count; i++)
            write_option(bindings[b].table->options[i].name, out);
}
