#include "harness/options/run_options.h"

#include "common/base/text.h"
#include "common/device/cuda/cuda_module.h"
#include "common/net/status_table.h"
#include "common/pipeline/schedule.h"
#include "common/sim/profile.h"
#include "common/sync/straggler.h"
#include "harness/launch/environment.h"
#include "harness/launch/processors.h"
#include "harness/options/option_effects.h"
#include "ring/policy.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status run_config_init(run_config *c)
{
    *c = (run_config){.processors = processors_usable()};
    option_binding *b = c->bindings;
    *b++ = (option_binding){.table = &run_option_table, .storage = &c->run};
    *b++ = (option_binding){.table = &model_option_table, .storage = &c->model};
    *b++ = (option_binding){.table = &data_option_table, .storage = &c->data};
    *b++ = (option_binding){.table = &optimizer_option_table, .storage = &c->optimizer};
    *b++ = (option_binding){.table = &shared_option_table, .storage = &c->shared};
    *b++ = (option_binding){.table = &checkpoint_option_table, .storage = &c->checkpoint};
    for (int e = 0; e < ENGINE_COUNT; e++) {
        if (engine_table[e]->options_size > ENGINE_OPTIONS_SIZE)
            return fail(STATUS_INTERNAL, "engine %s has %zu bytes of options", engine_table[e]->name,
                        engine_table[e]->options_size);
        *b++ = (option_binding){.table = engine_table[e]->options, .storage = c->engine_options[e]};
    }
    return options_defaults(c->bindings, BINDING_COUNT);
}

status run_config_link(const run_config *c, net_link *out)
{
    bool rate_only = run_config_is_virtual(c) && c->shared.link && !strchr(c->shared.link, ',');
    *out = (net_link){0};
    return rate_only ? text_parse_rate("--link", c->shared.link, &out->bytes_per_second)
                     : net_link_parse(c->shared.link, out);
}

status run_config_per_machine(const run_config *c, int *out)
{
    sim_profile *p = NULL;
    TRY(sim_profile_load(run_config_profile(c), &p));
    int machines = c->run.nodes ? (int)c->run.nodes : ((int)c->run.gpus - 1) / p->wiring.gpus + 1;
    *out = (int)c->run.gpus / machines;
    sim_profile_free(&p);
    return STATUS_OK;
}

bool run_config_is_on_cpu(const run_config *c)
{
    return strcmp(c->run.device, "cpu") == 0 || strcmp(c->run.device, "reference") == 0;
}

bool run_config_is_virtual(const run_config *c)
{
    return strncmp(c->run.device, "sim", 3) == 0 && (c->run.device[3] == '\0' || c->run.device[3] == ':');
}

const char *run_config_profile(const run_config *c)
{
    return c->run.device[3] == ':' && c->run.device[4] ? c->run.device + 4 : SIM_DEFAULT_PROFILE;
}

status run_config_name_cluster(run_config *c)
{
    const run_options *r = &c->run;
    bool any = strcmp(r->device, "auto") == 0, chosen = any || strcmp(r->device, "sim") == 0;
    bool wired = r->per_host || r->nvlink || r->topology;
    if (!r->gpu && wired && (any || run_config_is_virtual(c)))
        return fail(STATUS_USAGE,
                    "--gpu: expected a name with --per-host, --nvlink or --topology; see harness profiles");
    if (!r->gpu) return STATUS_OK;
    text_buffer name = {0};
    text_append(&name, "sim:%s:%s", r->gpu, r->nvlink ? "nvlink," : r->topology ? "" : "pcie,");
    if (r->per_host) text_append(&name, "per-host=%d,", (int)r->per_host);
    if (r->adapters) text_append(&name, "adapters=%d,", (int)r->adapters);
    if (r->topology) text_append(&name, "topology=%s,", r->topology);
    bool fits = !name.out_of_memory && name.length < sizeof c->cluster;
    if (fits) snprintf(c->cluster, sizeof c->cluster, "%.*s", (int)name.length - 1, name.data); /* no comma */
    text_free(&name);
    if (!fits) return fail(STATUS_USAGE, "--topology: expected a shorter path");
    if (!chosen && run_config_is_virtual(c) && strcmp(r->device, c->cluster) != 0)
        return fail(STATUS_USAGE, "--gpu: unexpected with --device %s, which names the machines", r->device);
    if (chosen) c->run.device = c->cluster;
    return STATUS_OK;
}

static status check_device(const run_config *c)
{
#define DEVICE_OPTION(name, option) option,
    static const char *const devices[] = {"auto", DEVICE_LIST(DEVICE_OPTION)};
#undef DEVICE_OPTION
    enum { COUNT = sizeof devices / sizeof devices[0] };
    if (c->run.tf32 && c->run.bf16) return fail(STATUS_USAGE, "--bf16: unexpected with --tf32");
    if (c->run.fp16 && (c->run.tf32 || c->run.bf16))
        return fail(STATUS_USAGE, "--fp16: unexpected with --%s", c->run.tf32 ? "tf32" : "bf16");
    if (run_config_is_virtual(c)) return STATUS_OK;
    if (c->run.gpus > JOB_MOST_RANKS)
        return fail(STATUS_USAGE, "--gpus: expected 1 to %d (more only on virtual devices), got %lld",
                    JOB_MOST_RANKS, (long long)c->run.gpus);
    int index;
    return text_parse_choice("--device", c->run.device, devices, sizeof *devices, COUNT, &index);
}

/* Sets --rendezvous to env:// if another process starts the ranks: the launcher of a node, torchrun, mpirun
 * or srun. */
static status choose_rendezvous(run_config *c)
{
    run_options *r = &c->run;
    bool here = r->plan || run_config_is_virtual(c) || r->serve_stage;
    bool started = !launch_environment_is_rank() && launch_environment_is_started();
    if (here || (r->nnodes == 1 && (r->rendezvous || !started || !c->may_be_started))) return STATUS_OK;
    if (!c->may_be_started) return fail(STATUS_USAGE, "--nnodes: expected harness run");
    if (r->rendezvous) return fail(STATUS_USAGE, "--rendezvous: unexpected with --nnodes, which sets env://");
    r->rendezvous = "env://";
    return STATUS_OK;
}

/* Chooses the device if it is "auto", and the number of ranks if --gpus is not given. */
static status choose_device(run_config *c)
{
    bool automatic = strcmp(c->run.device, "auto") == 0;
    int gpus = automatic || strcmp(c->run.device, "cuda") == 0 ? cuda_count_gpus() : 0;
    if (automatic) c->run.device = gpus > 0 ? "cuda" : "cpu";
    c->bound = c->run.bind == BIND_CORE ? BOUND_BY_HARNESS : BOUND_BY_NONE;
    TRY(option_effects_check_device(c));
    if (c->run.bf16 && strcmp(c->run.device, "cpu") == 0) { /* checks that the processor supports bfloat16 */
        device_config cpu = {.name = "cpu", .world = 1, .threads = 1, .precision = DEVICE_PRECISION_BF16};
        device *d = NULL;
        TRY(device_open(&cpu, &d));
        device_close(&d);
    }
    TRY(choose_rendezvous(c));
    return run_config_choose_ranks(c, gpus);
}

status run_config_requirements(const run_config *c, int engine, int world, sync_requirements *out)
{
    return engine_table[engine]->requirements(c->engine_options[engine], c->policies[engine], world, out);
}

int run_config_precision(const run_config *c)
{
    return c->run.tf32                  ? DEVICE_PRECISION_TF32
           : c->run.bf16 || c->run.fp16 ? DEVICE_PRECISION_BF16 /* both have two bytes */
                                        : DEVICE_PRECISION_F32;
}

status run_config_open_checkpoint(run_config *c, checkpoint **out)
{
    *out = NULL;
    if (!c->checkpoint.load) return STATUS_OK;
    TRY(checkpoint_open(c->checkpoint.load, out));
    const checkpoint_info *info = checkpoint_get_info(*out);
    if (info->foreign) return STATUS_OK;
    if (options_given(&c->bindings[0], "seed") && c->run.seed != info->progress.seed)
        return fail(STATUS_CONFIG, "--seed: expected %llu, the seed of %s, or none, got %llu",
                    (unsigned long long)info->progress.seed, c->checkpoint.load,
                    (unsigned long long)c->run.seed);
    c->run.seed = info->progress.seed;
    return STATUS_OK;
}

static status check_checkpoint(run_config *c)
{
    TRY(checkpoint_options_check(&c->checkpoint));
    if (c->checkpoint.save && c->run.mode == ENGINE_BOTH)
        return fail(STATUS_USAGE, "--save: expected --mode none, ps or ring, got both");
    if (c->run.isolated && c->checkpoint.save)
        return fail(STATUS_USAGE,
                    "--isolated: expected a run without --save: its ranks would save other parameters");
    if (c->run.isolated && c->run.rendezvous)
        return fail(STATUS_USAGE, "--isolated: expected ranks that this program starts, got --rendezvous");
    /* If --rendezvous is given, the rank opens the file later, and sends an error to the other ranks. */
    if (c->run.rendezvous) return STATUS_OK;
    checkpoint *file = NULL;
    status rc = run_config_open_checkpoint(c, &file);
    checkpoint_close(&file);
    return rc;
}

static status parse_trace_steps(run_config *c)
{
    static const char *const what = "--trace-steps";
    const char *text = c->run.trace_steps;
    char number[24];
    if (!text) return STATUS_OK;
    if (!c->run.trace) return fail(STATUS_USAGE, "%s: expected --trace FILE too", what);
    size_t length = strcspn(text, ":");
    if (text[length] != ':' || length >= sizeof number)
        return fail(STATUS_USAGE, "%s: expected FIRST:END such as 5:15, got '%s'", what, text);
    snprintf(number, sizeof number, "%.*s", (int)length, text);
    TRY(text_parse_int(what, number, 0, INT64_MAX - 1, &c->trace_begin));
    return text_parse_int(what, text + length + 1, c->trace_begin + 1, INT64_MAX, &c->trace_end);
}

status run_config_check_outputs(const run_config *c, const output_name *outputs, int count)
{
    const ring_options *ring = (const void *)c->engine_options[ENGINE_RING];
    const char *data = c->data.data, *labels = NULL,
               *profile = run_config_is_virtual(c) ? run_config_profile(c) : "";
    const char *files = strncmp(data, "wine:", 5) == 0  ? data + 5
                        : strncmp(data, "idx:", 4) == 0 ? data + 4
                                                        : "";
    bool own_profile = strchr(profile, '/') || text_ends_with(profile, ".json");
    char first[PATH_MAX];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(files, ","), files);
    if ((labels = strchr(files, ','))) labels++;
    const char *inputs[] = {c->run.config,
                            c->run.workload,
                            c->run.topology,
                            ring->collective_table,
                            own_profile ? profile : NULL,
                            first,
                            labels,
                            c->checkpoint.load};
    return output_check(outputs, count, inputs, sizeof inputs / sizeof inputs[0]);
}

static status check_outputs(const run_config *c)
{
    run_config others = *c;
    const output_name outputs[] = {{"json", c->run.json},
                                   {"report", c->run.report},
                                   {"trace", c->run.trace},
                                   {"workload-out", c->run.workload_out},
                                   {"save", c->checkpoint.save}};
    TRY(run_config_check_outputs(c, outputs, 4));
    others.checkpoint.load = NULL; /* A resumed job may replace the checkpoint from which it goes on. */
    return run_config_check_outputs(&others, outputs, 5);
}

/* Rejects --repeat together with --rendezvous, or together with an option whose output file the next run
 * would overwrite. */
static status check_repeat(const run_config *c)
{
    const char *other = c->run.trace         ? "trace"
                        : c->checkpoint.save ? "save"
                        : c->run.nnodes > 1  ? "nnodes"
                        : c->run.rendezvous  ? "rendezvous"
                                             : NULL;
    if (c->run.repeat == 1 || !other) return STATUS_OK;
    return fail(STATUS_USAGE, "--repeat: expected 1 with --%s, got %lld", other, (long long)c->run.repeat);
}

/* Drops the last, short batch of synthetic data, because it would only add noise to the figures. Keeps it if
 * the number of samples is given (synthetic:5:2:90). */
static status fill_synthetic_batches(run_config *c)
{
    int parts = 0;
    for (const char *at = c->data.data; (at = strchr(at, ':')) != NULL; at++) parts++;
    if (strncmp(c->data.data, "synthetic", 9) != 0 || strcspn(c->data.data, ":") != 9 || parts == 3)
        return STATUS_OK;
    if (options_given(&c->bindings[2], "drop-last") && !c->data.drop_last)
        return fail(STATUS_USAGE,
                    "--no-drop-last: expected a data set of files, got --data %s, whose batches are all full",
                    c->data.data);
    c->data.drop_last = true;
    return STATUS_OK;
}

static status check_stages(run_config *c)
{
    bool schedule = options_given(&c->bindings[0], "schedule"), on = c->run.stages_on != STAGES_ON_RANKS;
    if (c->run.stages == 1 && !schedule && !on) return STATUS_OK;
    const char *name = c->run.stages > 1 ? "stages"
                       : on              ? "stages-on"
                                         : "schedule",
               *other = c->run.plan                   ? "plan"
                        : c->run.isolated             ? "isolated"
                        : c->run.inline_progress == 2 ? "progress inline"
                                                      : NULL;
    if (c->run.mode != ENGINE_RING)
        return fail(STATUS_USAGE, "--%s: expected --mode ring, got %s", name, run_mode_names[c->run.mode]);
    if (strcmp(c->run.device, "cuda") == 0)
        return fail(STATUS_USAGE, "--%s: expected --device cpu, reference or sim:PROFILE, got cuda", name);
    if (other) return fail(STATUS_USAGE, "--%s: expected a run without --%s", name, other);
    if (c->run.stages == 1) return fail(STATUS_USAGE, "--%s: expected --stages of at least 2", name);
    if (on && schedule && c->run.schedule != PIPELINE_SEQUENTIAL)
        return fail(STATUS_USAGE, "--schedule: expected sequential with --stages-on devices, got %s",
                    pipeline_schedule_names[c->run.schedule]);
    if (on) c->run.schedule = PIPELINE_SEQUENTIAL; /* the stages of a rank take turns */
    if (c->run.gpus * run_config_devices(c) % c->run.stages != 0)
        return fail(STATUS_USAGE, "--gpus: expected a multiple of %lld stages, got %lld",
                    (long long)c->run.stages, (long long)c->run.gpus);
    return STATUS_OK;
}

static status check_address(const char *name, const char *text)
{
    const char *colon = strrchr(text, ':');
    char option[32];
    int64_t port;
    if (!colon || colon == text)
        return fail(STATUS_USAGE, "--%s: expected HOST:PORT such as 10.0.0.1:5555, got '%s'", name, text);
    snprintf(option, sizeof option, "--%s", name);
    return text_parse_int(option, colon + 1, 1, 65535, &port);
}

static status check_remote_stage(const run_config *c)
{
    const run_options *r = &c->run;
    const char *name = r->serve_stage ? "serve-stage" : "remote-stage";
    const char *address = r->serve_stage ? r->serve_stage : r->remote_stage;
    bool local = run_config_starts_stage(c);
    if (!address) return STATUS_OK;
    if (r->mode != ENGINE_RING)
        return fail(STATUS_USAGE, "--%s: expected --mode ring, got %s", name, run_mode_names[r->mode]);
    if (r->serve_stage && r->remote_stage)
        return fail(STATUS_USAGE, "--serve-stage: unexpected with --remote-stage");
    if (!local) TRY(check_address(name, address));
    /* An option that a rank with half of the model does not support. */
    const char *other = r->stages > 1                                ? "stages"
                        : r->repeat > 1 && !local                    ? "repeat"
                        : r->rendezvous && (local || r->serve_stage) ? "rendezvous"
                        : r->serve_stage && r->json                  ? "json"
                        : r->serve_stage && r->report                ? "report"
                        : r->serve_stage && r->trace                 ? "trace"
                        : c->model.sync_batchnorm && r->gpus > 1     ? "sync-batchnorm"
                        : c->checkpoint.save                         ? "save"
                        : c->checkpoint.load                         ? "load"
                        : r->target_loss > 0                         ? "target-loss"
                        : r->target_accuracy > 0                     ? "target-accuracy"
                        : r->eval_every.count > 0                    ? "eval-every"
                        : r->plan                                    ? "plan"
                        : r->isolated                                ? "isolated"
                                                                     : NULL;
    return other ? fail(STATUS_USAGE, "--%s: expected a run without --%s", name, other) : STATUS_OK;
}

static status check_loader(const run_config *c)
{
    static const char host[] = "host:";
    const char *workers = c->run.loader_workers;
    bool shared = strncmp(workers, host, strlen(host)) == 0;
    int64_t count;
    TRY(text_parse_int("--loader-workers", workers + (shared ? strlen(host) : 0), 0, 4096, &count));
    if (c->run.loader_rate > 0 && count == 0)
        return fail(STATUS_USAGE, "--loader-rate: expected --loader-workers");
    return STATUS_OK;
}

status run_config_parse(run_config *c, int argc, char *const argv[])
{
    for (int i = 0, files = 0; i < argc; i++)
        if ((strcmp(argv[i], "--config") == 0 || strncmp(argv[i], "--config=", 9) == 0) && ++files > 1)
            return fail(STATUS_USAGE, "--config: expected one file, got two");
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int word_count = 0;
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line");
    status rc = options_parse(c->bindings, BINDING_COUNT, argc, argv, words, &word_count);
    if (rc == STATUS_OK && c->run.config) {
        const char *path = c->run.config;
        rc = options_defaults(c->bindings, BINDING_COUNT);
        if (rc == STATUS_OK) rc = run_config_read(c, path);
        if (rc == STATUS_OK) rc = options_parse(c->bindings, BINDING_COUNT, argc, argv, words, &word_count);
    }
    if (rc == STATUS_OK && word_count > 0)
        rc = fail(STATUS_USAGE, "run: unexpected argument '%s'; see harness run --help", words[0]);
    free(words);
    TRY(rc);
    TRY(engine_parse_policies(c->run.policy, c->policies, &c->bindings[BINDING_COUNT - ENGINE_COUNT]));
    TRY(run_config_read_workload(c));
    TRY(optimizer_resolve(&c->bindings[3]));
    net_link link;
    TRY(run_config_name_cluster(c));
    TRY(check_device(c));
    TRY(run_config_link(c, &link));
    TRY(check_outputs(c));
    TRY(parse_trace_steps(c));
    const char *target = c->run.target_loss > 0 ? "loss" : c->run.target_accuracy > 0 ? "accuracy" : NULL;
    if (target && c->run.eval_every.count < 0)
        return fail(STATUS_USAGE, "--target-%s: expected evaluations, got --eval-every -1", target);
    if (c->run.mode == ENGINE_NONE && options_given(&c->bindings[0], "gpus") && c->run.gpus != 1)
        return fail(STATUS_USAGE, "--gpus: expected 1 with --mode none, got %lld", (long long)c->run.gpus);
    TRY(model_check_options(&c->bindings[1]));
    TRY(choose_device(c));
    TRY(check_repeat(c));
    TRY(check_stages(c));
    TRY(check_loader(c));
    TRY(check_remote_stage(c));
    TRY(check_checkpoint(c));
    if (!options_given(&c->bindings[0], "isolated"))
        c->run.isolated = c->run.mode == ENGINE_BOTH && strcmp(c->run.device, "cpu") == 0 &&
                          c->run.gpus > 1 && !c->run.rendezvous;
    double factor;
    TRY(straggler_factor(c->shared.slow, 0, (int)c->run.gpus, &factor));
    const model_entry *entry = NULL;
    TRY(model_find(c->model.name, &entry));
    bool steps = options_given(&c->bindings[0], "steps"), epochs = options_given(&c->bindings[0], "epochs");
    if (steps && epochs) return fail(STATUS_USAGE, "--epochs: unexpected with --steps");
    if (!steps && !epochs) c->run.steps = 30;
    TRY(fill_synthetic_batches(c));
    for (int e = 0; e < ENGINE_COUNT; e++) {
        sync_requirements needs;
        ring_settings unused;
        if (!run_config_uses(c, e)) continue;
        if (e == ENGINE_RING)
            TRY(ring_settings_resolve((const void *)c->engine_options[e], c->shared.divide, c->policies[e],
                                      &unused));
        if (e == ENGINE_RING && c->run.stages > 1 && strcmp(unused.collective, "mpi") == 0)
            return fail(STATUS_USAGE, "--collective: expected shm with --stages, got mpi");
        if (e == ENGINE_RING && unused.options.each_micro_batch &&
            (c->run.stages > 1 || c->run.accumulate == 1))
            return fail(STATUS_USAGE,
                        "--reduce-micro-batches: expected --accumulate of at least 2, and no --stages");
        TRY(run_config_requirements(c, e, run_config_world(c, e), &needs));
        if (needs.virtual_only && !run_config_is_virtual(c))
            return fail(STATUS_USAGE, "%s", needs.virtual_only);
    }
    return STATUS_OK;
}

bool run_option_is_among(const char *name, const char *names)
{
    size_t length = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += length)
        if ((at == names || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
    return false;
}

void run_config_text(const run_config *c, text_buffer *out)
{
    static const char where_only[] =
        "config json quiet verbose repeat log-level rendezvous connect-timeout report remote-stage "
        "serve-stage stall-timeout threads bind loader-threads interface print-steps print-shapes nnodes "
        "node-rank master-addr master-port";
    for (int b = 0; b < BINDING_COUNT; b++) {
        const option_table *table = c->bindings[b].table;
        for (size_t i = 0; i < table->count; i++) {
            char value[256];
            const char *name = table->options[i].name;
            if (run_option_is_among(name, where_only)) continue;
            options_format(&c->bindings[b], i, value, sizeof value);
            if (strcmp(name, "data") == 0 && strncmp(value, "synthetic", strlen("synthetic")) != 0)
                value[strcspn(value, ":")] = '\0';
            bool path = run_option_is_among(name, "save load trace");
            text_append(out, "%s = %s\n", name, path && value[0] ? "given" : value);
        }
    }
}
