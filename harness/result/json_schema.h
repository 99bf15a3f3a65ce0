/* Checks JSON against the schemas in docs/schemas, which are part of the program. */
#ifndef HARNESS_RESULT_JSON_SCHEMA_H
#define HARNESS_RESULT_JSON_SCHEMA_H

#include "common/base/status.h"

#include <jansson.h>
#include <stdbool.h>

/* Element of the path to a value: a key, or an index if `key` is NULL. `up` is the preceding element. In the
 * first element, `up` is NULL and `key` is the path of the file. */
typedef struct json_place {
    const struct json_place *up;
    const char *key;
    size_t index;
} json_place;

/* Records "FILE: jobs[0].step_s: expected ..., got VALUE". Returns STATUS_DATA. */
status json_refuse(const json_place *at, const json_t *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Checks a value against docs/schemas/NAME.schema.json. The schemas use JSON Schema's keywords $ref (to
 * $defs), type, enum, properties, required, additionalProperties and items, and the rules of this project,
 * which docs/results.md describes. If `is_older`, only objects and arrays are checked, and keys may be
 * missing or unknown. `computed` is NULL, or has the values to which figures must be equal except for
 * rounding. Replaces control characters in strings that the schema describes. Returns STATUS_DATA if the
 * value does not fit the schema. */
status json_schema_check(const char *name, bool is_older, json_t *value, const json_t *computed,
                         const json_place *at);

#endif
