#include "common/sim/cluster.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const sim_gpu_names[SIM_GPU_NAMES] = {"a100", "a100-80g",  "h100", "h200",     "k80",
                                                  "p100", "titan-rtx", "v100", "v100-pcie"};
static const char *const profiles[SIM_GPU_NAMES] = {"dgx-a100-40g", "dgx-a100-80g",      "dgx-h100",
                                                    "hgx-h200",     "gce-k80",           "dgx1-p100",
                                                    "titan-rtx-x2", "dgx1-v100-4xib100", "v100-pcie-32g"};
enum { SWITCH_GPUS = 2, SOCKETS = 2 };

/* ---- names ---------------------------------------------------------------------------------------- */

const char *sim_cluster_wiring(const char *name)
{
    size_t length = strcspn(name, ":/");
    return name[length] == ':' && access(name, F_OK) != 0 ? name + length + 1 : NULL;
}

const char *sim_cluster_profile(const char *gpu)
{
    for (int i = 0; i < SIM_GPU_NAMES; i++)
        if (strcmp(sim_gpu_names[i], gpu) == 0) return profiles[i];
    return gpu;
}

static status parse(const char *text, sim_composed *o)
{
    const char *file = strstr(text, "topology=");
    if (file) o->topology = file + strlen("topology=");
    while (*text && text != file) {
        char key[64];
        text_next_word(&text, ',', key, sizeof key);
        o->nvlink = o->nvlink || strcmp(key, "nvlink") == 0;
        if (strncmp(key, "per-host=", 9) == 0)
            TRY(text_parse_int("--per-host", key + 9, 1, SIM_GPUS_MOST, &o->gpus));
        else if (strncmp(key, "adapters=", 9) == 0)
            TRY(text_parse_int("--adapters", key + 9, 1, SIM_NICS_MOST, &o->adapters));
        else if (strcmp(key, "nvlink") != 0 && strcmp(key, "pcie") != 0)
            return fail(STATUS_USAGE,
                        "profile: expected nvlink, pcie, per-host=N, adapters=N or topology=FILE, got '%s'",
                        key);
    }
    return o->topology && (o->gpus || o->nvlink)
               ? fail(STATUS_USAGE, "--topology: unexpected with --per-host or --nvlink")
               : STATUS_OK;
}

/* ---- wirings -------------------------------------------------------------------------------------- */

/* Sets the NVLinks of a host as in the wiring of a ready profile. Returns the number of links of a GPU. */
static int read_nvlinks(const sim_wiring *ready, sim_host *h)
{
    int links = 0;
    for (int l = 0; l < ready->link_count; l++) {
        const sim_link *link = &ready->links[l];
        int a = ready->nodes[link->a].index, b = ready->nodes[link->b].index;
        if (link->kind != SIM_LINK_NVLINK) continue;
        links += a == 0 ? link->count : 0;
        if (ready->nvswitches)
            h->to_nvswitch = link->count;
        else
            h->nvlinks[a][b] = link->count;
    }
    return links;
}

/* Wires a host in the usual way. */
static void spread(sim_host *h)
{
    int switches = h->gpus > SWITCH_GPUS ? (h->gpus + 1) / SWITCH_GPUS : 0;
    for (int i = 0; i < h->gpus + h->adapters; i++) {
        int s = i < h->gpus ? i / SWITCH_GPUS : (i - h->gpus) * switches / h->adapters;
        h->pcie_switch[i] = switches ? s : -1;
        h->socket[i] = switches ? s * SOCKETS / switches : 0;
    }
}

static void add_link(sim_wiring *w, sim_node a, sim_node b, sim_link_kind kind, int count)
{
    int from = sim_wiring_node(w, a.kind, a.index), to = sim_wiring_node(w, b.kind, b.index);
    w->links[w->link_count++] = (sim_link){from, to, kind, count};
}

static void link_up(sim_wiring *w, sim_node device, int pcie_switch, int socket)
{
    sim_node up =
        pcie_switch >= 0 ? (sim_node){SIM_NODE_SWITCH, pcie_switch} : (sim_node){SIM_NODE_SOCKET, socket};
    add_link(w, device, up, SIM_LINK_PCIE, 1);
}

/* Adds the nodes and links of a host. Links are in the order of the ready profiles, because paths of equal
 * cost depend on the order. Adapters are numbered by their switches. If an adapter shares a switch with a
 * GPU, adapters without a switch are left out, because they are for storage. */
static void wire(const sim_host *h, sim_wiring *w)
{
    int switches = 0, sockets = 1, nic = 0, first = -1;
    for (int i = 0; i < h->gpus; i++)
        link_up(w, (sim_node){SIM_NODE_GPU, i}, h->pcie_switch[i], h->socket[i]);
    for (int i = 0; i < h->gpus; i++) {
        if (h->pcie_switch[i] == switches)
            link_up(w, (sim_node){SIM_NODE_SWITCH, switches++}, -1, h->socket[i]);
        if (h->socket[i] > 0) sockets = SOCKETS;
    }
    if (sockets == SOCKETS)
        add_link(w, (sim_node){SIM_NODE_SOCKET, 0}, (sim_node){SIM_NODE_SOCKET, 1}, SIM_LINK_SOCKET, 1);
    for (int i = h->gpus; i < h->gpus + h->adapters; i++)
        if (h->pcie_switch[i] >= 0) first = 0;
    for (int s = first; s < switches; s++)
        for (int i = h->gpus; i < h->gpus + h->adapters; i++)
            if (h->pcie_switch[i] == s)
                link_up(w, (sim_node){SIM_NODE_NIC, nic++}, s, h->socket[i] % sockets);
    for (int a = 0; a < h->gpus; a++) {
        sim_node gpu = {SIM_NODE_GPU, a};
        if (h->to_nvswitch)
            add_link(w, gpu, (sim_node){SIM_NODE_NVSWITCH, 0}, SIM_LINK_NVLINK, h->to_nvswitch);
        for (int b = a + 1; b < h->gpus; b++)
            if (h->nvlinks[a][b])
                add_link(w, gpu, (sim_node){SIM_NODE_GPU, b}, SIM_LINK_NVLINK, h->nvlinks[a][b]);
    }
}

/* Chooses a host from the options. `h` has the NVLinks of the ready profile, which are `nvlinks` per GPU. */
static status choose_host(const sim_profile *p, int nvlinks, sim_host *h)
{
    const sim_composed *o = &p->composed;
    int most = h->to_nvswitch ? SIM_GPUS_MOST : nvlinks ? p->wiring.gpus : 0;
    h->gpus = o->gpus ? (int)o->gpus : p->wiring.gpus;
    if (o->nvlink && h->gpus > most)
        return fail(STATUS_CONFIG, "--nvlink: expected at most %d GPUs per host, as in profile %s, got %d",
                    most, p->name, h->gpus);
    if (!o->nvlink) *h = (sim_host){.gpus = h->gpus};
    h->adapters = o->adapters ? (int)o->adapters : p->wiring.nics < h->gpus ? p->wiring.nics : h->gpus;
    if (h->adapters == 0) h->adapters = 1;
    spread(h);
    return STATUS_OK;
}

status sim_cluster_compose(sim_profile *p, const char *wiring)
{
    sim_composed *o = &p->composed;
    sim_host h = {0};
    int nvlinks = read_nvlinks(&p->wiring, &h);
    TRY(parse(wiring, o));
    TRY(o->topology ? sim_topology_file_read(o->topology, nvlinks, &h, &o->pairs_guessed)
                    : choose_host(p, nvlinks, &h));
    o->adapters_known = o->topology ? h.adapters > 0 : p->wiring.nics > 0;
    if (h.adapters == 0) h.adapters = o->adapters ? (int)o->adapters : 1; /* on socket 0 */
    p->wiring = (sim_wiring){.machines = SIM_MACHINES_MOST,
                             .peer_access = p->wiring.peer_access,
                             .oversubscription = 1,
                             .source = "the name of the profile"};
    wire(&h, &p->wiring);
    o->nvlinks = read_nvlinks(&p->wiring, &h);
    o->ready = p->name;
    p->summary = "a composed cluster";
    p->name = p->asked;
    return sim_profile_keep_adapters(p, (int)o->adapters);
}

/* ---- describing ----------------------------------------------------------------------------------- */

/* Appends where a number of the wiring is from, and a constant with its source. The part of the source about
 * the range is left out. */
static void append_sources(const sim_profile *p, bool given, bool is_known, sim_constant c, text_buffer *out)
{
    const sim_composed *o = &p->composed;
    const sim_provenance *from = &p->provenance[c];
    const char *range = strstr(from->source, "; range:"), *tag = from->tag;
    if (strcmp(tag, "assumed") == 0) tag = strcmp(from->from, "command line") == 0 ? "given" : "guessed";
    text_append(out, " (%s%s), %g %s (%s: %.*s)",
                given         ? "given"
                : !is_known   ? "guessed"
                : o->topology ? "measured: "
                              : "published: profile ",
                given || !is_known ? ""
                : o->topology      ? o->topology
                                   : o->ready,
                sim_profile_get(p, c), sim_constant_table[c].unit, tag,
                range ? (int)(range - from->source) : 1000, from->source);
}

void sim_cluster_describe(const sim_profile *p, text_buffer *out)
{
    const sim_composed *o = &p->composed;
    const sim_wiring *w = &p->wiring;
    if (o->ready) {
        text_append(out,
                    "\n  GPU: %d per host, with the constants of profile %s\n  PCIe: %d switches, %d sockets",
                    w->gpus, o->ready, w->switches, w->sockets);
        append_sources(p, false, o->topology && !o->pairs_guessed, SIM_PCIE, out);
        text_append(out, "\n  NVLink: %d per GPU", o->nvlinks);
        if (o->nvlinks) append_sources(p, false, true, SIM_NVLINK, out);
        text_append(out, "\n  adapters: %d per host", w->nics);
        append_sources(p, o->adapters > 0, o->adapters_known, SIM_NIC, out);
    }
    if (!o->ready && w->oversubscription <= 1) return;
    text_append(out, "\n  network: its core carries 1/%g of the adapters' rate", w->oversubscription);
    append_sources(p, w->oversubscription > 1, false, SIM_NETWORK_LATENCY, out);
}
