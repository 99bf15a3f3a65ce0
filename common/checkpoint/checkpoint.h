/* A checkpoint stores the state of a run in one safetensors file, with PyTorch's names, order and layout.
 * docs/checkpoints.md describes the file.
 *
 * One rank saves, at a time when all ranks have the same state (sync_engine_type.flush). The saving rank
 * reads one tensor at a time from a source, so it needs memory for only one tensor. Every rank loads the
 * file.
 *
 *     save.c  contents.c     the list of tensors; a source and a sink for a rank's arenas
 *             metadata.c     writes progress, options and checksums as texts in the header
 *             atomic_file.h  writes the file completely or not at all
 *     load.c  safetensors.h  decodes the header
 *             metadata.c     checks model, optimizer and checksums
 *             match.c        finds the model's tensors, also in files that PyTorch or Hugging Face wrote */
#ifndef COMMON_CHECKPOINT_CHECKPOINT_H
#define COMMON_CHECKPOINT_CHECKPOINT_H

#include "common/base/options.h"
#include "common/nn/params.h"
#include "common/nn/stages.h"
#include "common/optim/optimizer.h"

#include <stdbool.h>

enum { CHECKPOINT_SCHEMA_VERSION = 1 };

/* ---- contents ------------------------------------------------------------------------------------ */

/* The contents of a checkpoint: a list of tensors with names, shapes and positions. The list depends only on
 * the model, the element type and the optimizer. Therefore every rank can compute the order in which rank 0
 * reads the tensors.
 *
 *   parameters and buffers   PyTorch's names, in the order of state_dict(). A BatchNorm's running_mean,
 *                            running_var and num_batches_tracked follow its parameters.
 *   optimizer state          optimizer.momentum_buffer.NAME (sgd with momentum), optimizer.exp_avg.NAME and
 *                            optimizer.exp_avg_sq.NAME (adam, adamw), in the order of the parameters
 *
 * In the file, the data of all num_batches_tracked come first, because their elements have 64 bits. The data
 * of the other tensors follow in the order of the list. Therefore the file offset of every tensor is a
 * multiple of its element size. */
enum { CHECKPOINT_NAME_MAX = NN_NAME_MAX + 32 };

typedef enum checkpoint_kind {
    CHECKPOINT_PARAM,   /* model->params[index] */
    CHECKPOINT_BUFFER,  /* model->buffers[index] */
    CHECKPOINT_BATCHES, /* num_batches_tracked of the BatchNorm model->layers[index], an int64 */
    CHECKPOINT_STATE    /* optimizer state of model->params[index], in the state arena number `state` */
} checkpoint_kind;

typedef struct checkpoint_tensor {
    char name[CHECKPOINT_NAME_MAX];
    checkpoint_kind kind;
    int index, state;
    dtype type;
    shape shape; /* shape in PyTorch's layout */
    int64_t elements;
    int64_t begin, bytes; /* `begin` is the offset in bytes from the start of the data */
} checkpoint_tensor;

typedef struct checkpoint_contents {
    checkpoint_tensor *tensors;
    int count;
    int64_t data_bytes;
    int64_t largest_elements;
} checkpoint_contents;

/* Makes the list. `type` is float32 or float64, and is the type of parameters, buffers and optimizer state.
 * If `optimizer` is NULL, the list contains no optimizer state. */
status checkpoint_contents_make(const nn_model *model, dtype type, const optimizer_options *optimizer,
                                checkpoint_contents *out);
void checkpoint_contents_free(checkpoint_contents *contents);

/* ---- options ---------------------------------------------------------------------------------- */

typedef struct checkpoint_options {
    const char *save, *load;  /* paths of the files to save and to load, or NULL */
    option_period save_every; /* period of checkpoints, or 0 to save only at the end */
} checkpoint_options;

extern const option_table checkpoint_option_table;

/* Fails with STATUS_USAGE if the options cannot be combined. */
status checkpoint_options_check(const checkpoint_options *options);

/* Formats the path of the checkpoint after `epoch` epochs, which replaces "{epoch}" in --save. Returns
 * `buffer`. */
char *checkpoint_path(const checkpoint_options *options, int64_t epoch, char *buffer, size_t size);

/* Removes the partial files of --save whose writers have been killed (atomic_file_clean()). */
void checkpoint_clean(const checkpoint_options *options);

/* Checks, before the first step, that a checkpoint can be saved at `path`. Leaves an existing file unchanged.
 * atomic_file.h lists the errors. */
status checkpoint_probe(const char *path);

/* ---- what is saved and loaded ----------------------------------------------------------------- */

/* The model and the optimizer of a checkpoint. All pointers are borrowed. */
typedef struct checkpoint_subject {
    const nn_model *model;
    dtype type; /* type of the parameters, float32 or float64 */
    /* Table of the model's options, bound to the values with which the model was built. All values are
     * stored, so a later change of a default does not matter. It is an error to load a checkpoint of a model
     * with other options. If model_options is NULL, options are not compared. */
    const option_binding *model_options;
    const optimizer_options *optimizer; /* NULL if the checkpoint has only parameters and buffers */
    /* The split of the model into pipeline stages, or NULL if every rank has the whole model. Several ranks
     * may have the same stage. */
    const nn_cut *cut;
} checkpoint_subject;

/* Returns the first pipeline stage that has the tensor. */
int checkpoint_stage_of(const checkpoint_subject *subject, const checkpoint_tensor *t);
typedef struct checkpoint_progress {
    int64_t step;              /* number of finished steps, which is the index of the next step */
    int64_t optimizer_step;    /* number of updates, which is the argument of the next optimizer_update() */
    int64_t epoch, epoch_step; /* epoch of the next step, and step within this epoch (batch_position in
                                * common/data/batch_source.h) */
    /* number of batches that each BatchNorm has processed (PyTorch's num_batches_tracked) */
    int64_t batches_tracked;
    uint64_t seed; /* seed of the parameters, of the order of samples, and of the augmentation */
} checkpoint_progress;

/* A source of tensors. read() reads tensor `t` in PyTorch's order as t->elements values of t->type. read() is
 * not called for CHECKPOINT_BATCHES. */
typedef struct checkpoint_source {
    void *context;
    status (*read)(void *context, const checkpoint_tensor *t, void *values);
} checkpoint_source;

/* A sink of tensors. write() receives tensor `t` in PyTorch's order, as values of `type`. `type` is the
 * floating-point type that the tensor has in the file. */
typedef struct checkpoint_sink {
    void *context;
    status (*write)(void *context, const checkpoint_tensor *t, dtype type, const void *values);
} checkpoint_sink;

/* ---- saving ----------------------------------------------------------------------------------- */

/* Reads the tensors from the source in the order of checkpoint_contents_make(), and replaces the file at
 * `path` atomically. An existing file stays until the new file is complete and on the disk. Fails with the
 * errors of the source and of atomic_file.h. */
status checkpoint_save(const char *path, const checkpoint_subject *subject,
                       const checkpoint_progress *progress, const checkpoint_source *source);

/* ---- loading ---------------------------------------------------------------------------------- */

typedef struct checkpoint checkpoint;

/* Description of an open checkpoint. The texts belong to the checkpoint. */
typedef struct checkpoint_info {
    /* True if another program wrote the file. The file then contains no progress, and no names of the model
     * and the optimizer. */
    bool foreign;
    const char *model, *optimizer;
    checkpoint_progress progress; /* all zeros if `foreign` is true */
} checkpoint_info;

/* Opens a file and checks the header. Fails with STATUS_DATA if the file cannot be opened, is truncated,
 * malformed or edited, or is an index of several files. The error message contains the reason and the
 * offset. */
status checkpoint_open(const char *path, checkpoint **out);
void checkpoint_close(checkpoint **c);
const checkpoint_info *checkpoint_get_info(const checkpoint *c);

/* Computes the XXH3 hash of the file. A file that this program wrote contains the hash in its header. Fails
 * with STATUS_IO if the file cannot be read. */
status checkpoint_hash(const checkpoint *c, uint64_t *out);

/* Compares the whole file with `subject`, then passes the tensors to `sink`. Fails with STATUS_DATA if the
 * model or the optimizer differs, if a tensor is missing, is unexpected, has another shape or is not of a
 * floating-point type, or if a checksum is wrong. */
status checkpoint_load(checkpoint *c, const checkpoint_subject *subject, const checkpoint_sink *sink);

/* Logs the step at which the run resumes, whether the optimizer starts without state, whether values are
 * converted, and the options that differ from the saved options. Only one rank calls this function. */
void checkpoint_log_load(const checkpoint *c, const checkpoint_subject *subject);

/* ---- a rank's arenas as source and sink ---------------------------------------------------------- */

/* The arenas of a rank. If the optimizer state is sharded over several ranks, the saving rank first gathers
 * the state into host memory, in the layout of the parameters. It gathers all tensors, or one tensor at a
 * time. `states` then points to the host memory. */
typedef struct checkpoint_arenas {
    param_set *set;
    device_stream *stream;
    /* Arenas of the optimizer state, in device memory, or in host memory if `states_on_host` is true. NULL
     * if there is no state. */
    void *states[2];
    bool states_on_host; /* used only by a source */
} checkpoint_arenas;

/* Describes the arenas of a rank. `o` may be NULL. */
checkpoint_arenas checkpoint_arenas_of(param_set *set, device_stream *s, optimizer *o);

/* Return a source that reads `arenas`, and a sink that writes `arenas`. Both borrow `arenas`. */
checkpoint_source checkpoint_arenas_source(checkpoint_arenas *arenas);
checkpoint_sink checkpoint_arenas_sink(checkpoint_arenas *arenas);

#endif
