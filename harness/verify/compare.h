/* When a computed figure agrees with a golden one: tests/golden/README.md, "Two comparisons". */
#ifndef HARNESS_VERIFY_COMPARE_H
#define HARNESS_VERIFY_COMPARE_H

#include "harness/verify/golden.h"

/* The worst figure so far, as a share of its limit: above 1 something disagrees. */
typedef struct comparison {
    double share;
    char what[GOLDEN_NAME_MAX + 64];
    double found, expected;
    int tensors, unchecked; /* unchecked: PyTorch's own float32 strays too far */
} comparison;

typedef enum comparison_precision { COMPARE_FLOAT64, COMPARE_FLOAT32, COMPARE_BFLOAT16 } comparison_precision;

void compare_loss(comparison *c, comparison_precision precision, const golden_file *file, int64_t step, int rank,
                  double loss);

/* One loss over the batches of all ranks: the mean of theirs, where all have as many targets. */
void compare_mean_loss(comparison *c, comparison_precision precision, const golden_file *file, int64_t step, double loss);

/* `values` in PyTorch's order, t->elements of them. `kind` is what messages call it: "gradient". */
void compare_tensor(comparison *c, comparison_precision precision, const golden_tensor *t, const char *kind,
                    const double *values);

/* Networks with ReLU in float32: a gradient's l2 alone, to 5%; in bfloat16 to 10%. */
void compare_tensor_with_kinks(comparison *c, comparison_precision precision, const golden_tensor *t, const char *kind,
                               const double *values);

#endif
