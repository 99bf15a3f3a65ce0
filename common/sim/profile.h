/* Profiles: what a machine is, as data. A profile is a JSON file of constants, each with its unit, source and
 * tag, and a topology; docs/simulation.md describes the format.
 *
 *   datasheet           the manufacturer's
 *   published           measured or used by others, and where
 *   calibrated on ...   fitted here, and to what
 *   assumed             a guess, and its reason
 *
 * A constant may have a range, [low, high] around its value: what it may be as far as its sources say,
 * `range_is` "source", or as far as somebody guessed, "guess" (where it does not say, too). Without one it is
 * taken to be exact. Predictions are made with the values, their limits with draws from the ranges (draw.c).
 *
 * A profile may extend another (`base`) and replace some of its constants. Loading is strict:
 * STATUS_DATA for an unknown key, and for a constant that is missing, absurd or in another unit. */
#ifndef COMMON_SIM_PROFILE_H
#define COMMON_SIM_PROFILE_H

#include "common/base/status.h"
#include "common/sim/constants.h"

#include <stdbool.h>
#include <stddef.h>

#define SIM_DEFAULT_PROFILE "v100-pcie-32g"

typedef struct sim_provenance {
    const char *tag, *source; /* NULL: the constant is absent */
    const char *from;         /* the profile in whose file it stands */
    bool guessed;             /* an end of its range, if it has one, is a guess */
} sim_provenance;

enum { SIM_NODES_MOST = 64, SIM_GPUS_MOST = 16, SIM_NICS_MOST = 32, SIM_LINKS_MOST = 256 }; /* of a machine */
enum { SIM_BASES_MOST = 4 };

typedef enum sim_node_kind {
    SIM_NODE_GPU,
    SIM_NODE_SWITCH,
    SIM_NODE_SOCKET,
    SIM_NODE_NVSWITCH,
    SIM_NODE_NIC,
    SIM_NODE_KINDS
} sim_node_kind;

extern const char *const sim_node_names[SIM_NODE_KINDS]; /* "gpu" */

typedef struct sim_node {
    sim_node_kind kind;
    int index; /* among those of its kind */
} sim_node;

typedef enum sim_link_kind { SIM_LINK_PCIE, SIM_LINK_NVLINK, SIM_LINK_SOCKET } sim_link_kind;

/* Both directions of a connection; `count` parallel links. */
typedef struct sim_link {
    int a, b; /* nodes */
    sim_link_kind kind;
    int count;
} sim_link;

/* One machine, and how many of them there can be. Socket s has a memory of its own. */
typedef struct sim_wiring {
    int machines; /* at most */
    union {
        struct {
            int gpus, switches, sockets, nvswitches, nics;
        };
        int counts[SIM_NODE_KINDS];
    };
    bool peer_access; /* GPUs copy to each other; else by way of the host's memory */
    sim_node nodes[SIM_NODES_MOST];
    int node_count;
    sim_link links[SIM_LINKS_MOST];
    int link_count;
    const char *source;
} sim_wiring;

/* Its texts are those of its files, which it keeps. */
typedef struct sim_profile {
    const char *name, *summary;
    char *asked, *file;                       /* the name or file by which it was loaded; the file */
    struct json_t *files[SIM_BASES_MOST + 1]; /* its own and its bases' */
    double values[SIM_CONSTANT_COUNT][SIM_VALUES_MOST];
    double low[SIM_CONSTANT_COUNT][SIM_VALUES_MOST],
        high[SIM_CONSTANT_COUNT][SIM_VALUES_MOST]; /* the range */
    sim_provenance provenance[SIM_CONSTANT_COUNT];
    sim_wiring wiring;
} sim_profile;

/* By name, from the folders of profiles, or by file where `name` has a '/' or ends in .json. STATUS_USAGE: no
 * such profile; names those there are. */
status sim_profile_load(const char *name, sim_profile **out);
void sim_profile_free(sim_profile **profile);

/* Where a user's own profiles lie: $XDG_DATA_HOME/psring/profiles, or below ~/.local/share. STATUS_CONFIG
 * where there is no home. */
status sim_profile_user_folder(char *path, size_t size);

/* Names of all profiles that can be opened, sorted; free with sim_profile_free_names. */
status sim_profile_list(char ***names, size_t *count);
void sim_profile_free_names(char **names, size_t count);

static inline bool sim_profile_has(const sim_profile *p, sim_constant c)
{
    return p->provenance[c].tag != NULL;
}

static inline double sim_profile_at(const sim_profile *p, sim_constant c, int index)
{
    return p->values[c][index];
}

static inline double sim_profile_get(const sim_profile *p, sim_constant c)
{
    return sim_profile_at(p, c, 0);
}

/* ---- draw.c ---- */

enum { SIM_DRAWS = 16 };

/* Replaces every value by draw number `draw` of 1 to SIM_DRAWS from its range; 0 leaves them alone. The draws
 * are a Latin hypercube (McKay, Beckman, Conover, Technometrics 1979): each constant takes SIM_DRAWS
 * positions from the low end of its range to the high one, once each, in an order of its own. All values of a
 * constant have one position, and so have all efficiencies: what is unknown of them is how well a library
 * uses the GPU. Positions are functions of the constant's name, so all figures of a draw have the same
 * constants, and their ratios mean something. */
void sim_profile_draw(sim_profile *p, int draw);

static inline bool sim_profile_has_range(const sim_profile *p, sim_constant c)
{
    return sim_profile_has(p, c) && p->low[c][0] < p->high[c][0];
}

#endif
