/* Cuts a model into stages, as model and pipeline parallelism do. A stage is a range of consecutive layers.
 * Each stage is a model whose parameters have the same names and initial values as in the whole model.
 *
 * A model can be cut in front of a layer if this layer and the later layers read only one output of the
 * layers before the cut. A ResNet or a transformer can be cut in front of a block, but not within a block,
 * because the residual connection would cross the cut too. Layers that compilation fuses into one operation
 * stay in one stage. The layers of the masked head (program.h) also stay in one stage. The cuts minimize the
 * cost of the most expensive stage, in floating-point operations of both passes.
 *
 * A parameter that several layers use belongs to every stage that has one of these layers. */
#ifndef COMMON_NN_STAGES_H
#define COMMON_NN_STAGES_H

#include "common/nn/model.h"

enum { NN_MOST_STAGES = 64 };

typedef struct nn_stage {
    nn_ref begin, end; /* layers [begin, end) of the model; the first stage begins after the input */
    /* layer whose output is sent to the next stage, or the model's output layer in the last stage */
    nn_ref output;
    int64_t parameters; /* number of elements of all parameters of the stage */
    double flops;       /* floating-point operations per sample of both passes */
    /* Number of elements per sample that are sent to the next stage, or 0 for the last stage. The next stage
     * sends back the same number of gradients. */
    int64_t crosses;
} nn_stage;

typedef struct nn_cut {
    int count;
    nn_stage stages[NN_MOST_STAGES];
} nn_cut;

/* Cuts a model into `stages` stages. Returns STATUS_CONFIG if the model has too few places at which it can be
 * cut. */
status nn_cut_model(const nn_model *m, int stages, nn_cut *out);

/* Returns true if layers of the stage use the parameter. */
bool nn_stage_uses(const nn_model *m, const nn_cut *cut, int stage, int param);

/* Returns the first stage that uses the parameter. */
int nn_stage_of_param(const nn_model *m, const nn_cut *cut, int param);
/* Returns the stage whose layer uses the buffer. */
int nn_stage_of_buffer(const nn_model *m, const nn_cut *cut, int buffer);

/* Creates the model of a stage. In this model, `received` is true unless the stage is the first, and `sent`
 * is true unless the stage is the last. The caller frees the model. */
status nn_stage_model(const nn_model *m, const nn_cut *cut, int stage, nn_model **out);

#endif
