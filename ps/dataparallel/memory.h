/* The memory that the policy `dp` needs in each phase, as in torch.nn.DataParallel. For each phase, a formula
 * gives the number of bytes that device 0 holds in excess of another device. The formulas are derived in
 * docs/ps.md. Reports and tests compare the ledger with the formulas. */
#ifndef PS_DP_MEMORY_H
#define PS_DP_MEMORY_H

#include "common/memory/ledger.h"

#include <stdbool.h>

/* Sizes in bytes. The comments contain the symbols of the formulas below. */
typedef struct ps_dp_sizes {
    int64_t parameters; /* P */
    int64_t kept;       /* G, gradients that are kept between steps: P with --keep-grads, else 0. */
    int64_t state;      /* S, state of the optimizer. */
    int64_t outputs;    /* O, outputs of the whole batch, or 0 if replicas compute the losses. */
    /* L, outputs in the type in which the loss computes. Equal to O, or to twice O if activations are
     * bfloat16. */
    int64_t loss_outputs;
    int64_t other_output; /* O/n, outputs of the samples of one other device. */
    /* Buffers of the model. Device 0 always has the buffers, and other devices receive the buffers with the
     * parameters. */
    int64_t buffers;
    int64_t batch; /* Size of the batch on device 0 minus the size of another device's part. */
    int64_t ahead; /* Next batch, which only device 0 has prefetched (--prefetch). */
    bool lean;     /* True with --dp-lifetimes lean. */
} ps_dp_sizes;

/* Columns: name; description; formula with PyTorch's lifetimes; formula with PyTorch's lifetimes and autocast
 * to bfloat16; formula with lean lifetimes; phase of the ledger. The difference is measured at the end of
 * this phase. */
#define PS_DP_PHASE_LIST(X)                                                                                  \
    X(OPTIMIZED, "after the optimizer, before zero_grad", "2P + S", "2P + S", "2P + S", OPTIMIZER_STEP)      \
    X(REPLICATED, "after replicate", "G + S", "G + S", "G + S", BEGIN)                                       \
    X(FORWARD_END, "end of forward", "G + S + 2O", "G + S + O + L", "G + S + O", LOSS)                       \
    X(LOSS_BACKWARD, "inside the loss's backward", "G + S + 4O", "G + S + O + 3L", "G + S + O",              \
      LOSS_GRADIENT)                                                                                         \
    X(BACKWARD, "replicas' backward begins", "G + S + 2O - O/n", "G + S + 2O - O/n", "G + S + O - O/n",      \
      SCATTER_GRADIENT)                                                                                      \
    X(REDUCE_BEGINS, "reduce begins", "P + G + S", "P + G + S", "P + G + S", BACKWARD)                       \
    X(REDUCE_ENDS, "reduce ends", "2P + G + S", "2P + G + S", "P + G + S", REDUCE)

#define PS_DP_PHASE_ENUM(name, text, torch, autocast, lean, phase) PS_DP_##name,
typedef enum ps_dp_phase { PS_DP_PHASE_LIST(PS_DP_PHASE_ENUM) PS_DP_PHASE_COUNT } ps_dp_phase;
#undef PS_DP_PHASE_ENUM

typedef struct ps_dp_phase_info {
    const char *name, *torch, *autocast, *lean;
    ledger_phase phase;
} ps_dp_phase_info;

const ps_dp_phase_info *ps_dp_phase_describe(ps_dp_phase p);

/* Returns the text of the formula that applies to the lifetimes and types in `s`. */
const char *ps_dp_formula(const ps_dp_sizes *s, ps_dp_phase p);

/* Returns how many bytes device 0 holds in excess of another device according to the formula. Workspace is
 * not counted. */
int64_t ps_dp_difference(const ps_dp_sizes *s, ps_dp_phase p);

#endif
