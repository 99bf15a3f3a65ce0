/* Composes the profile of a cluster from the constants of a GPU and a wiring. The name of the profile is the
 * name of the GPU, a colon, and the wiring:
 *
 *     h100:nvlink,per-host=8,adapters=8       eight H100 per host, with NVLink
 *     h100:pcie                               as many H100 as in the ready profile, without NVLink
 *     a100:topology=FILE                      the wiring that `nvidia-smi topo -m` has printed
 *
 * `topology` is the last key, because its value is the rest of the name. The constants are from the ready
 * profile of the GPU. A GPU that is not in the list may be the name of any profile.
 *
 * Without a file the wiring is a guess. It is the usual wiring: two GPUs per PCIe switch, the switches and
 * the adapters spread evenly, and NVLinks as in the ready profile. For the number of GPUs and adapters of a
 * ready profile with switches it equals the wiring of that profile. */
#ifndef COMMON_SIM_CLUSTER_H
#define COMMON_SIM_CLUSTER_H

#include "common/base/text.h"
#include "common/sim/profile.h"

/* Returns the part of a profile's name that describes the wiring, or NULL if the name is of a ready profile
 * or of a file. */
const char *sim_cluster_wiring(const char *name);

/* Returns the name of the profile that has the constants of the GPU, which is `gpu` if the GPU is not in the
 * list. */
const char *sim_cluster_profile(const char *gpu);

/* The GPUs in the list. */
enum { SIM_GPU_NAMES = 9 };
extern const char *const sim_gpu_names[SIM_GPU_NAMES];

/* Replaces the wiring of a loaded profile. Fails with STATUS_USAGE if `wiring` is wrong, with STATUS_CONFIG
 * if the GPU has other NVLinks, and with STATUS_DATA if the file is wrong. */
status sim_cluster_compose(sim_profile *p, const char *wiring);

/* Appends lines that say how the machines are wired, and which facts are given, measured, published or
 * guessed. Appends nothing if the profile is a ready one. */
void sim_cluster_describe(const sim_profile *p, text_buffer *out);

/* ---- topology_file.c ---- */

enum { SIM_DEVICES_MOST = SIM_GPUS_MOST + SIM_NICS_MOST };

/* The GPUs of a host, followed by its adapters. */
typedef struct sim_host {
    int gpus, adapters;
    int pcie_switch[SIM_DEVICES_MOST];         /* number of the PCIe switch of each device, or -1 */
    int socket[SIM_DEVICES_MOST];              /* socket of each device, 0 or 1 */
    int nvlinks[SIM_GPUS_MOST][SIM_GPUS_MOST]; /* NVLinks between two GPUs */
    int to_nvswitch;                           /* NVLinks of each GPU to an NVSwitch, or 0 */
} sim_host;

/* Reads the output of `nvidia-smi topo -m`. `nvlinks` is the number of NVLinks that a GPU has. Sets *paired
 * if the file does not say which GPUs share a PCIe switch, so that pairs are a guess. Fails with STATUS_DATA.
 */
status sim_topology_file_read(const char *path, int nvlinks, sim_host *host, bool *paired);

#endif
