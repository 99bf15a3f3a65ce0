/* Finds a setting to try next: runs a job in virtual time with other settings, one at a time, and finds the
 * setting that shortens a step most, or that trains the most samples/s if it adds samples to a step. */
#ifndef HARNESS_SIM_NEXT_H
#define HARNESS_SIM_NEXT_H

#include "common/base/status.h"

#include <jansson.h>

/* Tries settings for the job of `engine`. `words` [count] are options of `harness run`, of
 * which --mode, --steps, --epochs and --warmup are replaced. `policy` is the name in the result. Settings
 * that the job refuses are left out. Sets *out to an object: "engine"; "policy"; "tried", the number of
 * settings; "settings", their words; "options", the words of the best one; "shorter", the share by which it
 * shortens a step, or null; "more", the share by which samples/s grow, if it adds samples to a step, else
 * null. "options" is null if no setting saves NEXT_LEAST of the time of a sample. *out is json_null() if the
 * job does not run, or if trying would take long: with more than NEXT_RANKS ranks under a parameter server,
 * or if ranks differ (stages, --slow, --jitter). */
status virtual_next(char *const *words, int count, int engine, const char *policy, json_t **out);

#define NEXT_LEAST 0.05
enum { NEXT_RANKS = 16 };

#endif
