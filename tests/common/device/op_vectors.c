#include "tests/common/device/op_vectors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const double TOLERANCE = 1e-12;

json_t *vectors_load(void)
{
    const char *root = getenv("SOURCE_DIR");
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/tests/common/device/op_vectors.json", root ? root : ".");
    json_t *document = json_load_file(path, 0, &error);
    if (!document) {
        fprintf(stderr, "%s:%d: %s\n", path, error.line, error.text);
        exit(1);
    }
    return document;
}

static const json_t *attribute(const json_t *c, const char *name)
{
    return json_object_get(json_object_get(c, "attributes"), name);
}

int64_t vector_integer(const json_t *c, const char *name)
{
    return json_integer_value(attribute(c, name));
}

double vector_number(const json_t *c, const char *name)
{
    return json_number_value(attribute(c, name));
}

bool vector_flag(const json_t *c, const char *name)
{
    return json_is_true(attribute(c, name));
}

const char *vector_text(const json_t *c, const char *name)
{
    return json_string_value(attribute(c, name));
}

char *vector_name(const json_t *c, char *buffer, size_t size)
{
    char *attributes = json_dumps(json_object_get(c, "attributes"), JSON_PRESERVE_ORDER);
    snprintf(buffer, size, "%s %s", json_string_value(json_object_get(c, "family")), attributes);
    free(attributes);
    return buffer;
}

static void check_figure(const char *name, const char *what, double found, double expected, double allowed)
{
    if (!(fabs(found - expected) <= allowed))
        fail_msg("%s: %s is %.17g, PyTorch has %.17g", name, what, found, expected);
}

void vector_check(const char *name, const json_t *result, const double *values, int64_t count)
{
    double squares = 0, sum = 0, norm = json_number_value(json_object_get(result, "l2"));
    assert_int_equal(count, json_integer_value(json_object_get(result, "count")));
    for (int64_t i = 0; i < count; i++) {
        squares += values[i] * values[i];
        sum += values[i];
    }
    /* A result that is zero except for rounding is measured against inputs of magnitude 0.6. */
    double scale = fmax(norm, 0.1 * sqrt((double)count));
    check_figure(name, "the norm", sqrt(squares), norm, TOLERANCE * scale);
    check_figure(name, "the sum", sum, json_number_value(json_object_get(result, "sum")),
                 TOLERANCE * scale * sqrt((double)count));
    size_t i;
    const json_t *sample;
    json_array_foreach(json_object_get(result, "samples"), i, sample)
    {
        char what[32];
        int64_t at = json_integer_value(json_array_get(sample, 0));
        snprintf(what, sizeof what, "element %lld", (long long)at);
        check_figure(name, what, values[at], json_number_value(json_array_get(sample, 1)), TOLERANCE * scale);
    }
}
