/* Reads the constants and the topology of a profile, and checks them. */
#include "common/base/text.h"
#include "common/sim/profile_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW(NAME, name, unit, count, least, most, needed, meaning)                                           \
    [SIM_##NAME] = {name, unit, count, least, most, needed, meaning},
const sim_constant_info sim_constant_table[SIM_CONSTANT_COUNT] = {SIM_CONSTANT_LIST(ROW)};
#undef ROW

char *sim_limits_text(const sim_constant_info *info, char out[SIM_LIMITS_LENGTH])
{
    bool has_unit = strcmp(info->unit, "1") != 0;
    snprintf(out, SIM_LIMITS_LENGTH, "%g to %g%s%s", info->least, info->most, has_unit ? " " : "",
             has_unit ? info->unit : "");
    return out;
}

void sim_efficiency_limits(const sim_profile *p, double *least, double *most)
{
    *least = 0;
    *most = INFINITY;
    for (int c = SIM_CONVOLUTION_FORWARD; c <= SIM_OPTIMIZER; c++)
        for (int i = 0; i < 2 && sim_profile_has(p, (sim_constant)c); i++) {
            *least = fmax(*least, sim_constant_table[c].least / p->values[c][i]);
            *most = fmin(*most, sim_constant_table[c].most / p->values[c][i]);
        }
}

/* ---- topology: nodes are named in its links --------------------------------------------------- */

enum { MOST_PARALLEL = 64 };

const char *const sim_node_names[SIM_NODE_KINDS] = {[SIM_NODE_GPU] = "gpu",
                                                    [SIM_NODE_SWITCH] = "switch",
                                                    [SIM_NODE_SOCKET] = "socket",
                                                    [SIM_NODE_NVSWITCH] = "nvswitch",
                                                    [SIM_NODE_NIC] = "nic"};
const char *const sim_link_names[] = {
    [SIM_LINK_PCIE] = "pcie", [SIM_LINK_NVLINK] = "nvlink", [SIM_LINK_SOCKET] = "socket"};
const sim_constant sim_link_rates[] = {
    [SIM_LINK_PCIE] = SIM_PCIE, [SIM_LINK_NVLINK] = SIM_NVLINK, [SIM_LINK_SOCKET] = SIM_SOCKET_LINK};
enum { LINK_KINDS = sizeof sim_link_names / sizeof sim_link_names[0] };

int sim_wiring_node(sim_wiring *w, sim_node_kind kind, int index)
{
    for (int i = 0; i < w->node_count; i++)
        if (w->nodes[i].kind == kind && w->nodes[i].index == index) return i;
    if (w->node_count == SIM_NODES_MOST) return -1;
    w->nodes[w->node_count] = (sim_node){kind, index};
    w->counts[kind]++;
    return w->node_count++;
}

/* Finds the node with a name such as "gpu3", or adds it. */
static status find_node(const profile_file *f, sim_wiring *w, const char *name, int *out)
{
    size_t letters = 0;
    while (name && isalpha((unsigned char)name[letters])) letters++;
    int kind = 0;
    while (kind < SIM_NODE_KINDS && (!name || strlen(sim_node_names[kind]) != letters ||
                                     strncmp(sim_node_names[kind], name, letters) != 0))
        kind++;
    char *end = NULL;
    long index = kind < SIM_NODE_KINDS ? strtol(name + letters, &end, 10) : -1;
    if (index < 0 || index >= SIM_NODES_MOST || *end || !isdigit((unsigned char)name[letters]))
        return profile_bad(f, "topology: expected gpuN, switchN, socketN, nvswitchN or nicN, got '%s'",
                           name ? name : "");
    *out = sim_wiring_node(w, (sim_node_kind)kind, (int)index);
    if (*out >= 0) return STATUS_OK;
    return profile_bad(f, "topology: expected at most %d nodes", SIM_NODES_MOST);
}

/* Reads a link, which is ["gpu0", "switch0", "pcie"] or ["gpu0", "switch0", "pcie", N] with N parallel
 * links. */
static status read_link(const profile_file *f, sim_wiring *w, const json_t *json)
{
    size_t size = json_array_size(json);
    if (size != 3 && size != 4)
        return profile_bad(
            f, "topology: expected [from, to, kind] or [from, to, kind, count], got a link of %zu parts",
            size);
    sim_link *link = &w->links[w->link_count];
    const char *kind = json_string_value(json_array_get(json, 2));
    int k = 0;
    while (k < LINK_KINDS && (!kind || strcmp(kind, sim_link_names[k]) != 0)) k++;
    if (k == LINK_KINDS)
        return profile_bad(f, "topology: expected a link of kind pcie, nvlink or socket, got '%s'",
                           kind ? kind : "");
    link->kind = (sim_link_kind)k;
    TRY(find_node(f, w, json_string_value(json_array_get(json, 0)), &link->a));
    TRY(find_node(f, w, json_string_value(json_array_get(json, 1)), &link->b));
    if (link->a == link->b)
        return profile_bad(f, "topology: expected links between two nodes, got one from a node to itself");
    const json_t *count = json_array_get(json, 3);
    link->count = count ? (int)json_integer_value(count) : 1;
    if (link->count < 1 || link->count > MOST_PARALLEL)
        return profile_bad(f, "topology: expected 1 to %d parallel links, got %d", MOST_PARALLEL,
                           link->count);
    w->link_count++;
    return STATUS_OK;
}

/* Checks that the nodes of each kind are numbered from 0 without gaps, and that every GPU and adapter has a
 * path to socket 0. */
static status check_nodes(const profile_file *f, const sim_wiring *w)
{
    for (int i = 0; i < w->node_count; i++) {
        int count = w->counts[w->nodes[i].kind];
        if (w->nodes[i].index >= count)
            return profile_bad(f, "topology: expected nodes numbered from 0, got %s%d among %d of its kind",
                               sim_node_names[w->nodes[i].kind], w->nodes[i].index, count);
    }
    if (w->gpus == 0 || w->sockets == 0)
        return profile_bad(f, "topology: expected a GPU and a socket at least");
    if (w->gpus > SIM_GPUS_MOST || w->nics > SIM_NICS_MOST)
        return profile_bad(f, "topology: expected at most %d GPUs and %d adapters, got %d and %d",
                           SIM_GPUS_MOST, SIM_NICS_MOST, w->gpus, w->nics);
    if (w->machines > 1 && w->nics == 0)
        return profile_bad(f, "topology: expected 1 machine where there is no nic, got %d", w->machines);
    unsigned char reached[SIM_NODES_MOST] = {0};
    for (int i = 0; i < w->node_count; i++)
        reached[i] = w->nodes[i].kind == SIM_NODE_SOCKET && w->nodes[i].index == 0;
    for (int round = 0; round < w->node_count; round++)
        for (int l = 0; l < w->link_count; l++) {
            const sim_link *link = &w->links[l];
            if (link->kind != SIM_LINK_NVLINK && (reached[link->a] || reached[link->b]))
                reached[link->a] = reached[link->b] = 1;
        }
    for (int i = 0; i < w->node_count; i++)
        if (!reached[i] && w->nodes[i].kind != SIM_NODE_NVSWITCH)
            return profile_bad(f, "topology: %s%d has no path to socket0", sim_node_names[w->nodes[i].kind],
                               w->nodes[i].index);
    return STATUS_OK;
}

status profile_read_wiring(const profile_file *f, sim_profile *p)
{
    static const char *const keys[] = {"machines", "peer_access", "links", "source"};
    const json_t *json = json_object_get(f->root, "topology");
    if (!json) return STATUS_OK;
    sim_wiring *w = &p->wiring;
    if (!json_is_object(json)) return profile_bad(f, "topology: expected an object");
    TRY(profile_check_keys(f, "topology", json, keys, sizeof keys / sizeof keys[0]));
    const json_t *links = json_object_get(json, "links");
    const char *source = json_string_value(json_object_get(json, "source"));
    json_int_t machines = json_integer_value(json_object_get(json, "machines"));
    if (!source) return profile_bad(f, "topology: the source is missing");
    if (machines < 1 || machines > SIM_MACHINES_MOST)
        return profile_bad(f, "topology: expected 1 to %d machines, got %lld", SIM_MACHINES_MOST,
                           (long long)machines);
    if (!json_is_boolean(json_object_get(json, "peer_access")))
        return profile_bad(f, "topology: expected peer_access to be true or false");
    if (json_array_size(links) < 1 || json_array_size(links) > SIM_LINKS_MOST)
        return profile_bad(f, "topology: expected 1 to %d links, got %zu", SIM_LINKS_MOST,
                           json_array_size(links));
    *w = (sim_wiring){.machines = (int)machines,
                      .peer_access = json_is_true(json_object_get(json, "peer_access")),
                      .source = source};
    for (size_t i = 0; i < json_array_size(links); i++) TRY(read_link(f, w, json_array_get(links, i)));
    return check_nodes(f, w);
}

/* ---- constants -------------------------------------------------------------------------------- */

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
    return profile_bad(f, "constants: expected the name of a constant, got '%s'%s%s%s", name,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
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
    double value = json_number_value(json);
    char limits[SIM_LIMITS_LENGTH];
    bool is_text = json_is_string(json); /* "10Gbit/s" */
    if (is_text && text_parse_in_unit(info->name, json_string_value(json), info->unit, &value) != STATUS_OK) {
        error_clear();
        is_text = false;
    }
    if (!json_is_number(json) && !is_text)
        return profile_bad(f, "%s: expected a number from %s", info->name, sim_limits_text(info, limits));
    if (!(value >= info->least && value <= info->most))
        return profile_bad(f, "%s: expected %s, got %g", info->name, sim_limits_text(info, limits), value);
    *out = value;
    return STATUS_OK;
}

static status read_values(const profile_file *f, sim_constant c, const json_t *value, double *out)
{
    const sim_constant_info *info = &sim_constant_table[c];
    if (info->count == 1) return read_value(f, info, value, out);
    if ((int)json_array_size(value) != info->count)
        return profile_bad(f, "%s: expected an array of %d values, got %zu", info->name, info->count,
                           json_array_size(value));
    for (int i = 0; i < info->count; i++) TRY(read_value(f, info, json_array_get(value, (size_t)i), &out[i]));
    return STATUS_OK;
}

static status read_range(const profile_file *f, sim_constant c, const json_t *range, sim_profile *p)
{
    const char *name = sim_constant_table[c].name;
    const double *value = p->values[c];
    double *low = p->low[c], *high = p->high[c];
    memcpy(low, value, sizeof p->low[c]);
    memcpy(high, value, sizeof p->high[c]);
    if (!range) return STATUS_OK;
    if (json_array_size(range) != 2) return profile_bad(f, "%s: expected a range as [low, high]", name);
    TRY(read_values(f, c, json_array_get(range, 0), low));
    TRY(read_values(f, c, json_array_get(range, 1), high));
    for (int i = 0; i < sim_constant_table[c].count; i++)
        if (!(low[i] <= value[i] && value[i] <= high[i]))
            return profile_bad(f, "%s: expected a range around %g, got %g to %g", name, value[i], low[i],
                               high[i]);
    return STATUS_OK;
}

static status read_constant(const profile_file *f, const char *name, const json_t *entry, sim_profile *p)
{
    static const char *const keys[] = {"value", "range", "range_is", "unit", "tag", "source"};
    sim_constant c;
    TRY(find_constant(f, name, &c));
    if (!json_is_object(entry))
        return profile_bad(f, "%s: expected an object with value, unit, tag, source", name);
    TRY(profile_check_keys(f, name, entry, keys, sizeof keys / sizeof keys[0]));
    TRY(read_values(f, c, json_object_get(entry, "value"), p->values[c]));
    TRY(read_range(f, c, json_object_get(entry, "range"), p));
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
    const char *range_is = json_string_value(json_object_get(entry, "range_is"));
    bool sourced = range_is && strcmp(range_is, "source") == 0;
    if (json_object_get(entry, "range_is") && !sourced && !(range_is && strcmp(range_is, "guess") == 0))
        return profile_bad(f, "%s: range_is: expected source or guess, got '%s'", name,
                           range_is ? range_is : "");
    p->provenance[c] = (sim_provenance){tag, source, f->name, !sourced};
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
    for (int c = 0; c < SIM_CONSTANT_COUNT; c++)
        if (sim_constant_table[c].needed) TRY(need(f, p, (sim_constant)c, ""));
    const sim_wiring *w = &p->wiring;
    for (int i = 0; i < w->link_count; i++)
        TRY(need(f, p, sim_link_rates[w->links[i].kind], ", and the topology has links of this kind"));
    if (w->nics == 0) return STATUS_OK;
    TRY(need(f, p, SIM_NIC, ", and the topology has network adapters"));
    return need(f, p, SIM_NETWORK_LATENCY, ", and the topology has network adapters");
}
