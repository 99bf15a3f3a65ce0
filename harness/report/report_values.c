/* Values by their path in the results. */
#include "harness/report/report_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const json_t *report_at(const json_t *object, const char *path)
{
    char key[64];
    while (object && *path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = json_object_get(object, key);
        path += length + (path[length] == '.');
    }
    return object;
}

double report_number_at(const json_t *object, const char *path)
{
    const json_t *value = report_at(object, path);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *report_text_at(const json_t *object, const char *path)
{
    const char *text = json_string_value(report_at(object, path));
    return text ? text : "";
}
