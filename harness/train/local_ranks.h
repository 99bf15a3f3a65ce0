/* Ranks as threads of this process, over in-process transport: for verification and small tests. Real
 * jobs run one process per rank (harness/launch). */
#ifndef HARNESS_TRAIN_LOCAL_RANKS_H
#define HARNESS_TRAIN_LOCAL_RANKS_H

#include "harness/train/trainer.h"

typedef struct local_ranks local_ranks;

/* What a rank does; runs on a thread of its own. On failure the others' waits end too. */
typedef status (*local_rank_function)(local_ranks *group, int rank, void *context);

/* Runs `function` on `world` threads and returns the first failure in time, its record adopted; that a peer
 * was lost gives way to what another rank says later: its end may be seen before its reason. */
status local_ranks_run(int world, local_rank_function function, void *context);

/* All ranks' handshakes, in rank order, once every rank has made its own. Borrowed until the next exchange.
 */
status local_ranks_exchange(local_ranks *group, int rank, sync_blob mine, const sync_blob **all);

/* The trainer's handshake to all ranks, and its connection with theirs. */
status local_ranks_connect(local_ranks *group, int rank, trainer *t);

/* Waits for all ranks. STATUS_STOPPED if another rank has failed. */
status local_ranks_barrier(local_ranks *group);

#endif
