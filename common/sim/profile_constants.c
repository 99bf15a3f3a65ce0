/* The constants of a profile: reading, and what is possible. */
#include "common/base/text.h"
#include "common/sim/profile_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status find_constant(const profile_file *f, const char *name, sim_constant *out)
{
    const char *names[SIM_CONSTANT_COUNT];
    for (int c = 0; c < SIM_CONSTANT_COUNT; c++) {
        names[c] = sim_constant_table[c].name;
        if (strcmp(name, names[c]) != 0) continue;
        *out = (sim_constant)c;
        return STATUS_OK;
    }
    const char *near = text_nearest(name, names, SIM_CONSTANT_COUNT);
    return profile_bad(f, "constants: expected the name of a constant, got '%s'%s%s%s", name, near ? "; did you mean '" : "",
                       near ? near : "", near ? "'?" : "");
}

static bool is_tag(const char *tag)
{
    static const char calibrated[] = "calibrated on ";
    return strcmp(tag, "datasheet") == 0 || strcmp(tag, "published") == 0 || strcmp(tag, "assumed") == 0 ||
           (strncmp(tag, calibrated, sizeof calibrated - 1) == 0 && tag[sizeof calibrated - 1]);
}

static status read_value(const profile_file *f, const sim_constant_info *info, const json_t *json,
                         double *out)
{
    if (!json_is_number(json))
        return profile_bad(f, "%s: expected a number from %g to %g %s", info->name, info->least, info->most,
                           info->unit);
    double value = json_number_value(json);
    if (!(value >= info->least && value <= info->most))
        return profile_bad(f, "%s: expected %g to %g %s, got %g", info->name, info->least, info->most, info->unit,
                           value);
    *out = value;
    return STATUS_OK;
}

static status read_values(const profile_file *f, sim_constant c, const json_t *entry, double *out)
{
    const sim_constant_info *info = &sim_constant_table[c];
    const json_t *value = json_object_get(entry, "value");
    if (info->count == 1) return read_value(f, info, value, out);
    if ((int)json_array_size(value) != info->count)
        return profile_bad(f, "%s: expected an array of %d values, got %zu", info->name, info->count,
                           json_array_size(value));
    for (int i = 0; i < info->count; i++) TRY(read_value(f, info, json_array_get(value, (size_t)i), &out[i]));
    return STATUS_OK;
}

static void free_provenance(sim_provenance *p)
{
    free(p->tag);
    free(p->source);
    free(p->from);
    *p = (sim_provenance){0};
}

static status read_constant(const profile_file *f, const char *name, const json_t *entry, sim_profile *p)
{
    static const char *const keys[] = {"value", "unit", "tag", "source"};
    sim_constant c;
    TRY(find_constant(f, name, &c));
    if (!json_is_object(entry))
        return profile_bad(f, "%s: expected an object with value, unit, tag, source", name);
    TRY(profile_check_keys(f, name, entry, keys, sizeof keys / sizeof keys[0]));
    TRY(read_values(f, c, entry, &p->values[sim_constant_offset[c]]));
    const char *unit = json_string_value(json_object_get(entry, "unit"));
    if (!unit || strcmp(unit, sim_constant_table[c].unit) != 0)
        return profile_bad(f, "%s: expected the unit '%s', got '%s'", name, sim_constant_table[c].unit,
                           unit ? unit : "");
    const char *tag = json_string_value(json_object_get(entry, "tag"));
    if (!tag || !is_tag(tag))
        return profile_bad(
            f, "%s: expected the tag datasheet, published, assumed or 'calibrated on ...', got '%s'", name,
            tag ? tag : "");
    const char *source = json_string_value(json_object_get(entry, "source"));
    if (!source || !*source) return profile_bad(f, "%s: the source is missing", name);
    sim_provenance *provenance = &p->provenance[c];
    free_provenance(provenance);
    *provenance = (sim_provenance){.tag = strdup(tag), .source = strdup(source), .from = strdup(f->name)};
    if (!provenance->tag || !provenance->source || !provenance->from)
        return fail(STATUS_SYSTEM, "no memory for profile %s", f->name);
    return STATUS_OK;
}

status profile_read_constants(const profile_file *f, sim_profile *p)
{
    json_t *constants = json_object_get(f->root, "constants");
    for (void *i = json_object_iter(constants); i; i = json_object_iter_next(constants, i))
        TRY(read_constant(f, json_object_iter_key(i), json_object_iter_value(i), p));
    return STATUS_OK;
}

static status need(const profile_file *f, const sim_profile *p, sim_constant c, const char *why)
{
    if (sim_profile_has(p, c)) return STATUS_OK;
    return profile_bad(f, "%s (%s) is missing%s", sim_constant_table[c].name, sim_constant_table[c].meaning,
                       why);
}

status profile_check_constants(const profile_file *f, const sim_profile *p)
{
    static const sim_constant rates[] = {
        [SIM_LINK_PCIE] = SIM_PCIE, [SIM_LINK_NVLINK] = SIM_NVLINK, [SIM_LINK_SOCKET] = SIM_SOCKET_LINK};
    for (int c = 0; c < SIM_CONSTANT_COUNT; c++)
        if (sim_constant_table[c].needed) TRY(need(f, p, (sim_constant)c, ""));
    const sim_wiring *w = &p->wiring;
    for (int i = 0; i < w->link_count; i++)
        TRY(need(f, p, rates[w->links[i].kind], ", and the topology has such links"));
    if (w->nics == 0) return STATUS_OK;
    TRY(need(f, p, SIM_NIC, ", and the topology has network adapters"));
    return need(f, p, SIM_NETWORK_LATENCY, ", and the topology has network adapters");
}
