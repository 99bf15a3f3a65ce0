/* Configuration files in TOML: a C function around toml++, where the build has that library
 * (docs/dependencies.md). */
#ifndef HARNESS_RUN_CONFIG_TOML_H
#define HARNESS_RUN_CONFIG_TOML_H

#ifdef __cplusplus
extern "C" {
#endif

#include "common/base/status.h"

#include <stddef.h>

/* The TOML in text[length] as JSON: an object of names, with "value", "line" and "column" of each. *out is
 * the caller's to free. STATUS_DATA: it is no TOML, or a value is none of an option and no list of texts (a
 * table, a date); the message names `path`, line and column. STATUS_UNAVAILABLE: built without toml++. */
status config_toml_to_json(const char *path, const char *text, size_t length, char **out);

#ifdef __cplusplus
}
#endif

#endif
