/* Finds a setting to try next: runs a job in virtual time with other settings, one at a time, and finds the
 * setting that shortens a step most. */
#ifndef HARNESS_SIM_NEXT_H
#define HARNESS_SIM_NEXT_H

#include "common/base/status.h"

#include <jansson.h>

/* Tries settings for the job of `engine` on `gpus` ranks. `words` [count] are options of `harness run`, of
 * which --mode, --steps, --epochs and --warmup are replaced. `policy` is the name in the result. Settings
 * that the job refuses are left out. Sets *out to an object: "engine"; "policy"; "tried", the number of
 * settings; "settings", their words; "options", the words of the best one; "shorter", the share by which it
 * shortens a step. "options" and "shorter" are null if no setting shortens the step by NEXT_LEAST. *out is
 * json_null() if the job does not run, or if trying would take long: with more than NEXT_RANKS ranks under a
 * parameter server, or if ranks differ (--slow, --jitter). */
status virtual_next(char *const *words, int count, int engine, const char *policy, int gpus, json_t **out);

#define NEXT_LEAST 0.05
enum { NEXT_RANKS = 16 };

#endif
