/* Configuration files in TOML: a C function around toml++, where the build has that library (docs/dependencies.md). */
#ifndef HARNESS_RUN_CONFIG_TOML_H
#define HARNESS_RUN_CONFIG_TOML_H

#ifdef __cplusplus
extern "C" {
#endif

#include "common/base/status.h"

#include <stddef.h>

/* The TOML in text[length] as an object of JSON: *out is the caller's to free. STATUS_DATA: it is no TOML, or a value is none
 * of an option (a table, a list, a date); the message names `path`, line and column. STATUS_UNAVAILABLE: built without toml++. */
status config_toml_to_json(const char *path, const char *text, size_t length, char **out);

#ifdef __cplusplus
}
#endif

#endif
