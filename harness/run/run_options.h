/* The options of `harness run`, and what they come to together: the configuration of a run. */
#ifndef HARNESS_RUN_RUN_OPTIONS_H
#define HARNESS_RUN_RUN_OPTIONS_H

#include "common/base/log.h"
#include "common/base/options.h"
#include "common/checkpoint/checkpoint.h"
#include "common/data/batches.h"
#include "common/data/dataset.h"
#include "common/net/link.h"
#include "common/optim/optimizer.h"
#include "common/sync/engine.h"
#include "harness/run/engines.h"
#include "models/models.h"

#include <jansson.h>

/* --stages-on: each stage has ranks of its own, or each rank a device for each stage. */
typedef enum stages_place { STAGES_ON_RANKS, STAGES_ON_DEVICES } stages_place;

typedef struct run_options {
    int mode;
    int64_t gpus;       /* ranks; 0: what the machine suggests */
    const char *device; /* after run_config_parse() never "auto" */
    bool tf32, bf16, share_gpu, benchmark, cuda_graph, isolated;
    int prefetch; /* 0 off, 1 on */
    int64_t steps, epochs, warmup, accumulate;
    int64_t stages;           /* of the model; 1: it is not cut */
    int stages_on;            /* a stages_place */
    int schedule;             /* a pipeline_schedule */
    const char *remote_stage; /* HOST:PORT, or "local"; NULL: none */
    const char *serve_stage;  /* HOST:PORT: this process is the remote stage; NULL: it is not */
    uint64_t seed;
    const char *policy;
    int64_t threads; /* 0: the processors divided by the ranks */
    int bind;        /* a bind_mode */
    const char *config, *json;
    bool quiet, plan, verbose;
    int64_t repeat;
    const char *report;
    const char *trace, *trace_steps;
    int log_level;
    int64_t eval_every;
    double target_loss, target_accuracy; /* on the test data; 0: none */
    int loss_reduction;                  /* 0 mean, 1 sum */
    const char *rendezvous;
    int64_t connect_timeout_ns;
    int inline_progress;    /* 0 auto, 1 thread, 2 inline */
    uint64_t jitter;        /* virtual devices: seed; 0: none */
    int64_t nodes;          /* virtual devices: machines; 0: as many as the ranks fill */
    double efficiency;      /* virtual devices: times those of the profile */
    int64_t draw;           /* virtual devices: simulation.h */
    int64_t loader_workers; /* virtual devices: of each process; 0: no loader */
    int dp_host;            /* virtual devices: 1: a Python process */
    int dp_gather;          /* virtual devices: sim_gathered */
} run_options;

extern const option_table run_option_table;

/* Option structs are opaque to the harness but for their size. */
enum { ENGINE_OPTIONS_SIZE = 512, BINDING_COUNT = 6 + ENGINE_COUNT };

typedef struct run_config {
    run_options run;
    model_options model;
    data_options data;
    optimizer_options optimizer;
    shared_options shared;
    checkpoint_options checkpoint;
    _Alignas(16) char engine_options[ENGINE_COUNT][ENGINE_OPTIONS_SIZE];
    option_binding bindings[BINDING_COUNT];
    const char *policies[ENGINE_COUNT];
    int processors; /* of this host, that its ranks share; those of this process, but in a rank that was bound
                     */
    int cores;      /* likewise; 0: not known, or virtual devices */
    int local_ranks;                /* of the largest job, on this host */
    int bound;                      /* a bound_by: what became of --bind */
    int repetition;                 /* of --repeat, from 0 */
    int64_t trace_begin, trace_end; /* --trace-steps; end 0: none were chosen */
} run_config;

/* Binds the tables and sets defaults. The struct must not move afterwards. */
status run_config_init(run_config *config);

/* Parses argv (without program and command), after the file of --config, and checks what can be checked
 * without data or peers. */
status run_config_parse(run_config *config, int argc, char *const argv[]);

/* Opens the data and builds the model that fit each other: a model takes the classes and the image size that
 * the user did not give from the data; `synthetic` data, which are the default, have the form that the model
 * takes, by default that of `harness models`. `resolved` is the model's options without a default left open.
 */
status run_config_build(const run_config *config, dataset **set, nn_model **model, model_options *resolved);

/* The options that were given, by their long names: a file for --config. `with_chosen`: and device, gpus and
 * steps as they were chosen, so that it runs the same again. Options of output are left out. NULL without
 * memory. */
json_t *run_config_given(const run_config *config, bool with_chosen);

/* The options of a file of --config, TOML (FILE.toml) or JSON: an object of long names and values, or the
 * JSON of a run or of a sweep's table. *out holds for each name its "text", or "texts" of a list, and the
 * "line" and "column" of its key; the process keeps it. STATUS_DATA; the message names the file and the line.
 */
status config_file_read(const char *path, const json_t **out);

/* Adds file, line and column of an option to the message of a failure; returns `rc`. */
status config_file_failed(const char *path, const json_t *option, status rc);

/* Sets the options of such a file. STATUS_DATA; STATUS_USAGE for an option that `run` does not have or a
 * value that it does not take. */
status run_config_read(run_config *config, const char *path);

/* In what products multiply: a device_precision. */
int run_config_precision(const run_config *config);

/* An option that the user gave and that only an engine reads whose `uses` is false, and that engine; NULL:
 * none. */
const char *run_config_unused(const run_config *config, const bool uses[ENGINE_COUNT], int *engine);

/* --link; on virtual devices the latency may be missing. STATUS_USAGE. */
status run_config_link(const run_config *config, net_link *out);

/* The devices are virtual, and their profile. */
bool run_config_is_virtual(const run_config *config);
const char *run_config_profile(const run_config *config);

/* Opens the file of --load, or sets *out to NULL, and takes its seed. The caller closes it, also after a
 * failure. STATUS_CONFIG for another --seed; errors of checkpoint_open(). */
status run_config_open_checkpoint(run_config *config, checkpoint **out);

/* The options that change results, as lines "name = value": equal on all ranks of a job. A data set of
 * files has only its kind, and an option that names a file only "given". */
void run_config_text(const run_config *config, text_buffer *out);

/* ---- run_ranks.c: the jobs of a run (engines.h) ---- */

/* Resolves the number of ranks without --gpus: those that a job manager has started, else the `gpus` of this
 * machine, else its cores. */
status run_config_choose_ranks(run_config *config, int gpus);

/* Whether the run has the job; its ranks, the threads and samples per step of each, and --slow: NULL where it
 * has no such rank, as `none` with its one rank. */
bool run_config_uses(const run_config *config, int job);
/* It has several jobs, which alternate where memory holds them all. */
bool run_config_takes_turns(const run_config *config);
int run_config_world(const run_config *config, int job);
/* Replicas of the model, which have data of their own: the ranks, or with stages on ranks as many to a
 * replica. */
int run_config_replicas(const run_config *config, int job);
/* Devices that a rank drives: with stages on devices as many, else one. */
int run_config_devices(const run_config *config);
int run_config_threads(const run_config *config, int job);
/* The launcher starts a remote stage, too: --remote-stage local. */
bool run_config_starts_stage(const run_config *config);
int64_t run_config_batch(const run_config *config, int job);
const char *run_config_slow(const run_config *config, int job);

/* The steps of a rank: `warmup` after the `first`, then turns of `turn` steps up to `end`. Of jobs that take
 * turns the first step of a turn is not measured: communication of the last turn ends in it, and caches hold
 * another job's data. */
typedef struct step_plan {
    int64_t first, warmup, turn, end;
} step_plan;
step_plan run_config_steps(const run_config *config, int64_t steps_per_epoch, int64_t first,
                           bool takes_turns);

/* After how many steps ranks evaluate, of a run of `steps`; 0: only at the end, or never. */
int64_t run_config_eval_every(const run_config *config, int64_t steps);

/* More ranks on this host than cores, or GPUs: the run shows the cost of the implementation, not of the
 * scheme on separate devices. */
bool run_config_is_oversubscribed(const run_config *config);

/* STATUS_CONFIG unless this machine has a GPU for each rank started here, or ranks may share. */
status run_config_check_gpus(const run_config *config);
/* STATUS_CONFIG where a job has more ranks, or holds more memory, than this host can serve. */
status run_config_check_host(const run_config *config, int64_t largest_job_bytes);

#endif
