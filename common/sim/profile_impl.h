/* Between the files that load a profile. */
#ifndef COMMON_SIM_PROFILE_IMPL_H
#define COMMON_SIM_PROFILE_IMPL_H

#include "common/sim/profile.h"

#include <jansson.h>

/* What is read: the file's name for messages, and its JSON. */
typedef struct profile_file {
    char *name, *path;
    json_t *root;
} profile_file;

/* profile_file.c: finds and reads the file of a profile, and checks its top level. */
status profile_file_open(const char *name, profile_file *out);
void profile_file_close(profile_file *f);

/* "profile NAME (FILE): " in front of `format`, as STATUS_DATA. */
status profile_bad(const profile_file *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* profile_constants.c: replaces what the file gives; then checks that all that are needed are there. */
status profile_read_constants(const profile_file *f, sim_profile *p);
status profile_check_constants(const profile_file *f, const sim_profile *p);

/* profile_wiring.c */
status profile_read_wiring(const profile_file *f, sim_profile *p);
void profile_free_wiring(sim_wiring *w);

/* Fails unless each key of `object` is one of `allowed` [count]. */
status profile_check_keys(const profile_file *f, const char *where, const json_t *object,
                          const char *const *allowed, size_t count);

#endif
