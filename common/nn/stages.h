/* Cuts a model into stages, as model and pipeline parallelism do. A stage is a range of consecutive layers.
 * Each stage is a model with the same names and initial values.
 *
 * A model can be cut in front of a layer if the layers from there on read only one output of the layers
 * before. A ResNet or a transformer can be cut in front of a block, but not within a block, because the
 * residual crosses too. Layers that compilation fuses into one operation stay together, as does the head that
 * may leave out rows without a target. Among all possible cuts, the chosen cuts minimize the cost of the most
 * expensive stage, in floating-point operations of both passes.
 *
 * A parameter that several layers use belongs to each stage with one of these layers. */
#ifndef COMMON_NN_STAGES_H
#define COMMON_NN_STAGES_H

#include "common/nn/model.h"

enum { NN_MOST_STAGES = 64 };

typedef struct nn_stage {
    nn_ref begin, end;  /* layers [begin, end) of the model; the first stage begins after the input */
    nn_ref output;      /* layer whose output crosses to the next stage, or the model's output */
    int64_t parameters; /* elements of all parameters */
    double flops;       /* operations per sample, forward and backward pass */
    /* Elements per sample that are sent to the next stage; as many gradients come back. 0 for the last
     * stage. */
    int64_t crosses;
} nn_stage;

typedef struct nn_cut {
    int count;
    nn_stage stages[NN_MOST_STAGES];
} nn_cut;

/* Returns STATUS_CONFIG if the model has too few places for the cuts. */
status nn_cut_model(const nn_model *m, int stages, nn_cut *out);

/* Returns true if layers of the stage use the parameter. */
bool nn_stage_uses(const nn_model *m, const nn_cut *cut, int stage, int param);

/* Returns the first stage that uses the parameter. */
int nn_stage_of_param(const nn_model *m, const nn_cut *cut, int param);
/* Returns the stage that has the buffer. */
int nn_stage_of_buffer(const nn_model *m, const nn_cut *cut, int buffer);

/* Creates the model of a stage. `received` is true unless the stage is the first, and `sent` is true unless
 * the stage is the last. The caller frees the model. */
status nn_stage_model(const nn_model *m, const nn_cut *cut, int stage, nn_model **out);

#endif
