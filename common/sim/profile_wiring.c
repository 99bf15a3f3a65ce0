/* The topology of a profile: nodes are named in its links. */
#include "common/sim/profile_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINKS = 256, MOST_PARALLEL = 64, MOST_MACHINES = 65536 };

static const struct {
    const char *prefix;
    sim_node_kind kind;
} node_names[] = {{"gpu", SIM_NODE_GPU},
                  {"switch", SIM_NODE_SWITCH},
                  {"socket", SIM_NODE_SOCKET},
                  {"nvswitch", SIM_NODE_NVSWITCH},
                  {"nic", SIM_NODE_NIC}};
static const char *const link_names[] = {
    [SIM_LINK_PCIE] = "pcie", [SIM_LINK_NVLINK] = "nvlink", [SIM_LINK_SOCKET] = "socket"};
enum {
    NODE_KINDS = sizeof node_names / sizeof node_names[0],
    LINK_KINDS = sizeof link_names / sizeof link_names[0]
};

static int *counter_of(sim_wiring *w, sim_node_kind kind)
{
    int *const counters[] = {[SIM_NODE_GPU] = &w->gpus,
                             [SIM_NODE_SWITCH] = &w->switches,
                             [SIM_NODE_SOCKET] = &w->sockets,
                             [SIM_NODE_NVSWITCH] = &w->nvswitches,
                             [SIM_NODE_NIC] = &w->nics};
    return counters[kind];
}

/* "gpu3": the node of that name, which is made if it is new. */
static status find_node(const profile_file *f, sim_wiring *w, const char *name, int *out)
{
    size_t letters = 0;
    while (name && isalpha((unsigned char)name[letters])) letters++;
    int kind = 0;
    while (kind < NODE_KINDS && (!name || strlen(node_names[kind].prefix) != letters ||
                                 strncmp(node_names[kind].prefix, name, letters) != 0))
        kind++;
    char *end = NULL;
    long index = kind < NODE_KINDS ? strtol(name + letters, &end, 10) : -1;
    if (index < 0 || index >= SIM_NODES_MOST || *end || !isdigit((unsigned char)name[letters]))
        return profile_bad(f, "topology: expected gpuN, switchN, socketN, nvswitchN or nicN, got '%s'",
                           name ? name : "");
    for (int i = 0; i < w->node_count; i++) {
        if (w->nodes[i].kind != node_names[kind].kind || w->nodes[i].index != index) continue;
        *out = i;
        return STATUS_OK;
    }
    if (w->node_count == SIM_NODES_MOST)
        return profile_bad(f, "topology: expected at most %d nodes", SIM_NODES_MOST);
    w->nodes[w->node_count] = (sim_node){node_names[kind].kind, (int)index};
    ++*counter_of(w, node_names[kind].kind);
    *out = w->node_count++;
    return STATUS_OK;
}

/* ["gpu0", "switch0", "pcie"], or with a number of parallel links behind it. */
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
    while (k < LINK_KINDS && (!kind || strcmp(kind, link_names[k]) != 0)) k++;
    if (k == LINK_KINDS)
        return profile_bad(f, "topology: expected a link of kind pcie, nvlink or socket, got '%s'",
                           kind ? kind : "");
    link->kind = (sim_link_kind)k;
    TRY(find_node(f, w, json_string_value(json_array_get(json, 0)), &link->a));
    TRY(find_node(f, w, json_string_value(json_array_get(json, 1)), &link->b));
    if (link->a == link->b) return profile_bad(f, "topology: expected links between two nodes, got one from a node to itself");
    const json_t *count = json_array_get(json, 3);
    link->count = count ? (int)json_integer_value(count) : 1;
    if (link->count < 1 || link->count > MOST_PARALLEL)
        return profile_bad(f, "topology: expected 1 to %d parallel links, got %d", MOST_PARALLEL,
                           link->count);
    w->link_count++;
    return STATUS_OK;
}

/* Names of each kind count from 0, and every GPU and adapter reaches a socket. */
static status check_nodes(const profile_file *f, const sim_wiring *w)
{
    for (int i = 0; i < w->node_count; i++) {
        sim_wiring copy = *w;
        int count = *counter_of(&copy, w->nodes[i].kind);
        if (w->nodes[i].index >= count)
            return profile_bad(f, "topology: expected nodes numbered from 0, got %s%d among %d of its kind",
                               node_names[w->nodes[i].kind].prefix, w->nodes[i].index, count);
    }
    if (w->gpus == 0 || w->sockets == 0) return profile_bad(f, "topology: expected a GPU and a socket at least");
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
            return profile_bad(f, "topology: %s%d has no way to socket0", node_names[w->nodes[i].kind].prefix,
                               w->nodes[i].index);
    return STATUS_OK;
}

status profile_read_wiring(const profile_file *f, sim_profile *p)
{
    static const char *const keys[] = {"machines", "peer_access", "links", "source"};
    const json_t *json = json_object_get(f->root, "topology");
    if (!json) return STATUS_OK;
    sim_wiring *w = &p->wiring;
    profile_free_wiring(w);
    if (!json_is_object(json)) return profile_bad(f, "topology: expected an object");
    TRY(profile_check_keys(f, "topology", json, keys, sizeof keys / sizeof keys[0]));
    const json_t *links = json_object_get(json, "links");
    const char *source = json_string_value(json_object_get(json, "source"));
    json_int_t machines = json_integer_value(json_object_get(json, "machines"));
    if (!source) return profile_bad(f, "topology: the source is missing");
    if (machines < 1 || machines > MOST_MACHINES)
        return profile_bad(f, "topology: expected 1 to %d machines, got %lld", MOST_MACHINES,
                           (long long)machines);
    if (!json_is_boolean(json_object_get(json, "peer_access")))
        return profile_bad(f, "topology: expected peer_access to be true or false");
    if (json_array_size(links) < 1 || json_array_size(links) > MOST_LINKS)
        return profile_bad(f, "topology: expected 1 to %d links, got %zu", MOST_LINKS,
                           json_array_size(links));
    *w = (sim_wiring){.machines = (int)machines,
                      .peer_access = json_is_true(json_object_get(json, "peer_access"))};
    w->nodes = calloc(SIM_NODES_MOST, sizeof *w->nodes);
    w->links = calloc(json_array_size(links), sizeof *w->links);
    w->source = strdup(source);
    if (!w->nodes || !w->links || !w->source) return fail(STATUS_SYSTEM, "no memory for profile %s", f->name);
    for (size_t i = 0; i < json_array_size(links); i++) TRY(read_link(f, w, json_array_get(links, i)));
    return check_nodes(f, w);
}

void profile_free_wiring(sim_wiring *w)
{
    free(w->nodes);
    free(w->links);
    free(w->source);
    *w = (sim_wiring){0};
}
