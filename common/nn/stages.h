/* A model cut into stages, as model and pipeline parallelism do: consecutive layers, of which each stage is a
 * model of its own, with the model's names and initial values.
 *
 * A model can be cut in front of a layer where exactly one tensor crosses: one output of the layers before it
 * is read by the layers after it. (In front of the block of a ResNet or a transformer; not within one, where
 * the residual crosses too.) Layers that compilation fuses into one operation stay together, and so does the
 * head that may leave out rows without a target. Where there are more places than are needed, the most
 * expensive stage is as cheap as possible, by the floating-point operations of both passes.
 *
 * A parameter that several layers use belongs to each stage that has one of them. */
#ifndef COMMON_NN_STAGES_H
#define COMMON_NN_STAGES_H

#include "common/nn/model.h"

enum { NN_MOST_STAGES = 64 };

typedef struct nn_stage {
    nn_ref begin, end;  /* layers [begin, end) of the model; the first begins after the input */
    nn_ref output;      /* the layer whose output crosses to the next stage; of the last the model's output */
    int64_t parameters; /* elements */
    double flops;       /* of a sample's forward and backward pass */
    int64_t crosses; /* elements per sample that cross to the next stage, and back as their gradient; of the
                        last 0 */
} nn_stage;

typedef struct nn_cut {
    int count;
    nn_stage stages[NN_MOST_STAGES];
} nn_cut;

/* STATUS_CONFIG where the model has too few places. */
status nn_cut_model(const nn_model *m, int stages, nn_cut *out);

/* Whether layers of the stage use the parameter. */
bool nn_stage_uses(const nn_model *m, const nn_cut *cut, int stage, int param);

/* The first stage that has it. */
int nn_stage_of_param(const nn_model *m, const nn_cut *cut, int param);
int nn_stage_of_buffer(const nn_model *m, const nn_cut *cut, int buffer);

/* The stage as a model: `received` but for the first, `sent` but for the last. The caller frees it. */
status nn_stage_model(const nn_model *m, const nn_cut *cut, int stage, nn_model **out);

#endif
