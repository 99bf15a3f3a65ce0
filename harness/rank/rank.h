/* Runs a process of a job: a rank (set-up, blocks of steps, evaluation, results), a parameter server, or a
 * remote stage. */
#ifndef HARNESS_RANK_RANK_H
#define HARNESS_RANK_RANK_H

#include "common/data/loader.h"
#include "common/data/sampler.h"
#include "common/net/rendezvous.h"
#include "common/net/status_table.h"
#include "common/trace/trace.h"
#include "harness/result/record.h"
#include "harness/result/run_result.h"
#include "harness/train/trainer.h"

/* Place of a rank in its job, from the launcher or another starter. */
typedef struct rank_place {
    int job, engine; /* number of the job (engines.h), and number of the job's engine */
    int rank, world, local_rank;
    int servers; /* servers in separate processes, numbered after the ranks */
    uint64_t token;
    const char *key;          /* key of the job, or NULL */
    const char *stage_key;    /* key of a remote stage that the launcher did not start, or NULL */
    const char *rendezvous;   /* URL */
    const char *host_address; /* address for ranks on other hosts, or NULL if all ranks are on this host */
    status_table *table;
    int gradients_fd;  /* descriptor for the first step's gradients (agreement.h), or 0 */
    bool has_launcher; /* a launcher reports the end of the job */
    /* Reports the job on rank 0 if there is no launcher. All ranks but rank 0 wait for the report, because
     * job managers end all ranks when one rank has ended. */
    status (*report)(void *context, const run_job *outcome);
    void *report_context;
} rank_place;

/* Opens a rendezvous of the job for `members` processes: all ranks, or all ranks and servers. Ranks and
 * servers use a second rendezvous only for the handshake. `inputs` has further lines to compare, or is NULL.
 * `failure` is rendezvous_options.failure. */
status rank_open_rendezvous(const run_config *config, const rank_place *place, int members,
                            const char *inputs, const error_record *failure, rendezvous **out);
/* Opens a rendezvous of processes with the same program and configuration. `options` has the URL, the member
 * and its credentials. This function sets program, configuration, time limit and `slot`. */
status rank_open_meeting(const run_config *config, rank_slot *slot, const char *inputs,
                         rendezvous_options options, rendezvous **out);

/* Runs the rank to its end. On rank 0 *out is the job's outcome, which the caller frees. On other ranks only
 * out->late is set. A failure is returned and recorded in the status table. If --load is given, sets
 * the seed in `config` to the seed of the file. Returns STATUS_STOPPED if a stop was requested before all
 * ranks had joined. */
status rank_run(run_config *config, const rank_place *place, run_job *out);

/* Exchanges the handshakes of all ranks and servers. The entries of all[members] stay valid until `r` is used
 * again. */
status rank_gather_handshakes(const run_config *config, rendezvous *r, int members, sync_blob mine,
                              sync_blob *all);

/* ---- server.c: a parameter server in a separate process ---- */

/* Memory of a server: parameters in the layout of the ranks' program, without gradients, and the state of the
 * optimizer. */
typedef struct server_memory {
    device *device; /* opened by the caller */
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
} server_memory;

status server_memory_open(server_memory *m, const run_config *config, int world, const nn_model *model,
                          const nn_program *program);
void server_memory_close(server_memory *m);
/* Returns the context of the server's engine in a job of `world` ranks. `rank` is the number of the server.
 * Servers are numbered from `world` on. */
sync_context server_context(server_memory *m, const run_config *config, int rank, int world,
                            const nn_program *program);

/* Runs a server in this process. Servers are numbered after the ranks, from place->world on. A failure is
 * returned and recorded in the status table. */
status server_run(const run_config *config, const rank_place *place);

/* Runs the remote stage of a job. The launcher starts the remote stage as the member after the ranks. If a
 * user starts the remote stage by hand, place->table is NULL. */
status stage_server_run(const run_config *config, const rank_place *place);

/* ---- setup.c: a rank's trainer, and its batches in pages that its device can pin ---- */

/* Returns how a job divides the training data among `world` ranks. */
sampler_config trainer_sampler(const run_config *config, const dataset *set, int job, int world);
/* Fills the part of the trainer's configuration that is the same on real and virtual devices: data, model,
 * engine, optimizer. */
status trainer_setup_job(const run_config *config, const dataset *set, const nn_model *model, int job,
                         int rank, int world, trainer_config *out);
/* Fills the trainer's configuration on a real device or a planning device. local_rank, job_token, slot and
 * hub stay zero. */
status trainer_setup(const run_config *config, const dataset *set, const nn_model *model, int job, int rank,
                     int world, trainer_config *out);

typedef struct rank_batches {
    batch_source *training, *evaluation;    /* `evaluation` is NULL if there is nothing to evaluate */
    loader_memory loaders;                  /* allocator of the loaders' buffers */
    int loader_threads;                     /* threads that prepare the training batches */
    sync_blob buffers[TRAINER_MAX_BUFFERS]; /* inputs and targets of two loaders, pinned by the trainer */
    int buffer_count;
} rank_batches;

_Static_assert(2 * 2 * LOADER_MAX_DEPTH <= TRAINER_MAX_BUFFERS, "the trainer can pin every buffer of a rank");

/* Opens the batches. `out` must not move until the caller has closed both sources, even after a failure. */
status rank_batches_open(const run_config *c, const rank_place *place, const dataset *set,
                         const nn_model *model, rank_batches *out);

/* ---- trace.c: the time line of some steps, for the file of --trace and for the results ---- */

typedef struct rank_trace {
    trace *recorder;    /* from rank_trace_open(); the owner calls trace_close() */
    int64_t begin, end; /* recorded steps [begin, end) of the run; `end` is 0 until they are chosen */
    bool to_file;       /* true if --trace is given; if not, the results keep one of the recorded steps */
    /* Number of ranks of a job with "--stages-on devices", or 0 without this option. Devices are numbered as
     * in pipeline_place. */
    int processes;
} rank_trace;

/* Opens a trace with room for the steps of --trace-steps. If --trace is given, there is also room for
 * `kernels` kernels per step. If `warns`, logs a warning when the room is too small. */
status rank_trace_open(const run_config *config, const nn_model *model, int64_t kernels, bool warns,
                       rank_trace *out);
/* Refuses --trace-steps if none of these steps is among steps [first, end) of the job. If the run
 * has other jobs, only warns, and only if `warns` is true. Returns STATUS_USAGE. */
status rank_trace_check(const run_config *config, int64_t first, int64_t end, bool warns);
/* Chooses the first measured steps if --trace-steps did not choose any steps. */
void rank_trace_choose(rank_trace *t, int64_t first_measured);

/* Must be called before and after each step. */
void rank_trace_begin_step(rank_trace *t, int64_t step);
void rank_trace_end_step(rank_trace *t, const step_result *result, const ledger *ledger);

enum { TRACE_MOST_RANKS = 4096 }; /* most ranks of a job whose process numbers fit into a trace */

/* Appends the events of a rank or of a device, with a comma after each event. */
void rank_trace_write(const rank_trace *t, int job, int number, text_buffer *out);

/* Adds "timeline" to the rank's JSON: the first recorded steps that were measured, on rank 0's clock.
 * job_result_finish() keeps one of them. */
void rank_trace_to_json(const rank_trace *t, const record *record, const clock_alignment *clock,
                        json_t *rank);

#endif
