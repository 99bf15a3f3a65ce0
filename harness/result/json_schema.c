#include "harness/result/json_schema.h"

#include "common/base/text.h"
#include "harness/report/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SUM_ERROR is the tolerance of a sum of times, in seconds. RELATIVE_ERROR is the tolerance of a computed
 * figure, relative to the figure. */
#define SUM_ERROR 1.5e-9
#define RELATIVE_ERROR 1e-9

/* Embeds the text of docs/schemas/NAME.schema.json, followed by a NUL character. */
#define EMBED(name)                                                                                          \
    __asm__(".pushsection .rodata\nschema_" #name ":\n.global schema_" #name "\n.incbin \"" PSRING_SCHEMAS   \
            "/" #name ".schema.json\"\n.byte 0\n.popsection\n");                                             \
    extern const char schema_##name[]
EMBED(run);
EMBED(plan);
EMBED(memory);
EMBED(sweep);
EMBED(reproduction);

typedef struct checker {
    const json_t *definitions;
    bool is_older;
} checker;

/* ---- messages ---------------------------------------------------------------------------------- */

static void append_place(const json_place *at, text_buffer *out)
{
    if (at->up) append_place(at->up, out);
    if (at->key)
        text_append(out, "%s%s", !at->up ? "" : at->up->up ? "." : ": ", at->key);
    else
        text_append(out, "[%zu]", at->index);
}

status json_refuse(const json_place *at, const json_t *value, const char *format, ...)
{
    text_buffer place = {0};
    char expected[256], *got = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    va_list args;
    va_start(args, format);
    vsnprintf(expected, sizeof expected, format, args);
    va_end(args);
    append_place(at, &place);
    fail(STATUS_DATA, "%.600s: expected %s, got %.60s", place.data, expected, got ? got : "nothing");
    text_free(&place);
    free(got);
    return STATUS_DATA;
}

/* ---- rules ------------------------------------------------------------------------------------- */

/* Returns a number, or the sum of the numbers in a list or an object. Returns NAN for null. */
static double sum_of(const json_t *value)
{
    double sum = json_is_number(value) ? json_number_value(value) : json_is_null(value) ? NAN : 0;
    size_t i;
    json_t *member;
    const char *key;
    json_array_foreach((json_t *)value, i, member) sum += json_number_value(member);
    json_object_foreach((json_t *)value, key, member) sum += json_number_value(member);
    return sum;
}

/* Checks a rule of x-sums, which lists the keys of a total and of the parts that must sum to the total. If
 * the total is a list, checks each element. A total that is a number covers all steps, so in a long run the
 * parts are read from "stretches". If all parts are null, they were not measured, and nothing is checked. */
static status check_sum(const json_t *rule, const json_t *object, const json_place *up)
{
    json_place at = {up, json_string_value(json_array_get(rule, 0)), 0};
    const json_t *total = report_at(object, at.key), *stretches = json_object_get(object, "stretches");
    bool is_list = json_is_array(total);
    if (!is_list && json_is_object(stretches)) object = stretches;
    size_t parts = json_array_size(rule) - 1, count = is_list ? json_array_size(total) : 1;
    for (size_t i = 0; total && i < count; i++) {
        json_place element = {&at, NULL, i};
        const json_t *got = is_list ? json_array_get(total, i) : total;
        double sum = 0;
        size_t measured = 0;
        for (size_t p = 1; p <= parts; p++) {
            const json_t *part = json_object_get(object, json_string_value(json_array_get(rule, p)));
            double value = sum_of(is_list ? json_array_get(part, i) : part);
            measured += !isnan(value);
            sum += isnan(value) ? 0 : value;
        }
        if (measured > 0 && !(measured == parts && fabs(sum_of(got) - sum) <= SUM_ERROR + 1e-15 * fabs(sum)))
            return json_refuse(is_list ? &element : &at, got, "%.17g, the sum of its parts", sum);
    }
    return STATUS_OK;
}

static double measure_of(const json_t *value)
{
    return json_is_array(value)    ? (double)json_array_size(value)
           : json_is_number(value) ? json_number_value(value)
                                   : NAN;
}

/* Checks the rules x-sums and x-ascending. The values of the keys in x-ascending must not decrease. The value
 * of a list is its length. */
static status check_rules(const json_t *schema, const json_t *object, const json_place *at)
{
    const json_t *rule;
    size_t r;
    json_array_foreach(json_object_get(schema, "x-sums"), r, rule) TRY(check_sum(rule, object, at));
    json_array_foreach(json_object_get(schema, "x-ascending"), r, rule) for (size_t k = 1;
                                                                             k < json_array_size(rule); k++)
    {
        json_place place = {at, json_string_value(json_array_get(rule, k)), 0};
        const json_t *value = json_object_get(object, place.key);
        double least = measure_of(json_object_get(object, json_string_value(json_array_get(rule, k - 1))));
        if (least > measure_of(value) + SUM_ERROR)
            return json_refuse(&place, value, "%s%.17g", json_is_array(value) ? "a length of " : "at least ",
                               least);
    }
    return STATUS_OK;
}

/* ---- values ------------------------------------------------------------------------------------ */

/* Checks the type of a value. `types` is a name or a list of names. */
static status check_type(const checker *c, const json_t *types, const json_t *value, const json_place *at)
{
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    bool fits = !types, is_scalar = false;
    char all[96] = "";
    for (size_t i = 0; types && (i == 0 || i < json_array_size(types)); i++) {
        const char *name = json_string_value(json_is_array(types) ? json_array_get(types, i) : types);
        fits = fits || strcmp(name, names[json_typeof(value)]) == 0 ||
               (json_is_integer(value) && strcmp(name, "number") == 0);
        is_scalar = is_scalar || !strstr("object array null", name);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " or " : "", name);
    }
    return fits || (c->is_older && is_scalar) ? STATUS_OK : json_refuse(at, value, "%s", all);
}

static status check_computed(const json_t *computed, const json_t *value, const json_place *at)
{
    double a = json_number_value(computed), b = json_number_value(value);
    bool is_same = json_is_object(value)  ? json_is_object(computed)
                   : json_is_array(value) ? json_array_size(computed) == json_array_size(value)
                   : json_is_number(value) && json_is_number(computed)
                       ? fabs(a - b) <= RELATIVE_ERROR * fmax(fabs(a), fabs(b))
                       : json_equal(computed, value);
    if (is_same) return STATUS_OK;
    char *text = json_dumps(computed, JSON_ENCODE_ANY | JSON_COMPACT);
    json_refuse(at, value, "%.60s, which follows from other figures", text ? text : "another value");
    free(text);
    return STATUS_DATA;
}

static status check(const checker *c, const json_t *schema, json_t *value, const json_t *computed,
                    const json_place *at);

static status check_object(const checker *c, const json_t *schema, json_t *value, const json_t *computed,
                           const json_place *at)
{
    const json_t *properties = json_object_get(schema, "properties"),
                 *others = json_object_get(schema, "additionalProperties"), *name;
    size_t i;
    json_t *member;
    const char *key;
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        json_place place = {at, json_string_value(name), 0};
        if (!c->is_older && !json_object_get(value, place.key)) return json_refuse(&place, NULL, "a value");
    }
    json_object_foreach(value, key, member)
    {
        json_place place = {at, key, 0};
        const json_t *of = json_object_get(properties, key);
        if (!of && json_is_false(others) && !c->is_older) return json_refuse(&place, member, "no such key");
        TRY(check(c, of ? of : others, member, json_object_get(computed, key), &place));
    }
    return c->is_older ? STATUS_OK : check_rules(schema, value, at);
}

static status check(const checker *c, const json_t *schema, json_t *value, const json_t *computed,
                    const json_place *at)
{
    const char *reference = json_string_value(json_object_get(schema, "$ref")),
               *number = json_string_value(json_object_get(schema, "x-numbered"));
    if (reference) schema = json_object_get(c->definitions, reference + strlen("#/$defs/"));
    const json_t *words = json_object_get(schema, "enum"), *items = json_object_get(schema, "items"), *word;
    bool is_listed = !words || c->is_older;
    size_t i;
    json_t *element;
    if (computed == value || !schema) return STATUS_OK;
    TRY(check_type(c, json_object_get(schema, "type"), value, at));
    json_array_foreach(words, i, word) is_listed = is_listed || json_equal(word, value);
    if (!is_listed) return json_refuse(at, value, "one of the words of the schema");
    if (computed) TRY(check_computed(computed, value, at));
    if (json_is_string(value)) text_printable((char *)json_string_value(value), false);
    if (json_is_object(value)) return check_object(c, schema, value, computed, at);
    json_array_foreach(value, i, element)
    {
        json_place place = {at, NULL, i};
        TRY(check(c, items, element, json_array_get(computed, i), &place));
        /* x-numbered names a key. In each object of a list, the value of this key must be the index of the
         * object in the list. */
        const json_t *found = number && !c->is_older ? json_object_get(element, number) : NULL;
        if (found && json_integer_value(found) != (json_int_t)i)
            return json_refuse(&(json_place){&place, number, 0}, found, "%zu", i);
    }
    return STATUS_OK;
}

status json_schema_check(const char *name, bool is_older, json_t *value, const json_t *computed,
                         const json_place *at)
{
    const char *texts[] = {schema_run, schema_plan, schema_memory, schema_sweep, schema_reproduction},
               *const names[] = {"run", "plan", "memory", "sweep", "reproduction"};
    int i = 0;
    while (strcmp(names[i], name) != 0) i++;
    json_t *schema = json_loads(texts[i], 0, NULL);
    checker c = {json_object_get(schema, "$defs"), is_older};
    status rc = check(&c, schema, value, computed, at);
    json_decref(schema);
    return rc;
}
