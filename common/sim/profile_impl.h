/* Declarations for the files that load a profile. */
#ifndef COMMON_SIM_PROFILE_IMPL_H
#define COMMON_SIM_PROFILE_IMPL_H

#include "common/sim/profile.h"

#include <jansson.h>
#include <limits.h>

/* The JSON of a profile file, and the names that messages use. */
typedef struct profile_file {
    const char *name;
    char path[PATH_MAX];
    json_t *root;
} profile_file;

/* Fails with STATUS_DATA. The message begins with "profile NAME (FILE): ". */
status profile_bad(const profile_file *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fails unless each key of `object` is one of `allowed` [count]. */
status profile_check_keys(const profile_file *f, const char *where, const json_t *object,
                          const char *const *allowed, size_t count);

/* profile_read.c. profile_read_constants() and profile_read_wiring() set the values that the file contains.
 * profile_check_constants() checks that all needed constants are present. */
status profile_read_constants(const profile_file *f, sim_profile *p);
status profile_read_wiring(const profile_file *f, sim_profile *p);
status profile_check_constants(const profile_file *f, const sim_profile *p);

#endif
