/* Reads configuration files in TOML: a C function around toml++, if the build has that library
 * (docs/dependencies.md). */
#ifndef HARNESS_OPTIONS_CONFIG_TOML_H
#define HARNESS_OPTIONS_CONFIG_TOML_H

#ifdef __cplusplus
extern "C" {
#endif

#include "common/base/status.h"

#include <stddef.h>

/* Converts the TOML in text[length] to JSON: an object with "value", "line" and "column" for each name. The
 * caller frees *out. Returns STATUS_DATA if the text is not TOML, or if a value has a type that no option
 * has, such as a table or a date. The message names `path`, line and column. Returns STATUS_UNAVAILABLE if
 * the program was built without toml++. */
status config_toml_to_json(const char *path, const char *text, size_t length, char **out);

#ifdef __cplusplus
}
#endif

#endif
