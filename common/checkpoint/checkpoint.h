/* Checkpoints: the state of a run as one safetensors file, in PyTorch's names, order and layout.
 * docs/checkpoints.md describes the file.
 *
 * One rank saves, at a time at which all ranks agree (sync_engine_type.flush): tensor by tensor from a
 * source. It needs memory for the largest tensor. Every rank loads.
 *
 *     save.c  contents.c     the list of tensors; a rank's arenas as their source and sink
 *             metadata.c     progress, options and checksums as texts of the header
 *             atomic_file.h  the file, which appears whole or not at all
 *     load.c  safetensors.h  decodes the header
 *             metadata.c     checks model, optimizer and checksums
 *             match.c        finds the model's tensors, also in files of PyTorch and Hugging Face */
#ifndef COMMON_CHECKPOINT_CHECKPOINT_H
#define COMMON_CHECKPOINT_CHECKPOINT_H

#include "common/base/options.h"
#include "common/nn/params.h"
#include "common/nn/stages.h"
#include "common/optim/optimizer.h"

#include <stdbool.h>

enum { CHECKPOINT_SCHEMA_VERSION = 1 };

/* ---- contents ------------------------------------------------------------------------------------ */

/* What a checkpoint of a model holds: a list of tensors with names, shapes and places, known from model,
 * element type and optimizer alone. So every rank can compute the order in which rank 0 reads them.
 *
 *   parameters and buffers   PyTorch's names, in the order of state_dict(): a BatchNorm's running_mean,
 *                            running_var and num_batches_tracked after its parameters
 *   optimizer state          optimizer.momentum_buffer.NAME (sgd with momentum), optimizer.exp_avg.NAME and
 *                            optimizer.exp_avg_sq.NAME (adam, adamw), in the order of the parameters
 *
 * Data lie in the order of the list, but for num_batches_tracked: 64-bit integers come first, so that every
 * tensor is aligned to its elements. */
enum { CHECKPOINT_NAME_MAX = NN_NAME_MAX + 32 };

typedef enum checkpoint_kind {
    CHECKPOINT_PARAM,   /* model->params[index] */
    CHECKPOINT_BUFFER,  /* model->buffers[index] */
    CHECKPOINT_BATCHES, /* num_batches_tracked of the BatchNorm model->layers[index], int64 */
    CHECKPOINT_STATE    /* optimizer state arena `state`, at model->params[index] */
} checkpoint_kind;

typedef struct checkpoint_tensor {
    char name[CHECKPOINT_NAME_MAX];
    checkpoint_kind kind;
    int index, state;
    dtype type;
    shape shape; /* PyTorch's */
    int64_t elements;
    int64_t begin, bytes; /* from the start of the data */
} checkpoint_tensor;

typedef struct checkpoint_contents {
    checkpoint_tensor *tensors;
    int count;
    int64_t data_bytes;
    int64_t largest_elements; /* of a tensor */
} checkpoint_contents;

/* `type`, float32 or float64, is that of parameters, buffers and state; `optimizer` NULL: no state. */
status checkpoint_contents_make(const nn_model *model, dtype type, const optimizer_options *optimizer,
                                checkpoint_contents *out);
void checkpoint_contents_free(checkpoint_contents *contents);

/* ---- options ---------------------------------------------------------------------------------- */

typedef struct checkpoint_options {
    const char *save, *load; /* files, or NULL */
    int64_t save_every;      /* steps; 0: at the end */
} checkpoint_options;

extern const option_table checkpoint_option_table;

/* STATUS_USAGE for invalid combinations. */
status checkpoint_options_check(const checkpoint_options *options);

/* Whether to save once `steps` steps of the run are done; `last`: it ends here. */
bool checkpoint_due(const checkpoint_options *options, int64_t steps, bool last);

/* Checks before the first step that a checkpoint can be saved there. Leaves what is at `path` unchanged.
 * Errors: atomic_file.h. */
status checkpoint_probe(const char *path);

/* ---- what is saved and loaded ----------------------------------------------------------------- */

/* Whose checkpoint it is. Everything is borrowed. */
typedef struct checkpoint_subject {
    const nn_model *model;
    dtype type; /* of the parameters: float32 or float64 */
    /* A table bound to the *resolved* options of the model (no value left to a default that may change), or
     * NULL. A checkpoint of a model with other options is refused. */
    const option_binding *model_options;
    const optimizer_options *optimizer; /* NULL: only parameters and buffers */
    const nn_cut *cut; /* of the model into stages, each of which several ranks may have; NULL: every rank has
                          all of it */
} checkpoint_subject;

/* The first stage that has the tensor. */
int checkpoint_stage_of(const checkpoint_subject *subject, const checkpoint_tensor *t);
/* Where a run stands. */
typedef struct checkpoint_progress {
    int64_t step;              /* steps done, which is the index of the next */
    int64_t optimizer_step;    /* updates done: what optimizer_update() is given next */
    int64_t epoch, epoch_step; /* of the next step: batch_position in common/data/batch_source.h */
    int64_t batches_tracked;   /* batches that BatchNorm has seen: PyTorch's num_batches_tracked */
    uint64_t seed;             /* of the run: parameters, order of the data, augmentation */
} checkpoint_progress;

/* Gives tensor `t` in PyTorch's order as t->elements values of t->type. Not called for
 * CHECKPOINT_BATCHES. */
typedef struct checkpoint_source {
    void *context;
    status (*read)(void *context, const checkpoint_tensor *t, void *values);
} checkpoint_source;

/* Takes tensor `t` in PyTorch's order as values of `type`, a floating-point type: that of the file. */
typedef struct checkpoint_sink {
    void *context;
    status (*write)(void *context, const checkpoint_tensor *t, dtype type, const void *values);
} checkpoint_sink;

/* ---- saving ----------------------------------------------------------------------------------- */

/* Reads the source in the order of checkpoint_contents_make() and replaces `path` as atomic_file.h says:
 * what was there stays until the new file is whole and stored. Errors: those, and the source's. */
status checkpoint_save(const char *path, const checkpoint_subject *subject,
                       const checkpoint_progress *progress, const checkpoint_source *source);

/* ---- loading ---------------------------------------------------------------------------------- */

typedef struct checkpoint checkpoint;

/* Of a checkpoint that is open; borrowed from it. */
typedef struct checkpoint_info {
    bool foreign; /* not of this program: it has neither progress nor names of model and optimizer */
    const char *model, *optimizer;
    checkpoint_progress progress; /* all zero where foreign */
} checkpoint_info;

/* Opens the file and checks its header. STATUS_DATA: the file cannot be opened, is truncated, malformed or
 * edited, or is an index of several files; the message says why and at which offset. */
status checkpoint_open(const char *path, checkpoint **out);
void checkpoint_close(checkpoint **c);
const checkpoint_info *checkpoint_get_info(const checkpoint *c);

/* XXH3 of the file. A file of this program has it stored. STATUS_IO. */
status checkpoint_hash(const checkpoint *c, uint64_t *out);

/* Checks the whole file against `subject` before it passes tensors to `sink`. STATUS_DATA: another
 * model or optimizer, tensors missing, unexpected, of another shape or of a type that is no floating point,
 * or a wrong checksum. */
status checkpoint_load(checkpoint *c, const checkpoint_subject *subject, const checkpoint_sink *sink);

/* Logs the effects of a load: the step at which the run resumes, a fresh optimizer, converted values, options
 * that differ from the saved ones. Call it on one rank. */
void checkpoint_log_load(const checkpoint *c, const checkpoint_subject *subject);

/* ---- a rank's arenas as source and sink ---------------------------------------------------------- */

/* Where state arenas are shards of several ranks, whoever saves gathers them into host memory, laid out like
 * the parameters (all of it, or one tensor before it is read), and names that here. */
typedef struct checkpoint_arenas {
    param_set *set;
    device_stream *stream;
    void *states[2];     /* device memory, or host memory if states_on_host; NULL where there is none */
    bool states_on_host; /* for a source only */
} checkpoint_arenas;

/* `o` may be NULL. */
checkpoint_arenas checkpoint_arenas_of(param_set *set, device_stream *s, optimizer *o);

/* `arenas` is borrowed as the context. */
checkpoint_source checkpoint_arenas_source(checkpoint_arenas *arenas);
checkpoint_sink checkpoint_arenas_sink(checkpoint_arenas *arenas);

#endif
