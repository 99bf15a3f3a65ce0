/* A parameter server in a process of its own: set-up, and serving until the ranks have gone. */
#ifndef HARNESS_RUN_SERVER_H
#define HARNESS_RUN_SERVER_H

#include "harness/run/rank.h"

/* `place->rank` >= place->world. A failure is also recorded on the board. */
status server_run(const run_config *config, const rank_place *place);

#endif
