/* Ranks that train a real model for a lab: wine_mlp on the Wine data set, with the train loop, sampler and
 * kernels of `harness run`. Each rank computes its gradients from parameters that the lab gives it. The
 * student's functions take the place of the engine between two steps. Everything runs in the grader's
 * thread, so a run is always the same. */
#ifndef HARNESS_LABS_RANKS_H
#define HARNESS_LABS_RANKS_H

#include "harness/labs/grader.h"

enum { LAB_RANKS_BATCH = 12, LAB_RANKS_TENSORS = 4, LAB_RANKS_ELEMENTS = 13 * 64 + 64 + 64 * 3 + 3 };
/* Number of elements of each parameter, in order of registration. Gradients become ready in the reverse
 * order. */
extern const int64_t lab_ranks_tensors[LAB_RANKS_TENSORS];

/* Opens ranks, after closing the ranks that are still open. The grader closes the ranks at the end of the
 * test. `initial` [LAB_RANKS_ELEMENTS] receives the parameters one after another, in PyTorch's order. */
status lab_ranks_open(grader *g, int ranks, float *initial);
void lab_ranks_close(grader *g);

/* Computes the mean gradient and the mean loss of rank `rank` over its first `samples` samples of step
 * `step`. `samples` is 1, 3, 6 or LAB_RANKS_BATCH. */
status lab_ranks_compute(const grader *g, int rank, int64_t step, int64_t samples, const float *param,
                         float *grad, double *loss);
/* Computes the gradients of all ranks over whole batches, and the mean of their losses. */
status lab_ranks_compute_all(const grader *g, int64_t step, const float *param,
                             float grad[][LAB_RANKS_ELEMENTS], double *loss);

#endif
