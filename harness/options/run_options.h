/* The options of `harness run`, and the configuration of a run that results from the options. */
#ifndef HARNESS_OPTIONS_RUN_OPTIONS_H
#define HARNESS_OPTIONS_RUN_OPTIONS_H

#include "common/base/log.h"
#include "common/base/options.h"
#include "common/checkpoint/checkpoint.h"
#include "common/data/batches.h"
#include "common/data/dataset.h"
#include "common/net/link.h"
#include "common/optim/optimizer.h"
#include "common/sync/engine.h"
#include "harness/options/engines.h"
#include "harness/result/output.h"
#include "models/models.h"

#include <jansson.h>

/* Values of --stages-on: a rank has one stage, or it has a device for each stage. */
typedef enum stages_place { STAGES_ON_RANKS, STAGES_ON_DEVICES } stages_place;

typedef struct run_options {
    int mode;
    int64_t gpus;       /* number of ranks, or 0 for the number that suits the machine */
    const char *device; /* never "auto" after run_config_parse() */
    bool tf32, bf16, fp16, share_gpu, benchmark, cuda_graph, isolated;
    int prefetch; /* 0 for off, 1 for on */
    int64_t steps, epochs, warmup, accumulate;
    int64_t stages;           /* stages of the model; 1 if the model is not split */
    int stages_on;            /* a stages_place */
    int schedule;             /* a pipeline_schedule */
    const char *remote_stage; /* HOST:PORT, "local", or NULL */
    const char *serve_stage;  /* HOST:PORT if this process is the remote stage, or NULL */
    uint64_t seed;
    const char *policy;
    int64_t threads; /* threads per rank, or 0 for the processors divided by the ranks */
    int bind;        /* a bind_mode */
    const char *config, *json;
    bool quiet, plan, verbose, print_steps, print_shapes;
    int64_t repeat;
    const char *report;
    const char *trace, *trace_steps;
    int log_level;
    option_period eval_every;
    double target_loss, target_accuracy; /* targets on the test data, or 0 if not given */
    int loss_reduction;                  /* 0 for the mean, 1 for the sum */
    const char *rendezvous;  /* URL if another process starts the ranks; never NULL with several nodes */
    int64_t nnodes;          /* number of machines whose launchers share the job; 1 for this one */
    int64_t node_rank;       /* number of this machine among them */
    const char *master_addr; /* address of machine 0 */
    int64_t master_port;
    int64_t connect_timeout_ns;
    int inline_progress;     /* 0 for auto, 1 for a separate thread, 2 for inline */
    uint64_t jitter;         /* seed of the jitter on virtual devices, or 0 without jitter */
    int64_t nodes;           /* number of virtual machines, or 0 for the number that the ranks need */
    int64_t adapters;        /* network adapters of a virtual machine, or 0 for the profile's number */
    double oversubscription; /* rate of a virtual network's adapters over the rate of its core */
    const char *gpu;         /* GPU of a cluster that the next three options describe, or NULL */
    int64_t per_host;        /* GPUs per host, or 0 if not given */
    bool nvlink;
    const char *topology; /* output of nvidia-smi topo -m, or NULL */
    double efficiency;    /* factor by which the efficiencies of a virtual device's profile are multiplied */
    /* Number of the random draw of the virtual devices' constants, or 0 for the values in the profile. */
    int64_t draw;
    const char *loader_workers; /* N of a virtual process, or host:N; "0" without a loader */
    double loader_rate;         /* samples/s of a virtual loader worker, or 0 for the profile's rates */
    int dp_host;                /* 1 if a virtual host runs DataParallel in a Python process, else 0 */
    const char *workload;       /* file or numbers of a recorded job, or NULL for a model of this program */
    const char *workload_out;   /* file for the recorded model, or NULL */
    int dp_gather;              /* a sim_gathered: tensors that DataParallel gathers on virtual devices */
} run_options;

extern const option_table run_option_table;
extern const char *const run_mode_names[]; /* values of --mode */

/* Bytes of an engine's option struct, which is opaque to the harness. */
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
    char cluster[4200]; /* device that --gpu describes, or "" */
    /* Number of processors that the ranks of this host share. A process can use all of these processors
     * unless the process is a bound rank. */
    int processors;
    int cores;                      /* cores that the ranks share; 0 if not known, or on virtual devices */
    int local_ranks;                /* ranks of the largest job on this host */
    int bound;                      /* a bound_by: who bound the ranks to processors */
    bool may_be_started;            /* true in `harness run`, whose ranks other programs may start */
    int repetition;                 /* index of the run among the runs of --repeat, counted from 0 */
    int64_t trace_begin, trace_end; /* steps of --trace-steps; `trace_end` is 0 if the option is not given */
} run_config;

/* Binds the tables and sets defaults. After this call *config must not move. */
status run_config_init(run_config *config);

/* Reads the file of --config, and then parses argv, which lacks program and command. Checks everything that
 * needs no data and no peers. */
status run_config_parse(run_config *config, int argc, char *const argv[]);

/* Sets --device to the virtual device that --gpu, --per-host, --nvlink, --adapters and --topology describe,
 * if the user gave --gpu. Called by run_config_parse(). Fails with STATUS_USAGE. */
status run_config_name_cluster(run_config *config);

/* Refuses options that the recorded job of --workload determines, and takes the batch and the optimizer of
 * the job. Does nothing without --workload.
 * Called by run_config_parse(). Fails with STATUS_USAGE or STATUS_DATA. */
status run_config_read_workload(run_config *config);

/* Opens the data and builds a model that fits the data. The data determine the number of classes and the
 * image size, unless the user gave them. The default data set, `synthetic`, has the shape of the model's
 * input. If the user does not give a shape, the input has the shape that `harness models` lists. `resolved`
 * is the model's options with all defaults filled in. */
status run_config_build(const run_config *config, dataset **set, nn_model **model, model_options *resolved);

/* Returns true if the option is one of `names`, which blanks separate. */
bool run_option_is_among(const char *name, const char *names);

/* Returns the options that were given, by their long names, as in a file for --config. If `with_chosen`, adds
 * the device, gpus and steps that the program chose, so that a run with this file repeats the run. Leaves out
 * options that only affect the output or how processes connect. Returns NULL if out of memory. */
json_t *run_config_given(const run_config *config, bool with_chosen);

/* Reads the options of a file of --config. The file is TOML (FILE.toml) or JSON: an object of long names and
 * values, or the JSON of a run or of a sweep's table. For each name *out has "text", or "texts" if the value
 * is a list, and "line" and "column" of the key. *out stays valid until the process ends. Fails with
 * STATUS_DATA, and the message has the file and the line. */
status config_file_read(const char *path, const json_t **out);

/* Sets option `name` to its value in a file. Fails with STATUS_DATA if the value is a list, and with
 * STATUS_USAGE if the option or its value is not valid. */
status config_file_set(option_binding *bindings, size_t count, const char *name, const json_t *option);

/* Adds file, line and column of an option to the message of a failure. Returns `rc`. */
status config_file_failed(const char *path, const json_t *option, status rc);

/* Sets the options of a file for --config. Fails with STATUS_DATA, or with STATUS_USAGE if an option or its
 * value is not valid. */
status run_config_read(run_config *config, const char *path);

/* Checks that no output replaces another one or an input of the run (output_check()). */
status run_config_check_outputs(const run_config *c, const output_name *outputs, int count);

/* Reads the requirements of an engine in a job of `world` ranks. */
status run_config_requirements(const run_config *config, int engine, int world, sync_requirements *out);

/* Returns the precision of matmuls, a device_precision. */
int run_config_precision(const run_config *config);

/* Computes how many ranks of a virtual job are on one machine. */
status run_config_per_machine(const run_config *config, int *out);

/* Parses --link. On virtual devices the latency may be missing. Fails with STATUS_USAGE. */
status run_config_link(const run_config *config, net_link *out);

/* Returns true if processors compute in real time. */
bool run_config_is_on_cpu(const run_config *config);
/* Returns true if the devices are virtual. */
bool run_config_is_virtual(const run_config *config);
const char *run_config_profile(const run_config *config);

/* Opens the file of --load and takes its seed, or sets *out to NULL. The caller closes *out, also after a
 * failure. Fails with STATUS_CONFIG if --seed differs from the seed of the file, and with the errors of
 * checkpoint_open(). */
status run_config_open_checkpoint(run_config *config, checkpoint **out);

/* Appends the options that change results, as lines "name = value". The lines must be the same on all ranks
 * of a job, so they contain no paths: the line of a data set in files has only the kind of the data set, and
 * the line of an option that names a file has only "given". */
void run_config_text(const run_config *config, text_buffer *out);

/* ---- run_ranks.c: the jobs of a run (engines.h) ---- */

/* Chooses the number of ranks if --gpus is not given: the number of ranks that a job manager has started.
 * Without a job manager, the number of GPUs (`gpus`) or, without GPUs, the number of cores of this
 * machine. With --nnodes, this is the number of ranks of each machine. */
status run_config_choose_ranks(run_config *config, int gpus);

/* Returns true if the run has the job. */
bool run_config_uses(const run_config *config, int job);
/* Returns true if the run has several jobs, which alternate if memory holds them all. */
bool run_config_takes_turns(const run_config *config);
int run_config_world(const run_config *config, int job);
/* Returns the number of replicas of the model, which train on different data. A replica is one rank or, if
 * each rank has one stage, one rank per stage. */
int run_config_replicas(const run_config *config, int job);
/* Returns the number of devices of a rank: one per stage with "--stages-on devices", else 1. */
int run_config_devices(const run_config *config);
/* Returns the loader workers of each of the `processes` processes of a virtual host: N of --loader-workers N,
 * and an equal part of host:N, rounded up as PyTorch's example for ImageNet does. Returns 0 without a loader.
 */
int run_config_loader_workers(const run_config *config, int processes);
int run_config_threads(const run_config *config, int job);
/* Returns true if the launcher also starts a remote stage, because the option "--remote-stage local" is
 * given. */
bool run_config_starts_stage(const run_config *config);
int64_t run_config_batch(const run_config *config, int job);
const char *run_config_slow(const run_config *config, int job);

/* Number of turns of each job. Jobs alternate so often that a drift of the machine affects all of them.
 * Isolated ranks measure at most RUN_ISOLATED_STEPS steps. */
enum { RUN_TURNS = 6, RUN_ISOLATED_STEPS = 60 };

/* Steps of a rank. The `warmup` steps begin at step `first`. Turns of `turn` steps each follow, up to step
 * `end`. If jobs take turns, the first step of a turn is not measured: the communication of the job's
 * previous turn ends in this step, and the caches hold another job's data. `batches` is the number of batches
 * from the first step of the run to the end of --epochs. */
typedef struct step_plan {
    int64_t first, warmup, turn, end;
} step_plan;
step_plan run_config_steps(const run_config *config, int job, int64_t batches, int64_t first,
                           bool takes_turns);

/* Returns false if the job's ranks never evaluate: if --eval-every is -1, or if the ranks are isolated,
 * because their models differ. */
bool run_config_evaluates(const run_config *config, int job);

/* Returns the period of evaluations in a run of `steps`. The count is 0 or less if ranks evaluate only at the
 * end or never. */
option_period run_config_eval_every(const run_config *config, int64_t steps);

/* Returns true if this host has more ranks than devices (cores or GPUs). The run then shows the cost of the
 * implementation, not the cost of the scheme on separate devices. */
bool run_config_is_oversubscribed(const run_config *config);

/* Checks that this machine has a GPU for each rank started here, or that ranks may share a GPU. Fails with
 * STATUS_CONFIG. */
status run_config_check_gpus(const run_config *config);
/* Checks that each job can run with its number of ranks, and that this host has enough memory for the largest
 * job. Fails with STATUS_CONFIG. */
status run_config_check_host(const run_config *config, int64_t largest_job_bytes);

#endif
