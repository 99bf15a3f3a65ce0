/* The engines that this program has, and which policy means which. */
#ifndef HARNESS_RUN_ENGINES_H
#define HARNESS_RUN_ENGINES_H

#include "common/sync/engine.h"

/* A line adds an engine: X(NAME, name) is ENGINE_NAME, sync_name in the folder and library `name`, and --mode
 * name. The build and the test of the layers read this list, too. */
#define ENGINE_LIST(X)                                                                                       \
    X(NONE, none)                                                                                            \
    X(PS, ps)                                                                                                \
    X(RING, ring)

#define ENGINE_ENUM(upper, lower) ENGINE_##upper,
enum { ENGINE_LIST(ENGINE_ENUM) ENGINE_COUNT };
#undef ENGINE_ENUM

/* The values of --mode after those of one engine each: "both" runs none, ps and ring. */
#define ENGINE_MODE(upper, lower) #lower,
enum { ENGINE_BOTH = ENGINE_COUNT };
bool engine_in_both(int engine);

/* The jobs of a run are numbered as their engines; one more is the second baseline of --mode both: `none`
 * with all cores and the batch of all ranks; and one is that of --isolated: the ranks of the other jobs
 * without exchange. Results and the processes of a job carry its name, "all-cores" and "isolated" for those.
 */
enum { JOB_ALL_CORES = ENGINE_COUNT, JOB_ISOLATED, JOB_COUNT };
int job_engine(int job);
const char *job_name(int job);

/* By the enum above. The first policy of an engine is its default. */
extern const sync_engine_type *const engine_table[ENGINE_COUNT];

/* "ps=sync,ring=ddp:order=ready", or a policy's name without its engine: sets policies[engine], with the
 * default where the text (or NULL) names none, and a policy's keys in options[engine]; NULL: there must be
 * none. STATUS_USAGE. */
status engine_parse_policies(const char *text, const char *policies[ENGINE_COUNT], option_binding *options);

/* The engine of one policy, given as above. STATUS_USAGE. */
status engine_of_policy(const char *text, int *out);

/* Whether one of the policies of a list is the engine's, or is unknown, which engine_parse_policies()
 * refuses. */
bool engine_has_one_of(const char *list, const char *engine);

/* Processes that a job of `engine` needs besides its ranks: servers of their own. */
status engine_servers(int engine, const void *options, const char *policy, int world, int *out);

/* How many steps a rank of `engine` may be ahead of another, or JOB_UNBOUNDED. */
status engine_lead(int engine, const void *options, const char *policy, int world, int64_t *out);

#endif
