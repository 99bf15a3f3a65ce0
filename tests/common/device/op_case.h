/* A case of the operation tests: a few operations over named tensors. The same description serves finite
 * differences, comparisons of devices, and comparisons with PyTorch's values.
 *
 * The host holds all tensors as float64, parameters in PyTorch's layout and images as NHWC. Element i of a
 * tensor starts as a function of (seed, name, i), as in common/base/random.h. */
#ifndef TESTS_COMMON_DEVICE_OP_CASE_H
#define TESTS_COMMON_DEVICE_OP_CASE_H

#include "common/memory/piece.h"
#include "common/ops/op.h"

/* CASE_NONE stands for "no tensor". */
enum { CASE_MAX_TENSORS = 32, CASE_MAX_STEPS = 4, CASE_MAX_PAIRS = 6, CASE_NONE = 0 };

typedef enum case_type { CASE_COMPUTE, CASE_F64, CASE_I32, CASE_U8 } case_type;

/* Initial value of element i of a tensor. u is drawn uniformly from [0, 1), and r = 2u - 1. */
typedef enum case_fill {
    FILL_OUTPUT,   /* NaN, since the operation must write the tensor. */
    FILL_SIGNED,   /* r */
    FILL_OFFSET,   /* 8 + r; the mean is far above the deviation. */
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
    /* Number of elements that are compared. Later elements are NaN (or 0), and are not compared. */
    int64_t used;
    int64_t columns; /* Extent of the last dimension. */
    bool parameter;  /* True if the device chooses the layout of the tensor. */
    /* The parameter whose layout the tensor has: the tensor itself, or the parameter of which it is the
     * gradient. */
    int layout_of;
    /* The tensor of which this one is a view, from element `offset` on, or CASE_NONE if it is no view. */
    int base;
    int64_t offset;
    shape shape; /* PyTorch's shape of a parameter. */
} case_tensor;

typedef struct case_step {
    op_desc op;
    int operand[OP_MAX_OPERANDS]; /* The tensor in each slot, or CASE_NONE. */
    unsigned written;             /* Bit i is set if the operation writes to slot i. */
    int layout;                   /* The parameter whose layout the kernel is prepared with. */
} case_step;

typedef struct case_pair {
    int first, second;
    bool adds;
} case_pair;

typedef struct op_case {
    char name[128];
    uint64_t seed;
    case_tensor tensors[CASE_MAX_TENSORS]; /* Tensors are numbered from 1 on. */
    int tensor_count;
    case_step steps[CASE_MAX_STEPS];
    int step_count;
    int forward_steps; /* Number of steps that compute outputs. The later steps compute gradients. */
    op_scalars scalars;
    piece pieces[3];
    /* The scalar whose gradients the steps compute. It is the sum over all elements of output `first` times
     * weight `second`. If `second` is CASE_NONE, it is element 0 of `first` divided by the normalizer of the
     * loss. */
    case_pair objective[CASE_MAX_PAIRS];
    int objective_count;
    /* `second` is the gradient of `first`. If `adds` is set, the operation adds the gradient to the previous
     * content. */
    case_pair gradients[CASE_MAX_PAIRS];
    int gradient_count;
} op_case;

/* ---- building --------------------------------------------------------------------------------- */

/* Begins an empty case with seed 1. The name is formatted as by printf. */
void case_begin(op_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

int case_tensor_add(op_case *c, const char *name, case_fill fill, int64_t rows, int64_t columns);
int case_input(op_case *c, const char *name, int64_t rows, int64_t columns);
int case_output(op_case *c, const char *name, int64_t rows, int64_t columns);
int case_parameter(op_case *c, const char *name, case_fill fill, shape plain);
/* Adds the tensor of a parameter's gradient. If `adds` is set, the tensor starts with values to which the
 * operation adds the gradient. */
int case_parameter_gradient(op_case *c, const char *name, int parameter, bool adds);
int case_view(op_case *c, const char *name, int base, int64_t offset);
int case_integers(op_case *c, const char *name, case_fill fill, int64_t count, int64_t bound);

case_step *case_add_step(op_case *c, const op_desc *op, const int operand[OP_MAX_OPERANDS], unsigned written);
void case_objective(op_case *c, int output, int weights);
void case_gradient(op_case *c, int input, int gradient, bool adds);

/* ---- values ----------------------------------------------------------------------------------- */

/* The values of all tensors of a case. Views have no values. */
typedef struct case_state {
    const op_case *c;
    double *values[CASE_MAX_TENSORS];
} case_state;

void case_state_open(const op_case *c, case_state *out);
void case_state_close(case_state *state);
void case_state_copy(case_state *to, const case_state *from);
/* If `type` is float32, rounds to it all values that have the type of the computation. */
void case_state_round(case_state *state, dtype type);

/* Returns the tensor that holds the elements of `tensor`: its base if it is a view, else the tensor
 * itself. */
int case_owner(const op_case *c, int tensor);

/* Returns whether the step writes to the tensor, or to a view of this tensor. */
bool case_writes(const op_case *c, int step, int tensor);

/* Returns the tensor with this name, or CASE_NONE if no tensor has it. */
int case_find(const op_case *c, const char *name);

#endif
