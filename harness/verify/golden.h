/* Golden trajectories: what PyTorch computed, in float64, for a model, an optimizer and some steps; losses
 * step by step, digests of the first step's gradients, of the parameters and buffers after the last step.
 * tests/golden/README.md defines the format, the values of parameters and inputs, and when two figures
 * agree. */
#ifndef HARNESS_VERIFY_GOLDEN_H
#define HARNESS_VERIFY_GOLDEN_H

#include "common/base/status.h"
#include "common/data/batch_source.h"
#include "common/nn/model.h"
#include "common/optim/optimizer.h"
#include "models/models.h"

enum { GOLDEN_MOST_BATCH = 1 << 20, GOLDEN_MAX_SAMPLES = 16, GOLDEN_NAME_MAX = NN_NAME_MAX + 16 };

/* A tensor's digest. */
typedef struct golden_tensor {
    char name[GOLDEN_NAME_MAX];
    int64_t elements;
    double l2, sum, error; /* error: L2 distance of PyTorch's float32 run */
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
    int64_t batch; /* a rank */
    int64_t steps, parameters;
    uint64_t seed;
    bool global_loss; /* one loss over the targets of all ranks */
    bool kinks;       /* ReLU or maxima next to BatchNorm: in float32 only the first step is held */
    int losses_per_step;
    double *loss, *loss_error; /* [steps][losses_per_step] */
    golden_tensors gradients, parameters_final, buffers_final;
} golden_file;

/* STATUS_DATA names the file, the place and what was found. */
status golden_open(const char *path, golden_file **out);
void golden_close(golden_file **file);

/* Parameter `p` of the case at PyTorch's index i; rounded to float32. */
void golden_fill_param(const golden_file *file, const nn_param *p, float *out);

/* The batches of ranks first .. first + ranks - 1, one after another. */
status golden_source_open(const golden_file *file, const nn_model *model, int first, int ranks,
                          batch_source **out);

#endif
