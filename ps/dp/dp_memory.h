/* The memory of the policy `dp` by phase, as torch.nn.DataParallel's: what device 0 holds more than another
 * device, as a formula of a few sizes. docs/ps.md derives it; reports and tests compare the ledger with it.
 */
#ifndef PS_DP_MEMORY_H
#define PS_DP_MEMORY_H

#include "common/memory/ledger.h"

#include <stdbool.h>
#include <stddef.h>

/* Bytes. */
typedef struct ps_dp_sizes {
    int64_t parameters; /* P */
    int64_t kept;       /* G: gradients between steps, P with --keep-grads, else 0 */
    int64_t state;      /* S: of the optimizer */
    int64_t outputs;    /* O: of the whole batch; 0 where the replicas compute their losses */
    int64_t
        loss_outputs; /* L: as the loss computes with them; O, or twice that where activations are bfloat16 */
    int64_t other_output; /* O/n: of another device's part */
    int64_t buffers;      /* of the model: device 0's are there always, replicas come with the parameters */
    int64_t batch;        /* of the batch, that device 0 holds more: the others' inputs, and targets */
    int64_t ahead;        /* of the next batch, which device 0 alone has ahead (--prefetch) */
    bool lean;            /* --dp-lifetimes lean */
} ps_dp_sizes;

/* name, formula of the difference under PyTorch's lifetimes (with autocast to bfloat16), under lean ones,
 * phase of the ledger at whose end it is measured */
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

/* The formula that holds for these sizes. */
const char *ps_dp_formula(const ps_dp_sizes *s, ps_dp_phase p);

/* Device 0's bytes less another device's, workspace aside. */
int64_t ps_dp_difference(const ps_dp_sizes *s, ps_dp_phase p);

/* The ledger's figure for a phase, workspace aside. */
int64_t ps_dp_measured(const ledger *l, ps_dp_phase p);

#endif
