/* Builders of cases, one for each family of operations. A case runs the forward operation, and then the
 * operations that compute its gradients. The builder fills in output sizes (p, q). Tensors have the names of
 * op.h's comments ("x", "w", "dy"). */
#ifndef TESTS_COMMON_DEVICE_OP_FAMILIES_H
#define TESTS_COMMON_DEVICE_OP_FAMILIES_H

#include "tests/common/device/op_case.h"

typedef enum case_alias {
    ALIAS_NONE,
    ALIAS_IN_PLACE,       /* The forward operation overwrites an input if op.h allows it, and dx uses dy's
                           * memory. */
    ALIAS_RESIDUAL_IN_DY, /* For BatchNorm: dresidual uses dy's memory. */
} case_alias;

typedef struct case_options {
    bool accumulate;  /* Value of op_desc.accumulate. */
    bool micro_batch; /* Value of op_scalars.accumulate. */
    case_alias alias;
    int64_t rows;    /* Value of op_scalars.rows. */
    bool large_mean; /* For BatchNorm: x is 8 + r, so its mean is large. */
} case_options;

/* Returns a text that describes the options in the name of a case, such as " in place". */
const char *case_options_text(case_options o);

void case_conv2d(op_case *c, conv2d_attributes a, case_options o);
void case_linear(op_case *c, linear_attributes a, case_options o);
void case_batchnorm(op_case *c, batchnorm_attributes a, case_options o);
void case_batchnorm_inference(op_case *c, batchnorm_attributes a);
/* Builds the case of one of a.world ranks. The test has to add up the sums of all ranks, since each rank
 * computes only its own. */
void case_syncbatchnorm(op_case *c, batchnorm_attributes a, case_options o);
void case_layernorm(op_case *c, layernorm_attributes a, case_options o);
void case_activation(op_case *c, elementwise_attributes a, case_options o);
void case_add(op_case *c, elementwise_attributes a, case_options o);
/* Concatenates tensors of the channels in a.c, over images of a.rows pixels. */
void case_concat(op_case *c, concat_attributes a);
void case_maxpool(op_case *c, pool_attributes a);
void case_avgpool(op_case *c, pool_attributes a);
void case_embedding(op_case *c, embedding_attributes a, case_options o);
/* Builds attention with q, k and v packed in one tensor if a.stride is 3 hidden, or in separate tensors if
 * a.stride is 0. */
void case_attention(op_case *c, attention_attributes a);
void case_rows(op_case *c, rows_attributes a, case_options o);
void case_cross_entropy(op_case *c, loss_attributes a, case_options o);
void case_mean_squared_error(op_case *c, loss_attributes a, case_options o);

/* An update of two pieces in an arena of a.count elements. */
typedef struct case_update {
    double learning_rate, weight_decay, gradient_scale;
    int64_t step; /* Number of the step, from 0. */
} case_update;
void case_sgd(op_case *c, optimizer_attributes a, case_update u);
void case_adam(op_case *c, optimizer_attributes a, case_update u);
void case_sum_squares(op_case *c, int64_t count);
void case_divide(op_case *c, int64_t count, double divisor);
void case_clear(op_case *c, int64_t count);

#endif
