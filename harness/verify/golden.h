/* Golden trajectories: results of PyTorch in float64 for a model, an optimizer and some steps. A file
 * contains the loss of every step, and digests of the first step's gradients and of the parameters and
 * buffers after the last step. tests/golden/README.md defines the format, the values of parameters and
 * inputs, and the limits of a comparison. */
#ifndef HARNESS_VERIFY_GOLDEN_H
#define HARNESS_VERIFY_GOLDEN_H

#include "common/base/status.h"
#include "common/data/batch_source.h"
#include "common/nn/model.h"
#include "common/optim/optimizer.h"
#include "models/models.h"

enum { GOLDEN_MOST_BATCH = 1 << 20, GOLDEN_MAX_SAMPLES = 16, GOLDEN_NAME_MAX = NN_NAME_MAX + 16 };

typedef struct golden_tensor {
    char name[GOLDEN_NAME_MAX];
    int64_t elements;
    double l2, sum, error; /* `error` is the L2 distance between PyTorch's float32 run and its float64 run. */
    int sample_count;
    int64_t sample_index[GOLDEN_MAX_SAMPLES];
    double sample_value[GOLDEN_MAX_SAMPLES];
} golden_tensor;

typedef struct golden_tensors {
    golden_tensor *list;
    int count;
} golden_tensors;

typedef struct golden_file {
    char path[256];
    char model_name[64];
    model_options model;
    optimizer_options optimizer;
    int world;
    int64_t batch; /* Samples per rank. */
    int64_t steps, parameters;
    uint64_t seed;
    bool global_loss; /* True if a loss is computed over the targets of all ranks. */
    /* True if the model has kinks: ReLU or max pooling next to BatchNorm, where rounding can change which
     * value is selected. In float32 and in lower precisions, only the first step of a model with kinks is
     * compared. */
    bool kinks;
    int losses_per_step;
    double *loss, *loss_error; /* [steps][losses_per_step] */
    golden_tensors gradients, parameters_final, buffers_final;
} golden_file;

/* Reads a file. Returns STATUS_DATA if the file is invalid, with a message that names the file and the place
 * in the file. */
status golden_open(const char *path, golden_file **out);
void golden_close(golden_file **file);

/* Sets out[i] to the initial value of element i of the parameter in PyTorch's order, rounded to float32. */
void golden_fill_param(const golden_file *file, const nn_param *p, float *out);

/* Opens a source of batches. A batch contains the samples of ranks [first, first + ranks), one rank after
 * another. */
status golden_source_open(const golden_file *file, const nn_model *model, int first, int ranks,
                          batch_source **out);

#endif
