/* Threads that work on one job together with the thread that hands it out: a server's sums and updates. */
#ifndef PS_TEAM_H
#define PS_TEAM_H

#include "common/base/status.h"

typedef struct ps_team ps_team;

/* Part `part` of `parts` of a job. */
typedef void (*ps_team_function)(void *context, int part, int parts);

/* `threads` at least 1, the caller's included: with 1 there are none besides. */
status ps_team_open(int threads, ps_team **out);
void ps_team_close(ps_team **team);

/* Runs every part once and returns when all are done. The caller runs part 0. */
void ps_team_run(ps_team *team, ps_team_function function, void *context);

#endif
