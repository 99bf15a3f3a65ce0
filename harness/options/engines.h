/* The engines of this program, and the policies of each engine. */
#ifndef HARNESS_OPTIONS_ENGINES_H
#define HARNESS_OPTIONS_ENGINES_H

#include "common/sync/engine.h"

/* List of the engines, one per line. X(NAME, name) defines ENGINE_NAME, sync_name in the folder and
 * library `name`, and --mode name. The build and the test of the layers read this list, too. */
#define ENGINE_LIST(X)                                                                                       \
    X(NONE, none)                                                                                            \
    X(PS, ps)                                                                                                \
    X(RING, ring)

#define ENGINE_ENUM(upper, lower) ENGINE_##upper,
enum { ENGINE_LIST(ENGINE_ENUM) ENGINE_COUNT };
#undef ENGINE_ENUM

/* Value of --mode after the engines: "both" runs none, ps and ring. */
#define ENGINE_MODE(upper, lower) #lower,
enum { ENGINE_BOTH = ENGINE_COUNT };
bool engine_in_both(int engine);

/* Numbers of the jobs of a run. A job of an engine has the engine's number. JOB_ALL_CORES is the second
 * baseline of --mode both: `none` with all cores and the batch of all ranks. JOB_ISOLATED is the job of
 * --isolated: the same ranks as in the other jobs, but they do not communicate. job_name() returns
 * "all-cores", "isolated", or the name of the job's engine. */
enum { JOB_ALL_CORES = ENGINE_COUNT, JOB_ISOLATED, JOB_COUNT };
int job_engine(int job);
const char *job_name(int job);

/* Engines by the enum above. The first policy of an engine is its default. */
extern const sync_engine_type *const engine_table[ENGINE_COUNT];

/* Parses "ps=sync,ring=ddp:order=ready", or a policy's name without its engine. Sets policies[engine]. An
 * engine has its default policy if `text` names no policy of the engine, or is NULL. Sets the options of a
 * policy in options[engine]. If `options` is NULL, a policy must not have options. Returns STATUS_USAGE if
 * the text is invalid. */
status engine_parse_policies(const char *text, const char *policies[ENGINE_COUNT], option_binding *options);

/* Finds the engine of one policy, written as in engine_parse_policies(). Returns STATUS_USAGE if the text is
 * invalid. */
status engine_of_policy(const char *text, int *out);

/* A list of policies, such as "ddp:order=ready,ps=sync". `uses` says which engines have a policy in the list.
 */
enum { POLICY_LIST_MOST = 16, POLICY_LENGTH = 120 };
typedef struct policy_list {
    char names[POLICY_LIST_MOST][POLICY_LENGTH];
    int count;
    bool uses[ENGINE_COUNT];
} policy_list;
/* Returns STATUS_USAGE if the text is invalid or names no policy. */
status policy_list_parse(const char *text, policy_list *out);

/* Appends to `out`, unless it is NULL, the policies of the engine in a list, and unknown policies, which
 * engine_parse_policies() refuses. Returns false if there are none. */
bool engine_policies_of(const char *list, const char *engine, text_buffer *out);

/* Counts the processes that a job of `engine` needs for servers, in addition to its ranks. */
status engine_servers(int engine, const void *options, const char *policy, int world, int *out);

/* Computes how many steps a rank of `engine` may be ahead of another rank. The result is JOB_UNBOUNDED if
 * there is no limit. */
status engine_lead(int engine, const void *options, const char *policy, int world, int64_t *out);

#endif
