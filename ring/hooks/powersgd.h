/* PowerSGD sends a gradient matrix as two thin factors (Vogels, Karimireddy, Jaggi: "PowerSGD: Practical
 * Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithm 1).
 *
 * For every matrix M (rows x cols) and rank r, with the error e of the previous step:
 *
 *     M <- M + e
 *     P <- M Q            sum of P over the ranks
 *     P <- orthonormal columns of P
 *     Q <- M^T P          mean of Q over the ranks
 *     e <- M - P Q^T,  M <- P Q^T
 *
 * Q is kept from step to step (warm start). The steps are therefore a power iteration, hence the name. The
 * factors are stored transposed, p (r, rows) and q (r, cols), so that all loops run over contiguous
 * memory. Sums are computed in a fixed order, so ranks with the same P and Q get bit-identical results. */
#ifndef RING_HOOKS_POWERSGD_H
#define RING_HOOKS_POWERSGD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct powersgd_matrix {
    int64_t rows, cols;
    float *m, *error; /* (rows, cols) */
    float *p;         /* (r, rows) */
    float *q;         /* (r, cols) */
} powersgd_matrix;

/* Returns true if both factors together have fewer than half of the matrix's elements (PyTorch's
 * min_compression_rate of 2). */
bool powersgd_pays(int64_t rows, int64_t cols, int rank);

/* Sets the error to zero, and q to standard normal numbers that depend only on the tensor's name. */
void powersgd_start(const powersgd_matrix *x, int rank, const char *name);

void powersgd_project(const powersgd_matrix *x, int rank);      /* m += error; p = m q */
void powersgd_back_project(const powersgd_matrix *x, int rank); /* p orthonormal; q = m^T p */
void powersgd_restore(const powersgd_matrix *x, int rank);      /* error = m - p q^T; m = p q^T */

#endif
