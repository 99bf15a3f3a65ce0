/* A case of the operation tests: a few operations over named tensors, so that one description serves
 * finite differences, comparisons of devices and PyTorch's figures.
 *
 * Tensors live as float64 on the host, parameters in PyTorch's layout, images NHWC. Element i of a
 * tensor starts as a function of (seed, name, i), as in common/base/random.h. */
#ifndef TESTS_COMMON_DEVICE_OP_CASE_H
#define TESTS_COMMON_DEVICE_OP_CASE_H

#include "common/memory/piece.h"
#include "common/ops/op.h"

/* CASE_NONE stands for no tensor. */
enum { CASE_MAX_TENSORS = 32, CASE_MAX_STEPS = 4, CASE_MAX_PAIRS = 6, CASE_NONE = 0 };

typedef enum case_type { CASE_COMPUTE, CASE_F64, CASE_I32, CASE_U8 } case_type;

/* u is uniform in [0, 1), r = 2u - 1. */
typedef enum case_fill {
    FILL_OUTPUT,   /* NaN, since the operation must write the tensor. */
    FILL_SIGNED,   /* r */
    FILL_OFFSET,   /* 8 + r, whose mean is far above the deviation. */
    FILL_POSITIVE, /* 0.5 + u */
    FILL_INDEX,    /* floor(u bound) */
    FILL_TARGET,   /* floor(u bound), but LOSS_IGNORE at i = 1, 5, 9, ... */
    FILL_DISTINCT, /* (3 + 5 i) mod bound */
    FILL_ZERO
} case_fill;

typedef struct case_tensor {
    char name[16];
    case_type type;
    case_fill fill;
    int64_t count, bound;
    int64_t used;    /* Elements that count. Later elements are NaN (or 0) and are never compared. */
    int64_t columns; /* Extent of the last dimension. */
    bool parameter;  /* True if the device chooses the layout of the tensor. */
    /* Parameter whose layout the tensor has: the tensor itself, or the parameter whose gradient it is. */
    int layout_of;
    int base; /* If the tensor is a view, the tensor that it shows from element `offset` on. */
    int64_t offset;
    shape shape; /* PyTorch's shape of a parameter. */
} case_tensor;

typedef struct case_step {
    op_desc op;
    int operand[OP_MAX_OPERANDS]; /* Tensor of each slot. */
    unsigned written;             /* bit i: slot i is written */
    int layout;                   /* the parameter whose layout the kernel is prepared with */
} case_step;

typedef struct case_pair {
    int first, second;
    bool adds;
} case_pair;

typedef struct op_case {
    char name[128];
    uint64_t seed;
    case_tensor tensors[CASE_MAX_TENSORS]; /* Tensors are numbered from 1. */
    int tensor_count;
    case_step steps[CASE_MAX_STEPS];
    int step_count;
    int forward_steps; /* Number of steps that compute outputs. The later steps compute gradients. */
    op_scalars scalars;
    piece pieces[3];
    /* The scalar whose gradients the steps compute: the sum of outputs times weights (first, second) or,
     * with second CASE_NONE, element 0 of first divided by the loss's normalizer. */
    case_pair objective[CASE_MAX_PAIRS];
    int objective_count;
    /* `second` is the gradient of `first`. If `adds` is set, it is added to the previous content. */
    case_pair gradients[CASE_MAX_PAIRS];
    int gradient_count;
} op_case;

/* ---- building --------------------------------------------------------------------------------- */

/* An empty case with seed 1 and a name made as by printf. */
void case_begin(op_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

int case_tensor_add(op_case *c, const char *name, case_fill fill, int64_t rows, int64_t columns);
int case_input(op_case *c, const char *name, int64_t rows, int64_t columns);
int case_output(op_case *c, const char *name, int64_t rows, int64_t columns);
int case_parameter(op_case *c, const char *name, case_fill fill, shape plain);
/* The gradient of a parameter; with `adds` it starts with values to which the gradient is added. */
int case_parameter_gradient(op_case *c, const char *name, int parameter, bool adds);
int case_view(op_case *c, const char *name, int base, int64_t offset);
int case_integers(op_case *c, const char *name, case_fill fill, int64_t count, int64_t bound);

case_step *case_add_step(op_case *c, const op_desc *op, const int operand[OP_MAX_OPERANDS], unsigned written);
void case_objective(op_case *c, int output, int weights);
void case_gradient(op_case *c, int input, int gradient, bool adds);

/* ---- values ----------------------------------------------------------------------------------- */

/* The values of all tensors of a case; views have none of their own. */
typedef struct case_state {
    const op_case *c;
    double *values[CASE_MAX_TENSORS];
} case_state;

void case_state_open(const op_case *c, case_state *out);
void case_state_close(case_state *state);
void case_state_copy(case_state *to, const case_state *from);
/* Rounds what is of the computation's type to `type`. */
void case_state_round(case_state *state, dtype type);

/* The tensor that holds a tensor's elements: its base, or itself. */
int case_owner(const op_case *c, int tensor);

/* Whether the step writes to the tensor, or to a view of it. */
bool case_writes(const op_case *c, int step, int tensor);

/* The tensor of that name, CASE_NONE if there is none. */
int case_find(const op_case *c, const char *name);

#endif
