/* Runs ranks as threads of this process, with in-process transport, for verification and small tests. Real
 * jobs run one process per rank (harness/launch). */
#ifndef HARNESS_TRAIN_LOCAL_RANKS_H
#define HARNESS_TRAIN_LOCAL_RANKS_H

#include "harness/train/trainer.h"

typedef struct local_ranks local_ranks;

/* The function of a rank's thread. If the function fails, the waits of the other ranks end. */
typedef status (*local_rank_function)(local_ranks *group, int rank, void *context);

/* Runs `function` on `world` threads. Returns the first failure, and sets the caller's error record. If a
 * rank reports a cause and another rank only the loss of a peer, returns the cause. */
status local_ranks_run(int world, local_rank_function function, void *context);

/* Waits until every rank has called this function, and returns the handshakes of all ranks in rank order,
 * borrowed until the next exchange. */
status local_ranks_exchange(local_ranks *group, int rank, sync_blob mine, const sync_blob **all);

/* Exchanges the trainers' handshakes and connects `t`. */
status local_ranks_connect(local_ranks *group, int rank, trainer *t);

/* Waits for all ranks. Returns STATUS_STOPPED if another rank has failed. */
status local_ranks_barrier(local_ranks *group);

#endif
