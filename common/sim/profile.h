/* A profile describes machines. It is a JSON file that contains constants and a topology. Each constant has a
 * unit, a source and a tag. docs/simulation.md describes the format. The tags are:
 *
 *   datasheet           given by the manufacturer
 *   published           measured or used by others, whom the source names
 *   calibrated on ...   fitted by this project to the named data
 *   assumed             a guess; the source gives the reason
 *
 * A constant may have a range, [low, high], which contains the value. `range_is` is "source" if the sources
 * of the constant give the range, and "guess", the default, if the range is a guess. A constant without a
 * range counts as exact. Predictions are computed from the values. The limits of a prediction are computed
 * from values that are drawn from the ranges (draw.c).
 *
 * A profile may extend another profile (`base`) and replace some constants of the base. sim_profile_load()
 * fails with STATUS_DATA if a key is unknown, or if a constant is missing, is outside of its limits, or has a
 * wrong unit. */
#ifndef COMMON_SIM_PROFILE_H
#define COMMON_SIM_PROFILE_H

#include "common/base/status.h"
#include "common/sim/constants.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_DEFAULT_PROFILE "v100-pcie-32g"

typedef struct sim_provenance {
    const char *tag, *source; /* NULL if the constant is absent */
    const char *from;         /* name of the profile whose file contains the constant */
    /* true if the range is a guess; false if the constant's sources give the range */
    bool guessed;
} sim_provenance;

enum { SIM_NODES_MOST = 80, SIM_GPUS_MOST = 16, SIM_NICS_MOST = 32, SIM_LINKS_MOST = 256 }; /* per machine */
enum { SIM_BASES_MOST = 4, SIM_MACHINES_MOST = 65536 };

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
    int index; /* index among nodes of the same kind */
} sim_node;

typedef enum sim_link_kind { SIM_LINK_PCIE, SIM_LINK_NVLINK, SIM_LINK_SOCKET } sim_link_kind;
extern const char *const sim_link_names[];  /* "pcie" */
extern const sim_constant sim_link_rates[]; /* constant that has the rate of a link of each kind */

/* A connection of two nodes in both directions, which consists of `count` parallel links. */
typedef struct sim_link {
    int a, b; /* indices of the two nodes */
    sim_link_kind kind;
    int count;
} sim_link;

/* The nodes and links of one machine, and the largest number of machines. Each socket has a memory. */
typedef struct sim_wiring {
    int machines;
    union {
        struct {
            int gpus, switches, sockets, nvswitches, nics;
        };
        int counts[SIM_NODE_KINDS];
    };
    /* true if GPUs can copy directly to each other; if false, they copy through host memory */
    bool peer_access;
    /* Total rate of the adapters of all machines over the rate of the core of the network that connects the
     * machines. If the ratio is at most 1, the network never limits a flow. */
    double oversubscription;
    sim_node nodes[SIM_NODES_MOST];
    int node_count;
    sim_link links[SIM_LINKS_MOST];
    int link_count;
    const char *source;
} sim_wiring;

/* Finds a node, or adds it. Returns its index in `nodes`, or -1 if there is no room. */
int sim_wiring_node(sim_wiring *w, sim_node_kind kind, int index);

/* The options from which a wiring was composed (cluster.h). */
typedef struct sim_composed {
    const char *ready;      /* name of the profile that has the constants, or NULL if nothing was composed */
    int64_t gpus, adapters; /* numbers per machine, or 0 if not given */
    bool nvlink;
    int nvlinks;          /* NVLinks of GPU 0 */
    const char *topology; /* file of `nvidia-smi topo -m`, or NULL */
    bool adapters_known;  /* true if the profile or the file has adapters */
    bool pairs_guessed;   /* true if the file does not say which GPUs share a PCIe switch */
} sim_composed;

/* A loaded profile. The texts are owned by the JSON objects in `files`. */
typedef struct sim_profile {
    const char *name, *summary;
    char *asked, *file;                       /* name or file that was requested, and file that was loaded */
    char gpu[64];                             /* GPU in the name of a composed profile */
    struct json_t *files[SIM_BASES_MOST + 2]; /* the chain of bases, then any-cluster */
    double values[SIM_CONSTANT_COUNT][SIM_VALUES_MOST];
    double low[SIM_CONSTANT_COUNT][SIM_VALUES_MOST], high[SIM_CONSTANT_COUNT][SIM_VALUES_MOST];
    sim_provenance provenance[SIM_CONSTANT_COUNT];
    sim_wiring wiring;
    sim_composed composed;
} sim_profile;

/* Loads a profile by name from the folders of profiles, or from a file if `name` has a '/' or ends in .json.
 * Composes a profile if `name` is a GPU and a wiring (cluster.h). Returns STATUS_USAGE if the profile does
 * not exist. The error message lists the existing names. */
status sim_profile_load(const char *name, sim_profile **out);
void sim_profile_free(sim_profile **profile);

/* Writes the path of the folder for a user's profiles: $XDG_DATA_HOME/psring/profiles, or
 * ~/.local/share/psring/profiles. Returns STATUS_CONFIG if there is no home folder. */
status sim_profile_user_folder(char *path, size_t size);

/* Lists the names of all profiles that can be opened, sorted. sim_profile_free_names() frees the names. */
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

/* Writes the limits of a constant and its unit, such as "0.01 to 1000 GB/s" or "1 to 3". Returns `out`. */
enum { SIM_LIMITS_LENGTH = 64 };
char *sim_limits_text(const sim_constant_info *info, char out[SIM_LIMITS_LENGTH]);

/* Sets the least and the largest factor by which all efficiencies can be multiplied. */
void sim_efficiency_limits(const sim_profile *p, double *least, double *most);

/* ---- draw.c ---- */

enum { SIM_DRAWS = 16 };

/* Replaces every value by a value from its range. `draw` is the number of the draw, from 1 to SIM_DRAWS. If
 * `draw` is 0, changes nothing.
 *
 * The draws are a Latin hypercube (McKay, Beckman, Conover, Technometrics 1979). Position 0 is the low end of
 * a constant's range, position 0.5 is the value, and position 1 is the high end. Each of the SIM_DRAWS draws
 * uses a different position of the constant. Which draw uses which position depends on the name of the
 * constant. All values of a constant have the same position. All efficiencies have the same position, too,
 * because they all depend on how well a library uses the GPU. All predictions of a draw use the same
 * constants, so ratios of these predictions are meaningful. */
void sim_profile_draw(sim_profile *p, int draw);
/* Returns the value of a constant in a draw, if its value is `best` and its range is low to high. */
double sim_draw_between(const char *name, int draw, double low, double best, double high);

/* Removes all network adapters but the first `count` of each machine. Does nothing if `count` is 0. Returns
 * STATUS_CONFIG if the profile has fewer adapters. */
status sim_profile_keep_adapters(sim_profile *p, int count);

static inline bool sim_profile_has_range(const sim_profile *p, sim_constant c)
{
    return sim_profile_has(p, c) && p->low[c][0] < p->high[c][0];
}

#endif
